"""The page of questions and errors has the errors that the tests expect most often.

That each error is still worded so is checked where the page is run.
"""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from pages import ROOT


# Errors of the commands, whose users see `--help` and not the page.
COMMANDS = ("_plan", "__main__.py")


def texts(node: ast.AST) -> list[str]:
    """The strings in a tree of syntax; what an f-string fills in is a "…"."""
    found, inside = [], set()
    for x in ast.walk(node):
        if isinstance(x, ast.JoinedStr):
            inside |= {id(part) for part in x.values}
            parts = [getattr(part, "value", "…") for part in x.values]
            found.append("".join(p if isinstance(p, str) else "…" for p in parts))
        elif isinstance(x, ast.Expr):
            inside.add(id(x.value))  # a docstring
        elif isinstance(x, ast.Constant) and isinstance(x.value, str):
            found += [] if id(x) in inside else [x.value]
    return found


def phrases(text: str) -> set[str]:
    """Any three words that follow each other."""
    words = re.findall(r"[A-Za-z_]+|…|[^\s`']", text)
    runs = zip(words, words[1:], words[2:], strict=False)
    return {" ".join(run) for run in runs if re.fullmatch(r"[A-Za-z_]+", "".join(run))}


def makes_error(node: ast.AST) -> bool:
    """Whether this is a function that makes an exception; it may do so in pieces."""
    calls = [x.func for x in ast.walk(node) if isinstance(x, ast.Call)]
    names = [getattr(x, "id", getattr(x, "attr", "")) for x in calls]
    is_function = isinstance(node, ast.FunctionDef)
    return is_function and any(
        x.endswith(("Error", "Mistake", "of_step")) for x in names
    )


@cache
def raised() -> frozenset[str]:
    """The phrases in all messages of Stepax."""
    files = [
        file
        for file in sorted((ROOT / "stepax").rglob("*.py"))
        if not {*file.relative_to(ROOT / "stepax").parts} & {*COMMANDS}
    ]
    nodes = [x for file in files for x in ast.walk(ast.parse(file.read_text()))]
    messages = [text for node in nodes if makes_error(node) for text in texts(node)]
    return frozenset().union(*map(phrases, messages))


def expected(file: Path) -> list[set[str]]:
    """The messages in a test, as phrases that Stepax has in an error."""
    wild = re.compile(r"\.[*+]|\\[dws]\+?|\{[^}]*\}")
    every = [wild.sub("…", x) for x in texts(ast.parse(file.read_text()))]
    return [phrases(x.replace("\\", "")) & raised() for x in every]


def most_frequent(number: int) -> list[str]:
    """The phrases of most messages, each counted where none before it occurs."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    left = [x for file in files for x in expected(file) if x]
    found = []
    for _ in range(number):
        counts = Counter(phrase for x in left for phrase in x)
        found.append(max(counts, key=lambda phrase: (counts[phrase], phrase)))
        left = [x for x in left if found[-1] not in x]
    return found


@pytest.mark.slow
def test_the_most_frequent_errors_are_on_the_page():
    shown = phrases((ROOT / "docs" / "faq.md").read_text())
    missing = [x for x in most_frequent(20) if x not in shown]
    assert not missing, f"docs/faq.md needs an error with the words {missing}"


@pytest.mark.slow
def test_phrases_are_those_of_the_source():
    assert {"differ in structure", "expected one of", "was saved as"} <= raised()
    assert phrases("`x` and y differ … in structure") == {"x and y", "and y differ"}
