"""A restore needs the memory of what is restored, and a tenth more."""

import os

import pytest
from test_checkpoint_writers import run_here

from stepax.checkpoint import latest_step


# Prints the peak of memory that a restore adds, in sizes of what is restored.
CODE = """
import sys, jax, jax.numpy as jnp, stepax
from stepax.checkpoint import restore, save

folder, kind = sys.argv[1:]
tx, shapes = stepax.adam(0.1), {f"w{i}": (16384, 1024) for i in range(4)}
if kind == "save":
    keys = zip(jax.random.split(jax.random.key(0), 4), shapes.items(), strict=True)
    params = {name: jax.random.normal(key, shape) for key, (name, shape) in keys}
    first, *rest = tx.init(params)
    save(folder, 1, params, (first._replace(mu=params, nu=params), *rest))
    sys.exit()
mesh = jax.make_mesh((len(jax.devices()),), ("data",))
split = jax.sharding.NamedSharding(mesh, jax.P("data")) if kind == "mesh" else None
def like(shapes):
    make = jax.ShapeDtypeStruct
    return {k: make(x, "float32", sharding=split) for k, x in shapes.items()}

small = {"w": jnp.ones((8, 3))}  # what is loaded and compiled once does not count
save(folder + kind, 1, small, tx.init(small))
restore(folder + kind, tx, like({"w": (8, 3)}))

def peak():
    rows = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(x.split()[1]) for x in rows if x.startswith("VmHWM"))

open("/proc/self/clear_refs", "w").write("5")  # resets the peak
before = peak()
found = jax.block_until_ready(restore(folder, tx, like(shapes))[:2])
print((peak() - before) / sum(x.nbytes for x in jax.tree.leaves(found)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux")
def test_a_restore_from_shapes_keeps_no_second_copy(tmp_path):
    """Of parameters and state, 768 MiB, on one device and sharded over eight."""
    folder = tmp_path / "run"
    run_here(CODE, folder, "save", check=True)
    assert latest_step(folder) == 1
    for kind in "shapes", "mesh":
        ended = run_here(CODE, folder, kind, check=True, capture_output=True, text=True)
        assert 1.0 < float(ended.stdout) < 1.1, ended.stdout
