"""Projections onto convex sets, for a tree treated as one vector.

Parikh and Boyd, 2014, Proximal Algorithms (DOI:10.1561/2400000003), section 6; for the
simplex Michelot, 1986, A finite algorithm for finding the projection of a point onto
the canonical simplex of Rⁿ (DOI:10.1007/BF00938486), and for the l1 ball Duchi et al.,
2008, Efficient Projections onto the l1-Ball (DOI:10.1145/1390156.1390191).

Differences from Optax: each leaf keeps its dtype and is computed in float32 or wider;
projections onto a sphere are defined at 0, onto a ball for radius 0, and onto a line
for the vector 0; complex elements are projected by their absolute values, and rejected
where an order is needed.  The simplex projection neither sorts nor ravels, so that
sharded leaves are not gathered.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from . import tree as trees
from ._engine.arrays.numerics import (
    abs_sq,
    at_length,
    broadcasts_to,
    dtype_of,
    is_known,
    is_numeric,
    quotient,
    safe_sqrt,
    strong_type,
    upcast,
)
from ._engine.arrays.precision import promote_freely
from ._engine.base import ArrayTree, is_array, is_none
from ._engine.functions.calls import explain_misuse
from ._engine.trees import errors
from ._engine.trees.apply import map_pairs
from ._names import attributes


__all__ = [
    "projection_box", "projection_halfspace", "projection_hypercube",
    "projection_hyperplane", "projection_l1_ball", "projection_l1_sphere",
    "projection_l2_ball", "projection_l2_sphere", "projection_linf_ball",
    "projection_non_negative", "projection_simplex", "projection_vector",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)

_MOST_COPIED = 4096


@explain_misuse
@promote_freely  # a narrow leaf may meet a wide threshold
def projection_non_negative(tree: ArrayTree) -> ArrayTree:
    """The nearest point with nonnegative elements: max(x, 0).

    tree: a tree of real arrays.

    Raises ValueError for complex leaves.
    """
    _check_real(tree)
    return _map(jax.nn.relu, tree)


@explain_misuse
@promote_freely
def projection_box(tree: ArrayTree, lower: ArrayTree, upper: ArrayTree) -> ArrayTree:
    """The nearest point between two bounds: min(max(x, lower), upper).

    tree: a tree of real arrays.
    lower, upper: the bounds, lower <= upper: a scalar, a tree like `tree` with arrays
        that broadcast to its shapes, or `None` for no bound.

    Raises ValueError for complex leaves, and for bounds that do not fit or that cross.
    """
    _check_real(tree)
    require_order(lower, upper)
    tree = _bound(tree, lower, "lower", jnp.maximum)
    return _bound(tree, upper, "upper", jnp.minimum)


@explain_misuse
@promote_freely
def projection_hypercube(tree: ArrayTree, scale: ArrayTree = 1) -> ArrayTree:
    """The nearest point of the hypercube: min(max(x, 0), scale).

    tree: a tree of real arrays.
    scale: the length of an edge, at least 0; a scalar, or a tree like `tree`.

    Raises ValueError for complex leaves, and for a scale that is negative or does not
    fit.
    """
    if _is_known(scale):
        _check_scale(scale)
    return projection_box(tree, 0, scale)


@explain_misuse
@promote_freely
def projection_simplex(tree: ArrayTree, scale: ArrayLike = 1) -> ArrayTree:
    """The nearest point with nonnegative elements that sum to `scale`.

        y = max(x - τ, 0),   τ such that Σ y = scale

    tree: a tree of real arrays.
    scale: the sum, at least 0; a scalar.

    Raises ValueError for complex leaves, and for a negative scale.
    """
    _check_real(tree)
    return _simplex(tree, _radius(scale))


@explain_misuse
@promote_freely
def projection_l1_ball(tree: ArrayTree, scale: ArrayLike = 1) -> ArrayTree:
    """The nearest point whose absolute values sum to at most `scale`.

        y = x                                  where Σ |x| <= scale
        y = sign(x) projection_simplex(|x|)    elsewhere

    tree: a tree of arrays.
    scale: the radius, at least 0; a scalar.

    Raises ValueError for a negative scale.
    """
    scale = _radius(scale)
    is_inside = trees.norm(_map(upcast, tree), ord=1) <= scale
    sphere = projection_l1_sphere(tree, scale)
    return _map(lambda x, y: jnp.where(is_inside, x, y), tree, sphere)


@explain_misuse
@promote_freely
def projection_l1_sphere(tree: ArrayTree, scale: ArrayLike = 1) -> ArrayTree:
    """The nearest point whose absolute values sum to `scale`.

        y = sign(x) projection_simplex(|x|),   with sign(0) = 1

    tree: a tree of arrays.
    scale: the radius, at least 0; a scalar.

    Raises ValueError for a negative scale.
    """
    sizes = _simplex(_wide_map(_size, tree), _radius(scale))
    return _map(lambda x, size: size.astype(x.dtype) * _sign(x), tree, sizes)


@explain_misuse
@promote_freely
def projection_l2_ball(tree: ArrayTree, scale: ArrayLike = 1) -> ArrayTree:
    """The nearest point whose norm is at most `scale`: y = x min(1, scale / ‖x‖).

    tree: a tree of arrays.
    scale: the radius, at least 0; a scalar.

    Raises ValueError for a negative scale.
    """
    scale = _radius(scale)
    norm = _length(tree)
    is_inside = norm <= scale
    # Where it divides, the norm is above the radius, hence positive.
    norm = jnp.where(is_inside, jnp.ones_like(norm), norm)
    return _map(lambda x: jnp.where(is_inside, x, at_length(x, scale, norm)), tree)


@explain_misuse
@promote_freely
def projection_l2_sphere(tree: ArrayTree, scale: ArrayLike = 1) -> ArrayTree:
    """The nearest point whose norm is `scale`: y = x scale / ‖x‖.

    For x = 0, which is equally far from all points, it is the point with equal
    elements.

    tree: a tree of arrays.
    scale: the radius, at least 0; a scalar.

    Raises ValueError for a negative scale.
    """
    scale = _radius(scale)
    is_zero = _length(tree) == 0
    tree = _map(lambda x: jnp.where(is_zero, jnp.ones_like(x), x), tree)
    norm = _length(tree)
    # Only what is empty has a norm of 0.  A bound of 1, which a vector along an axis
    # reaches, would halve its derivative.
    norm = jnp.where(norm == 0, jnp.ones_like(norm), norm)
    return _map(lambda x: at_length(x, scale, norm), tree)


@explain_misuse
@promote_freely
def projection_linf_ball(tree: ArrayTree, scale: ArrayLike = 1) -> ArrayTree:
    """The nearest point whose elements have a modulus of at most `scale`.

        y = x min(1, scale / |x|)

    tree: a tree of arrays.
    scale: the radius, at least 0; a scalar, or an array of one for each element.

    Raises ValueError for a negative scale.
    """
    scale = _radius(scale) if np.size(scale) == 1 else upcast(scale)

    def leaf(x):
        if not jnp.iscomplexobj(x):
            most = scale.astype(x.dtype)
            return jnp.clip(x, -most, most)
        size, most = _size(x), scale.astype(x.real.dtype)
        is_inside = size <= most
        return jnp.where(is_inside, x, most / jnp.where(is_inside, 1, size) * x)

    return _map(leaf, tree)


@explain_misuse
@promote_freely
def projection_vector(x: ArrayTree, a: ArrayTree) -> ArrayTree:
    """The nearest point on the line through 0 along a: y = a ⟨a, x⟩ / ⟨a, a⟩.

    x: a tree of arrays.
    a: a tree of the same structure and shapes; for a = 0 the result is 0.

    Raises ValueError, with the path, if structures or shapes differ.
    """
    a, _ = _direction(x, a)
    along = trees.vdot(a, _wide_map(upcast, x))
    return _map(lambda x, a: _product(along, a, x), x, a)


@explain_misuse
@promote_freely
def projection_hyperplane(x: ArrayTree, a: ArrayTree, b: ArrayLike) -> ArrayTree:
    """The nearest point with ⟨a, y⟩ = b: y = x - a (⟨a, x⟩ - b) / ⟨a, a⟩.

    x: a tree of arrays.
    a: a tree of the same structure and shapes; for a = 0 the result is x.
    b: a scalar.

    Raises ValueError, with the path, if structures or shapes differ.
    """
    a, b = _direction(x, a, b)
    beyond = trees.vdot(a, _wide_map(upcast, x)) - b
    return _map(lambda x, a: x - _product(beyond, a, x), x, a)


@explain_misuse
@promote_freely
def projection_halfspace(x: ArrayTree, a: ArrayTree, b: ArrayLike) -> ArrayTree:
    """The nearest point with ⟨a, y⟩ <= b: y = x - a max(⟨a, x⟩ - b, 0) / ⟨a, a⟩.

    x: a tree of arrays.
    a: a tree of the same structure and shapes; for a = 0 the result is x.
    b: a scalar.  For complex trees it bounds the real part of the inner product.

    Raises ValueError, with the path, if structures or shapes differ.
    """
    a, b = _direction(x, a, b)
    beyond = jnp.real(trees.vdot(a, _wide_map(upcast, x))) - b
    return _map(lambda x, a: x - _product(jax.nn.relu(beyond), a, x), x, a)


def _map(f: Callable, tree: ArrayTree, *others: ArrayTree) -> ArrayTree:
    """`f` of the leaves in float32 or wider, rounded once to the first leaf's dtype."""

    def leaf(x, *xs):
        if not is_numeric(x):
            return x
        wide = upcast(x)
        is_inexact = jnp.issubdtype(jnp.result_type(x), jnp.inexact)
        dtype = jnp.result_type(x) if is_inexact else wide.dtype
        return strong_type(f(wide, *map(upcast, xs)).astype(dtype))

    return jax.tree.map(leaf, tree, *others)


