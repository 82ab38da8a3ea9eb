"""Finds the `raise`s of Stepax that programs written for Optax can reach.

From the functions and classes that Optax has, too, names are followed through the code.
A method is reached if its class is, and something that is reached uses its name.
"""

import ast
import functools as ft
import inspect
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from inside import original
from public import MODULES


ROOT = Path(__file__).parents[2] / "stepax"
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """A name in a file; a method is named with its class."""

    file: Path
    name: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}::{self.name}"


@ft.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@ft.cache
def definitions(file: Path) -> dict[str, ast.AST]:
    """The functions, classes, methods and assignments of a file."""
    found: dict[str, ast.AST] = {}
    for node in tree_of(file).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            methods = [x for x in node.body if isinstance(x, FUNCTIONS)]
            found |= {f"{node.name}.{x.name}": x for x in methods}
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        targets = [getattr(x, "target", x) for x in targets]
        found |= {x.id: node for x in targets if isinstance(x, ast.Name)}
    return found


def file_of(path: Path) -> Path | None:
    known = path.with_suffix(".py"), path / "__init__.py"
    return next((x for x in known if x.exists()), None)


@ft.cache
def imported(file: Path) -> dict[str, tuple[Path, str]]:
    """What names of a file mean: a module, or with it a name in it."""
    found = {}
    for x in ast.walk(tree_of(file)):
        if isinstance(x, ast.ImportFrom) and x.level:
            home = file.parents[x.level - 1].joinpath(*(x.module or "").split("."))
            for alias in x.names:
                module = file_of(home / alias.name)
                name = "" if module else alias.name
                if found_in := module or file_of(home):
                    found[alias.asname or alias.name] = found_in, name
    return found


def resolved(file: Path, name: str) -> Iterator[Place]:
    """Where a name of a file is defined."""
    if name in definitions(file):
        yield Place(file, name)
    elif name in imported(file):
        home, there = imported(file)[name]
        if there and (home, there) != (file, name):
            yield from resolved(home, there)


def used(file: Path, node: ast.AST) -> Iterator[Place]:
    """The places of the names in a node."""
    for x in ast.walk(node):
        if isinstance(x, ast.Name):
            yield from resolved(file, x.id)
        elif isinstance(x, ast.Attribute):
            yield from _of_module(file, x)


def _of_module(file: Path, x: ast.Attribute) -> Iterator[Place]:
    """The place of `rx.name`, where `rx` is a module, or `rx.errors` is."""
    home = _module(file, x.value)
    if home is not None:
        yield from resolved(home, x.attr)


def _module(file: Path, x: ast.AST) -> Path | None:
    if isinstance(x, ast.Attribute):
        home, name = _module(file, x.value), x.attr
    else:
        home, name = file, getattr(x, "id", "")
    found, there = imported(home).get(name, (None, "")) if home else (None, "")
    return found if not there else None


def shared() -> Iterator[Place]:
    """Where the functions and classes are that Optax has, too."""
    for module in MODULES:
        ours, theirs = import_module(f"stepax{module}"), import_module(f"optax{module}")
        for name in vars(theirs):
            x: Any = original(getattr(ours, name, None))
            x = inspect.unwrap(x) if callable(x) else x
            home = getattr(x, "__module__", "") or ""
            if hasattr(x, "__qualname__") and home.startswith("stepax."):
                file = file_of(ROOT.parent.joinpath(*home.split(".")))
                if file and x.__qualname__ in definitions(file):
                    yield Place(file, x.__qualname__)


def reached() -> set[Place]:
    found: set[Place] = set()
    todo, attributes = set(shared()), set()
    while todo:
        found |= todo
        nodes = [(x.file, _body(definitions(x.file)[x.name])) for x in todo]
        parts = [(file, y) for file, ys in nodes for y in ys]
        attributes |= {
            x.attr
            for _, y in parts
            for x in ast.walk(y)
            if isinstance(x, ast.Attribute)
        }
        new = {x for file, y in parts for x in used(file, y)}
        owners = {x for x in found | new if "." not in x.name}
        new |= {y for x in owners for y in _methods(x, attributes)}
        todo = new - found
    return found


def _body(node: ast.AST) -> list[ast.AST]:
    """What is reached with a definition: of a class all but its methods."""
    if not isinstance(node, ast.ClassDef):
        return [node]
    rest = [x for x in node.body if not isinstance(x, FUNCTIONS)]
    return [*rest, *node.bases, *node.decorator_list]


def _methods(x: Place, attributes: set[str]) -> Iterator[Place]:
    for name in definitions(x.file):
        owner, _, method = name.partition(".")
        if owner == x.name and (method.startswith("__") or method in attributes):
            yield Place(x.file, name)


@ft.cache
def raises() -> Counter[str]:
    """How many errors each function raises that is reached, by file and name."""
    found: Counter[str] = Counter()
    for x in reached():
        for node in _body(definitions(x.file)[x.name]):
            every = [y for y in ast.walk(node) if isinstance(y, ast.Raise)]
            found[str(x)] += sum(y.exc is not None for y in every)
    return +found
