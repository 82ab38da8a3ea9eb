"""Builds the staged pages into a site, strictly."""

import os
import re
import shutil
import subprocess
import sys

import stepax

from .compact import compact
from .sizes import Figure, seconds, sizes
from .stage import FOLDER, ROOT, processor_seconds, stage


SITE = ROOT / ".cache" / "site"
CONFIG = ROOT / "mkdocs.yml"

PLACE = re.compile(r"\[ (\S+?)((?::\d+)+) \]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def build() -> tuple[dict[str, str], list[Figure]]:
    """Stage the pages and build the site; returns their sources, and what it measured.

    It exits and says what is wrong, and where.
    """
    spent: dict[str, float] = {}
    started = processor_seconds()
    sources = stage(spent=spent)
    wrong = [*unlisted(sources), *stale_figures()]
    said = run_builder()
    if said or wrong:
        raise SystemExit("\n".join([*wrong, readable(said, sources)]).strip())
    compact(SITE, stepax.__version__)
    count = len(list(SITE.rglob("*.html")))
    spent["builder"] = processor_seconds() - started - sum(spent.values())
    figures = [*seconds(spent), *sizes(SITE)]
    print(f"built {count} pages into {SITE.relative_to(ROOT)}")
    for figure in figures:
        print(f"  {figure.what}: {figure}")
    return sources, figures


def run_builder() -> str:
    """Build the staged pages; returns what is wrong, as the builder says it."""
    shutil.rmtree(SITE, ignore_errors=True)
    for cached in CONFIG.parent.glob(".cache/*"):
        # The builder keeps pages here by their text; a docstring may have changed.
        if cached.name.isdecimal():
            cached.unlink()
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(CONFIG)]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(command, env=env, text=True, capture_output=True)
    return done.stdout + done.stderr if done.returncode else ""


def unlisted(sources: dict[str, str]) -> list[str]:
    """The pages of `docs` without a line in the navigation."""
    listed = set(re.findall(r"[\w./-]+\.md\b", CONFIG.read_text()))
    said = "{}:1: the page has no line in `nav` of mkdocs.yml"
    pages = ((k, x) for k, x in sources.items() if x.startswith("docs/"))
    return sorted(said.format(x) for k, x in pages if k not in listed)


def stale_figures() -> list[str]:
    """Figures that are not what their evidence says, or that have none."""
    from benchmarks.board import pages, probes, results

    from .tables import figures, user_reports

    board = pages.wrong(results.read(probes=probes.probes()))
    return [*board, *user_reports.wrong(), *figures.wrong()]


def readable(said: str, sources: dict[str, str]) -> str:
    """What the builder says, without colours, and with the sources of the pages."""

    def place(found: re.Match[str]) -> str:
        page = found[1].removeprefix(f"{FOLDER}/")
        return f"{sources.get(page, page)}{found[2]}"

    said = PLACE.sub(place, COLOUR.sub("", said))
    return said.partition("Traceback (most recent call last)")[0].strip()