def _wide_map(f: Callable, tree: ArrayTree) -> ArrayTree:
    """`f` of each leaf in float32 or wider, without rounding."""
    return jax.tree.map(lambda x: f(upcast(x)) if is_numeric(x) else None, tree)


def _product(number, a, x):
    """number * a in the dtype of `x`; drops the imaginary part if that is real."""
    y = number * a
    return (y if jnp.iscomplexobj(x) else y.real).astype(x.dtype)


def _size(x):
    return safe_sqrt(abs_sq(x)) if jnp.iscomplexobj(x) else jnp.abs(x)


def _sign(x):
    """x / |x|, or 1 for 0, where all directions are equivalent."""
    is_zero = x == 0
    if not jnp.iscomplexobj(x):
        return jnp.where(is_zero, 1, jnp.sign(x)).astype(x.dtype)
    x = jnp.where(is_zero, 1, x)
    return x / _size(x)


def _simplex(tree, scale):
    """max(x - τ, 0), with the derivative of the final τ."""
    if not trees.size(tree):
        return tree
    top = jax.lax.stop_gradient(trees.max(_wide_map(upcast, tree)))
    shifted = _wide_map(lambda x: x - top, tree)  # sums of large elements lose digits
    above = _support(jax.lax.stop_gradient(shifted), jax.lax.stop_gradient(scale))
    t = _threshold(shifted, above, scale)

    def leaf(_, x, is_above):
        return jnp.where((is_above == 0) & (x <= 0), 0, jax.nn.relu(x - t))

    return _map(leaf, tree, shifted, above)


