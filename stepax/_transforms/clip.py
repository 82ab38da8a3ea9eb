"""Clipping: per element, array, unit or example, by global norm, to what is valid.

Pascanu, Mikolov and Bengio, 2013, On the difficulty of training Recurrent Neural
Networks (arXiv:1211.5063), for the global norm; Brock et al., 2021, High-Performance
Large-Scale Image Recognition Without Normalization (arXiv:2102.06171), equation 3, for
units; Abadi et al., 2016, Deep Learning with Differential Privacy (arXiv:1607.00133)
and McMahan et al., 2018, Learning Differentially Private Recurrent Language Models
(arXiv:1710.06963) for examples.

Differences from Optax: with a bound of 0, a zero gradient stays zero and has a finite
derivative; norms are computed in float32 or wider, without overflow; an example whose
norm is NaN is multiplied by 0, like one with an infinite norm.
"""

import math

import jax
import jax.numpy as jnp

from .. import tree
from .._engine import rules as rx
from .._engine.arrays.moments import square
from .._engine.arrays.numerics import (
    abs_sq,
    any_nan,
    at_length,
    norm2,
    safe_divide,
    safe_sqrt,
    upcast,
)
from .._wrappers.partition import masked, own_leaves


ClipState = rx.EmptyState
ClipByGlobalNormState = rx.EmptyState
AdaptiveGradClipState = rx.EmptyState


@rx.traits("clips gradients")
@rx.public(holomorphic=False)
def clip(max_delta: rx.ArrayLike) -> rx.Rule:
    """Clip each element: u = min(max(g, -max_delta), max_delta).

    max_delta: the bound, at least 0.
    """
    return rx.Rule(
        lambda g, p, ctx: (jnp.clip(g, jnp.negative(max_delta), max_delta),),
        elementwise=True,
    )


@rx.traits("clips norms")
@rx.public()
def clip_by_block_rms(
    threshold: rx.ArrayLike, *, axis_name: rx.AxisName = None
) -> rx.Rule:
    """Clip the root mean square of each array.

        u = g / max(1, rms / threshold),   rms = sqrt(mean |g|²)

    Where the squares overflow, rms is infinite and the update is 0.

    threshold: the bound, at least 0; a negative one does not clip, as in Optax.
    axis_name: mesh axis over which arrays are sharded inside `shard_map`, or
        their `PartitionSpec`; without it, each shard is treated as a whole array.
    """
    parts = rx.ArraySplit(axis_name)

    return rx.Rule(lambda g, p, ctx: (at_most(threshold, g, g, parts),))


def at_most(
    threshold: rx.ArrayLike, measured: jax.Array, u: jax.Array, parts: rx.ArraySplit
) -> jax.Array:
    """`u`, divided by the factor by which `measured` is too large."""
    rms = safe_sqrt(parts.mean(jnp.mean(square(measured)), measured))
    # Compare first, so that 0 / 0 is not computed; a NaN propagates.
    is_within = (rms <= threshold) | (jnp.asarray(threshold) < 0)
    return safe_divide(u, jnp.where(is_within, 1, rms / threshold))


@rx.traits("clips norms", "clips gradients")
@rx.public(paper="arXiv:1211.5063")
def clip_by_global_norm(
    max_norm: rx.ArrayLike, *, axis_name: rx.AxisName = None, where: rx.MaskOrFn = None
) -> rx.GradientTransformationExtraArgs:
    """Clip the gradient by its global norm.

        u = g                    where ‖g‖ < max_norm
        u = (max_norm / ‖g‖) g   elsewhere,   ‖g‖ = sqrt(Σ |g|²) over all arrays

    A NaN norm makes every update NaN.  An infinite norm makes finite elements 0 and
    infinite elements NaN.

    max_norm: the bound, at least 0.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `clip_by_block_rms`.
    where: which arrays are measured and clipped, all if `None`: a mask or path patterns
        as of `masked`; a transformation by `masked`, for its own arrays; or a partition
        and a label of it, as in `(contrib.muon(0.02), "adam")`.

    Raises a `TypeError` for a transformation that trains all arrays alike, and a
    `ValueError` for a label that its partition does not have.
    """
    if where is not None:
        clipped = clip_by_global_norm(max_norm, axis_name=axis_name)
        return masked(clipped, own_leaves(where))

    def prepare(scalars, norm, extra):
        # Also where it divides by 1, the derivative of the other quotient is computed.
        is_within = norm < max_norm
        divisor = jnp.where(is_within | (norm == 0), 1, norm)
        return (jnp.where(is_within, 1, max_norm), divisor), ()

    rule = rx.Rule(
        lambda g, p, ctx: (at_length(g, *ctx),),
        prepare=prepare,
        global_stat=rx.ArraySplit(axis_name).norm_of_all,
        elementwise=True,
    )
    return rx.build(rule)


