"""LARS, LAMB and Fromage: steps proportional to the norm of each array.

You, Gitman and Ginsburg, 2017, Large Batch Training of Convolutional Networks
(arXiv:1708.03888), Algorithm 1; You et al., 2020, Large Batch Optimization for Deep
Learning: Training BERT in 76 minutes (arXiv:1904.00962), Algorithm 2; Bernstein,
Vahdat, Yue and Liu, 2020, On the Distance between two Neural Networks and the Stability
of Learning (arXiv:2002.03432), Algorithm 1, which rotates each array by a fixed angle.
"""

from collections.abc import Callable

from jax.typing import ArrayLike

from .._engine.base import GradientTransformationExtraArgs, MaskOrFn, ScalarOrSchedule
from .._engine.factories.registry import public
from .._engine.step.array_split import AxisName
from .._transforms.decay import add_decayed_weights, decayed, resolve_mask_alias
from .._transforms.norm import scale_by_trust_ratio
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain
from .._wrappers.partition import masked
from .adam import scale_by_adam
from .sgd import trace


@public("optimizer", paper="arXiv:1708.03888")
def lars(
    learning_rate: ScalarOrSchedule,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: MaskOrFn = True,
    trust_coefficient: ArrayLike = 0.001,
    eps: ArrayLike = 0.0,
    trust_ratio_mask: MaskOrFn = True,
    momentum: ArrayLike = 0.9,
    nesterov: bool = False,
    *,
    axis_name: AxisName = None,
) -> GradientTransformationExtraArgs:
    """LARS: momentum over steps scaled by a trust ratio for each array.

        d = g + weight_decay p
        p = p + trace(-learning_rate trust_coefficient ‖p‖ / (‖d‖ + eps) d)

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask, trust_ratio_mask: which parameters decay, and which steps are
        scaled by the trust ratio; see `masked`.
    trust_coefficient: factor of the trust ratio ‖p‖ / ‖d‖, at least 0.
    eps: added to ‖d‖, at least 0.
    momentum: decay rate of the trace, in [0, 1].
    nesterov: whether to use Nesterov momentum.
    axis_name: mesh axis over which arrays are sharded inside `shard_map`; see
        `scale_by_trust_ratio`.
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


@public("optimizer", paper="arXiv:1904.00962")
def lamb(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-6,
    eps_root: ArrayLike = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: MaskOrFn = None,
    *,
    weight_decay_mask: MaskOrFn = None,
    axis_name: AxisName = None,
) -> GradientTransformationExtraArgs:
    """LAMB: Adam's steps, scaled by a trust ratio for each array.

        d = u + weight_decay p,   u of `scale_by_adam`
        p = p - learning_rate ‖p‖ / ‖d‖ d

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    eps, eps_root: added outside and inside the square root; at least 0.
    mask, weight_decay_mask: which parameters decay (aliases: give one); see `masked`.
    axis_name: mesh axis over which arrays are sharded inside `shard_map`; see
        `scale_by_trust_ratio`.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, resolve_mask_alias(mask, weight_decay_mask)),
        scale_by_trust_ratio(axis_name=axis_name),
        scale_by_learning_rate(learning_rate),
    )


@public("optimizer", paper="arXiv:2002.03432")
def fromage(
    learning_rate: ScalarOrSchedule,
    min_norm: ArrayLike = 1e-6,
    *,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: MaskOrFn = None,
    axis_name: AxisName = None,
) -> GradientTransformationExtraArgs:
    """Fromage: a step relative to ‖p‖, then a rescaling that undoes the growth.

        u = ‖p‖ / ‖g‖ g
        p = (p - learning_rate (u + weight_decay p)) / sqrt(1 + learning_rate²)

    All parameters are rescaled, with or without weight decay.

    learning_rate: tangent of the angle; a scalar or a schedule.
    weight_decay: a scalar, at least 0, or a schedule; no decay if `None`.
    weight_decay_mask: which parameters decay; see `masked`.
    min_norm: lower bound of both norms, above 0.
    axis_name: mesh axis over which arrays are sharded inside `shard_map`; see
        `scale_by_trust_ratio`.
    """

    def shrink(rate):
        return 1 / (1 + rate**2) ** 0.5

    return chain(
        scale_by_trust_ratio(min_norm, axis_name=axis_name),
        *decayed(weight_decay, weight_decay_mask),
        scale_by_learning_rate(_apply(lambda rate: rate * shrink(rate), learning_rate)),
        add_decayed_weights(_apply(lambda rate: shrink(rate) - 1, learning_rate)),
    )


def _apply(f: Callable, rate: ScalarOrSchedule) -> ScalarOrSchedule:
    """Apply `f` to a learning rate, or to each value of a schedule."""
    return (lambda count: f(rate(count))) if callable(rate) else f(rate)