@jax.jit
def _support(xs, scale):
    """Where the projection onto the simplex is positive, for elements of at most 0.

    Michelot's algorithm: start from all candidates; each iteration sets the threshold
    so that the elements above the last one sum to `scale`, until none is dropped.
    """

    def drop(carry):
        above, number, _ = carry
        t = _threshold(xs, above, scale)
        fewer = jax.tree.map(lambda x, m: m & ((x > t) | (x >= 0)), xs, above)
        return fewer, _count(fewer), number

    near = jax.tree.map(lambda x: x >= -scale.astype(x.dtype), xs)
    start = near, _count(near), _count(near) + 1

    def is_changing(carry):
        return carry[1] < carry[2]

    return jax.lax.while_loop(is_changing, drop, start)[0]


def _threshold(xs, above, scale):
    kept = jax.tree.map(lambda x, m: jnp.where(m, x, 0), xs, above)
    # At least the largest element is kept, unless there is a NaN.
    return (trees.sum(kept) - scale) / jnp.maximum(_count(above), 1)


def _count(above):
    return trees.sum(jax.tree.map(lambda m: jnp.sum(m, dtype=jnp.int32), above))


def _length(tree):
    return trees.norm(_wide_map(upcast, tree))


def _direction(
    x: ArrayTree, a: ArrayTree, b: ArrayLike = 0.0
) -> tuple[ArrayTree, jax.Array]:
    """a / ‖a‖ and b / ‖a‖; both are 0 for a = 0."""

    def leaf(x, a, check):
        if x is None or not is_numeric(x):
            return None
        check()
        return a

    b = jnp.reshape(b, ()) if np.shape(b) and np.size(b) == 1 else b
    if np.shape(b) != ():
        raise ValueError(f"`b` has shape {np.shape(b)}, expected a scalar")
    a = map_pairs(leaf, ("x", "a"), x, a)
    norm = _length(a)
    a = _wide_map(lambda x: quotient(x, norm.astype(x.dtype)), a)
    return a, quotient(upcast(b), norm)


