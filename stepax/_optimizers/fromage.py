"""Fromage: rotate each array by a fixed angle, without letting its norm grow.

Bernstein, Vahdat, Yue and Liu, 2020, On the Distance between two Neural Networks and
the Stability of Learning (arXiv:2002.03432), Algorithm 1.
"""

from collections.abc import Callable

from jax.typing import ArrayLike

from .._engine.base import GradientTransformationExtraArgs, MaskOrFn, ScalarOrSchedule
from .._engine.factories.registry import public
from .._engine.step.array_split import AxisName
from .._transforms.decay import add_decayed_weights, decayed
from .._transforms.norm import scale_by_trust_ratio
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain


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
