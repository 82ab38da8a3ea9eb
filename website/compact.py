"""Makes the built site smaller, by half, without a change that a reader sees.

`minify_html` drops what HTML does not need.  The rest is known here alone: what the
theme repeats on each page, how a plot is best stored, and what nobody searches for.
"""

import io
import json
import re
from pathlib import Path

import minify_html
from PIL import Image

from .synonyms import NAMES, SYNONYMS


# Names and brackets: all that is not a keyword, a string, a number or a comment.
UNCOLOURED = re.compile(r'<span(?: class="(?:n|o|p|w|bp|nn)")?>([^<]*)</span>')
# What no style asks for: of links, which say what they show, and of blocks.
UNUSED = re.compile(
    r' class="autorefs autorefs-internal"(?: title="[^"]*")?'
    r'| class="doc doc-(?:object |heading|children)[^"]*"'
    r"|(?<=\")doc-signature (?=highlight)"
    r'| title="Permanent link"'
)
# The headings of a page for screens that the theme of today shows them on in a column.
ACTIVE = re.compile(r'<label class="md-nav__link md-nav__link--active" for="__toc">')
CONTENTS = re.compile(r"<(/?)nav\b[^>]*>")
# The theme's scripts, the same on each page but for where the site begins.
SCOPE = re.compile(r"<script>(__md_scope=)(new URL\([^,]*,location\))(.*?)</script>")
PALETTE = re.compile(r"<script>(var palette=.*?)</script>", re.DOTALL)
SETTINGS = re.compile(r'<script id="__config"[^>]*>(.*?)</script>', re.DOTALL)
# What templates of the theme indent, and what it wraps around a heading.
INDENTED = re.compile(r"(?<=>)\s*\n\s*|\s*\n\s*(?=<)")
HEADING = re.compile(r'<span class="md-typeset">([^<]*)</span>')
HEADER = re.compile(r'(<span class="md-ellipsis">\s*Stepax)\b')
# Cards are not in the navigation, which would grow by all of them on each of them.
SIDEBAR = re.compile(
    r'<div class="md-sidebar md-sidebar--primary".*?'
    r'(?=<div class="md-sidebar md-sidebar--secondary")',
    re.DOTALL,
)
SIGNATURE = re.compile(r"<pre>.*?</pre>", re.DOTALL)
TABLE = re.compile(r"\b(?:argument|field) meaning .*?(?=<p>|$)", re.DOTALL)
# What is said of most names: its tier, a call, where else it is.
OF_MOST = re.compile(
    r"May change\.\s*|Example: <code>.*?</code>\.\s*|Also (?:<code>.*?</code>,? ?)+\."
)
METHOD = re.compile(r"^reference/.*\.([A-Z]\w*)\.\w+$")
CODE = re.compile(r"<code>(.*?)</code>")
# Pages of which a search finds the beginnings.
BEGINNING = re.compile(
    "(cards|bench|leaderboard|contributing|diagnose|distributed|distributed_matrices|"
    "goals|gpt|interop|matrices|memory|mistakes|recipes|solving)/"
)
# Of these a search finds the page, and after all others: they are evidence.
MEASURED = re.compile("(evidence/.*|minimize-benchmark|references|user_reports)/")
# What ties are shown in: guides first, then names, and states last.
ORDER = ("cards/", "reference/", "reference/states/")
FIGURES = re.compile(r"(?:[-±×≥]?\d[\d.,e-]*(?: [×%])?\s+){3,}")  # rows of tables
# What the page for missing pages says; it is shown at any address.
LOST = (
    "<p>There is no such page. Search for a name or a word, or begin with one of "
    'these:</p><ul><li><a href="/">Home</a></li><li><a href="/start/">Ten minutes</a>'
    '</li><li><a href="/how/">How do I …?</a></li><li><a href="/gallery/">Gallery</a>'
    '</li><li><a href="/reference/">All names, by subject</a></li><li><a '
    'href="/faq/">Questions and errors</a></li></ul>'
)
COLOURS = 128  # of a plot of lines, with those between them and the ground


def compact(site: Path, version: str) -> None:
    """Squeeze all files of a built site; its header names the version."""
    sidebar = SIDEBAR.search((site / "cards" / "index.html").read_text())
    for page in site.rglob("*.html"):
        text = HEADER.sub(rf"\1 {version}", page.read_text(), count=1)
        if page.name == "404.html":
            text = text.replace("</h1>", f"</h1>{LOST}", 1)
        if page.parent.parent == site / "cards" and sidebar:
            text = SIDEBAR.sub(lambda _: below(sidebar[0]), text, count=1)
        page.write_text(squeezed(with_shared_script(text, page, site)))
    used = "\n".join(page.read_text() for page in site.glob("*.html"))
    for style in site.glob("assets/stylesheets/*/*.css"):
        if style.name not in used:  # of the theme's other variant
            style.unlink()
    for picture in site.rglob("*.png"):
        flatten(picture)
    index = site / "search.json"
    index.write_text(searched(index.read_text()))


