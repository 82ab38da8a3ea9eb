"""Files of each release, by which later ones show that they still read them.

When a release is tagged, `python tests/releases.py` adds what this version writes to
`tests/data/releases`, and a row to `docs/stability.md`, on the oldest supported JAX.
Until then nothing is pinned: a state may be added, and get other fields.
"""

import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


os.environ.setdefault("JAX_PLATFORMS", "cpu")

import cases
import exports
import jax
import jax.numpy as jnp
import numpy as np
from inside import EXPORTED

import stepax
import stepax.contrib
import stepax.experimental.aggregating
from stepax import checkpoint
from stepax._checkpoint.manifest import SCHEMA


FOLDER = Path(__file__).parent / "data" / "releases"
PAGE = FOLDER.parents[2] / "docs" / "stability.md"
STEP = 7


def params() -> Any:
    return {"w": jnp.ones((4, 8)), "deep": [{"b": jnp.ones(4, "bfloat16")}, None]}


def numbered(tree: Any) -> Any:
    """A tree with other numbers in each array, which any version computes alike."""

    def one(x):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return x
        return jnp.asarray(np.arange(x.size).reshape(x.shape) % 5, x.dtype)

    return jax.tree.map(one, tree)


# What a checkpoint holds beside arrays: dtypes, keys, codes, packed and nested trees.
CHECKPOINTS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "adamw": lambda: (stepax.adamw(0.1), params()),
    "key": lambda: (stepax.noisy_sgd(0.1, key=0), params()),
    "codes": lambda: (
        stepax.low_bit_states(stepax.adam(0.1), block=8, min_size=0),
        params(),
    ),
    "masters": lambda: (stepax.master_weights(stepax.sgd(0.1)), params()),
    "packed": lambda: (stepax.adam(0.1), stepax.tree.pack(params())),
    "groups": lambda: (
        stepax.partition(
            {"a": stepax.adam(0.1), "b": stepax.lion(0.1)},
            lambda p: {"w": "a", "deep": "b"},
        ),
        params(),
    ),
}

EXPORTS: dict[str, Callable[[], Any]] = {
    "adamw": lambda: stepax.adamw(0.1),
    "chain": lambda: stepax.chain(stepax.clip_by_global_norm(1.0), stepax.lion(0.1)),
    "MultiSteps": lambda: stepax.MultiSteps(stepax.sgd(0.1, momentum=0.9), 2),
    "muon": lambda: stepax.contrib.muon(0.1),
}


def program(name: str) -> tuple[Callable, tuple]:
    """The step of an entry of `EXPORTS`, and arguments for it."""
    tx, p = EXPORTS[name](), {"w": jnp.ones((4, 8)), "b": jnp.ones(4)}
    return lambda g, s, p: tx.update(g, s, p), (numbered(p), tx.init(p), p)


# Classes in states whose names say something else.
PARTS = {
    "ApplyEvery", "BacktrackingLinesearchInfo", "LookaheadParams", "MaskedNode",
    "Positive4", "Positive8", "Signed4", "Signed8", "SplitRealAndImaginaryArrays",
    "SwappedAverage", "WeightDecaySchedule", "ZoomLinesearchInfo",
}  # fmt: skip


def schemas() -> dict[str, list[str]]:
    """The fields of each class of states, by its stable name."""
    kinds: dict[str, Any] = {
        name: kind
        for name, kind in sorted(EXPORTED.items())
        if name.endswith("State") or kind.__name__ in PARTS
    }
    return {name: list(kind._fields) for name, kind in kinds.items()}


def write_checkpoints(folder: Path) -> None:
    for name, made in CHECKPOINTS.items():
        tx, p = made()
        checkpoint.save(folder / name, STEP, numbered(p), numbered(tx.init(p)))


def write_exports(folder: Path) -> None:
    # No names of files, of this machine, in the programs.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    for name in EXPORTS:
        f, args = program(name)
        exports.save(folder / name, exports.exported(f, *args), *args)
        exports.write(folder / f"{name}.out.npz", jax.jit(f)(*args))


def of_each_class() -> dict[str, Any]:
    """For each class of states its instance that has the number i in field i."""
    sizes = {name: len(fields) for name, fields in schemas().items()}
    return {name: EXPORTED[name](*range(n)) for name, n in sizes.items()}


def of_each_factory() -> dict[str, Any]:
    """The first state of each factory, in NumPy's arrays."""

    def stored(x):
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    p, found = {"w": jnp.ones((2, 4)), "b": jnp.ones(2)}, {}
    for row in (param.values[0] for param in cases.rows()):
        found[row.name] = jax.tree.map(stored, cases.make(row).init(p))
    return found


def write_pickles(folder: Path) -> None:
    for made in (of_each_class, of_each_factory):
        (folder / made.__name__).write_bytes(pickle.dumps(made(), protocol=5))


def write(folder: Path) -> None:
    """Write the files of this version."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in schemas().items()]
    (folder / "states.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")
    for made in (write_checkpoints, write_exports, write_pickles):
        name = made.__name__.removeprefix("write_")
        with tempfile.TemporaryDirectory() as temporary:
            made(Path(temporary))
            # One file for many small ones.
            shutil.make_archive(str(folder / name), "zip", temporary)


TABLE = """| release | classes of states | checkpoints | exported programs |
| --- | --- | --- | --- |
"""


def with_row(page: str) -> str:
    """The page with the formats of this version, above those of earlier ones."""
    formats = len(schemas()), f"schema {SCHEMA}", f"from JAX {jax.__version__}"
    row = f"| {' | '.join(map(str, (stepax.__version__, *formats)))} |\n"
    return page if row in page else page.replace(TABLE, TABLE + row)


if __name__ == "__main__":
    write(FOLDER / stepax.__version__)
    PAGE.write_text(with_row(PAGE.read_text()))
