"""AdaGrad: divide by the root of the sum of all squared gradients.

Duchi, Hazan and Singer, 2011, Adaptive Subgradient Methods for Online Learning and
Stochastic Optimization (Journal of Machine Learning Research 12), Figure 1, diagonal.

Differences from the paper, as in Optax: eps is added inside the square root;
`eps_in_sqrt=False` adds it outside.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import square_like
from .._engine.arrays.numerics import safe_sqrt
from .._transforms.decay import descend


PAPER = "https://jmlr.org/papers/v12/duchi11a.html"


@rx.optax_compatible
class ScaleByRssState(NamedTuple):
    """sum_of_squares: sum of |g|² over all steps, shaped like the parameters."""

    sum_of_squares: Any


@rx.public(paper=PAPER)
def scale_by_rss(
    initial_accumulator_value: rx.ArrayLike = 0.1,
    eps: rx.ArrayLike = 1e-7,
    *,
    eps_in_sqrt: bool = True,
) -> rx.Rule:
    """Divide by the root of the sum of squared gradients.

        s = s + |g|²
        u = g / sqrt(s + eps),   0 where s = 0;  g / (sqrt(s) + eps)
            without `eps_in_sqrt`

    initial_accumulator_value: initial value of s, at least 0.
    eps: added to s or to its square root, at least 0.
    eps_in_sqrt: whether `eps` is added to s rather than to its square root.

    In bfloat16 `sum_of_squares` stops changing: widen it with `with_state_dtypes`.
    """

    def leaf(g, p, ctx, s):
        s = s + square_like(g, s)
        is_zero = s == 0
        positive = jnp.where(is_zero, 1, s)
        if eps_in_sqrt:
            inverse = jax.lax.rsqrt(positive + eps)
        else:
            inverse = 1 / (safe_sqrt(positive) + eps)
        return jnp.where(is_zero, 0, inverse) * g, s

    def start(p):
        return jnp.full_like(p, initial_accumulator_value)

    slots = {"sum_of_squares": replace(rx.SQUARES, make=start, by_rows=True)}
    return rx.Rule(leaf, ScaleByRssState, slots, elementwise=True)


@rx.public("optimizer", paper=PAPER)
def adagrad(
    learning_rate: rx.ScalarOrSchedule,
    initial_accumulator_value: rx.ArrayLike = 0.1,
    eps: rx.ArrayLike = 1e-7,
    *,
    eps_in_sqrt: bool = True,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """AdaGrad, with optional weight decay.

        p = p - learning_rate (u + weight_decay p),   u of `scale_by_rss`

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    initial_accumulator_value: initial value of the sum of squares, at least 0.
    eps: added to the sum or to its square root, at least 0.
    eps_in_sqrt: whether `eps` is added to the sum rather than to its square root.
    weight_decay_mask: which parameters decay; see `masked`.

    In bfloat16 `sum_of_squares` stops changing: widen it with `with_state_dtypes`.
    """
    direction = scale_by_rss(initial_accumulator_value, eps, eps_in_sqrt=eps_in_sqrt)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)