def below(links: str) -> str:
    """Relative links of a page, for a page one folder below it."""
    return re.sub(r'(?<=href=")(?=\.)', "../", links)


def with_shared_script(text: str, page: Path, site: Path) -> str:
    """The page, with the theme's scripts in a file that all pages share."""
    found = [x.search(text) for x in (SCOPE, PALETTE, SETTINGS)]
    if None in found or page.name == "404.html":  # which is shown at any address
        return text
    scope, palette, settings = found
    up = "../" * (len(page.relative_to(site).parts) - 1)
    values = json.loads(settings[1])
    script = f"""{{
const site = new URL("..", document.currentScript.src);
{scope[1]}site{scope[3]};
{palette[1]};
const values = {json.dumps(values)};
values.base = site.href;
values.search = new URL({json.dumps(values["search"].removeprefix(up))}, site).href;
const textContent = JSON.stringify(values);
const kind = {{ id: "__config", type: "application/json", textContent }};
document.head.append(Object.assign(document.createElement("script"), kind));
}}
"""
    (site / "assets" / "frame.js").write_text(script)
    text = text.replace(scope[0], "").replace(settings[0], "")
    return text.replace(palette[0], f'<script src="{up}assets/frame.js"></script>')


def flatten(picture: Path) -> None:
    """Give a plot a palette, which is a third of its size."""
    with Image.open(picture) as image:
        flat = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small = io.BytesIO()
    flat.save(small, "PNG", optimize=True)
    if len(small.getvalue()) < picture.stat().st_size:
        picture.write_bytes(small.getvalue())


def squeezed(page: str) -> str:
    """The page, with the headings once, and without what means nothing."""
    page = UNUSED.sub("", UNCOLOURED.sub(r"\1", with_headings_once(page)))
    frame, article, text = page.partition("<article")
    page = HEADING.sub(r"\1", INDENTED.sub("", frame)) + article + text
    return minify_html.minify(page, keep_closing_tags=False)


def with_headings_once(page: str) -> str:
    """The page without its headings among the pages, where no screen shows them."""
    label = ACTIVE.search(page)
    if not label:
        return page
    link = page.index("</label>", label.end()) + len("</label>")
    depth, start = 0, None
    for tag in CONTENTS.finditer(page, link):
        start = tag.start() if start is None else start
        depth += -1 if tag[1] else 1
        if not depth:
            return page[: label.start()] + page[link:start] + page[tag.end() :]
    return page


def searched(index: str) -> str:
    """The search index without figures.

    Of the reference's tables it has the names, and of a card what the optimizer does;
    of long guides and of what developers read the first paragraph of each section, of
    mistakes what they are, without the programs that make them, and of evidence the
    first paragraph of all.
    """
    found = json.loads(index)
    # The lists of names and of changes would answer any question.
    left_out = re.compile(
        rf"reference/#|(cards/.*|changelog/|{MEASURED.pattern})#"
    ).match
    items = [x for x in found["items"] if not left_out(x["location"])]
    found["items"] = sorted(items, key=lambda x: place(x["location"]))
    for item in found["items"]:
        text = FIGURES.sub(" ", item["text"])
        if BEGINNING.match(item["location"]) or MEASURED.match(item["location"]):
            text = text.partition("</p>")[0]
        if item["location"].startswith("mistakes/#"):
            text = SIGNATURE.sub("", text)
        if item["location"].startswith("reference/"):
            text = OF_MOST.sub("", text)
            names = lambda table: " ".join(dict.fromkeys(CODE.findall(table[0])))
            text = re.sub(r"\s+", " ", TABLE.sub(names, SIGNATURE.sub("", text)))
            item["path"] = item.get("path", [])[:1]  # a guide is to match as often
        also = SYNONYMS.get(item["location"])
        item["text"] = text + f"<p>{also}</p>" if also else text
        if title := titled(item):
            item["title"] = title
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def titled(item: dict) -> str | None:
    """Another title for a result: it comes after one with a searched word in front."""
    location = item["location"]
    if location.startswith("mistakes/#"):
        return f"Mistake: {item['title']}"
    if location.startswith("reference/states/#"):
        return f"class {item['title']}"
    if method := METHOD.search(location):
        return f"Method of {method[1]}: {item['title']}"
    return f"{item['title']}: {NAMES[location]}" if location in NAMES else None


def place(location: str) -> int:
    """Where a part of the site stands in the index: the search shows ties in order."""
    if MEASURED.match(location):
        return len(ORDER) + 1
    return max((i for i, x in enumerate(ORDER, 1) if location.startswith(x)), default=0)
