"""Proximal operators, for `minimize(prox=...)` and `proximal`.

An operator g has `g.value(x)` and `g(x, step)`, the minimizer z of
step g(z) + |z - x|² / 2, for any tree x.  A dict from path patterns to operators is an
operator, too, wherever one is expected.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from .. import projections
from .._engine.arrays.numerics import norm2
from .._engine.base import is_array
from .._engine.functions.calls import explain_misuse
from .._engine.trees import errors
from .._names import attributes
from ._prox import variation
from ._prox.operators import Leafwise, Operator, Projection


__all__ = [
    "Operator", "box", "elastic_net", "from_projection", "group_l2", "l1", "l1_ball",
    "l2_ball", "l2_squared", "non_negative", "nuclear", "simplex", "total_variation",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)


@explain_misuse
def l1(weight: Any) -> Operator:
    """The sum of absolute values, whose minimizers are sparse.

        g(x) = Σ w |x|
        z = sign(x) max(|x| - s w, 0)

    weight: w, at least 0: a scalar, or a tree of x's structure, or a prefix of it,
        of scalars and of arrays that broadcast to the parameter.

    Tibshirani, 1996, Regression Shrinkage and Selection via the Lasso.
    """
    _check("l1", "weight", weight)
    return Leafwise("l1", (weight,), _l1, _soft)


@explain_misuse
def elastic_net(l1: Any, l2: Any) -> Operator:
    """The sum of absolute values and squares.

        g(x) = Σ a |x| + b/2 |x|²
        z = sign(x) max(|x| - s a, 0) / (1 + s b)

    l1, l2: a and b, at least 0, each as the weight of `prox.l1`.

    Zou and Hastie, 2005, Regularization and Variable Selection via the Elastic Net.
    """
    _check("elastic_net", "l1", l1)
    _check("elastic_net", "l2", l2)
    return Leafwise("elastic_net", (l1, l2), _elastic, _soft_shrunk)


@explain_misuse
def l2_squared(weight: Any) -> Operator:
    """Half the sum of squares.

        g(x) = Σ w/2 |x|²
        z = x / (1 + s w)

    weight: w, at least 0, as the weight of `prox.l1`.
    """
    _check("l2_squared", "weight", weight)
    return Leafwise("l2_squared", (weight,), _half_square, _shrunk)


@explain_misuse
def group_l2(weight: Any, axis: int | tuple[int, ...] | None = -1) -> Operator:
    """The sum of the norms of groups, of which minimizers have few.

        g(x) = Σ w ‖x_group‖
        z = x max(1 - s w / ‖x_group‖, 0)

    weight: w, at least 0: a scalar, or a tree of x's structure, or a prefix of it,
        of scalars and of arrays with length 1 along `axis`.
    axis: the axis or axes along which elements form a group; `None` for whole leaves.

    Raises a `ValueError`, with the path, for a leaf without that axis.

    Yuan and Lin, 2006, Model Selection and Estimation in Regression with Grouped
    Variables.
    """
    _check("group_l2", "weight", weight)
    axes = (axis,) if isinstance(axis, int) else axis
    options: Any = {"axes": axes, "given": (axis,)}
    return Leafwise("group_l2", (weight,), _norms, _shortened, **options)


@explain_misuse
def nuclear(weight: Any) -> Operator:
    """The sum of singular values, whose minimizers have a low rank.

        g(x) = w Σ σ
        z = u max(σ - s w, 0) v',   x = u σ v'

    weight: w, at least 0: a scalar, or a tree of x's structure, or a prefix of it.

    The last two axes of each leaf are matrices.  Raises a `ValueError`, with the path,
    for a leaf without two axes.
    """
    _check("nuclear", "weight", weight)
    return Leafwise("nuclear", (weight,), _singular_sum, _low_rank, axes=(-2, -1))


@explain_misuse
def total_variation(weight: Any) -> Operator:
    """The sum of jumps along the last axis, whose minimizers are piecewise constant.

        g(x) = w Σ |x_i+1 - x_i|

    Its operator, the fused Lasso, is computed exactly.

    weight: w, at least 0: a scalar, or a tree of x's structure, or a prefix of it,
        of scalars and of arrays whose last axis has length 1.

    Raises a `ValueError`, with the path, for a leaf without axes.

    Rudin, Osher and Fatemi, 1992, Nonlinear Total Variation Based Noise Removal.
    """
    _check("total_variation", "weight", weight)
    parts = variation.cost, variation.point
    return Leafwise("total_variation", (weight,), *parts, axes=(-1,))


@explain_misuse
def non_negative() -> Operator:
    """The set of trees without negative elements: z = max(x, 0)."""
    return Projection("non_negative", projections.projection_non_negative, (), True)


@explain_misuse
def box(lower: Any, upper: Any) -> Operator:
    """The set of trees between two bounds: z = min(max(x, lower), upper).

    lower, upper: each a scalar, a tree of x's structure with arrays that broadcast
        to theirs, or `None` for no bound.

    Raises a `ValueError` for bounds that cross.
    """
    projections.require_order(*jax.tree.map(_known, (lower, upper)))
    return Projection("box", projections.projection_box, (lower, upper), True)


@explain_misuse
def simplex(scale: ArrayLike = 1.0) -> Operator:
    """The set of trees with nonnegative elements that sum to `scale`.

    scale: the sum over all leaves, at least 0, a scalar.
    """
    _check("simplex", "scale", scale)
    return Projection("simplex", projections.projection_simplex, (scale,))


@explain_misuse
def l1_ball(radius: ArrayLike = 1.0) -> Operator:
    """The set of trees whose absolute values sum to at most `radius`.

    radius: at least 0, a scalar.
    """
    _check("l1_ball", "radius", radius)
    return Projection("l1_ball", projections.projection_l1_ball, (radius,))


@explain_misuse
def l2_ball(radius: ArrayLike = 1.0) -> Operator:
    """The set of trees whose norm is at most `radius`: z = x min(1, radius / ‖x‖).

    radius: at least 0, a scalar.
    """
    _check("l2_ball", "radius", radius)
    return Projection("l2_ball", projections.projection_l2_ball, (radius,))


@explain_misuse
def from_projection(project: Callable[[Any], Any]) -> Operator:
    """The set that a function projects onto: z = project(x).

    project: maps a tree to the nearest point of a convex set, a tree of the same
        structure, such as a function of `stepax.projections` with its arguments.

    Raises a `TypeError` if it is not a function.
    """
    if not callable(project):
        raise TypeError(
            f"`project` of `from_projection` is {errors.describe(project)}, expected a "
            "function"
        )
    return Projection("from_projection", project, ())


def _known(x: Any) -> Any:
    return np.asarray(x) if is_array(x) and not isinstance(x, Tracer) else x


def _check(name: str, argument: str, given: Any) -> None:
    """Raise for weights that are known and negative, or not real numbers."""
    for x in jax.tree.leaves(given):
        if not is_array(x) or jnp.iscomplexobj(x):
            raise TypeError(
                f"`{argument}` of `prox.{name}` holds {errors.describe(x)}, expected "
                "real numbers"
            )
        if not isinstance(x, Tracer) and not np.all(np.asarray(x) >= 0):
            raise ValueError(
                f"`{argument}` of `prox.{name}` is {x}, expected at least 0"
            )


# --- one array -----------------------------------------------------------------------


def _l1(x, axes, w):
    return jnp.sum(w * jnp.abs(x))


def _soft(x, s, axes, w):
    if jnp.iscomplexobj(x):
        return _shortened(x, s, (), w)
    t = s * w
    # Not by the sign of x: so its derivative in `w` is right everywhere.
    return jnp.where(x > t, x - t, jnp.where(x < -t, x + t, 0))


def _half_square(x, axes, w):
    return jnp.sum(w * jnp.square(jnp.abs(x))) / 2


def _shrunk(x, s, axes, w):
    return x / (1 + s * w)


def _elastic(x, axes, a, b):
    return _l1(x, axes, a) + _half_square(x, axes, b)


def _soft_shrunk(x, s, axes, a, b):
    return _shrunk(_soft(x, s, axes, a), s, axes, b)


def _norms(x, axes, w):
    return jnp.sum(w * norm2(x, axes, keepdims=True))


def _shortened(x, s, axes, w):
    size = jnp.abs(x) if axes == () else norm2(x, axes, keepdims=True)
    t = jnp.broadcast_to(s * w, size.shape)
    is_kept = size > t
    return jnp.where(is_kept, 1 - t / jnp.where(is_kept, size, 1), 0) * x


# --- the nuclear norm ----------------------------------------------------------------
#
# Cai, Candès and Shen, 2010, A Singular Value Thresholding Algorithm for Matrix
# Completion (DOI 10.1137/080738970).  JAX's derivative of the decomposition is infinite
# where singular values are equal, as are those that the threshold sets to 0; that of
# the product is not (Candès, Sing-Long and Trzasko, 2013, DOI
# 10.1109/TSP.2013.2270464):
#
#     dz = u (A ∘ H + B ∘ K + C) v' + (dx - u u' dx v v') parts,   u' dx v = H + K
#     A_ij = (f_i - f_j) / (σ_i - σ_j),   B_ij = (f_i + f_j) / (σ_i + σ_j)
#
# with f = max(σ - t, 0), H the Hermitian and K the skew part.


def _singular_sum(x, axes, w):
    """w Σ σ, of each matrix."""
    return jnp.sum(w * jnp.linalg.svd(x, compute_uv=False).sum(-1)[..., None, None])


def _low_rank(x, s, axes, w):
    """The matrices with thresholded singular values."""
    if not x.size:
        return x
    t = jnp.broadcast_to(s * w, (*x.shape[:-2], 1, 1))
    return _threshold(x, t)


@jax.custom_jvp
def _threshold(x, t):
    u, sizes, v = jnp.linalg.svd(x, full_matrices=False)
    return _times(u * jax.nn.relu(sizes - t[..., 0])[..., None, :], v)


@_threshold.defjvp
def _threshold_and_slope(primals, tangents):
    (x, t), (dx, dt) = primals, tangents
    u, sizes, v = jnp.linalg.svd(jax.lax.stop_gradient(x), full_matrices=False)
    f = jax.nn.relu(sizes - t[..., 0])
    is_on = (sizes > t[..., 0]).astype(sizes.dtype)
    inner = _times(_times(_adjoint(u), dx), _adjoint(v))
    hermitian, skew = (inner + _adjoint(inner)) / 2, (inner - _adjoint(inner)) / 2
    here, there = lambda y: y[..., :, None], lambda y: y[..., None, :]
    gap, total = here(sizes) - there(sizes), here(sizes) + there(sizes)
    # Where both are kept it is 1, where none is 0; otherwise they differ.
    both, one = here(is_on) * there(is_on), here(is_on) != there(is_on)
    a = jnp.where(one, (here(f) - there(f)) / jnp.where(one, gap, 1), both)
    b = (here(f) + there(f)) / jnp.where(total > 0, total, 1)
    dz = a * hermitian + b * skew
    dz = _times(u, _times(dz, v)) - _times(u * there(is_on) * dt, v)
    # What is outside of the columns, or of the rows, of a matrix that is not square.
    part = f / jnp.where(sizes > 0, sizes, 1)
    right = dx - _times(u, _times(_adjoint(u), dx))
    below = dx - _times(_times(dx, _adjoint(v)), v)
    dz += _times(_times(right, _adjoint(v)) * there(part), v)
    dz += _times(u, here(part) * _times(_adjoint(u), below))
    return _threshold(x, t), dz


def _times(x, y):
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


def _adjoint(x):
    return jnp.conj(jnp.swapaxes(x, -1, -2))
