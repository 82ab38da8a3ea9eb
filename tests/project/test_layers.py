"""Imports go one way, without circles, and a folder is a kind of thing."""

import functools as ft
import re

import pytest
from inside import ROWS

import stepax.contrib  # noqa: F401 (enters its factories into the registry)
from benchmarks.house import PACKAGE, arrows
from benchmarks.layers import LAYERS, PAGE, circle, drawn, found, height, room_of


MODULES = {
    ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
    for file in PACKAGE.rglob("*.py")
} - {"_engine.__init__"}  # which is empty: its folders are the rooms
# A file that holds several kinds is where the first of these belongs.  What takes the
# gradients of each example is an optimizer, but for its arguments.
FOLDERS = {
    "optimizer": "_optimizers",
    "functional": "_optimizers",
    "aggregate": "_optimizers",
    "wrapper": "_wrappers",
    "transform": "_transforms",
}
# Pieces of optimizers that are not in `_transforms`, and why.
ELSEWHERE = {
    "_linesearch.backtracking": "shares its search with the other line search",
    "_linesearch.zoom": "shares its search with the other line search",
    "_transforms.decay_kinds": "a wrapper, beside the other stages of weight decay",
}

imports = ft.cache(found)


def test_every_module_has_a_layer():
    assert {x for x in MODULES if not room_of(x)} == set()


def test_every_row_of_the_table_is_something():
    rooms = [room for layer in LAYERS for room in layer.rooms]
    assert {room_of(x) for x in MODULES} == set(rooms)
    assert len(rooms) == len(set(rooms))


def test_a_public_module_below_the_optimizers_says_why():
    top = height("_optimizers.adam")
    low = [x for x in LAYERS[:top] if any("_" not in room[0] for room in x.rooms)]
    assert low and all(layer.why for layer in low)


@pytest.mark.few(1)
@pytest.mark.parametrize("layer", LAYERS, ids=lambda x: x.rooms[0])
def test_imports_go_one_way(layer):
    from_here = {pair for pair in imports() if room_of(pair[0]) in layer.rooms}
    assert {(a, b) for a, b in from_here if height(b) > height(a)} == set()


def test_no_modules_import_each_other_in_a_circle():
    assert circle(imports()) == []


def test_all_imports_are_seen(tmp_path):
    root = tmp_path / "package"
    (root / "inner").mkdir(parents=True)
    (root / "__init__.py").write_text("if TYPE_CHECKING:\n    from . import a")
    (root / "inner/__init__.py").write_text("x = 1")
    (root / "a.py").write_text("from .inner import b, x\nimport numpy")
    text = "def f():\n    from ..c import f\n    from package import g, c"
    (root / "inner/b.py").write_text(text)
    (root / "c.py").write_text("import package.a")
    found = {
        ("__init__", "a"),
        ("a", "inner.b"),
        ("a", "inner.__init__"),
        ("inner.b", "c"),
        ("inner.b", "__init__"),
        ("c", "a"),
    }
    assert arrows(root) == found
    assert {"a", "inner.b"} < set(circle(found))


def test_a_factory_is_in_the_folder_of_its_kind():
    kinds: dict[str, set[str]] = {}
    for row in ROWS.values():
        module = row.factory.__module__.partition(".")[2]
        kinds.setdefault(module, set()).add(row.kind)
    wanted = {
        module: next(folder for kind, folder in FOLDERS.items() if kind in held)
        for module, held in kinds.items()
        if module not in ELSEWHERE
    }
    assert {x: x.partition(".")[0] for x in wanted} == wanted
    assert set(ELSEWHERE) <= set(kinds)


def test_few_files_are_in_no_room_of_the_engine():
    assert len(list((PACKAGE / "_engine").glob("*.py"))) <= 8


@pytest.mark.slow
def test_the_drawing_of_the_layers_is_that_of_the_imports():
    page = PAGE.read_text()
    hint = "run `python -m benchmarks.layers`"
    assert "```mermaid" in page and drawn(page) == page, hint


def test_what_the_map_of_the_engine_names_is_there():
    page = PACKAGE / "_engine" / "README.md"
    text = page.read_text()
    files = {x for x in re.findall(r"`([\w./]+\.py)`", text) if "NAME" not in x}
    homes = PACKAGE.parent, PACKAGE, PACKAGE / "_engine", PACKAGE / "_engine" / "step"
    known = {x for x in files for home in homes if (home / x).exists()}
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(files) > 20 and files == known
    assert links and all((page.parent / x).exists() for x in links)
    sources = "".join(file.read_text() for file in PACKAGE.rglob("*.py"))
    defined = set(re.findall(r"(?:class|def) (\w+)", sources))
    named = set(re.findall(r"`(_\w+|[A-Z][a-z]\w+)`", text))
    rooms = {file.name for file in PACKAGE.iterdir()}
    assert len(named) > 20 and named - defined - rooms == {"None"}
