"""Checks of the files of the built site, which need no browser."""

import re
from html.parser import HTMLParser
from pathlib import Path
from posixpath import join, normpath
from urllib.parse import unquote

from ..stage import ROOT
from .report import Row, place


class Page(HTMLParser):
    """What a page refers to: anchors, links, pictures, and what browsers load."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__()
        self.path = path  # of the folder, as browsers see it
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        found = dict(attrs)
        self.ids |= {x for x in (found.get("id"), found.get("name")) if x}
        if tag == "a" and (link := found.get("href")):
            self.links.append(link)
        if tag == "img":
            self.pictures.append(found)
        loads = tag in ("img", "script", "iframe", "source", "object", "video")
        source = found.get("src") or found.get("data") if loads else None
        icons = ("stylesheet", "icon", "preload", "modulepreload", "preconnect")
        source = found.get("href") if found.get("rel") in icons else source
        self.loaded += [source] if source else []


def pages(site: Path) -> dict[str, Page]:
    """The pages by their paths; the one for missing pages has links of its own."""
    found = {}
    for file in sorted(site.rglob("*.html")):
        path = file.relative_to(site).as_posix().removesuffix("index.html")
        if path != "404.html":
            found[path] = Page(path, file.read_text())
    return found


def source_of(path: str, sources: dict[str, str]) -> str:
    """The source of a built page; its staged page if a generator wrote it."""
    staged = [f"{path.rstrip('/')}.md", f"{path}index.md"] if path else ["index.md"]
    return next((sources[x] for x in staged if x in sources), staged[0])


def in_files(site: Path, sources: dict[str, str]) -> list[Row]:
    found = pages(site)
    where = lambda page, needle: located(source_of(page.path, sources), needle)
    links, pictures, foreign = [], [], []
    count = 0
    for page in found.values():
        for link in page.links:
            count += 1
            if leads_nowhere(link, page, found, site):
                needle = link.rpartition("#")[2] or link.rstrip("/").rpartition("/")[2]
                links.append(f"{where(page, needle)}: `{link}` leads nowhere")
        for picture in page.pictures:
            source = picture.get("src") or ""
            told = where(page, source.rpartition("/")[2])
            if not picture.get("alt"):
                pictures.append(f"{told}: the picture `{source}` has no text")
            if leads_nowhere(source, page, found, site):
                pictures.append(f"{told}: there is no picture `{source}`")
        away = [x for x in page.loaded if is_away(x)]
        foreign += [f"{where(page, x)}: loads {x}" for x in away]
    for style in site.rglob("*.css"):
        away = re.findall(r"url\(['\"]?((?:https?:)?//[^)]+)", style.read_text())
        foreign += [f"{style.relative_to(site)}:1: loads {x}" for x in away]
    return [
        Row("links and anchors", count, links),
        Row("pictures", sum(len(x.pictures) for x in found.values()), pictures),
        Row(
            "loads from other hosts",
            sum(len(x.loaded) for x in found.values()),
            foreign,
        ),
    ]


def located(source: str, needle: str) -> str:
    file = ROOT / source
    return place(source, needle, file.read_text() if file.is_file() else "")


def is_away(address: str) -> bool:
    return bool(re.match(r"(?:\w+:)?//", address))


def leads_nowhere(link: str, page: Page, found: dict[str, Page], site: Path) -> bool:
    """Whether a link to a place of the site has no target."""
    if is_away(link) or re.match(r"(mailto|data|javascript):", link):
        return False
    path, _, anchor = unquote(link).partition("#")
    path = path.partition("?")[0]
    target = normpath(join("/", page.path if page.path else "", path)).lstrip("/")
    target = "" if target == "." else target
    file = site / target
    if file.is_file() and file.suffix != ".html":
        return False
    key = f"{target}/" if target and not target.endswith(".html") else target
    key = page.path if not path else key
    return key not in found or bool(anchor) and anchor not in found[key].ids