@rx.explain_misuse
def unitwise_norm(
    x: rx.ArrayLike, axis: int | tuple[int, ...] | None = None
) -> jax.Array:
    """The norm of each unit, broadcast to the shape of `x`.

    x: an array.  A unit is the whole array if at most one axis is longer than 1;
        otherwise the slice at one index of the last axis (for rank 3, last two axes).
    axis: the axes that a unit spans; required for more than 5 axes.

    Returns float32 or wider.  Raises a `ValueError` if `axis` is required.
    """
    return _unitwise_norm(x, axis, rx.ArraySplit(None))


def _unitwise_norm(x, axis, parts):
    x = upcast(x)
    unit = _unit(parts.shape(x), axis)
    norm = parts.norm(norm2(x, unit, keepdims=True), x, unit)
    return jnp.broadcast_to(norm, x.shape)


def _unit(shape, axis):
    """The axes that a unit spans."""
    if axis is not None:
        return axis
    if sum(n != 1 for n in shape) <= 1:
        return tuple(range(len(shape)))
    if len(shape) > 5:
        raise ValueError(
            f"the units of an array of shape {shape} are unknown, since it has more "
            "than 5 axes; give the axes that a unit spans as `axis`"
        )
    return 0 if len(shape) < 4 else tuple(range(len(shape) - 1))


@rx.explain_misuse
def unitwise_clip(
    g_norm: rx.ArrayLike,
    max_norm: rx.ArrayLike,
    grad: rx.ArrayLike,
    div_eps: rx.ArrayLike = 1e-6,
) -> jax.Array:
    """Clip each unit, given its norm.

        u = g                                     where g_norm < max_norm
        u = (max_norm / max(g_norm, div_eps)) g   elsewhere

    g_norm: the norm of the unit of each element, shaped like `grad`; see
        `unitwise_norm`.
    max_norm: the bound, shaped like `grad`.
    grad: the gradient g, which sets the dtype of the result.
    div_eps: lower bound of the divisor, above 0.

    Raises a `ValueError` if the result is not shaped like `grad`.
    """
    shape = jnp.shape(grad)
    for name, x in {"g_norm": g_norm, "max_norm": max_norm}.items():
        if jnp.shape(x) not in (shape, ()):
            raise ValueError(
                f"`{name}` has shape {jnp.shape(x)}, expected that of `grad`, {shape}"
            )
    wide = upcast(grad)
    with jax.numpy_dtype_promotion("standard"):
        # Compute on norms only: they may be replicated where the gradient is sharded.
        is_within = jnp.less(g_norm, max_norm)
        divisor = jnp.where(is_within, 1, jnp.maximum(g_norm, div_eps))
        return _narrowed(
            at_length(wide, jnp.where(is_within, 1, max_norm), divisor), grad
        )


@rx.traits("clips norms")
@rx.public(paper="arXiv:2102.06171")
def adaptive_grad_clip(
    clipping: rx.ArrayLike,
    eps: rx.ArrayLike = 1e-3,
    axis: int | tuple[int, ...] | None = None,
    *,
    axis_name: rx.AxisName = None,
) -> rx.Rule:
    """Clip the norm of each unit relative to the norm of its parameters (AGC).

        u = g                                        where ‖g‖ < c
        u = (c / max(‖g‖, 1e-6)) g   elsewhere,   c = clipping max(‖p‖, eps)

    clipping: the largest ratio ‖g‖ / ‖p‖, above 0.
    eps: lower bound of ‖p‖, so that parameters at zero can move.
    axis: the axes that a unit spans; see `unitwise_norm`.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `clip_by_block_rms`.
    """
    parts = rx.ArraySplit(axis_name)

    def leaf(g, p, ctx):
        most = clipping * jnp.maximum(_unitwise_norm(p, axis, parts), eps)
        return (unitwise_clip(_unitwise_norm(g, axis, parts), most, g),)

    return rx.Rule(leaf, needs_params=True)


