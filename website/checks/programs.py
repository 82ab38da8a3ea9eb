"""Checks of the programs on pages that need no run: the tests run them."""

import ast
import importlib
import inspect
import re
import warnings
from collections.abc import Iterator

from ..stage import ROOT, pages
from .report import Row


BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
# What a program prints that is to show the error for a wrong name.
SHOWS_ERROR = re.compile(r"\s*```text\n(?:(?!```).)*\bAttributeError\b", re.DOTALL)


def programs() -> Row:
    """Each program is Python, and its names of Stepax exist."""
    count, wrong = 0, []
    for source in pages().values():
        for line, block in blocks((ROOT / source).read_text()):
            count += 1
            wrong += [f"{source}:{line + at}: {said}" for at, said in mistakes(block)]
    return Row("programs are Python, and their names exist", count, wrong)


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """The programs of a page, each with the line before its first one.

    Those are left out that show the error for a wrong name.
    """
    for found in BLOCK.finditer(text):
        if not SHOWS_ERROR.match(text, found.end()):
            yield text.count("\n", 0, found.start(1)), found[1]


def mistakes(block: str) -> list[tuple[int, str]]:
    """What is wrong with a program, with lines from 1."""
    try:
        tree = ast.parse(block)
    except SyntaxError as error:
        return [(error.lineno or 1, f"{error.msg}")]
    names = {"stepax": "stepax", "optax": "stepax"} if "stepax" in block else {}
    found = []
    for node in unprotected(tree):
        if isinstance(node, ast.ImportFrom) and is_ours(node.module):
            paths = [f"{node.module}.{x.name}" for x in node.names]
            found += [(node.lineno, x) for x in paths]
        if isinstance(node, ast.Import):
            ours = [x for x in node.names if is_ours(x.name)]
            names |= {x.asname: x.name for x in ours if x.asname}
            names |= {
                x.name.split(".")[0]: "optax" for x in node.names if x not in ours
            }
        if isinstance(node, ast.Attribute) and (path := dotted(node)):
            first, _, rest = path.partition(".")
            if is_ours(names.get(first)):
                found.append((node.lineno, f"{names[first]}.{rest}"))
    return [(at, f"there is no `{x}`") for at, x in sorted(set(found)) if not exists(x)]


def unprotected(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes, without those of a `try`, where a page shows what is wrong."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Try):
            yield from unprotected(child)


def is_ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "stepax"


def dotted(node: ast.expr) -> str:
    """`a.b.c` as text; empty for an attribute of anything else than a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def exists(path: str) -> bool:
    """Whether a module of Stepax has the name, as far as it is one of a module's."""
    value = importlib.import_module("stepax")
    for name in path.split(".")[1:]:
        if not inspect.ismodule(value):
            return True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = getattr(value, name)
        except AttributeError:
            return False
    return True
