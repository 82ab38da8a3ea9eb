"""Pages, docstrings and errors speak the field's English.

`GUIDE` has what readers stumbled over, and what to write instead.
"""

import ast
import inspect
import re

import pytest
from pages import ROOT
from public import FUNCTIONS


GUIDE = {
    r"\bentr(y|ies)\b(?! point)(?! for a parameter)": "element",
    r"\btrainings\b": "training runs",
    r"\bislands?\b": "workers",
    r"\blarge tables\b": "embedding tables",
    r"\bmuseum\b": "mistakes",
    r"\buphill\b": "goes along the gradient",
    r"deviations apart": "differ by ... times the seed noise",
    r",\s+u of `": "with u the output of `...`",
    r"\(aliases: give one": "(two aliases)",
    r"widen it": "keep it in float32",
    r"the parameter's if `None`": "defaults to the parameter's",
    r"tree like the parameters": "of the same structure",
    r"leaves over": "extra bits, or rounding error",
    r"costs? one (entry|step of)": "skips one update",
    r"\b(narrow|wide)r? (dtype|parameter)s?\b": "low-precision, float32",
    r"\bslot is empty\b": "has no entry for a parameter",
    r"needs the value of an array that is traced": "is traced by JAX, so ...",
    r"\b(no|two|each|many|these|1) parts? (of an optimizer|sees?|scales|was|were)\b": (
        "transformation"
    ),
}
FORBIDDEN = re.compile("|".join(f"(?:{x})" for x in GUIDE))
WORDS = {re.compile(x): y for x, y in GUIDE.items()}

# For those who work on Stepax, or what was measured and how.
OTHERS = ("evidence/", "recipes.md", "design.md", "citing.md")
PAGES = ["README.md"] + [
    x.relative_to(ROOT).as_posix()
    for x in sorted((ROOT / "docs").rglob("*.md"))
    if not x.relative_to(ROOT / "docs").as_posix().startswith(OTHERS)
]
# Programs, links, comments, and the codes of `diagnose`, which are names.
MARKUP = re.compile(
    r"^```.*?^```|<!--.*?-->|<[^>]*>|`[^`\n]*`|\]\([^)]*\)|\[[a-z-]+(?=\])"
    r"|^## [a-z-]+$",
    re.M | re.S,
)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_speaks_the_fields_english(page):
    assert not found(MARKUP.sub("", (ROOT / page).read_text()))


def test_docstrings_speak_the_fields_english():
    said = {name: found(inspect.getdoc(f) or "") for name, f in FUNCTIONS.items()}
    assert {name: x for name, x in said.items() if x} == {}


def test_messages_speak_the_fields_english():
    files = (ROOT / "stepax").rglob("*.py")
    said = {x.relative_to(ROOT): found(" ".join(texts(x.read_text()))) for x in files}
    assert {name: x for name, x in said.items() if x} == {}


def texts(program: str) -> list[str]:
    """What a program says: its strings of several words, but for docstrings."""
    nodes = list(ast.walk(ast.parse(program)))
    alone = {id(x.value) for x in nodes if isinstance(x, ast.Expr)}
    said = (x for x in nodes if isinstance(x, ast.Constant) and id(x) not in alone)
    return [x.value for x in said if isinstance(x.value, str) and " " in x.value]


def found(text: str) -> list[str]:
    """What a text says in words that the field does not use, with what is better."""
    better = lambda said: next(y for x, y in WORDS.items() if x.fullmatch(said))
    line = " ".join(text.split())
    return [f"{x[0]}: {better(x[0])}" for x in FORBIDDEN.finditer(line)]


def test_what_readers_stumbled_over_is_found():
    assert found("it costs one entry of one step")[0].endswith("skips one update")
    assert found("u = m, and p = p - u,  u of `adam`") and found("in trainings")
    assert not found("the state has no entry for a parameter")
    program = "def f(): 'An entry.'; g(f'an entry {x}', 'entry', 1)"
    assert texts(program) == ["an entry "]
