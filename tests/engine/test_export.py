"""Steps that `jax.export` serializes, and that another process runs."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import exports
import jax
import jax.export
import jax.numpy as jnp
import pytest
from cases import TREES, gradients, make, rows
from children import with_path
from compare import assert_equal, assert_same_tree
from inside import EXPORTED, register_states
from keywords import keywords

import stepax


STEPS = 3


def step_of(tx):
    return lambda g, s, p: tx.update(g, s, p, **keywords(g))


def scan_of(tx):
    def steps(gs, s, p):
        def body(carry, g):
            s, p = carry
            u, s = tx.update(g, s, p, **keywords(g))
            return (s, stepax.apply_updates(p, u)), None

        return jax.lax.scan(body, (s, p), gs)[0]

    return steps


def program(tx, form):
    """A function of a transformation, and arguments for it."""
    p = TREES["dict"]()
    if form == "step":
        return step_of(tx), (gradients(p), tx.init(p), p)
    gs = [gradients(p, i) for i in range(STEPS)]
    return scan_of(tx), (jax.tree.map(lambda *x: jnp.stack(x), *gs), tx.init(p), p)


@pytest.mark.few(2)
@pytest.mark.parametrize("form", ["step", "scan"])
@pytest.mark.parametrize("row", rows())
def test_an_exported_step_gives_the_same_bits(row, form):
    f, args = program(make(row), form)
    data = exports.exported(f, *args)
    loaded = jax.export.deserialize(bytearray(data))
    assert_same_tree(loaded.call(*args), jax.jit(f)(*args))


def run_elsewhere(folder: Path) -> None:
    command = [sys.executable, exports.__file__, str(folder)]
    subprocess.run(command, check=True, env=with_path())


def saved(folder: Path, name: str, tx, form="step"):
    """Write a program for another process; what it has to return."""
    f, args = program(tx, form)
    exports.save(folder / name, exports.exported(f, *args), *args)
    return jax.jit(f)(*args)


@pytest.mark.slow
def test_another_process_runs_a_step_that_it_cannot_have_traced(tmp_path):
    tx = stepax.chain(stepax.clip_by_global_norm(1.0), stepax.contrib.muon(1e-2))
    wanted = saved(tmp_path, "muon", tx)
    run_elsewhere(tmp_path)
    assert_equal(exports.read(tmp_path / "muon.out.npz"), wanted)


@pytest.mark.slow("test_an_exported_step_gives_the_same_bits")
def test_another_process_gets_the_same_bits_of_every_factory(tmp_path):
    wanted = {
        f"{x.id}-{form}": saved(tmp_path, f"{x.id}-{form}", make(x.values[0]), form)
        for x in rows()
        for form in ("step", "scan")
    }
    run_elsewhere(tmp_path)
    for name, result in wanted.items():
        assert_equal(exports.read(tmp_path / f"{name}.out.npz"), result)


CACHED = """
import jax, jax.numpy as jnp, stepax, stepax.contrib
p = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
for tx in (stepax.adamw(1e-2), stepax.contrib.muon(1e-2), stepax.contrib.soap(1e-2)):
    jax.block_until_ready(jax.jit(tx.update)(p, tx.init(p), p))
"""


@pytest.mark.slow
def test_a_second_start_compiles_nothing(tmp_path):
    def programs():
        subprocess.run([sys.executable, "-c", CACHED], check=True, env=settings)
        return {x.name for x in tmp_path.iterdir() if not x.name.endswith("-atime")}

    settings = with_path() | {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    first = programs()
    assert len(first) >= 3
    assert programs() == first


CONTAINERS = {
    "codes": lambda tx, p: (stepax.low_bit_states(tx, block=2, min_size=0), p),
    "packed": lambda tx, p: (tx, stepax.tree.pack(p)),
    "packed, nested": lambda tx, p: (tx, stepax.tree.pack([p, (p, None)])),
    "averages": lambda tx, p: (stepax.averages(tx, 0.9), p),
    "injected": lambda tx, p: (stepax.inject_hyperparams(stepax.adam)(1e-3), p),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("container", CONTAINERS)
def test_what_holds_arrays_in_a_state_is_exported(container):
    tx, p = CONTAINERS[container](stepax.adam(1e-3), TREES["dict"]())
    g, state = jax.tree.map(jnp.ones_like, p), tx.init(p)
    data = exports.exported(step_of(tx), g, state, p)
    loaded = jax.export.deserialize(bytearray(data))
    assert loaded.in_tree == jax.tree.structure(((g, state, p), {}))
    assert_same_tree(loaded.call(g, state, p), jax.jit(step_of(tx))(g, state, p))


def test_a_packed_tree_of_other_classes_says_that_it_cannot_be_exported():
    p = stepax.tree.pack(TREES["NamedTuple"]())
    tx = stepax.sgd(1e-2)
    with pytest.raises(ValueError, match="cannot be exported, expected dicts"):
        exports.exported(step_of(tx), p, tx.init(p), p)


def classes(tree) -> set[type]:
    """The classes of the inner nodes of a tree."""
    opened = jax.tree_util.default_registry.flatten_one_level(tree)
    if opened is None:
        return set()
    return {type(tree)}.union(*map(classes, opened[0]))


def test_every_class_of_a_state_has_a_name():
    # Of shapes, which is cheap enough for all factories.
    p = jax.eval_shape(TREES["dict"])
    states = [jax.eval_shape(make(x.values[0]).init, p) for x in rows()]
    found = set().union(*map(classes, states))
    ours = {x for x in found if x.__module__.partition(".")[0] == "stepax"}
    assert len(ours) > 70
    assert ours <= set(EXPORTED.values())


def test_a_name_stands_for_one_class():
    register_states()  # those that other tests have imported since
    before = dict(EXPORTED)
    register_states()
    assert EXPORTED == before
    kinds = Counter(x.__name__ for x in EXPORTED.values())
    assert set(kinds.values()) == {1}
    assert all(name == f"stepax.{x.__name__}" for name, x in EXPORTED.items())
