"""Checks of the site in Chromium: each page as it is shown, and what a user does."""

import os
import re
import shutil
from pathlib import Path

from ..build import SITE
from ..serve import in_background
from ..stage import ROOT
from .actions import actions
from .files import located, source_of
from .report import Row


SCREENSHOTS = ROOT / ".cache" / "site-screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1300, "height": 900}

# One page of each kind; `{}` is for pages that are not there yet.
KINDS = {
    "home": "",
    "page": "minimize/",
    "formulas": "cards/adamw/",
    "reference": "reference/parts/",
    "table": "cards/",
    "moving": "moving/",
    "choose": "which/",
    "leaderboard": "leaderboard/",
    "errors": "faq/",
    "gallery": "gallery/",
    "schedules": "schedules/",
    "guide": "masks/",
    "compares": "from_optax/",
    "measured": "bench/",
}

LOOK = """() => {
  const SKIP = "code, pre, script, style, .katex, template";
  const text = (node) => node.nodeType === 3 ? node.data : node.nodeType !== 1 ? "" :
    node.matches(SKIP) ? "" : [...node.childNodes].map(text).join("");
  const wide = [...document.querySelectorAll("article *")].filter(
    (x) => x.getBoundingClientRect().right > innerWidth + 1 && !x.closest(
      "pre, .md-typeset__scrollwrap, .md-typeset__table, .katex, .arithmatex"));
  return {
    width: document.documentElement.scrollWidth,
    wide: wide.slice(0, 1).map((x) => x.outerHTML.slice(0, 80)),
    formulas: document.querySelectorAll(".arithmatex").length,
    typeset: document.querySelectorAll(".arithmatex .katex").length,
    mistakes: document.querySelectorAll(".katex-error").length,
    raw: (text(document.querySelector("article") || document.body)
      .match(/\\\\[([]|\\$\\$/g) || []).length,
    // Text blocks wrap, cells show all of their text, and first columns stay in sight;
    // the padding of code at the end of a line may hang out.
    cut: [...document.querySelectorAll(
        "article :is(pre > code:not(:has(span)), p, li, td, th)")]
      .filter((x) => x.scrollWidth > x.clientWidth + 8 && x.clientWidth > 0 &&
        getComputedStyle(x).display !== "inline" &&
        !x.querySelector("pre, .katex, svg"))
      .map((x) => x.textContent.trim().slice(0, 60)).slice(0, 2),
    tables: [...document.querySelectorAll("article table")].filter((x) =>
        x.offsetWidth > 1 + (x.closest(".md-typeset__scrollwrap") || x.parentElement)
          .clientWidth).map((x) => x.rows[0].textContent.trim().slice(0, 60)),
    lost: [...document.querySelectorAll("article table:not([data-compares], .stacked)")]
      .map((x) => x.rows[0]?.cells[0])
      .filter((x) => x && getComputedStyle(x).position !== "sticky").length,
    broken: [...document.images].filter(
      (x) => x.complete && !x.naturalWidth).map((x) => x.src),
  };
}"""


def chromium() -> str | None:
    """The browser to use, or `None` if there is none; exits if a named one is not."""
    named = os.environ.get("CHROMIUM")
    if named and not shutil.which(named):
        raise SystemExit(f"CHROMIUM={named} is no program")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


def in_browser(path: str, sources: dict[str, str]) -> list[Row]:
    """All checks that need a browser."""
    from playwright.sync_api import sync_playwright

    server = in_background()
    base = f"http://127.0.0.1:{server.server_port}/"
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path)
            rows = [*every_page(browser, base, sources), *actions(browser, base)]
            screenshots(browser, base)
            browser.close()
    finally:
        server.shutdown()
    return rows


