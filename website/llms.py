"""`llms.txt`, one line for each page, and `llms-full.txt`, the text of most of them.

The latter leaves out measurements and history, by which nobody writes a program.  It
ends with name, signature and docstring of each public name.  See
https://llmstxt.org for the form of the former.
"""

import re
from pathlib import Path

import yaml

from .extension import read, signature


CONFIG = Path(__file__).parents[1] / "mkdocs.yml"
# What the full text leaves out: measurements, and pages for developers.
MEASURED = {"Evidence", "leaderboard.md", "minimize-benchmark.md", "gpt.md"}
# Links from names to the reference, which are at the end of the full text.
NAMED = re.compile(r"\[(`[^`\]]+`)\]\(reference/[^)]*\)")
LEFT_OUT = MEASURED | {"changelog.md", "contributing.md", "mistakes.md", "recipes.md"}


def write(folder: Path, sources: dict[str, str]) -> None:
    config = yaml.safe_load(CONFIG.read_text())
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    full = []
    for title, pages in sections(config["nav"]):
        lines += [f"## {title}", ""]
        for name, page in pages:
            text = (folder / page).read_text()
            place = re.sub(r"(index)?\.md$", "", page).rstrip("/") or "."
            lines.append(f"- [{name}]({place}/): {summary(text)}")
            if page in sources and not LEFT_OUT & {title, page}:
                full += [NAMED.sub(r"\1", text).rstrip(), ""]
        lines.append("")
    (folder / "llms.txt").write_text("\n".join(lines))
    (folder / "llms-full.txt").write_text("\n".join([*full, *names()]) + "\n")


def sections(nav: list) -> list[tuple[str, list[tuple[str, str]]]]:
    """The navigation as titles with pages; one alone is a section of its own."""
    found = []
    for entry in nav:
        ((title, pages),) = entry.items()
        pages = [{title: pages}] if isinstance(pages, str) else pages
        found.append((title, [x for page in pages for x in _pages(page)]))
    return found


def _pages(entry: dict) -> list[tuple[str, str]]:
    """The pages of an entry of the navigation, those of its groups included."""
    ((title, place),) = entry.items()
    if isinstance(place, str):
        return [(title, place)]
    return [x for inner in place for x in _pages(inner)]


def summary(text: str) -> str:
    """The first sentence below the title, without links."""
    body = re.sub(r"\A(---\n.*?\n---\n+)?#[^\n]*\n+", "", text, flags=re.DOTALL)
    line = next((x for x in body.splitlines() if re.match(r"[\w`\[(*]", x)), "")
    line = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)
    sentence = line.split(". ")[0].rstrip(".:")
    return sentence if sentence.endswith("?") else f"{sentence}."


def names() -> list[str]:
    """Each public name with its signature and docstring, as they are in the files."""
    lines = ["# Names", ""]
    for path, thing in read()[0].items():
        if not thing.is_module:
            lines += [signature(path, thing), thing.extra["stepax"].get("help", ""), ""]
    return lines
