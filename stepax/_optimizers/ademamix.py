"""AdEMAMix, plain and simplified: Adam with a second average of the gradients.

Pagliardini, Ablin and Grangier, 2024, The AdEMAMix Optimizer: Better, Faster, Older
(arXiv:2409.03137), Algorithm 1; Morwani et al., 2025, Connections between Schedule-Free
Optimizers, AdEMAMix, and Accelerated SGD Variants (arXiv:2502.02431), Algorithm 2,
which has one sum of gradients and extra weight on the last one.

Differences from the first paper: `alpha` and `b3` are constants by default; pass
schedules to warm both up as the paper does.  Difference from Optax: `mu_dtype` applies
to `m1` and `m2` only, since `nu` with its slow decay would stall in bfloat16.
"""

from typing import Any

import jax

from .._engine import rules as rx
from .._engine.arrays import moments
from .._engine.arrays.moments import bias_correction, bounded_square, ema, square_like
from .._engine.arrays.numerics import safe_increment, safe_sqrt
from .._transforms.decay import descend


PAPER = "arXiv:2409.03137"
_RANGES = {"b3": rx.MOMENTUM}  # an average of gradients, and not of squares


@rx.optax_compatible
class ScaleByAdemamixState(rx.optax.contrib.ScaleByAdemamixState):
    """count: steps taken.  count_m2: the same, for the schedules of `m2`.

    m1, m2: fast and slow EMA of g.  nu: EMA of |g|².  All shaped like the parameters.
    """

    count: jax.Array
    count_m2: jax.Array
    m1: rx.ArrayTree
    m2: rx.ArrayTree
    nu: rx.ArrayTree


@rx.public(paper=PAPER, ranges=_RANGES)
def scale_by_ademamix(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    b3: rx.ScalarOrSchedule = 0.9999,
    alpha: rx.ScalarOrSchedule = 6.0,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    mu_dtype: rx.DTypeLike | None = None,
) -> rx.Rule:
    """Divide a mixture of two EMAs of g by the root of the EMA of |g|².

        m1 = b1 m1 + (1 - b1) g,   m2 = b3 m2 + (1 - b3) g
        nu = b2 nu + (1 - b2) |g|²
        u = (m1 / (1 - b1^t) + alpha m2) / (sqrt(nu / (1 - b2^t) + eps_root) + eps)

    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    b3: decay rate of the slow EMA, in [0, 1], near 1; or a schedule.
    alpha: weight of the slow EMA, at least 0; or a schedule.
    eps, eps_root: added outside and inside the square root; at least 0.
    mu_dtype: dtype of both EMAs of g; defaults to the parameter's.
        In bfloat16 `m2` and `nu` stall: keep them in float32 with `with_state_dtypes`.
    """

    slow: Any = b3, alpha

    def prepare(scalars, stat, extra):
        count, count_m2 = scalars
        t = safe_increment(count)
        # Python scalars are not traced, so that 1 - b3 is exact for them.
        now = [f(count_m2) if callable(f) else None for f in slow]
        c = bias_correction(b1, t), bias_correction(b2, t), now
        return c, (t, safe_increment(count_m2))

    def leaf(g, p, ctx, m1, m2, nu):
        c1, c2, now = ctx
        b3, alpha = (x if y is None else y for x, y in zip(slow, now, strict=True))
        m1 = ema(m1, g, b1)
        m2 = ema(m2, g, b3)
        nu = ema(nu, square_like(g, nu), b2)
        m = m1 / c1 + alpha * m2
        return m / (safe_sqrt(nu / c2 + eps_root) + eps), m1, m2, nu

    counts = {"count": rx.COUNT["count"], "count_m2": rx.COUNT["count"]}
    slots = {
        "m1": rx.Slot(dtype=mu_dtype),
        "m2": rx.Slot(dtype=mu_dtype, is_slow=True),
        "nu": rx.MEAN_SQUARE,
    }
    return rx.Rule(leaf, ScaleByAdemamixState, slots, counts, prepare, elementwise=True)


@rx.public("optimizer", paper=PAPER, ranges=_RANGES)
def ademamix(
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    b3: rx.ScalarOrSchedule = 0.9999,
    alpha: rx.ScalarOrSchedule = 5.0,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    mu_dtype: rx.DTypeLike | None = None,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    mask: rx.MaskOrFn = None,
    *,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """AdEMAMix, with decoupled weight decay
    (Pagliardini et al., 2024, arXiv:2409.03137).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_ademamix`

    learning_rate, weight_decay: scalars or schedules.
    mask, weight_decay_mask: parameters to decay (two aliases); see `masked`.
    Other arguments: those of `scale_by_ademamix`.
    """
    direction = scale_by_ademamix(b1, b2, b3, alpha, eps, eps_root, mu_dtype)
    return descend(direction, learning_rate, weight_decay, mask, weight_decay_mask)


SIMPLIFIED = "arXiv:2502.02431"


@rx.optax_compatible
class ScaleBySimplifiedAdEMAMixState(rx.optax.contrib.ScaleBySimplifiedAdEMAMixState):
    """t: steps taken.

    m: decaying sum of g.  n: EMA of |g|².  Both shaped like the parameters.
    """

    t: jax.Array
    m: rx.ArrayTree
    n: rx.ArrayTree


@rx.public(paper=SIMPLIFIED)
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

    In bfloat16 `n` stalls: keep it in float32 with `with_state_dtypes`.
    """

    # Optax's order of operations, which cancels in 1 - b2 for b2 near 1.
    is_usual = moments.is_number(b2) and not moments.is_near_1(b2, moments.NEAR)

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


@rx.public("optimizer", paper=SIMPLIFIED)
def simplified_ademamix(
    learning_rate: rx.ScalarOrSchedule | None,
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
    """Simplified AdEMAMix, with decoupled weight decay
    (Morwani et al., 2025, arXiv:2502.02431).

        p = p - learning_rate (u + weight_decay p)

    u is that of `scale_by_simplified_ademamix`.

    learning_rate, weight_decay: scalars or schedules.
    mask, weight_decay_mask: parameters to decay (two aliases); see `masked`.
    Other arguments: those of `scale_by_simplified_ademamix`.
    """
    direction = scale_by_simplified_ademamix(b1, b2, alpha, eps, eps_root)
    return descend(direction, learning_rate, weight_decay, mask, weight_decay_mask)