@rx.explain_misuse
def per_example_global_norm_clip(
    grads: rx.Updates, l2_norm_clip: rx.ArrayLike
) -> tuple[rx.Updates, jax.Array]:
    """Clip the gradient of each example by its global norm, and sum over examples.

        Σ_i min(1, l2_norm_clip / ‖g_i‖) g_i

    grads: a tree of arrays whose first axis is over the examples i.
    l2_norm_clip: the bound, at least 0.

    Returns the sum, and the number of clipped examples, an int32 scalar.  Raises a
    `ValueError` if the first axes differ.
    """
    _check_batch(grads, "per_example_global_norm_clip")
    squares = jax.tree.reduce(jnp.add, jax.tree.map(_squares, grads))
    factor, clipped = _shrink(safe_sqrt(squares), l2_norm_clip)
    return jax.tree.map(lambda g: _weighted_sum(g, factor), grads), clipped


@rx.explain_misuse
def per_example_layer_norm_clip(
    grads: rx.Updates, global_l2_norm_clip: rx.ArrayLike, uniform: bool = True
) -> tuple[rx.Updates, rx.ArrayTree]:
    """Clip the gradient of each example by its norm per array, and sum over examples.

        Σ_i min(1, bound / ‖g_i‖) g_i   for each array
        bound = C / sqrt(K)        if uniform, otherwise
        bound = C sqrt(D_k / D)

    K is the number of arrays, D_k the size of array k, and D the total size.

    grads: a tree of arrays whose first axis is over the examples i.
    global_l2_norm_clip: the bound C for all arrays together, at least 0.
    uniform: whether all arrays have the same bound.

    Returns the sums, and the number of clipped examples per array, int32 scalars.
    Raises a `ValueError` if the first axes differ.
    """
    _check_batch(grads, "per_example_layer_norm_clip")
    treedef, size = jax.tree.structure(grads), tree.size(grads)

    def layer(g):
        part = 1 / treedef.num_leaves if uniform else g.size / size
        bound = global_l2_norm_clip * math.sqrt(part)
        factor, clipped = _shrink(safe_sqrt(_squares(g)), bound)
        return _weighted_sum(g, factor), clipped

    pairs = jax.tree.map(layer, grads)
    return jax.tree.transpose(treedef, jax.tree.structure((0, 0)), pairs)


def _check_batch(grads, name):
    first = jax.tree.reduce(lambda found, g: found | {jnp.shape(g)[:1]}, grads, set())
    if len(first) != 1 or () in first:
        raise ValueError(
            f"`{name}` takes gradients whose first axis is over the examples, but the "
            f"first axes are {sorted(first)}; compute them with `jax.vmap`"
        )


def _squares(g):
    """Σ |g_i|² of each example i."""
    return jnp.sum(abs_sq(upcast(g)), axis=tuple(range(1, g.ndim)))


def _shrink(norms, bound):
    """The factor of each example, and the number of examples that it changes."""
    is_over = ~(norms <= bound)
    factor = jnp.where(is_over, bound / jnp.where(is_over, norms, 1), 1)
    # An example with a NaN norm must not pass unclipped.
    factor = jnp.where(jnp.isnan(norms), 0, factor)
    return factor, jnp.sum(is_over, dtype=jnp.int32)


def _weighted_sum(g, factor):
    """Σ_i factor_i g_i, in the dtype of g if it is floating point or complex."""
    wide = upcast(g)
    factor = jnp.expand_dims(factor, tuple(range(1, g.ndim))).astype(wide.dtype)
    return _narrowed(jnp.sum(wide * factor, axis=0), g)


def _narrowed(x, g):
    """`x` in the dtype of g, unless g holds integers."""
    dtype = jnp.result_type(g)
    return x.astype(dtype) if jnp.issubdtype(dtype, jnp.inexact) else x


@rx.optax_compatible
class ZeroNansState(rx.optax.ZeroNansState):
    """found_nan: whether the last gradient contained NaN, one boolean per parameter."""

    found_nan: rx.ArrayTree


@rx.public()
def zero_nans() -> rx.Rule:
    """Replace NaN by 0, and record which arrays contained NaN.

        u = 0 where g is NaN, otherwise g

    Infinities are kept.
    """

    def leaf(g, p, ctx, found_nan):
        return jnp.where(jnp.isnan(g), 0, g), any_nan(g)

    flag = rx.Slot(make=lambda p: jnp.zeros([], bool), alike=False)
    return rx.Rule(leaf, ZeroNansState, {"found_nan": flag}, sanitizes=True)


NonNegativeParamsState = rx.EmptyState


@rx.public(holomorphic=False)
def keep_params_nonnegative() -> rx.Rule:
    """Shorten updates that would make a parameter negative, so that it becomes 0.

        u = -p where p + g < 0, otherwise g

    Put it last in a chain.  Negative parameters are moved to 0.
    """

    def leaf(g, p, ctx):
        return (jnp.where(p + g < 0, -p, g),)

    return rx.Rule(leaf, needs_params=True, elementwise=True)
