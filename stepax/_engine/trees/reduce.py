"""Reductions of a tree to a scalar: sums, extremes, inner products, norms.

Each is one jitted call, and one equation in a traced program.  The functions of a leaf
are jitted too, so that leaves of equal shape share one trace.
"""

import functools as ft

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..arrays.joined import grouped, join_small
from ..arrays.numerics import (
    abs_sq,
    along,
    fitting_factor,
    is_numeric,
    nan_max,
    nan_max_abs,
    nan_min,
    reduce_scalars,
    safe_sqrt,
    strong_type,
    upcast,
)
from ..arrays.placement import is_on_mesh
from ..arrays.precision import promote_freely
from ..base import ArrayTree, as_array, is_array, is_none
from ..functions.calls import explain_misuse
from ..functions.deprecated import warn_deprecated
from . import errors
from .apply import map_pairs


@explain_misuse
def sum(tree: ArrayTree, associative_reduction: bool = False) -> ArrayLike:
    """The sum of all elements of all leaves; 0 for an empty tree.

    tree: a tree of arrays or scalars.
    associative_reduction: whether to add the sums of the leaves in pairs, which rounds
        less and may run in parallel, instead of in order.
    """
    leaves = _arrays(tree)
    join = _in_pairs if associative_reduction else _in_order
    return _reduce(_total, join, leaves) if leaves else 0


@explain_misuse
def max(tree: ArrayTree) -> ArrayLike:
    """The largest element of all leaves; -inf for an empty tree.

    tree: a tree of arrays or scalars.
    """
    # An empty array has no largest element, and `jnp.max` raises.
    leaves = [x for x in _arrays(tree) if jnp.size(x)]
    return _reduce(_highest, _maximum, leaves) if leaves else -jnp.inf


@explain_misuse
def min(tree: ArrayTree) -> ArrayLike:
    """The smallest element of all leaves; inf for an empty tree.

    tree: a tree of arrays or scalars.
    """
    leaves = [x for x in _arrays(tree) if jnp.size(x)]
    return _reduce(_lowest, _minimum, leaves) if leaves else jnp.inf


@explain_misuse
def vdot(tree_x: ArrayTree, tree_y: ArrayTree) -> ArrayLike:
    """The inner product Σ conj(x) y over all elements of all leaves.

    tree_x, tree_y: trees of the same structure and shapes.

    Returns float32 or wider; 0 for an empty tree.  Raises ValueError, with the path, if
    structures or shapes differ.
    """
    pairs = []

    def collect(x, y, check):
        if x is None and y is None:
            return
        check()
        if is_numeric(x) and is_numeric(y):
            pairs.append((x, y))

    map_pairs(collect, ("tree_x", "tree_y"), tree_x, tree_y)
    if not pairs:
        return 0
    return _reduce(_dot, _in_order, *zip(*pairs, strict=True))


@explain_misuse
def norm(
    tree: ArrayTree, ord: int | str | float | None = None, squared: bool = False
) -> jax.Array:
    """The norm of all leaves, as one vector.

    sqrt(Σ |x|²)  for `ord` 2, the default;  its derivative at 0 is 0
    Σ |x|         for `ord` 1
    max |x|       for `ord` "inf" or `jnp.inf`

    tree: a tree of arrays or scalars.
    ord: the norm, one of the above.
    squared: whether to return the square of the norm.

    Returns float32 or wider; 0 for an empty tree.  Intermediate results do not overflow
    or underflow where the norm itself fits.  Raises ValueError for another `ord`.
    """
    if ord not in (None, 1, 2, "inf", jnp.inf):
        raise ValueError(f'`ord` is {ord!r}, expected None, 1, 2, "inf" or `jnp.inf`')
    leaves = _arrays(tree)
    if not leaves:
        return jnp.zeros([])
    if ord in (None, 2):
        if squared:
            return _reduce(_squares, _in_order, leaves)
        return _two_norm(leaves)
    how = (_sizes, _in_order) if ord == 1 else (_largest, _maximum)
    length = _reduce(*how, leaves)
    return jnp.square(length) if squared else length


@explain_misuse
def global_norm(updates: ArrayTree) -> jax.Array:
    """The Euclidean norm of a tree; deprecated name of `norm`.

    updates: a tree of arrays or scalars.
    """
    warn_deprecated("global_norm")
    return norm(updates)


def _arrays(tree):
    """The numeric leaves; raises for leaves that are not arrays."""
    leaves = jax.tree.leaves(tree, is_leaf=is_none)
    for i, x in enumerate(leaves):
        if x is not None and not is_array(x):
            raise TypeError(
                f"the leaf at {errors.paths(tree)[i]} is {errors.describe(x)}, "
                "expected an array"
            )
    return [as_array(x) for x in leaves if x is not None and is_numeric(x)]


@ft.partial(jax.jit, static_argnames=("leaf", "join"))
def _reduce(leaf, join, *columns):
    """`join` of the scalars that `leaf` returns for corresponding leaves."""
    # Leaves of several dtypes meet here, which strict promotion would forbid.
    with jax.numpy_dtype_promotion("standard"):
        return strong_type(join(list(map(leaf, *columns))))


