"""MADGRAD: dual averaging from the first parameters, with a cube root.

Defazio and Jelassi, 2021, Adaptivity without Compromise: A Momentumized, Adaptive, Dual
Averaged Gradient Method for Stochastic Optimization (arXiv:2101.11075), Algorithm 1.

Difference from the paper, as in its authors' code and Optax: eps is also added to the
learning rate.  Difference from Optax: u is computed by the formula below, rather than
as the difference of the new and old parameters, which suffers from cancellation and
moves parameters with a zero gradient.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import square
from .._engine.arrays.numerics import safe_increment, upcast
from .._transforms.decay import AVERAGED, add_decayed_weights
from .._transforms.scale import value_at
from .._wrappers.chain import chain


PAPER = "arXiv:2101.11075"


@rx.optax_compatible
class MadgradState(NamedTuple):
    """count: steps taken.

    grad_sum_sq, s: weighted sums of |g|² and g.  x0: the initial parameters.
    All three shaped like the parameters.
    """

    count: jax.Array
    grad_sum_sq: Any
    s: Any
    x0: Any


@rx.public(paper=PAPER, shared=AVERAGED)
def scale_by_madgrad(
    learning_rate: rx.ScalarOrSchedule,
    momentum: rx.ArrayLike = 0.9,
    eps: rx.ArrayLike = 1e-6,
) -> rx.Rule:
    """Step towards the dual average z of all gradients from the initial parameters.

        lambda = (learning_rate + eps) sqrt(t)
        nu = nu + lambda |g|²,   s = s + lambda g
        z = x0 - s / (cbrt(nu) + eps)
        u = (1 - momentum) (z - p)

    learning_rate: a scalar, at least 0, or a schedule.
    momentum: fraction of the way to z that a step leaves, in [0, 1].
    eps: added to the root and to the learning rate, at least 0.

    In bfloat16 `grad_sum_sq` stops changing: widen it with `with_state_dtypes`.
    """

    def prepare(scalars, stat, extra):
        (count,) = scalars
        t = safe_increment(count)
        rate = value_at(learning_rate, count)
        return (rate + eps) * jnp.sqrt(upcast(t)), (t,)

    def leaf(g, p, weight, nu, s, x0):
        nu = nu + weight * square(g)
        s = s + weight * g
        # s is 0 where nu is 0.
        z = x0 - s / (jnp.cbrt(jnp.where(nu == 0, 1, nu)) + eps)
        return (1 - momentum) * (z - p), nu, s, x0

    slots = {"grad_sum_sq": rx.SQUARES, "s": rx.Slot(kind="sum"), "x0": rx.START}
    return rx.Rule(
        leaf,
        MadgradState,
        slots,
        rx.COUNT,
        prepare,
        needs_params=True,
        elementwise=True,
    )


@rx.public("optimizer", paper=PAPER, shared=AVERAGED)
def madgrad(
    learning_rate: rx.ScalarOrSchedule,
    momentum: rx.ArrayLike = 0.9,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    eps: rx.ArrayLike = 1e-6,
    *,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """MADGRAD: p = p + u, with u of `scale_by_madgrad` for g + weight_decay p.

    learning_rate: a scalar, at least 0, or a schedule.
    momentum: fraction of the way to z that a step leaves, in [0, 1].
    weight_decay: a scalar, at least 0, or a schedule.
    weight_decay_mask: which parameters decay; see `masked`.
    eps: added to the root and to the learning rate, at least 0.

    In bfloat16 `grad_sum_sq` stops changing: widen it with `with_state_dtypes`.
    """
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_madgrad(learning_rate, momentum, eps),
    )
