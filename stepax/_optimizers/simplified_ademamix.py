"""Simplified AdEMAMix: Adam with a sum of gradients and extra weight on the last one.

Morwani et al., 2025, Connections between Schedule-Free Optimizers, AdEMAMix, and
Accelerated SGD Variants (arXiv:2502.02431), Algorithm 2.
"""

from typing import Any, NamedTuple

import jax

from .._engine import rules as rx
from .._engine.arrays.moments import (
    NEAR,
    bias_correction,
    bounded_square,
    ema,
    is_near_1,
    is_number,
)
from .._engine.arrays.numerics import safe_increment, safe_sqrt
from .._transforms.decay import descend


PAPER = "arXiv:2502.02431"


@rx.optax_compatible
class ScaleBySimplifiedAdEMAMixState(NamedTuple):
    """t: steps taken.

    m: decaying sum of g.  n: EMA of |g|².  Both shaped like the parameters.
    """

    t: jax.Array
    m: Any
    n: Any


@rx.public(paper=PAPER)
def scale_by_simplified_ademamix(
    b1: rx.ArrayLike = 0.99,
    b2: rx.ArrayLike = 0.95,
    alpha: rx.ScalarOrSchedule = 0.0,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
) -> rx.Rule:
    """Divide a decaying sum of gradients by the root of the EMA of |g|².

        m = b1 m + g,   n = b2 n + (1 - b2) |g|²
        u = (m + alpha g) / (sqrt(n / (1 - b2^t) + eps_root) + eps)

    The sum is 1 / (1 - b1) times as large as an EMA: use a lower learning rate.

    b1, b2: decay rates of the sum of g and of the EMA of |g|², in [0, 1].
    alpha: extra weight of the current gradient, at least 0; or a schedule.
    eps, eps_root: added outside and inside the square root; at least 0.

    In bfloat16 `n` stops changing: widen it with `with_state_dtypes`.
    """

    # Optax's order of operations, which cancels in 1 - b2 for b2 near 1.
    is_usual = is_number(b2) and not is_near_1(b2, NEAR)

    def prepare(scalars, stat, extra):
        (count,) = scalars
        t = safe_increment(count)
        return (bias_correction(b2, t), alpha(count) if callable(alpha) else None), (t,)

    def leaf(g, p, ctx, m, n):
        c2, alpha_now = ctx
        m = b1 * m + g
        squares = bounded_square(g)
        n = squares + b2 * (n - squares) if is_usual else ema(n, squares, b2)
        mixture = m + (alpha if alpha_now is None else alpha_now) * g
        return mixture / (safe_sqrt(n / c2 + eps_root) + eps), m, n

    slots, count = {"m": rx.Slot(), "n": rx.REAL}, {"t": rx.COUNT["count"]}
    return rx.Rule(
        leaf, ScaleBySimplifiedAdEMAMixState, slots, count, prepare, elementwise=True
    )


@rx.public("optimizer", paper=PAPER)
def simplified_ademamix(
    learning_rate: rx.ScalarOrSchedule,
    b1: rx.ArrayLike = 0.99,
    b2: rx.ArrayLike = 0.95,
    alpha: rx.ScalarOrSchedule = 0.0,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    mask: rx.MaskOrFn = None,
    *,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Simplified AdEMAMix, with decoupled weight decay.

        p = p - learning_rate (u + weight_decay p)

    u is that of `scale_by_simplified_ademamix`.

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the sum of g and of the EMA of |g|², in [0, 1].
    alpha: extra weight of the current gradient, at least 0; or a schedule.
    eps, eps_root: added outside and inside the square root; at least 0.
    mask, weight_decay_mask: which parameters decay (aliases: give one); see `masked`.

    In bfloat16 `n` stops changing: widen it with `with_state_dtypes`.
    """
    direction = scale_by_simplified_ademamix(b1, b2, alpha, eps, eps_root)
    return descend(direction, learning_rate, weight_decay, mask, weight_decay_mask)
