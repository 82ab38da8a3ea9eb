"""LARS, LAMB, Fromage and NovoGrad: steps that depend on the norm of each array.

You, Gitman and Ginsburg, 2017, Large Batch Training of Convolutional Networks
(arXiv:1708.03888), Algorithm 1; You et al., 2020, Large Batch Optimization for Deep
Learning: Training BERT in 76 minutes (arXiv:1904.00962), Algorithm 2; Bernstein,
Vahdat, Yue and Liu, 2020, On the Distance between two Neural Networks and the Stability
of Learning (arXiv:2002.03432), Algorithm 1, which rotates each array by a fixed angle;
Ginsburg et al., 2019, Stochastic Gradient Methods with Layer-wise Adaptive Moments for
Training of Deep Networks (arXiv:1905.11286), Algorithm 1, which normalizes gradients.
"""

import functools as ft
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import ema
from .._engine.arrays.numerics import safe_increment, safe_sqrt
from .._transforms.decay import add_decayed_weights, decayed, resolve_mask_alias
from .._transforms.norm import scale_by_trust_ratio
from .._transforms.scale import scale_by_learning_rate, value_at
from .._wrappers.chain import chain
from .._wrappers.partition import masked, partition, split
from .adam import scale_by_adam
from .sgd import trace


@rx.public("optimizer", paper="arXiv:1708.03888")
def lars(
    learning_rate: rx.ScalarOrSchedule | None,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = True,
    trust_coefficient: rx.ArrayLike = 0.001,
    eps: rx.ArrayLike = 0.0,
    trust_ratio_mask: rx.MaskOrFn = True,
    momentum: rx.ArrayLike = 0.9,
    nesterov: bool = False,
    *,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """LARS (You et al., 2017, arXiv:1708.03888): momentum over steps scaled by a trust
    ratio for each array.

        d = g + weight_decay p
        p = p + trace(-learning_rate trust_coefficient ‖p‖ / (‖d‖ + eps) d)

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask, trust_ratio_mask: which parameters decay, and which steps are
        scaled by the trust ratio; see `masked`.
    trust_coefficient: factor of the trust ratio ‖p‖ / ‖d‖, at least 0.
    eps: added to ‖d‖, at least 0.
    momentum: decay rate of the trace, in [0, 1].
    nesterov: whether to use Nesterov momentum.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `clip_by_block_rms`.
    """
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        masked(
            scale_by_trust_ratio(0.0, trust_coefficient, eps, axis_name=axis_name),
            trust_ratio_mask,
        ),
        scale_by_learning_rate(learning_rate),
        trace(momentum, nesterov),
    )


@rx.public("optimizer", paper="arXiv:1904.00962")
def lamb(
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-6,
    eps_root: rx.ArrayLike = 0.0,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    mask: rx.MaskOrFn = None,
    *,
    weight_decay_mask: rx.MaskOrFn = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """LAMB (You et al., 2020, arXiv:1904.00962): Adam's steps, scaled by a trust ratio
    for each array.

        d = u + weight_decay p, with u the output of `scale_by_adam`
        p = p - learning_rate ‖p‖ / ‖d‖ d

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    eps, eps_root: added outside and inside the square root; at least 0.
    mask, weight_decay_mask: parameters to decay (two aliases); see `masked`.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `clip_by_block_rms`.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.

    >>> tx = stepax.lamb(1e-2, weight_decay=0.01)
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, resolve_mask_alias(mask, weight_decay_mask)),
        scale_by_trust_ratio(axis_name=axis_name),
        scale_by_learning_rate(learning_rate),
    )


@rx.public("optimizer", paper="arXiv:2002.03432")
def fromage(
    learning_rate: rx.ScalarOrSchedule,
    min_norm: rx.ArrayLike = 1e-6,
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """Fromage (Bernstein et al., 2020, arXiv:2002.03432): a step relative to ‖p‖, then
    a rescaling that undoes the growth.

        u = ‖p‖ / ‖g‖ g
        p = (p - learning_rate (u + weight_decay p)) / sqrt(1 + learning_rate²)

    All parameters are rescaled, with or without weight decay.

    learning_rate: tangent of the angle; a scalar or a schedule.
    weight_decay: a scalar, at least 0, or a schedule; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    min_norm: lower bound of both norms, above 0.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `clip_by_block_rms`.
    """

    def shrink(rate):
        return 1 / (1 + rate**2) ** 0.5

    return chain(
        scale_by_trust_ratio(min_norm, axis_name=axis_name),
        *decayed(weight_decay, weight_decay_mask),
        scale_by_learning_rate(_apply(lambda rate: rate * shrink(rate), learning_rate)),
        add_decayed_weights(_apply(lambda rate: shrink(rate) - 1, learning_rate)),
    )


def _apply(f: Callable, rate: rx.ScalarOrSchedule) -> rx.ScalarOrSchedule:
    return (lambda count: f(rate(count))) if callable(rate) else f(rate)


@rx.optax_compatible
class ScaleByNovogradState(rx.optax.ScaleByNovogradState):
    """count: steps taken.

    mu: sum of normalized gradients, shaped like the parameters.
    nu: EMA of ‖g‖², a scalar for each parameter.
    """

    count: jax.Array
    mu: rx.ArrayTree
    nu: rx.ArrayTree


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
    mu_dtype: dtype of `mu`; defaults to the parameter's, as always for `nu`.
        In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `clip_by_block_rms`.
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

    scalar = replace(rx.REDUCED, make=lambda p: jnp.zeros((), jnp.result_type(p)))
    slots = {"mu": rx.Slot(dtype=mu_dtype), "nu": scalar}
    return rx.build(
        rx.Rule(leaf, ScaleByNovogradState, slots, rx.COUNT, prepare, needs_params=True)
    )


@rx.public("optimizer", paper="arXiv:1905.11286")
def novograd(
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.25,
    eps: rx.ArrayLike = 1e-6,
    eps_root: rx.ArrayLike = 0.0,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    *,
    weight_decay_mask: rx.MaskOrFn = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """NovoGrad (Ginsburg et al., 2019, arXiv:1905.11286):
    p = p - learning_rate u, with u the output of `scale_by_novograd`.

    Weight decay is added to the momentum, as in the paper.

    learning_rate: a scalar or a schedule.
    b1, b2: decay rates of the sum of g and of the EMA of ‖g‖², in [0, 1].
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_novograd`.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    """
    scale_by = ft.partial(scale_by_novograd, b1, b2, eps, eps_root, weight_decay)
    return chain(
        scale_by(weight_decay_mask=weight_decay_mask, axis_name=axis_name),
        scale_by_learning_rate(learning_rate),
    )
