"""Arithmetic on trees of arrays, and search in optimizer states.

Non-numeric leaves, that is, float0 arrays and random keys, are skipped.  Differences
from Optax:

1. `norm` and `vdot` are computed and returned in float32 or wider, because the sum over
   a tree may overflow in bfloat16 or float16.  They never ravel a leaf, so that sharded
   leaves are not gathered.
2. `norm` has derivative 0 at 0, and is 0 for an empty tree of any order.
3. The reduction of a whole tree is one call, and one equation in a traced program.
"""

import builtins
import functools as ft
import inspect
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from ._engine.arrays.numerics import dtype_of, has_dtype, is_numeric
from ._engine.base import ArrayTree, as_array, is_none
from ._engine.functions.calls import explain_misuse
from ._engine.trees.apply import (
    bias_correction,
    update_infinity_moment,
    update_moment,
    update_moment_per_elem_norm,
)
from ._engine.trees.errors import require_one_of
from ._engine.trees.migrate import Migration, dequantize, migrate, quantize, reset
from ._engine.trees.pack import pack, unpack
from ._engine.trees.packed import Packed
from ._engine.trees.reduce import max, min, norm, sum, vdot
from ._engine.trees.restack import stack, unstack
from ._engine.trees.search import flat, get, get_all_with_path, map_params, set
from ._names import attributes


__all__ = [
    "Migration", "Packed", "add", "add_scale", "allclose", "batch_shape",
    "bias_correction", "cast", "cast_like", "clip", "conj", "dequantize", "div",
    "dtype", "flat", "full_like", "get", "get_all_with_path", "map_params", "max",
    "migrate", "min", "mul", "norm", "ones_like", "pack", "quantize", "random_like",
    "real", "reset", "scale", "set", "size", "split_key_like", "stack", "sub", "sum",
    "unpack", "unstack", "unwrap_random_key_data", "update_infinity_moment",
    "update_moment", "update_moment_per_elem_norm", "vdot", "where", "zeros_like",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)


def _map(f: Callable, tree: ArrayTree, *others: ArrayTree) -> ArrayTree:
    """`f` of corresponding leaves; the first of them if one is not numeric."""

    def leaf(*xs):
        return f(*map(as_array, xs)) if all(map(is_numeric, xs)) else xs[0]

    return jax.tree.map(leaf, tree, *others)


@explain_misuse
def add(tree_x: ArrayTree, tree_y: ArrayTree, *other_trees: ArrayTree) -> ArrayTree:
    """x + y + ..., leafwise.

    tree_x, tree_y, other_trees: trees of the same structure.
    """
    return _map(lambda *xs: ft.reduce(operator.add, xs), tree_x, tree_y, *other_trees)


@explain_misuse
def sub(tree_x: ArrayTree, tree_y: ArrayTree) -> ArrayTree:
    """x - y, leafwise.

    tree_x, tree_y: trees of the same structure.
    """
    return _map(operator.sub, tree_x, tree_y)


@explain_misuse
def mul(tree_x: ArrayTree, tree_y: ArrayTree) -> ArrayTree:
    """x y, elementwise.

    tree_x, tree_y: trees of the same structure.
    """
    return _map(operator.mul, tree_x, tree_y)


@explain_misuse
def div(tree_x: ArrayTree, tree_y: ArrayTree) -> ArrayTree:
    """x / y, elementwise.

    tree_x, tree_y: trees of the same structure.
    """
    return _map(operator.truediv, tree_x, tree_y)


@explain_misuse
def scale(scalar: ArrayLike, tree: ArrayTree) -> ArrayTree:
    """scalar x, for each leaf x.

    scalar: a scalar; if it has a dtype, it takes part in promotion.
    tree: a tree of arrays or scalars.
    """
    return _map(lambda x: scalar * x, tree)


@explain_misuse
def add_scale(tree_x: ArrayTree, scalar: ArrayLike, tree_y: ArrayTree) -> ArrayTree:
    """x + scalar y, elementwise; `None` where `tree_x` is `None`.

    tree_x, tree_y: x and y, trees of the same structure.
    scalar: a scalar; if it has a dtype, it takes part in promotion.
    """
    scalar = jnp.asarray(scalar)

    def leaf(x, y):
        if x is None or not (is_numeric(x) and is_numeric(y)):
            return x
        return x + scalar * y

    return jax.tree.map(leaf, tree_x, tree_y, is_leaf=is_none)