def every_page(browser, base: str, sources: dict[str, str]) -> list[Row]:
    """Visit each page on a phone, in light and in dark colours."""
    rows = {
        what: Row(what, 0, [])
        for what in (
            *("errors", "requests", "formulas", "width", "cut text"),
            *("broken pictures", "cut tables"),
        )
    }
    context = browser.new_context(viewport=PHONE, color_scheme="light")
    page = context.new_page()
    heard: list[tuple[str, str]] = []
    listen(page, base, heard)
    paths = sorted(x.parent.relative_to(SITE).as_posix() for x in indices())
    for path in paths:
        path = "" if path == "." else f"{path}/"
        heard.clear()
        page.goto(base + path, wait_until="load")
        if formulas(path):
            page.wait_for_function(
                "!document.querySelector('.arithmatex:not(:has(.katex))')"
            )
        page.emulate_media(color_scheme="dark")
        seen = page.evaluate(LOOK)
        page.emulate_media(color_scheme="light")
        found = [*heard, *judged(seen, path)]
        page.set_viewport_size(DESK)
        wide = page.evaluate(LOOK)
        found += [("cut text", f"on a desk: {x!r}") for x in wide["cut"]]
        found += [("cut tables", f"on a desk: {x!r}") for x in wide["tables"]]
        page.set_viewport_size(PHONE)
        for what, said in found:
            needle = said.rpartition("/")[2]
            source = located(source_of(path, sources), needle)
            rows[what].wrong.append(f"{source}: /{path}: {said}")
    context.close()
    return [row._replace(count=len(paths)) for row in rows.values()]


def indices() -> list[Path]:
    """All pages but those that only lead to another one."""
    found = SITE.rglob("index.html")
    return [x for x in found if "<article" in x.read_text()]


def listen(page, base: str, heard: list[tuple[str, str]]) -> None:
    """Note errors, failed requests, and requests to other hosts."""
    local = lambda url: url.startswith((base, "data:", "blob:"))
    note = lambda what, said: heard.append((what, said))
    on_error = lambda x: note("errors", x.text) if x.type == "error" else None
    page.on("console", on_error)
    page.on("pageerror", lambda x: note("errors", str(x)))
    # One is aborted by going on to the next page, as a user may.
    aborted = lambda x: "ERR_ABORTED" in (x.failure or "")
    failed = lambda x: aborted(x) or note("requests", f"failed: {x.url}")
    page.on("requestfailed", failed)
    bad = lambda x: (
        note("requests", f"{x.status}: {x.url}") if x.status >= 400 else None
    )
    page.on("response", bad)
    away = lambda x: None if local(x.url) else note("requests", f"away: {x.url}")
    page.on("request", away)


def formulas(path: str) -> int:
    """How many there are on a page, as it is stored."""
    text = (SITE / path / "index.html").read_text()
    return len(re.findall(r'class="?arithmatex\b', text))


def judged(seen: dict, path: str) -> list[tuple[str, str]]:
    """What is wrong with a page as it is shown."""
    wanted = formulas(path)
    found = []
    if seen["typeset"] != wanted or seen["formulas"] != wanted or seen["mistakes"]:
        said = f"{seen['typeset']} of {wanted} formulas, {seen['mistakes']} with errors"
        found.append(("formulas", said))
    if seen["raw"]:
        found.append(
            ("formulas", f"{seen['raw']} formulas are left as they are written")
        )
    if seen["width"] > PHONE["width"]:
        what = f"{seen['width']} points wide: {' '.join(seen['wide'])}"
        found.append(("width", what))
    found += [("cut text", f"on a phone: {x!r}") for x in seen["cut"]]
    found += [("cut text", "a table scrolls with its first column")] * seen["lost"]
    found += [("cut tables", f"on a phone: {x!r}") for x in seen["tables"]]
    found += [("broken pictures", x) for x in seen["broken"]]
    return found


def screenshots(browser, base: str) -> None:
    """A picture of each kind of page, for a person to look at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    looks = {"light": DESK, "dark": DESK, "phone": PHONE}
    for look, viewport in looks.items():
        scheme = "dark" if look == "dark" else "light"
        context = browser.new_context(viewport=viewport, color_scheme=scheme)
        page = context.new_page()
        for kind, path in KINDS.items():
            if (SITE / path / "index.html").is_file():
                page.goto(base + path, wait_until="networkidle")
                page.screenshot(path=SCREENSHOTS / f"{kind}-{look}.png")
        context.close()
