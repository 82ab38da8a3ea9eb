"""Rprop: a step size for each coordinate, adapted by the sign of the gradient.

Riedmiller and Braun, 1993, A Direct Adaptive Method for Faster Backpropagation Learning
(doi:10.1109/ICNN.1993.298623); Igel and Hüsken, 2003, Empirical Evaluation of the
Improved Rprop Learning Algorithms (doi:10.1016/S0925-2312(01)00700-7), Rprop-.

Difference from the papers, as in Optax: a step is taken once the next gradient has the
same sign, so that the first update is zero; with `immediate` it is taken at once, as in
iRprop- of the second paper.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .._engine import rules as rx
from .._transforms.decay import decayed
from .._transforms.scale import scale, scale_by_learning_rate, value_at
from .._wrappers.chain import chain


PAPER = "doi:10.1109/ICNN.1993.298623"


@rx.optax_compatible
class ScaleByRpropState(NamedTuple):
    """step_sizes: above 0.  prev_updates: last signed steps, 0 after a sign change.

    Both shaped like the parameters.
    """

    step_sizes: Any
    prev_updates: Any


@rx.public(paper=PAPER, holomorphic=False)
def scale_by_rprop(
    learning_rate: rx.ArrayLike,
    eta_minus: rx.ArrayLike = 0.5,
    eta_plus: rx.ArrayLike = 1.2,
    min_step_size: rx.ArrayLike = 1e-6,
    max_step_size: rx.ArrayLike = 50.0,
    *,
    immediate: bool = False,
) -> rx.Rule:
    """Lengthen steps while the gradient keeps its sign; shorten them when it changes.

        s = eta_plus s, eta_minus s or s,   as g last > 0, < 0 or = 0, within bounds
        u = last if g last >= 0 else 0
        last = 0 if g last < 0 else s sign(g),   with `immediate` also u

    learning_rate: initial step size, above 0.
    eta_minus, eta_plus: factors of the step size, below and above 1.
    min_step_size, max_step_size: bounds of s, above 0.
    immediate: whether to take a step immediately, not after the next gradient agrees.
    """

    def leaf(g, p, ctx, s, last):
        agreement = jnp.sign(g) * jnp.sign(last)
        turns, agrees = agreement < 0, agreement > 0
        s = jnp.where(agrees, s * eta_plus, jnp.where(turns, s * eta_minus, s))
        s = jnp.where(agrees | turns, jnp.clip(s, min_step_size, max_step_size), s)
        now = jnp.where(turns, 0, s * jnp.sign(g))
        return now if immediate else jnp.where(turns, 0, last), s, now

    start = rx.Slot(make=lambda p: jnp.full_like(p, learning_rate), kind="other")
    slots = {"step_sizes": start, "prev_updates": rx.Slot(kind="other")}
    return rx.Rule(leaf, ScaleByRpropState, slots, elementwise=True)


@rx.public("optimizer", paper=PAPER, holomorphic=False)
def rprop(
    learning_rate: rx.ScalarOrSchedule,
    eta_minus: rx.ArrayLike = 0.5,
    eta_plus: rx.ArrayLike = 1.2,
    min_step_size: rx.ArrayLike = 1e-6,
    max_step_size: rx.ArrayLike = 50.0,
    *,
    immediate: bool = False,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Rprop, with optional weight decay.

        p = p - u - learning_rate weight_decay p,   u of `scale_by_rprop`

    learning_rate: initial step size, above 0; for a schedule r, the initial step size
        is r(0), and u is multiplied by r(t) / r(0).
    eta_minus, eta_plus: factors of the step size, below and above 1.
    min_step_size, max_step_size: its bounds, above 0.
    weight_decay: a scalar, at least 0, or a schedule; no decay if `None`.
    weight_decay_mask: which parameters decay; see `masked`.
    immediate: whether to take a step immediately, not after the next gradient agrees.
    """
    first: Any = value_at(learning_rate, 0)
    descend = scale(-1.0)
    if callable(learning_rate):
        descend = scale_by_learning_rate(lambda count: learning_rate(count) / first)
    bounds = min_step_size, max_step_size
    return chain(
        scale_by_rprop(first, eta_minus, eta_plus, *bounds, immediate=immediate),
        *decayed(weight_decay, weight_decay_mask, first),
        descend,
    )
