"""Scaling updates by norms of the gradient and the parameter, and centering them.

You, Gitman and Ginsburg, 2017, Large Batch Training of Convolutional Networks
(arXiv:1708.03888), for the trust ratio; Yong et al., 2020, Gradient Centralization
(arXiv:2004.01461), equation 1.
"""

import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.base.protocol import EmptyState
from .._engine.factories.registry import public
from .._engine.step.array_split import (
    ArraySplit,
    AxisName,
    floored_norm,
    floored_root_mean_square,
)
from .._engine.step.rule import Rule


ScaleByTrustRatioState = EmptyState


@public(paper="arXiv:1708.03888")
def scale_by_trust_ratio(
    min_norm: ArrayLike = 0.0,
    trust_coefficient: ArrayLike = 1.0,
    eps: ArrayLike = 0.0,
    *,
    axis_name: AxisName = None,
) -> Rule:
    """Scale each update to a norm proportional to that of its parameter.

        u = trust_coefficient ‖p‖ / (‖g‖ + eps) g
        u = g   where one of the norms is 0;   norms are at least min_norm

    min_norm: lower bound of both norms, at least 0.
    trust_coefficient: factor of the trust ratio, above 0.
    eps: added to the divisor, at least 0.
    axis_name: mesh axis over which arrays are sharded inside `shard_map`, or
        their `PartitionSpec`; without it, each shard is treated as a whole array.
    """
    parts = ArraySplit(axis_name)

    def leaf(g, p, ctx):
        p_norm, g_norm = (floored_norm(x, min_norm, parts) for x in (p, g))
        is_zero = (p_norm == 0) | (g_norm == 0)
        divisor = jnp.where(is_zero, 1, g_norm + eps)
        return (g * jnp.where(is_zero, 1, trust_coefficient * p_norm / divisor),)

    return Rule(leaf, needs_params=True)


@public()
def scale_by_param_block_norm(
    min_scale: ArrayLike = 1e-3, *, axis_name: AxisName = None
) -> Rule:
    """Multiply each update by the norm of its parameter: u = max(‖p‖, min_scale) g.

    min_scale: lower bound of the factor, above 0, so that parameters at zero can move.
    axis_name: mesh axis over which arrays are sharded inside `shard_map`, or
        their `PartitionSpec`; without it, each shard is treated as a whole array.
    """
    parts = ArraySplit(axis_name)
    leaf = lambda g, p, ctx: (g * floored_norm(p, min_scale, parts),)
    return Rule(leaf, needs_params=True)


@public()
def scale_by_param_block_rms(
    min_scale: ArrayLike = 1e-3, *, axis_name: AxisName = None
) -> Rule:
    """Multiply each update by the root mean square of its parameter.

        u = max(sqrt(mean |p|²), min_scale) g

    min_scale: lower bound of the factor, above 0, so that parameters at zero can move.
    axis_name: mesh axis over which arrays are sharded inside `shard_map`, or
        their `PartitionSpec`; without it, each shard is treated as a whole array.
    """
    parts = ArraySplit(axis_name)
    leaf = lambda g, p, ctx: (g * floored_root_mean_square(p, min_scale, parts),)
    return Rule(leaf, needs_params=True)


@public()
def normalize_by_update_norm(
    scale_factor: ArrayLike = 1.0,
    eps: ArrayLike = 1e-6,
    *,
    axis_name: AxisName = None,
) -> Rule:
    """Normalize the gradient by its global norm: u = scale_factor g / (‖g‖ + eps).

    ‖g‖ = sqrt(Σ |g|²) over all arrays; a zero gradient stays zero.

    scale_factor: norm of the result.
    eps: added to the divisor, above 0.
    axis_name: mesh axis over which arrays are sharded inside `shard_map`, or
        their `PartitionSpec`; without it, each shard is treated as a whole array.
    """
    global_stat = ArraySplit(axis_name).norm_of_all

    def prepare(scalars, norm, extra):
        return (norm + eps) / scale_factor, ()

    return Rule(
        lambda g, p, ctx: (g / ctx,),
        prepare=prepare,
        global_stat=global_stat,
        elementwise=True,
    )


@public(paper="arXiv:2004.01461")
def centralize() -> Rule:
    """Subtract the mean over all axes but the first: u = g - mean(g).

    Arrays with fewer than two axes are unchanged.
    """

    def leaf(g, p, ctx):
        if g.ndim < 2:
            return (g,)
        return (g - jnp.mean(g, axis=tuple(range(1, g.ndim)), keepdims=True),)

    return Rule(leaf)