@explain_misuse
def conj(tree: ArrayTree) -> ArrayTree:
    """The complex conjugate of each leaf.

    tree: a tree of arrays or scalars.
    """
    return _map(jnp.conj, tree)


@explain_misuse
def real(tree: ArrayTree) -> ArrayTree:
    """The real part of each leaf.

    tree: a tree of arrays or scalars.
    """
    return _map(jnp.real, tree)


@explain_misuse
def clip(
    tree: ArrayTree,
    min_value: ArrayLike | None = None,
    max_value: ArrayLike | None = None,
) -> ArrayTree:
    """min(max(x, min_value), max_value), for each leaf x.

    tree: a tree of real arrays or scalars.
    min_value, max_value: the bounds; `None` for no bound.

    Raises ValueError for complex leaves, which have no order.
    """
    return _map(lambda x: jnp.clip(x, min_value, max_value), tree)


@explain_misuse
def where(condition: ArrayLike, tree_x: ArrayTree, tree_y: ArrayTree) -> ArrayTree:
    """x where the condition holds, y elsewhere, leafwise.

    condition: a boolean, or a boolean array that broadcasts with every leaf.
    tree_x, tree_y: x and y, trees of the same structure.
    """
    return _map(lambda x, y: jnp.where(condition, x, y), tree_x, tree_y)


@explain_misuse
def batch_shape(tree: ArrayTree, shape: tuple[int, ...] = ()) -> ArrayTree:
    """Repeat each leaf along new leading axes.

    tree: a tree of arrays or scalars.
    shape: the lengths of the new axes.
    """
    return _map(lambda x: jnp.broadcast_to(x, (*shape, *jnp.shape(x))), tree)


@explain_misuse
def full_like(
    tree: ArrayTree, fill_value: ArrayLike, dtype: DTypeLike | None = None
) -> ArrayTree:
    """A tree shaped like `tree` and filled with one value.

    tree: gives the structure and the shapes.
    fill_value: the value.
    dtype: dtype of the result; `None` keeps that of each leaf.
    """
    return _like(ft.partial(jnp.full_like, fill_value=fill_value), tree, dtype)


@explain_misuse
def zeros_like(tree: ArrayTree, dtype: DTypeLike | None = None) -> ArrayTree:
    """A tree of zeros, shaped like `tree`.

    tree: gives the structure and the shapes.
    dtype: dtype of the result; `None` keeps that of each leaf.
    """
    return _like(jnp.zeros_like, tree, dtype)


@explain_misuse
def ones_like(tree: ArrayTree, dtype: DTypeLike | None = None) -> ArrayTree:
    """A tree of ones, shaped like `tree`.

    tree: gives the structure and the shapes.
    dtype: dtype of the result; `None` keeps that of each leaf.
    """
    return _like(jnp.ones_like, tree, dtype)


def _like(make, tree, dtype):
    def leaf(x):
        return make(x, dtype=dtype if is_numeric(x) else None)

    return jax.tree.map(leaf, tree)


@explain_misuse
def cast(tree: ArrayTree, dtype: DTypeLike | None) -> ArrayTree:
    """Cast each leaf to another dtype.

    tree: a tree of arrays or scalars.
    dtype: dtype of the result; `None` keeps that of each leaf.
    """
    return tree if dtype is None else _map(lambda x: _cast(x, dtype), tree)


def _cast(x, dtype):
    # Python's numbers have no `astype`.
    return (x if has_dtype(x) else jnp.asarray(x)).astype(dtype)


@explain_misuse
def cast_like(tree: ArrayTree, other_tree: ArrayTree) -> ArrayTree:
    """Cast each leaf to the dtype of the corresponding leaf of another tree.

    tree: a tree of arrays or scalars.
    other_tree: a tree of the same structure; leaves without a dtype there are kept.
    """

    def leaf(x, y):
        if not has_dtype(y) or not (is_numeric(x) and is_numeric(y)):
            return x
        return _cast(as_array(x), y.dtype)

    return jax.tree.map(leaf, tree, other_tree)


