"""Exported programs, written to files, and run by a process that has only these.

`python exports.py FOLDER` calls each program in a folder with its arguments, and
writes what it returns beside it.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from compare import array

import stepax
import stepax.contrib  # noqa: F401  (it names its states)


# JAX does not promise that a later version knows this custom call, with which factors
# that LAPACK returns by columns are stored by rows.  Here all processes have one JAX.
UNPROMISED = [jax.export.DisabledSafetyCheck.custom_call("LayoutConstraint")]


def exported(f: Callable, *args: Any) -> bytes:
    """A jitted function, serialized."""
    made = jax.export.export(jax.jit(f), disabled_checks=UNPROMISED)(*args)
    return bytes(made.serialize())


def called(data: bytes, leaves: list) -> Any:
    """What a serialized function returns for these leaves of its arguments."""
    program = jax.export.deserialize(bytearray(data))
    given = [_like(a, x) for a, x in zip(program.in_avals, leaves, strict=True)]
    args, kwargs = program.in_tree.unflatten(given)
    return program.call(*args, **kwargs)


def _like(aval: Any, x: Any) -> jax.Array:
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(x)
    return jnp.asarray(x, aval.dtype)


def save(file: Path, data: bytes, *args: Any) -> None:
    """Write a program and the arguments of a call."""
    file.with_suffix(".export").write_bytes(data)
    write(file.with_suffix(".in.npz"), args)


def write(file: Path, tree: Any) -> None:
    """The leaves of a tree, in order."""
    np.savez(file, *map(array, jax.tree.leaves(tree)))


def read(file: Path) -> list[np.ndarray]:
    """The leaves of `write`."""
    with np.load(file) as found:
        return [found[f"arr_{i}"] for i in range(len(found.files))]


def main(folder: Path) -> None:
    """Call all programs in a folder."""
    for file in sorted(folder.glob("*.export")):
        result = called(file.read_bytes(), read(file.with_suffix(".in.npz")))
        write(file.with_suffix(".out.npz"), result)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
