"""Scaling updates by norms of the gradient and the parameter, and centering them.

You, Gitman and Ginsburg, 2017, Large Batch Training of Convolutional Networks
(arXiv:1708.03888), for the trust ratio; Yong et al., 2020, Gradient Centralization
(arXiv:2004.01461), equation 1; Wen, Dang, Lyu, Ma and Liang, 2026, Fantastic
Pretraining Optimizers and Where to Find Them II: Hyperball Optimization
(arXiv:2606.16899), with the norms of the records of modded-nanogpt.  From the records
of its third track: floors of updates, of whole arrays (2026-04-30, "Skylight-001") and
of rows (2026-06-19, "RowFloor"), and the radial brake (2026-05-11), with the formula in
the documentation of NVIDIA's Emerging-Optimizers 0.5.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.numerics import abs_sq, safe_divide, safe_sqrt, upcast
from .._engine.step.array_split import floored_root_mean_square
from .scale import value_at


ScaleByTrustRatioState = rx.EmptyState


@rx.traits("normalizes")
@rx.public(paper="arXiv:1708.03888")
def scale_by_trust_ratio(
    min_norm: rx.ArrayLike = 0.0,
    trust_coefficient: rx.ArrayLike = 1.0,
    eps: rx.ArrayLike = 0.0,
    *,
    axis_name: rx.AxisName = None,
) -> rx.Rule:
    """Scale each update to a norm proportional to that of its parameter.

        u = trust_coefficient ‖p‖ / (‖g‖ + eps) g
        u = g   where one of the norms is 0;   norms are at least min_norm

    min_norm: lower bound of both norms, at least 0.
    trust_coefficient: factor of the trust ratio, above 0.
    eps: added to the divisor, at least 0.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `clip_by_block_rms`.
    """
    parts = rx.ArraySplit(axis_name)

    def leaf(g, p, ctx):
        p_norm, g_norm = (rx.floored_norm(x, min_norm, parts) for x in (p, g))
        is_zero = (p_norm == 0) | (g_norm == 0)
        divisor = jnp.where(is_zero, 1, g_norm + eps)
        ratio = safe_divide(trust_coefficient * p_norm, divisor)
        return (g * jnp.where(is_zero, 1, ratio),)

    return rx.Rule(leaf, needs_params=True)


@rx.public()
def scale_by_param_block_norm(
    min_scale: rx.ArrayLike = 1e-3, *, axis_name: rx.AxisName = None
) -> rx.Rule:
    """Multiply each update by the norm of its parameter: u = max(‖p‖, min_scale) g.

    min_scale: lower bound of the factor, above 0, so that parameters at zero can move.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `clip_by_block_rms`.
    """
    parts = rx.ArraySplit(axis_name)
    return rx.Rule(
        lambda g, p, ctx: (g * rx.floored_norm(p, min_scale, parts),), needs_params=True
    )


@rx.public()
def scale_by_param_block_rms(
    min_scale: rx.ArrayLike = 1e-3, *, axis_name: rx.AxisName = None
) -> rx.Rule:
    """Multiply each update by the root mean square of its parameter.

        u = max(sqrt(mean |p|²), min_scale) g

    min_scale: lower bound of the factor, above 0, so that parameters at zero can move.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `clip_by_block_rms`.
    """
    parts = rx.ArraySplit(axis_name)

    def leaf(g, p, ctx):
        return (g * floored_root_mean_square(p, min_scale, parts),)

    return rx.Rule(leaf, needs_params=True)


@rx.traits("normalizes")
@rx.public()
def normalize_by_update_norm(
    scale_factor: rx.ArrayLike = 1.0,
    eps: rx.ArrayLike = 1e-6,
    *,
    axis_name: rx.AxisName = None,
) -> rx.Rule:
    """Normalize the gradient by its global norm: u = scale_factor g / (‖g‖ + eps).

    ‖g‖ = sqrt(Σ |g|²) over all arrays; a zero gradient stays zero.

    scale_factor: norm of the result.
    eps: added to the divisor, above 0.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `clip_by_block_rms`.
    """
    global_stat = rx.ArraySplit(axis_name).norm_of_all

    def prepare(scalars, norm, extra):
        return (norm + eps) / scale_factor, ()

    return rx.Rule(
        lambda g, p, ctx: (safe_divide(g, ctx),),
        prepare=prepare,
        global_stat=global_stat,
        elementwise=True,
    )


@rx.public(paper="arXiv:2004.01461")
def centralize() -> rx.Rule:
    """Subtract the mean over all axes but the first: u = g - mean(g).

    Arrays with fewer than two axes are unchanged.
    """

    def leaf(g, p, ctx):
        if g.ndim < 2:
            return (g,)
        return (g - jnp.mean(g, axis=tuple(range(1, g.ndim)), keepdims=True),)

    return rx.Rule(leaf)


class HyperballState(NamedTuple):
    """count: steps taken.  radius: the norm of each parameter, a scalar for each."""

    count: jax.Array
    radius: rx.ArrayTree


@rx.traits("normalizes", "descends")
@rx.public(
    paper="arXiv:2606.16899",
    ranges={"radius": rx.AT_LEAST_0, "eps": rx.POSITIVE},
    shared={"decay": "it keeps the norm of each array"},
)
def hyperball(
    learning_rate: rx.ScalarOrSchedule,
    radius: rx.ArrayLike | None = None,
    *,
    eps: rx.ArrayLike = 1e-10,
    axis_name: rx.AxisName = None,
) -> rx.Rule:
    """Step by a fraction of the radius, and return to the sphere.

        q = p - learning_rate r g / max(‖g‖, eps)
        p = r q / max(‖q‖, eps)

    Put it last in a chain, instead of the learning rate: the length of the preceding
    updates has no effect, and there is no weight decay.  Norms are those of whole
    arrays; mask the arrays whose norm should change, such as biases: an array of zeros
    stays zero.

    learning_rate: length of a step relative to r; a scalar or a schedule.
    radius: r for all arrays, at least 0; the initial norm of each if `None`.
    eps: lower bound of norms that are divided by, above 0.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `clip_by_block_rms`.
    """
    parts = rx.ArraySplit(axis_name)

    def first_norm(p):
        # `init` may be called outside of `shard_map`, on whole arrays.
        is_inside = jax.sharding.get_abstract_mesh().manual_axes
        x = upcast(rx.copy_of(p))
        return rx.floored_norm(x, 0.0, parts if is_inside else rx.ArraySplit(None))

    def leaf(g, p, rate, r):
        r = r if radius is None else jnp.full_like(r, radius)
        q = p - rate * r * g / rx.floored_norm(g, eps, parts)
        return r * q / rx.floored_norm(q, eps, parts) - p, r

    prepare = rx.from_count(lambda count: jnp.asarray(value_at(learning_rate, count)))
    slots = {"radius": rx.Slot(first_norm, alike=False)}
    return rx.Rule(leaf, HyperballState, slots, rx.COUNT, prepare, needs_params=True)


RECORDS = "https://github.com/KellerJordan/modded-nanogpt"


@rx.public(paper=RECORDS, ranges={"outward": rx.UP_TO_1, "inward": rx.UP_TO_1})
def radial_brake(
    outward: rx.ArrayLike = 0.5,
    inward: rx.ArrayLike = 1.0,
    *,
    axis_name: rx.AxisName = None,
) -> rx.Rule:
    """Keep only a part of the change of each parameter's norm.

        q = p + g,   n = ‖p‖ + s (‖q‖ - ‖p‖),   s = outward if ‖q‖ > ‖p‖, else inward
        p = n q / ‖q‖

    Put it last in a chain, after the learning rate.  An array that becomes zero stays
    so.  Norms are those of whole arrays; mask arrays that start at zero, such as
    biases, whose first step would be shortened, too.

    outward, inward: the part that is kept of an increase and of a decrease of the norm,
        in [0, 1]; both 1 change nothing, both 0 keep the norm, as `hyperball` does.
    axis_name: mesh axis over which arrays are sharded inside `shard_map`, or
        their `PartitionSpec`; without it, each shard is treated as a whole array.
    """
    parts = rx.ArraySplit(axis_name)

    def leaf(g, p, ctx):
        q = p + g
        was, now = (rx.floored_norm(x, 0.0, parts) for x in (p, q))
        part = jnp.where(now > was, outward, inward).astype(now.dtype)
        # Of what is taken away from q, so that with a part of 1 the update is exact.
        less = (1 - part) * (now - was) / jnp.where(now == 0, 1, now)
        return (g - less * q,)

    return rx.Rule(leaf, needs_params=True)


@rx.public(paper=RECORDS, ranges={"ratio": rx.AT_LEAST_0})
def floor_updates(
    ratio: rx.ArrayLike = 0.35,
    axis: int | None = None,
    *,
    axis_name: rx.AxisName = None,
) -> rx.Rule:
    """Lengthen updates that are short beside their parameters.

        u = g max(1, ratio ‖p‖ / ‖g‖)

    Put it after an orthogonalization and before the learning rate.  Updates of 0 stay.

    ratio: the least norm of an update, relative to that of its parameter; at least 0.
    axis: norms are those of the slices along this axis: 0 for rows, -1 for the weights
        of each output of a kernel (inputs, outputs); whole arrays if `None`, as are
        arrays with fewer than two axes.
    axis_name: mesh axis over which arrays are sharded inside `shard_map`, or
        their `PartitionSpec`; without it, each shard is treated as a whole array.
    """
    parts = rx.ArraySplit(axis_name)

    def leaf(g, p, ctx):
        left_out = None if axis is None or g.ndim < 2 else axis % g.ndim
        along = tuple(i for i in range(g.ndim) if i != left_out)

        def norm(x):
            squares = jnp.sum(abs_sq(x), along, keepdims=True)
            return safe_sqrt(parts.sum(squares, x, along))

        length, least = norm(g), ratio * norm(p)
        factor = jnp.where(length > 0, least / jnp.where(length > 0, length, 1), 1)
        return (g * jnp.maximum(1, factor),)

    return rx.Rule(leaf, needs_params=True)
