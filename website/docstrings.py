"""Docstrings of Stepax as Markdown.

Lists of arguments become tables, formulas stay as written, and public names between
backticks become links; a name that looks like one of Stepax, and is none, is a mistake.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from .names import Name, find, parameters


ROOT = Path(__file__).parents[1]

ARGUMENT = re.compile(r"(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*):\s+(?P<said>.*)")
NEXT_FIELD = re.compile(r"\.  (?=\w+(?:, \w+)*: )")
TICKS = re.compile(r"`([^`]+)`")


def markdown(text: str, name: Name, known: set[str], wrong: dict[str, str]) -> str:
    """A docstring as Markdown; `wrong` takes the names that do not exist."""
    write = lambda part: linked(escape(part), name, known, wrong)
    what = "argument" if parameters(name.value) and not is_tuple(name) else "field"
    blocks = (block(x, known, what, write) for x in paragraphs(text))
    return "\n\n".join("\n".join(lines) for lines in blocks)


def paragraphs(text: str) -> Iterator[list[str]]:
    """Runs of lines between empty ones."""
    found: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line:
            found.append(line)
        elif found:
            yield found
            found = []


def block(
    lines: list[str], known: set[str], what: str, write: Callable[[str], str]
) -> list[str]:
    """A paragraph as Markdown: an example, a formula, or prose and then arguments."""
    if lines[0].startswith(">>> "):
        return ["```pycon", *lines, "```"]
    if all(line.startswith("    ") for line in lines) or is_formula(lines):
        return formula(inspect.cleandoc("\n" + "\n".join(lines)), write)
    table: list[tuple[str, str]] = []
    prose: list[str] = []
    for line in lines:
        found = [f for x in NEXT_FIELD.split(line) if (f := argument(x, known))]
        if found:
            table += found
        elif table:
            table[-1] = (table[-1][0], f"{table[-1][1]} {line.strip()}")
        else:
            prose.append(line)
    text = [write(line) for line in prose]
    if not table:
        return text
    rows = [f"| {code(k)} | {write(said)} |" for k, said in table]
    text += [""] if text else []
    return [*text, f"| {what} | meaning |", "| --- | --- |", *rows]


def formula(text: str, write: Callable[[str], str]) -> list[str]:
    """A formula as written; links for the names in it follow, as code holds none."""
    named = dict.fromkeys(write(f"`{x}`") for x in TICKS.findall(text))
    links = ", ".join(x for x in named if x.startswith("["))
    lines = ["```text", *text.splitlines(), "```"]
    return [*lines, "", f"See {links}."] if links else lines


def is_tuple(name: Name) -> bool:
    return isinstance(name.value, type) and issubclass(name.value, tuple)


def is_formula(lines: list[str]) -> bool:
    """Whether each line is an equation, as in `value(0) = I`."""
    return all(re.match(r"[\w(), ]+ = ", line) for line in lines)


def argument(line: str, known: set[str]) -> tuple[str, str] | None:
    """The names and the explanation, if it is a line of a list of arguments."""
    found = ARGUMENT.fullmatch(line)
    if not found or line.startswith(" "):
        return None
    names = [x.lstrip("*") for x in found["names"].split(", ")]
    return (found["names"], found["said"]) if set(names) <= known else None


def code(names: str) -> str:
    return ", ".join(f"`{x}`" for x in names.split(", "))


def escape(text: str) -> str:
    """Prose of a docstring, of which Markdown shall not read more than backticks."""

    def plain(part: str) -> str:
        marks = {"&": "&amp;", "<": "&lt;", "*": "\\*", "_": "\\_", "|": "\\|"}
        marks |= {"[": "&#91;", "$": "&#36;"}
        return "".join(marks.get(x, x) for x in part)

    parts = re.split(r"(`[^`]+`)", text)
    in_code = lambda part: part.replace("|", "\\|")
    return "".join(in_code(x) if x[:1] == "`" and x[1:] else plain(x) for x in parts)


def linked(text: str, name: Name, known: set[str], wrong: dict[str, str]) -> str:
    """The text, with links for the names of Stepax between backticks."""

    def link(found: re.Match[str]) -> str:
        written = found[1]
        if written in known:
            return found[0]
        if (ROOT / written).suffix == ".md" and (ROOT / written).is_file():
            return f"[{written}](../{written.removeprefix('docs/')})"
        try:
            home = find(written, name.module)
        except LookupError as error:
            wrong[written] = str(error)
            return found[0]
        if home is None or home == name:
            return found[0]
        return f"[{found[0]}][{home if isinstance(home, str) else home.path}]"

    return TICKS.sub(link, text)
