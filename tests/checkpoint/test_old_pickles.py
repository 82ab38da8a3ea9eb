"""Pickles that were saved before modules were moved load as they always did."""

import ast
import functools as ft
import lzma
import pickle
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pickles
import pytest
from cases import on_fast_parameters
from compare import assert_equal, leaves

import stepax
from stepax._moved import MOVED


OLD: Any = pickle.loads(lzma.decompress(pickles.FILE.read_bytes()))
new = ft.cache(pickles.transformations)
others = ft.cache(pickles.others)

pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")


def printed(x: Any) -> str:
    """Without where in memory it is."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(x))


def assert_same_state(found: Any, wanted: Any) -> None:
    """Bit by bit, if it is that JAX which made the pickles; another may round anew."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    if OLD["jax"] == jax.__version__:
        return assert_equal(found, wanted)
    for x, y in zip(leaves(found), leaves(wanted), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_every_old_factory_has_its_pickle():
    assert OLD["tx"].keys() == OLD["state"].keys() <= new().keys()
    assert OLD["other"].keys() == others().keys()


@pytest.mark.few(8)
@pytest.mark.parametrize("name", OLD["tx"])
def test_an_old_optimizer_and_its_state_step_on(name):
    tx, state = (pickle.loads(OLD[kind][name]) for kind in ("tx", "state"))
    assert tx == new()[name] and printed(tx) == printed(new()[name])
    now = pickles.run(new()[name], name)  # which is ready to run, in each case
    assert_same_state(state, now)
    tx = on_fast_parameters(tx) if name == "lookahead" else tx
    state = pickles.run(tx, name, state, steps=1)
    assert jax.tree.structure(state) == jax.tree.structure(now)


@pytest.mark.parametrize("name", OLD["other"])
def test_other_old_pickles_load(name):
    found, wanted = pickle.loads(OLD["other"][name]), others()[name]
    assert type(found) is type(wanted)
    assert printed(found) == printed(wanted)


@pytest.mark.slow
def test_a_pickle_loads_where_nothing_is_imported_yet(tmp_path):
    state = OLD["state"]["nest: injected"]
    (tmp_path / "state").write_bytes(state)
    program = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')))"
    command = [sys.executable, "-c", program, str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr(pickle.loads(state))


@pytest.mark.parametrize("name", OLD["public"])
def test_public_functions_and_classes_are_found(name):
    module, _, attribute = name.rpartition(".")
    assert pickle.loads(OLD["public"][name]) is getattr(
        import_module(module), attribute
    )


def test_moved_modules_are_gone_and_their_new_homes_are_there():
    root = Path(stepax.__file__).parent
    for old, new in MOVED.items():
        assert not (root / f"{old.replace('.', '/')}.py").exists()
        module, _, name = f"stepax.{new}".rpartition(".")
        is_name = old.rpartition(".")[0] in MOVED
        assert (
            hasattr(import_module(module), name)
            if is_name
            else find_spec(f"{module}.{name}")
        )


@pytest.mark.slow
def test_nothing_of_ours_asks_for_a_moved_module():
    root = Path(stepax.__file__).parent
    found = {f: set(asked_for(f)) for f in root.rglob("*.py") if f.name != "_moved.py"}
    moved = {f"stepax.{old}" for old in MOVED}
    assert not {str(f): x & moved for f, x in found.items() if x & moved}


def asked_for(file: Path):
    """Modules that a file imports, and the texts in it that could name one."""
    parts = file.relative_to(Path(stepax.__file__).parents[1]).with_suffix("").parts
    package = ".".join(parts[:-1])
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            home = resolve_name("." * node.level + (node.module or ""), package)
            yield from (home, *(f"{home}.{x.name}" for x in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (node.value, f"stepax.{node.value}")


def test_a_moved_module_has_nothing_but_what_it_had():
    with pytest.raises(AttributeError):
        pickle.loads(b"cstepax._engine.chain\nnothing_of_the_kind\n.")
    with pytest.raises(ModuleNotFoundError):
        import_module("stepax._engine.nothing_of_the_kind")