@jax.jit
def _total(x):
    # XLA's CPU compiler rounds a fused complex sum differently.
    if jnp.iscomplexobj(x):
        return jax.lax.complex(jnp.sum(x.real), jnp.sum(x.imag))
    return jnp.sum(x)


_highest, _lowest = jax.jit(nan_max), jax.jit(nan_min)


@jax.jit
def _dot(x, y):
    """Σ conj(x) y."""
    # Not `jnp.vdot`, which ravels: a sharded array would be gathered for that.
    return jnp.sum(jnp.conj(upcast(x, whole=int)) * upcast(y, whole=int))


@jax.jit
def _squares(x):
    return jnp.sum(abs_sq(upcast(x)))


@jax.jit
def _sizes(x):
    return jnp.sum(jnp.abs(upcast(x)))


@jax.jit
def _largest(x):
    return nan_max_abs(upcast(x), initial=0)


_in_order = ft.partial(reduce_scalars, pair=jnp.add, whole=jnp.sum)
_in_pairs = ft.partial(jax.tree.reduce_associative, jnp.add)
_maximum = ft.partial(reduce_scalars, pair=jnp.maximum, whole=nan_max)
_minimum = ft.partial(reduce_scalars, pair=jnp.minimum, whole=nan_min)


# Dtypes whose squares fit into float32.
_NARROW_RANGE = [jnp.dtype(x) for x in ("float16", "int8", "uint8", "bool")]


@jax.jit
def _two_norm(leaves):
    """sqrt(Σ |x|²), in float32 or wider; accurate wherever the norm itself fits."""
    fits = all(jnp.result_type(x) in _NARROW_RANGE for x in leaves)
    return _norm_of(fits, list(map(upcast, join_small(leaves))))


@ft.partial(jax.custom_jvp, nondiff_argnums=(0,))
@promote_freely
def _norm_of(fits, leaves):
    if fits:
        return safe_sqrt(_sum_of_squares(leaves))
    is_manual = bool(jax.sharding.get_abstract_mesh().manual_axes)
    is_spread = not is_manual and any(map(is_on_mesh, leaves))
    alike = _norm_on_mesh if is_spread else _norm_in_place
    dtypes = {x.real.dtype for x in leaves}
    return alike(leaves) if len(dtypes) == 1 else _norm_of_both(alike, leaves, dtypes)


@_norm_of.defjvp
@promote_freely
def _norm_and_slope(fits, primals, tangents):
    ((leaves,), (changes,)), norm = (primals, tangents), _norm_of(fits, *primals)
    rows = zip(leaves, changes, strict=True)
    return norm, _in_order([jnp.sum(along(x, norm, dx)) for x, dx in rows])


# The square of a float32 number may overflow or underflow.  Only then are the leaves
# read a second time, scaled by a power of two.


def _norm_in_place(leaves):
    squares = _sum_of_squares(leaves)
    factor = fitting_factor(squares)
    near = ft.partial(safe_sqrt, squares)
    far = ft.partial(_rescaled, factor, leaves)
    # Not `cond`: with two branches XLA computes both on a GPU, and reads all leaves
    # again; with three only one.  For a NaN there is nothing to read again.
    side = jnp.where(jnp.isnan(squares), 2, jnp.where(factor == 1, 0, 1))
    return jax.lax.switch(side, [near, far, lambda: squares])


def _norm_of_both(alike, leaves, dtypes):
    """The norm of both precisions: a factor for doubles would overflow single."""
    squares, wide = _sum_of_squares(leaves), jnp.result_type(*dtypes)
    least = 2.0 ** (jnp.finfo(jnp.float32).minexp * 5 // 8)
    doubles = [x.astype(jnp.result_type(x, wide)) for x in leaves]
    return jax.lax.cond(
        (squares > least) & (squares < jnp.inf),
        lambda: safe_sqrt(squares),
        lambda: alike(doubles),
    )


def _rescaled(factor, leaves):
    # One reduction for all leaves of a type keeps this branch, which hardly ever runs,
    # quick to compile.
    kinds = grouped(_times(factor, leaves), jax.typeof).values()
    sums = [jnp.sum(ft.reduce(jnp.add, map(abs_sq, xs))) for xs in kinds]
    return safe_sqrt(_in_order(sums)) / factor


def _norm_on_mesh(leaves):
    """As `_norm_in_place`, in a loop that hardly ever runs twice.

    Each sum is in the program once, as each is a collective.  And leaves of a type may
    be sharded differently: to add their squares, XLA would gather them.
    """

    def sum_again(state):
        i, _, squares = state
        factor = fitting_factor(squares)
        return i + 1, factor, _sum_of_squares(_times(factor, leaves))

    def is_due(state):
        i, _, squares = state
        return (i == 0) | (i == 1) & (fitting_factor(squares) != 1)

    one = jnp.ones([], jnp.result_type(*(x.real.dtype for x in leaves)))
    state = jax.lax.while_loop(is_due, sum_again, (jnp.int32(0), one, one))
    return safe_sqrt(state[2]) / state[1]


def _times(factor, leaves):
    return [x * factor.astype(x.real.dtype) for x in leaves]


def _sum_of_squares(leaves):
    return _in_order(list(map(_squares, leaves)))
