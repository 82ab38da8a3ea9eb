"""LARS, LAMB and Fromage: steps proportional to the norm of each array.

You, Gitman and Ginsburg, 2017, Large Batch Training of Convolutional Networks
(arXiv:1708.03888), Algorithm 1; You et al., 2020, Large Batch Optimization for Deep
Learning: Training BERT in 76 minutes (arXiv:1904.00962), Algorithm 2; Bernstein,
Vahdat, Yue and Liu, 2020, On the Distance between two Neural Networks and the Stability
of Learning (arXiv:2002.03432), Algorithm 1, which rotates each array by a fixed angle.
"""

from collections.abc import Callable

from .._engine import rules as rx
from .._transforms.decay import add_decayed_weights, decayed, resolve_mask_alias
from .._transforms.norm import scale_by_trust_ratio
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain
from .._wrappers.partition import masked
from .adam import scale_by_adam
from .sgd import trace


@rx.public("optimizer", paper="arXiv:1708.03888")
def lars(
    learning_rate: rx.ScalarOrSchedule,
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


@rx.public("optimizer", paper="arXiv:1904.00962")
def lamb(
    learning_rate: rx.ScalarOrSchedule,
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


@rx.public("optimizer", paper="arXiv:2002.03432")
def fromage(
    learning_rate: rx.ScalarOrSchedule,
    min_norm: rx.ArrayLike = 1e-6,
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
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


def _apply(f: Callable, rate: rx.ScalarOrSchedule) -> rx.ScalarOrSchedule:
    """Apply `f` to a learning rate, or to each value of a schedule."""
    return (lambda count: f(rate(count))) if callable(rate) else f(rate)