@explain_misuse
def dtype(tree: ArrayTree, mixed_dtype_handler: str | None = None) -> np.dtype:
    """The dtype of the leaves; the default float dtype for an empty tree.

    tree: a tree of arrays or scalars.
    mixed_dtype_handler: how to handle several dtypes.  `None` raises an error,
        "promote" returns the dtype that JAX promotes all to, "highest" and "lowest"
        return the dtype among them to which, or from which, all others can be promoted.

    Raises ValueError, with a path, for dtypes that cannot be handled.
    """
    handlers = {"promote": jnp.promote_types, "highest": _higher, "lowest": _lower}
    require_one_of("mixed_dtype_handler", mixed_dtype_handler, (None, *handlers))
    leaves = [(i, x) for i, x in enumerate(jax.tree.leaves(tree)) if is_numeric(x)]
    if not leaves:
        return jnp.dtype(jnp.result_type(float))
    dtypes = [_dtype(x) for _, x in leaves]
    if mixed_dtype_handler is not None:
        with jax.numpy_dtype_promotion("standard"):
            return ft.reduce(handlers[mixed_dtype_handler], dtypes)
    for (i, _), found in zip(leaves, dtypes, strict=True):
        if found != dtypes[0]:
            path = jax.tree_util.tree_leaves_with_path(tree)[i][0]
            raise ValueError(
                f"the leaf at {jax.tree_util.keystr(path)} is of dtype {found}, "
                f"expected {dtypes[0]}; choose a `mixed_dtype_handler`"
            )
    return dtypes[0]


def _dtype(x):
    has_final = isinstance(x, jax.Array | jax.ShapeDtypeStruct)
    return x.dtype if has_final else jnp.asarray(x).dtype


def _higher(a, b):
    joined = jnp.promote_types(a, b)
    if joined not in (a, b):
        raise ValueError(
            f"neither of the dtypes {a} and {b} can be promoted to the other; "
            "choose 'promote' as `mixed_dtype_handler`"
        )
    return joined


def _lower(a, b):
    return a if _higher(a, b) == b else b


@explain_misuse
def size(tree: ArrayTree) -> int:
    """The total number of elements of all leaves.

    tree: a tree of arrays or scalars.
    """
    leaves = jax.tree.leaves(tree)
    return builtins.sum(math.prod(np.shape(x)) for x in leaves)


@explain_misuse
def allclose(
    a: ArrayTree,
    b: ArrayTree,
    rtol: ArrayLike = 1e-5,
    atol: ArrayLike = 1e-8,
    equal_nan: bool = False,
) -> jax.Array | bool:
    """Whether |x - y| <= atol + rtol |y| for all elements of all leaves.

    a, b: the trees of x and y, of the same structure.
    rtol, atol: relative and absolute tolerance, >= 0.
    equal_nan: whether NaN equals NaN.
    """

    def leaf(x, y):
        if not (is_numeric(x) and is_numeric(y)):
            return True
        return jnp.allclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan)

    with jax.numpy_dtype_promotion("standard"):
        results = jax.tree.leaves(jax.tree.map(leaf, a, b))
    return ft.reduce(jnp.logical_and, results) if results else True


@explain_misuse
def split_key_like(rng_key: jax.Array, target_tree: ArrayTree) -> ArrayTree:
    """A tree of independent random keys, one for each leaf.

    rng_key: the key to split.
    target_tree: gives the structure.
    """
    treedef = jax.tree.structure(target_tree)
    return treedef.unflatten(jax.random.split(rng_key, treedef.num_leaves))


@explain_misuse
def random_like(
    rng_key: jax.Array,
    target_tree: ArrayTree,
    sampler: Callable[..., Any] = jax.random.normal,
    dtype: DTypeLike | None = None,
) -> ArrayTree:
    """A tree of random arrays, shaped like `target_tree`.

    rng_key: the key, which is split into one key for each leaf.
    target_tree: gives the structure and the shapes.
    sampler: called as `sampler(key, shape, dtype)`, and with the keyword `out_sharding`
        if it has one.
    dtype: dtype of the result; `None` keeps that of each leaf.
    """
    is_placed = "out_sharding" in inspect.signature(sampler).parameters

    def leaf(x, key):
        if not is_numeric(x):
            return x
        place = {"out_sharding": jax.typeof(x).sharding} if is_placed else {}
        return sampler(
            key, jnp.shape(x), _dtype(x) if dtype is None else dtype, **place
        )

    return jax.tree.map(leaf, target_tree, split_key_like(rng_key, target_tree))


@explain_misuse
def unwrap_random_key_data(input_tree: ArrayTree) -> ArrayTree:
    """Replace random keys in a tree by their integer data.

    input_tree: a tree; other leaves are unchanged.
    """

    def leaf(x):
        is_key = jnp.issubdtype(dtype_of(x, np.void), jax.dtypes.prng_key)
        return jax.random.key_data(x) if is_key else x

    return jax.tree.map(leaf, input_tree)
