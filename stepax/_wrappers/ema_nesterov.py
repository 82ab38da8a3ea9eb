"""EMA-Nesterov: look ahead along the mean of an optimizer's steps.

From the modded-nanogpt record of 2026-05-22, "EMA Nesterov"
(github.com/KellerJordan/modded-nanogpt).

Difference from that program: x, where it evaluates, is not stored.  As y = x + weight L
at every step, the step of x is u + weight L, and x is y - weight L.
"""

from typing import Any, NamedTuple

import jax

from .._engine import rules as rx
from .._engine.arrays.moments import ema
from .._transforms.decay import AVERAGED
from .chain import Followed, own_fields
from .readers import evaluates


PAPER = "https://github.com/KellerJordan/modded-nanogpt"


class EmaNesterovState(NamedTuple):
    """State of `ema_nesterov`.

    lead: the weight of the mean in the parameters, a scalar.
    ema: L, the EMA of the steps of x, shaped like the parameters.
    inner_state: state of the inner optimizer.
    """

    lead: jax.Array
    ema: rx.ArrayTree
    inner_state: rx.OptState


_Ahead = own_fields(EmaNesterovState)


_RANGES = {"weight": rx.AT_LEAST_0}


@rx.recorded
def _look_ahead(weight: rx.ArrayLike, decay: rx.ArrayLike) -> rx.Rule:
    def prepare(scalars, stat, extra):
        (was,) = scalars  # differs from `weight` if that has changed since
        return was, (weight,)

    def leaf(u, p, was, mean):
        mean = ema(mean, u + was * mean, decay)
        return u + weight * mean, mean

    scalars = {"lead": rx.real_scalar(weight)}
    options: Any = {"elementwise": True, "in_steps": "any"}
    return rx.Rule(leaf, _Ahead, {"ema": rx.Slot()}, scalars, prepare, **options)


@rx.public("wrapper", paper=PAPER, ranges=_RANGES, shared=AVERAGED)
def ema_nesterov(
    inner: rx.TransformationLike, weight: rx.ArrayLike, decay: rx.ArrayLike = 0.9
) -> rx.GradientTransformationExtraArgs:
    """Take gradients ahead of the iterates, along the EMA of their steps.

        x_t = y + u(g),   L = decay L + (1 - decay) (x_t - x_(t-1))
        y = x_t + weight L

    The parameters are y; evaluate at x, see `eval_params`.
    Transformations after it must not change the updates.

    inner: an optimizer, with its learning rate.
    weight: factor of the mean step, at least 0.
    decay: decay rate of the EMA of the steps, in [0, 1].
    """
    rx.require_transformation(inner, "`inner` of `ema_nesterov`")
    ahead: Any = _look_ahead(weight, decay)
    return rx.build(Followed("ema_nesterov", inner, ahead, EmaNesterovState))


@rx.computed_wide
def _back(y, mean, lead):
    return y - lead * mean


evaluates(EmaNesterovState, _back, ("ema", "lead"))
