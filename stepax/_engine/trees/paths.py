"""Finds values of a tree by their paths, and replaces them strictly.

Names of a path are joined by "/", as in masks; "*" matches any name and "**" any number
of names.  A path starts at the root, or, if nothing is found there, at any
depth: "mu/encoder/kernel" is the `kernel` of the `encoder` in any value called `mu`.
If nested values match a pattern, the outermost one is meant.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import DictKey, GetAttrKey, tree_flatten_with_path

from ..arrays.placement import put_on
from ..arrays.precision import rank
from ..base import ArrayTree, MaskedNode, is_array
from . import selection
from .errors import fields_of, list_some


def is_path(key: object) -> TypeGuard[str]:
    """Whether a key that is not the name of a value may be a path."""
    # Keys of dictionaries need not be strings.
    return isinstance(key, str) and ("/" in key or "*" in key)


def join(path: tuple) -> str:
    """The names of a path, as they are written."""
    return "/".join(selection.path_names(path))


@dataclass(frozen=True)
class NamedTupleKey:
    """One step of a path: a field of a named tuple, with the name of its class."""

    tuple_name: str
    name: str

    def __str__(self) -> str:
        return f"{self.tuple_name}.{self.name}"


def open_node(node: ArrayTree) -> tuple[list, Any]:
    """The children of a node, with keys, and the structure to rebuild it."""
    # A leaf comes out as its own child, with an empty path.
    below, treedef = tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    children = [(path[0], x) for path, x in below if path]
    if is_named_tuple(node):
        # JAX's key of a field does not tell the class, by which states are told apart.
        owner = type(node).__name__
        children = [
            (NamedTupleKey(owner, k.name) if isinstance(k, GetAttrKey) else k, x)
            for k, x in children
        ]
    return children, treedef


def is_named_tuple(x: object) -> bool:
    return isinstance(x, tuple) and fields_of(x) is not None


def walk(
    node: ArrayTree, is_leaf: Callable[[Any], bool] | None = None, path: tuple = ()
) -> Iterator[tuple[tuple, Any]]:
    """The leaves of a tree in flattening order, with paths that name the classes."""
    # Not `tree_flatten_with_path`, whose keys do not say of which class a field is.
    if (is_leaf and is_leaf(node)) or jax.tree_util.all_leaves([node]):
        yield path, node
        return
    for step, x in open_node(node)[0]:
        yield from walk(x, is_leaf, (*path, step))


def label(step: Any) -> Any:
    return step.key if isinstance(step, DictKey) else getattr(step, "name", None)


def find(tree: ArrayTree, pattern: str) -> list[tuple[tuple, ArrayTree]]:
    """The outermost values that a pattern matches, with their paths."""
    names = tuple(pattern.split("/"))
    for read in selection.path_names, short_names:
        for start in names, ("**", *names):
            if found := list(matches(tree, (), start, read)):
                return found
    return []


def short_names(path: tuple) -> tuple[str, ...]:
    """The names of a path, without those of dicts of measurements in states."""
    return selection.path_names(step for step in path if str(step) not in _RECORDS)


# The fields that hold measurements by name, of `observe`, `monitor` and `snapshot`.
_RECORDS = (
    "ObserveState.metrics",
    "MonitorState.measurements",
    "SnapshotState.measurement",
)


def matches(node: ArrayTree, path: tuple, names: tuple, read: Callable) -> Iterator:
    """The outermost values below a node, with paths whose names, read so, match."""
    # Masked: its parameter has no state here.
    if isinstance(node, MaskedNode):
        return
    if path and selection.is_match(names, read(path)):
        yield path, node
        return
    for step, x in open_node(node)[0]:
        yield from matches(x, (*path, step), names, read)


def several(key: str, found: list, what_to_do: str) -> KeyError:
    listed = list_some(f"`{join(path)}`" for path, _ in found)
    return KeyError(
        f"the path `{key}` matches {len(found)} values, {listed}; {what_to_do}"
    )


def replacement(key: str, path: tuple, old: ArrayTree, value: ArrayTree) -> ArrayTree:
    """`value` as `fitted` returns it, placed on the devices of the old value."""
    # A program is compiled for the devices of its arguments, so another placement would
    # compile the step again.
    if jax.tree.structure(value) == jax.tree.structure(old):
        value = jax.tree.map(_whole, value, old)
    return jax.tree.map(_put, fitted(key, path, old, value), old)


def _whole(x: ArrayTree, was: ArrayTree) -> ArrayTree:
    """A scalar without a fraction as an integer, if the old one was: 2.0 as 2."""
    # JSON and configuration files return 2.0 for a count; 2.5 remains an error.
    is_known = not isinstance(x, Tracer | jax.ShapeDtypeStruct)
    if not (is_known and is_array(x) and is_array(was)) or jnp.ndim(x):
        return x
    kinds = [jax.typeof(y).dtype for y in (x, was)]
    if not all(map(jnp.issubdtype, kinds, (jnp.floating, jnp.integer))):
        return x
    return int(x) if float(x).is_integer() else x


def _is_raw_key(x: ArrayTree, was: ArrayTree) -> bool:
    """Whether the integers of a random key are given for a typed key."""
    # Optax accepts either in place of the other.
    if not (is_array(x) and isinstance(was, jax.Array)):
        return False
    if not jnp.issubdtype(was.dtype, jax.dtypes.prng_key):
        return False
    data = jax.eval_shape(jax.random.key_data, was)
    return (jnp.shape(x), jnp.result_type(x)) == (data.shape, data.dtype)


def _put(x: ArrayTree, was: ArrayTree) -> ArrayTree:
    """`x` on the devices of the old value, unless the user placed it elsewhere."""
    if isinstance(was, bool | int | float | complex) and not isinstance(x, Tracer):
        return type(was)(x)
    if isinstance(x, Tracer) or isinstance(was, Tracer):
        return x
    if not isinstance(x, jax.Array) or not isinstance(was, jax.Array):
        return x
    # Committed: placed by the user, who may be moving the state on purpose.
    return x if x.committed or not was.committed else put_on(x, was.sharding)


def fitted(key: str, path: tuple, old: ArrayTree, value: ArrayTree) -> ArrayTree:
    """`value` in the dtypes of `old`; raises if structures or shapes differ."""
    # So a step compiled for the old state also accepts the new one.
    if jax.tree.structure(value) != jax.tree.structure(old):
        raise ValueError(
            f"`{join(path)}`, found for `{key}`, has the structure "
            f"{jax.tree.structure(old)}, but its new value "
            f"{jax.tree.structure(value)}"
        )

    def leaf(below, was, x):
        return _fitted_leaf(join((*path, *below)), was, x)

    return jax.tree_util.tree_map_with_path(leaf, old, value)


def _fitted_leaf(name: str, was: ArrayTree, x: ArrayTree) -> ArrayTree:
    if not is_array(was) or _is_raw_key(x, was):
        return x
    old, new = jax.typeof(was), jax.typeof(x) if is_array(x) else None
    if new is None or new.shape != old.shape:
        found = f"`{x!r}`" if new is None else f"an array of shape {new.shape}"
        raise ValueError(
            f"the value at `{name}` has shape {old.shape}, but its new value is {found}"
        )
    if not fits(new.dtype, old.dtype):
        raise TypeError(
            f"the value at `{name}` is of dtype {old.dtype}, to which its new value "
            f"of dtype {new.dtype} cannot be converted"
        )
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(old.shape, old.dtype, weak_type=old.weak_type)
    if isinstance(x, np.ndarray) and x.dtype == old.dtype:
        x = jnp.asarray(x)  # one copy, where the conversion below would make two
    x = jax.lax.convert_element_type(x, old.dtype)
    # A weak type is part of the type of an argument: a strong one recompiles.
    if not old.weak_type or x.weak_type:
        return x
    if isinstance(x, Tracer):
        raise TypeError(
            f"the value at `{name}` is weakly typed, as Python scalars are; set it to "
            "a Python scalar, and outside of `jit`"
        )
    return _weak(x)


@jax.jit
def _weak(x: jax.Array) -> jax.Array:
    # JAX has no function for this, but a scatter keeps the type of its operand.
    zeros = jnp.full(x.shape, x.dtype.type(0).item())
    if zeros.dtype != x.dtype:  # Python scalars have no such dtype
        return x
    sharding = jax.typeof(x).sharding
    if not any(sharding.spec):  # no explicit axes
        return zeros.at[...].set(x)
    zeros = jax.sharding.reshard(zeros, sharding)
    return zeros.at[...].set(x, out_sharding=sharding)


def fits(new: np.dtype, old: np.dtype) -> bool:
    """Whether values of the dtype `new` can be converted to `old`."""
    # Widths may differ, as between checkpoints, but no imaginary part may be dropped,
    # and a boolean is not a number.
    if jnp.issubdtype(old, jax.dtypes.extended) or jnp.issubdtype(
        new, jax.dtypes.extended
    ):
        return new == old
    first, last = rank(new), rank(old)
    return first == last if first == 0 else first <= last
