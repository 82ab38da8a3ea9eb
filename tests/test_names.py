"""Every public factory is exported, under Optax's signature, and imports go one way."""

import ast
import inspect
from pathlib import Path

import optax
import pytest

import stepax
from stepax._engine.registry import ROWS


ROOT = Path(stepax.__file__).parent
# Nothing imports from a layer after its own.
LAYERS = ["_engine", "tree", "_transforms", "_optimizers"]


def parts(path: Path) -> tuple[str, ...]:
    return path.relative_to(ROOT).with_suffix("").parts


def layer(module: tuple[str, ...]) -> int:
    """The layer of a module, given by its path within the package; -1 if none."""
    return next((i for i, name in enumerate(LAYERS) if module[:1] == (name,)), -1)


FILES = [p for p in sorted(ROOT.rglob("*.py")) if layer(parts(p)) >= 0]


def imported(path: Path) -> list[tuple[str, ...]]:
    """The modules of the package that a file imports, by their path within it."""
    package = parts(path)[:-1]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) + 1 - node.level]
            module = tuple(node.module.split(".")) if node.module else ()
            names = [()] if module else [(alias.name,) for alias in node.names]
            found += [(*base, *module, *name) for name in names]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path):
    for module in imported(path):
        assert layer(module) <= layer(parts(path)), ".".join(module)


@pytest.mark.parametrize("name", ROWS)
def test_what_is_registered_is_exported(name):
    assert getattr(stepax, name) is ROWS[name].factory


SHARED = [n for n in dir(stepax) if not n.startswith("_") and hasattr(optax, n)]


@pytest.mark.parametrize("name", SHARED)
def test_parameters_are_those_of_optax(name):
    ours, theirs = getattr(stepax, name), getattr(optax, name)
    if not inspect.isfunction(theirs):
        return
    found, wanted = (inspect.signature(f).parameters for f in (ours, theirs))
    assert [n for n in found if n in wanted] == list(wanted)
    for key, p in found.items():
        if key in wanted:
            assert p.kind == wanted[key].kind
            assert (p.default is p.empty) == (wanted[key].default is p.empty)
        else:
            assert p.kind is p.KEYWORD_ONLY and p.default is not p.empty
