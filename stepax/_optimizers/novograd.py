"""NovoGrad: momentum over gradients that are normalized for each array.

Ginsburg et al., 2019, Stochastic Gradient Methods with Layer-wise Adaptive Moments for
Training of Deep Networks (arXiv:1905.11286), Algorithm 1.
"""

import functools as ft
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import ema
from .._engine.arrays.numerics import safe_increment, safe_sqrt
from .._transforms.scale import scale_by_learning_rate, value_at
from .._wrappers.chain import chain
from .._wrappers.partition import partition, split


@rx.optax_compatible
class ScaleByNovogradState(NamedTuple):
    """count: steps taken.

    mu: sum of normalized gradients, shaped like the parameters.
    nu: EMA of ‖g‖², a scalar for each parameter.
    """

    count: jax.Array
    mu: Any
    nu: Any


@rx.public(paper="arXiv:1905.11286")
def scale_by_novograd(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.25,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    mu_dtype: rx.DTypeLike | None = None,
    *,
    weight_decay_mask: rx.MaskOrFn = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformation:
    """Accumulate gradients, each divided by the running norm of its array.

        nu = b2 nu + (1 - b2) ‖g‖²,   ‖g‖² at the first step
        mu = b1 mu + g / (sqrt(nu + eps_root) + eps) + weight_decay p
        u = mu

    b1, b2: decay rates of the sum mu and of the EMA nu, in [0, 1].
    eps, eps_root: added outside and inside the square root; at least 0.
    weight_decay: a scalar, at least 0, or a schedule.
    weight_decay_mask: which parameters decay, see `masked`; if given, the state is that
        of `partition`.
    mu_dtype: storage dtype of `mu`; the parameter's if `None`, as always for `nu`.
        In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    axis_name: mesh axis over which arrays are sharded inside `shard_map`; see
        `scale_by_trust_ratio`.
    """
    in_parts = rx.ArraySplit(axis_name)
    if weight_decay_mask is not None:
        scale_by = ft.partial(scale_by_novograd, b1, b2, eps, eps_root)
        parts = {
            "decay": scale_by(weight_decay, mu_dtype, axis_name=axis_name),
            "keep": scale_by(0.0, mu_dtype, axis_name=axis_name),
        }
        labels = split(weight_decay_mask, "decay", "keep", "weight_decay_mask")
        return partition(parts, labels)

    def prepare(scalars, stat, extra):
        (count,) = scalars
        decay = jnp.asarray(value_at(weight_decay, count))
        return (count == 0, decay), (safe_increment(count),)

    def leaf(g, p, ctx, mu, nu):
        is_first, decay = ctx
        norm_sq = rx.floored_norm(g, 0.0, in_parts) ** 2
        nu = jnp.where(is_first, norm_sq, ema(nu, norm_sq, b2))
        x = g / (safe_sqrt(nu + eps_root) + eps) + decay * p
        mu = jnp.where(is_first, x, b1 * mu + x)
        return mu, mu, nu

    scalar = rx.Slot(
        lambda p: jnp.zeros_like(p, shape=()),
        alike=False,
        is_wide=True,
        decode=jnp.real,
    )
    slots = {"mu": rx.Slot(dtype=mu_dtype), "nu": scalar}
    return rx.build(
        rx.Rule(leaf, ScaleByNovogradState, slots, rx.COUNT, prepare, needs_params=True)
    )


@rx.public("optimizer", paper="arXiv:1905.11286")
def novograd(
    learning_rate: rx.ScalarOrSchedule,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.25,
    eps: rx.ArrayLike = 1e-6,
    eps_root: rx.ArrayLike = 0.0,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    *,
    weight_decay_mask: rx.MaskOrFn = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """NovoGrad: p = p - learning_rate u, with u of `scale_by_novograd`.

    Weight decay is added to the momentum, as in the paper.

    learning_rate: a scalar or a schedule.
    b1, b2: decay rates of the sum of g and of the EMA of ‖g‖², in [0, 1].
    eps, eps_root: added outside and inside the square root; at least 0.
    weight_decay: a scalar, at least 0, or a schedule.
    weight_decay_mask: which parameters decay; see `masked`.
    axis_name: mesh axis over which arrays are sharded inside `shard_map`; see
        `scale_by_trust_ratio`.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    scale_by = ft.partial(scale_by_novograd, b1, b2, eps, eps_root, weight_decay)
    return chain(
        scale_by(weight_decay_mask=weight_decay_mask, axis_name=axis_name),
        scale_by_learning_rate(learning_rate),
    )
