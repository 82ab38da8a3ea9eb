"""Makes the built site smaller, by a third, without a change that a reader sees.

Templates of the builder are indented, and its highlighting marks each bracket; what it
searches has the tables and signatures of the reference in HTML.
"""

import io
import json
import re
from pathlib import Path

from PIL import Image


# Within these each space counts.
KEPT = re.compile(r"(<(pre|script|textarea|style)\b.*?</\2>)", re.DOTALL)
# Names and brackets: all that is not a keyword, a string, a number or a comment.
UNCOLOURED = re.compile(r'<span(?: class="(?:n|o|p|w|bp|nn)")?>([^<]*)</span>')
# What no style asks for: of links, which say what they show, and of blocks.
UNUSED = re.compile(
    r' class="autorefs autorefs-internal"(?: title="[^"]*")?'
    r'| class="doc doc-(?:object |heading|children)[^"]*"'
    r"|(?<=\")doc-signature (?=highlight)"
)
# An entry of a list of pages or headings that is plain text.
ENTRY = re.compile(
    r'\n<span class="md-ellipsis">\n(?:<span class="md-typeset">\n)?([^<]*)\n'
    r"(?:</span>\n)?</span>\n</a>"
)
# The theme's script for the colours, the same on each page.
PALETTE = re.compile(r"<script>(var palette=.*?)</script>", re.DOTALL)
HEADER = '<span class="md-ellipsis">\nStepax'
SIGNATURE = re.compile(r"<pre>.*?</pre>", re.DOTALL)
TABLE = re.compile(r"\b(?:argument|field) meaning .*?(?=<p>|$)", re.DOTALL)
CODE = re.compile(r"<code>(.*?)</code>")
COLOURS = 128  # of a plot of lines, with those between them and the ground
# HTML needs none of these, as nothing but the next of its kind can follow.
OPTIONAL = re.compile(r"\n?</(?:li|td|th|tr|tbody)>\n?(?=<(?:/|li|td|th|tr|tbody))")
BLOCKS = "div|ul|ol|nav|p|h[1-6]|table|thead|article|section|header|footer|main|label"
BETWEEN = re.compile(rf"(</?(?:{BLOCKS})(?: [^>]*)?>)\n(?=<)")


def compact(site: Path, version: str) -> None:
    """Squeeze all files of a built site; its header names the version."""
    for page in site.rglob("*.html"):
        text = with_one_palette(squeezed(page.read_text()), page, site)
        page.write_text(text.replace(f"{HEADER}\n", f"{HEADER} {version}\n", 1))
    used = "\n".join(page.read_text() for page in site.glob("*.html"))
    for style in site.glob("assets/stylesheets/*/*.css"):
        if style.name not in used:  # of the theme's other variant
            style.unlink()
    for picture in site.rglob("*.png"):
        flatten(picture)
    index = site / "search.json"
    index.write_text(searched(index.read_text()))


def with_one_palette(text: str, page: Path, site: Path) -> str:
    """The page, with its script for the colours in a file that all pages share."""
    up = "../" * (len(page.relative_to(site).parts) - 1)
    found = PALETTE.search(text)
    if not found or page.name == "404.html":  # which is shown at any address
        return text
    (site / "assets" / "palette.js").write_text(found[1])
    return text.replace(found[0], f'<script src="{up}assets/palette.js"></script>')


def flatten(picture: Path) -> None:
    """Give a plot a palette, which is a third of its size."""
    with Image.open(picture) as image:
        flat = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small = io.BytesIO()
    flat.save(small, "PNG", optimize=True)
    if len(small.getvalue()) < picture.stat().st_size:
        picture.write_bytes(small.getvalue())


def squeezed(page: str) -> str:
    """The page, with one line break for each run of space that has one."""
    parts = KEPT.split(page)  # in turn: what may shrink, what is kept, and its tag
    plain = lambda part: short(re.sub(r"\s*\n\s*", "\n", part))
    page = "".join(
        UNCOLOURED.sub(r"\1", x) if i % 3 else plain(x)
        for i, x in enumerate(parts)
        if i % 3 != 2
    )
    page = UNUSED.sub("", page.replace(' title="Permanent link"', ""))
    return ENTRY.sub(r'<span class="md-ellipsis">\1</span></a>', page)


def short(part: str) -> str:
    """HTML without line breaks and closing tags that mean nothing."""
    return BETWEEN.sub(r"\1", OPTIONAL.sub("", part))


def searched(index: str) -> str:
    """The search index, with names alone of the tables of the reference."""
    found = json.loads(index)
    lists = ("#all-names", "#explained-elsewhere")  # they would answer any question
    found["items"] = [x for x in found["items"] if not x["location"].endswith(lists)]
    for item in found["items"]:
        if item["location"].startswith("reference/"):
            text = SIGNATURE.sub("", item["text"])
            names = lambda table: " ".join(dict.fromkeys(CODE.findall(table[0])))
            item["text"] = re.sub(r"\s+", " ", TABLE.sub(names, text))
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))
