"""What a user does on the site: search, switch colours, sort, slide, copy."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..build import SITE
from ..stage import ROOT
from .report import Row


DESK = {"width": 1280, "height": 900}


def actions(browser, base: str) -> list[Row]:
    """Do each of these in a new window, as a new visitor."""
    done: dict[str, Callable] = {
        "palette": palette,
        "ways in": entries,
        "tabs": tabs,
        "search": search,
        "sortable table": sorting,
        "touchable picture": moving,
        "copy": copying,
    }
    rows = []
    for what, action in done.items():
        rights = ["clipboard-read", "clipboard-write"]
        context = browser.new_context(viewport=DESK, permissions=rights)
        try:
            count, wrong = action(context.new_page(), base)
        except Exception as error:  # a time-out, as of a button that is not there
            count, wrong = 1, [str(error).split("\n")[0]]
        rows.append(Row(what, count, wrong))
        context.close()
    return rows


def palette(page, base: str) -> tuple[int, list[str]]:
    """The switch changes the ground, and it stays so after a reload."""
    ground = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    page.goto(base)
    light = page.evaluate(ground)
    page.locator("form[data-md-component=palette] label:visible").click()
    page.wait_for_timeout(500)
    dark = page.evaluate(ground)
    page.reload()
    after = page.evaluate(ground)
    wrong = [] if dark != light else [f"the ground is {light} in both palettes"]
    wrong += [] if after == dark else [f"after a reload it is {after}, not {dark}"]
    page.emulate_media(color_scheme="dark")
    fresh = page.context.browser.new_context(color_scheme="dark")
    other = fresh.new_page()
    other.goto(base)
    if other.evaluate(ground) == light:
        wrong.append("who prefers dark colours is shown light ones")
    fresh.close()
    return 3, wrong


def entries(page, base: str) -> tuple[int, list[str]]:
    """The first page has three entries above the fold."""
    page.goto(base)
    boxes = [x.bounding_box() for x in page.locator(".entries li").all()]
    ends = [x["y"] + x["height"] for x in boxes if x]
    if len(ends) == 3 and max(ends) < DESK["height"]:
        return 3, []
    return 3, [f"docs/index.md:1: its entries end at {ends}"]


def tabs(page, base: str) -> tuple[int, list[str]]:
    """One of two programs is shown, and a click shows the other."""
    page.goto(base)
    shown = lambda: [x.is_visible() for x in page.locator("[data-tab]").all()]
    before = shown()
    page.locator("[role=tab]").last.click()
    if (before, shown()) == ([True, False], [False, True]):
        return 2, []
    return 2, [f"docs/index.md:1: of its tabs were shown {before}, then {shown()}"]


def found(page, base: str, words: str, first: int = 3) -> list[str]:
    """The first places that a search from the first page finds, typed as users do."""
    page.goto(base)
    page.locator(".md-search__button").first.click()
    page.keyboard.type(words, delay=25)
    results = page.locator("a[role=option]")
    page.wait_for_function(TYPED, arg=words)
    results.first.wait_for(timeout=5000)
    page.wait_for_timeout(250)  # each letter replaces the list
    hrefs = [
        results.nth(i).get_attribute("href") for i in range(min(first, results.count()))
    ]
    places = [x.removeprefix(base).partition("?") for x in hrefs if x]
    return [path + "#" + rest.partition("#")[2] for path, _, rest in places]


TYPED = """(words) => [...document.querySelectorAll("*")].some(
  (x) => x.shadowRoot && x.shadowRoot.querySelector("input")?.value === words)"""


SCHEDULES = "reference/schedules/#stepax.schedules"


def search(page, base: str) -> tuple[int, list[str]]:
    """A topic brings its page, and a public name its place in the reference."""
    wrong = []
    wanted = {  # the place, and among how many it has to be
        "weight decay": ("weight_decay/#", 3),
        "adamw": ("cards/adamw/#", 1),
        "cosine_decay_schedule": (f"{SCHEDULES}.cosine_decay_schedule", 1),
        "muon": ("cards/muon/#", 1),
    }
    for words, (place, among) in wanted.items():
        first = found(page, base, words)
        if place not in first[:among]:
            wrong.append(f"`{words}` finds {', '.join(first)}, and not {place}")
    return len(wanted), wrong


def sorting(page, base: str) -> tuple[int, list[str]]:
    """A click on a heading of the table of traits sorts it, another one backwards."""
    if not (SITE / "cards" / "index.html").is_file():
        return 1, ["cards/index.md: there is no table of traits"]
    page.goto(f"{base}cards/")
    headings = page.locator("article table th")
    headings.first.wait_for()
    column = (
        "i => [...document.querySelectorAll('article table tbody tr')].map("
        "x => x.cells[i].textContent.trim())"
    )
    wrong = []
    for i in (0, 1):
        orders = []
        for _ in range(2):
            headings.nth(i).click()
            orders.append(page.evaluate(column, i))
        if orders[0] == orders[1] or sorted(orders[0]) != sorted(orders[1]):
            name = headings.nth(i).inner_text()
            wrong.append(f"cards/index.md: a click on `{name}` does not sort the table")
    return 2, wrong


PIXELS = """() => [...document.querySelectorAll("article canvas")].map(
  (x) => x.toDataURL()).join()"""


def moving(page, base: str) -> tuple[int, list[str]]:
    """The picture is another one after the slider has moved, by mouse and by keys."""
    if not (SITE / "moving" / "index.html").is_file():
        return 1, ["docs/moving.md: there is no page to watch them move"]
    page.goto(f"{base}moving/", wait_until="networkidle")
    slider = page.locator("article input[type=range]").first
    slider.wait_for()
    page.wait_for_timeout(500)
    before = page.evaluate(PIXELS)
    wrong = [] if before else ["docs/moving.md: there is no canvas"]
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(300)
    by_keys = page.evaluate(PIXELS)
    if by_keys == before:
        page.keyboard.press("ArrowLeft")
        page.wait_for_timeout(300)
        by_keys = page.evaluate(PIXELS)
    wrong += ["docs/moving.md: keys do not move it"] if by_keys == before else []
    box = slider.bounding_box()
    page.mouse.click(box["x"] + 0.1 * box["width"], box["y"] + box["height"] / 2)
    page.wait_for_timeout(300)
    low = page.evaluate(PIXELS)
    page.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + box["height"] / 2)
    page.wait_for_timeout(300)
    wrong += (
        ["docs/moving.md: the slider does not"] if page.evaluate(PIXELS) == low else []
    )
    return 2, wrong


def copying(page, base: str) -> tuple[int, list[str]]:
    """The programs of a guide are copied as one script, and it runs."""
    wrong = []
    for path in COPIED:
        page.goto(base + path)
        page.locator(".programs button").first.click()
        page.wait_for_timeout(200)
        copied = page.evaluate("navigator.clipboard.readText()")
        if said := failure(copied):
            wrong.append(f"docs/{path[:-1]}.md:1: what was copied fails: {said}")
    with page.expect_download() as saved:
        page.locator(".programs button").last.click()
    found = json.loads(Path(saved.value.path()).read_text())
    code = [x["source"] for x in found["cells"] if x["cell_type"] == "code"]
    if "import stepax" not in "\n".join(code):
        wrong.append(f"docs/{path[:-1]}.md:1: the notebook has no programs")
    return len(COPIED) + 1, wrong


COPIED = ("start/", "masks/")


def failure(script: str) -> str:
    """The last line that a script says if it fails."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    if "import stepax" not in script:
        return f"no program: {script[:40]!r}"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", script]
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True
        )
    return done.stderr.strip().split("\n")[-1] if done.returncode else ""