def _bound(tree, bound, name, limit):
    """`limit(x, bound)` for a bound that is a scalar or a tree."""
    if bound is None or (is_array(bound) and jnp.ndim(bound) == 0):
        bound = jax.tree.map(lambda x: bound, tree)

    def leaf(x, y, check):
        if x is None or y is None:
            return x
        if not broadcasts_to(jnp.shape(y), jnp.shape(x)):
            check()
        return _map(limit, x, jnp.broadcast_to(y, jnp.shape(x)))

    return map_pairs(leaf, ("tree", name), tree, bound)


def require_order(lower: ArrayTree, upper: ArrayTree) -> None:
    """Raise for bounds that cross, where both are known and fit each other."""
    lows, highs = (jax.tree.leaves(x, is_leaf=is_none) for x in (lower, upper))
    n = max(len(lows), len(highs))
    lows, highs = (x * n if len(x) == 1 else x for x in (lows, highs))
    for low, high in zip(lows, highs, strict=False):
        is_known = _is_known(low) and _is_known(high)
        if is_known and not np.all(np.less_equal(low, high)):
            raise ValueError(f"`lower` is {low}, expected at most `upper`, {high}")


def _is_known(x):
    # Large arrays would have to be copied from their devices.
    is_far = isinstance(x, jax.Array) and x.size > _MOST_COPIED
    return is_array(x) and not is_far and is_known(x)


def _check_scale(scale):
    if np.any(np.less(scale, 0)):
        raise ValueError(f"`scale` is {scale}, expected at least 0")


def _radius(scale):
    if np.size(scale) != 1:
        raise ValueError(f"`scale` has shape {np.shape(scale)}, expected a scalar")
    scale = jnp.reshape(scale, ()) if np.shape(scale) else scale
    if _is_known(scale):
        _check_scale(scale)
    return upcast(scale)


def _check_real(tree):
    for i, x in enumerate(jax.tree.leaves(tree, is_leaf=is_none)):
        if jnp.issubdtype(dtype_of(x, type(x)), jnp.complexfloating):
            raise ValueError(
                f"the leaf at {errors.paths(tree)[i]} is complex, but the projection "
                "needs ordered elements"
            )
