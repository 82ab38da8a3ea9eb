"""7 + 5 = 12 steps, to the bit, for every factory and wrapper.

This file is also the program that goes on: `python test_resume.py FOLDER DTYPE`.
"""

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from cases import make, rows
from children import with_path
from compare import leaves
from keywords import keywords
from wrappers import FAMILIES, WRAPPERS

import stepax
from stepax.checkpoint import restore, save


MAKERS: dict[str, Callable[[], Any]] = {
    **{row.id: (lambda row=row.values[0]: make(row)) for row in rows()},
    **{f"in {k}": (lambda w=w: w(FAMILIES["adaptive"]())) for k, w in WRAPPERS.items()},
}
# How many of them, evenly chosen.
CHOSEN = {"float32": len(MAKERS), "bfloat16": 30, "float16": 20}


def names(dtype):
    every = [*MAKERS]
    return [every[i * len(every) // CHOSEN[dtype]] for i in range(CHOSEN[dtype])]


def params_of(dtype):
    w = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)
    return {"w": w.astype(dtype), "b": jnp.ones(3, dtype)}


def trained(tx, params, state, steps):
    @jax.jit
    def step(params, state, i):
        g = jax.tree.map(lambda p: 0.3 * p + 0.1 * i.astype(p.dtype), params)
        updates, state = tx.update(g, state, params, **keywords(g))
        return stepax.apply_updates(params, updates), state

    for i in steps:
        params, state = step(params, state, jnp.float32(i))
    return params, state


def bits(tree):
    return [(x.dtype.name, x.shape, x.tobytes()) for x in leaves(tree)]


def seven(name, dtype, folder):
    """Save after 7 steps; returns the bits after 12."""
    tx, params = MAKERS[name](), params_of(dtype)
    params, state = trained(tx, params, tx.init(params), range(7))
    save(folder, 7, params, state)
    return bits(trained(tx, params, state, range(7, 12)))


def five(name, dtype, folder):
    """The bits after 5 more steps from what was saved."""
    tx = MAKERS[name]()
    found = restore(folder, tx, params_of(dtype))
    return bits(trained(tx, found.params, found.state, range(found.step, 12)))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", MAKERS)
def test_a_run_goes_on_as_if_it_had_not_ended(name, tmp_path):
    assert seven(name, "float32", tmp_path) == five(name, "float32", tmp_path)


def go_on(folder, dtype):
    for i, name in enumerate(names(dtype)):
        wanted = pickle.loads((folder / f"{i}.bits").read_bytes())
        print(name, five(name, dtype, folder / str(i)) == wanted)


@pytest.mark.slow("test_a_run_goes_on_as_if_it_had_not_ended")
@pytest.mark.parametrize("dtype", CHOSEN)
def test_another_process_goes_on_as_if_it_were_the_same(dtype, tmp_path):
    for i, name in enumerate(names(dtype)):
        wanted = seven(name, dtype, tmp_path / str(i))
        (tmp_path / f"{i}.bits").write_bytes(pickle.dumps(wanted))
    run = [sys.executable, __file__, tmp_path, dtype]
    told = subprocess.run(
        run, env=with_path(), capture_output=True, text=True, check=True
    )
    lines = told.stdout.splitlines()
    assert lines == [f"{name} True" for name in names(dtype)]


if __name__ == "__main__":
    go_on(Path(sys.argv[1]), sys.argv[2])
