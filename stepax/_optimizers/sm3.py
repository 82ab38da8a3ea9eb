"""SM3: AdaGrad with one accumulator per slice of an array.

Anil, Gupta, Koren and Singer, 2019, Memory-Efficient Adaptive Optimization
(arXiv:1901.11150), Algorithm SM3-II; the cover consists of the slices along each axis.

Differences from the paper, as in Optax: momentum on the updates and, for b2 below 1,
EMAs instead of sums.
"""

import functools as ft
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import ema, square
from .._engine.arrays.numerics import nan_max
from .._transforms.decay import descend


@rx.optax_compatible
class ScaleBySM3State(NamedTuple):
    """mu: for each parameter, a list of accumulators, one vector per axis.

    nu: EMA of the updates, shaped like the parameters.
    """

    mu: Any
    nu: Any


@rx.public(paper="arXiv:1901.11150", ranges={"b2": rx.UP_TO_1})
def scale_by_sm3(
    b1: rx.ArrayLike = 0.9, b2: rx.ArrayLike = 1.0, eps: rx.ArrayLike = 1e-8
) -> rx.Rule:
    """Divide by the root of an upper bound on the sum of |g|², and average the result.

        s = b2 min(mu_1, ..., mu_n) + (1 - b2) |g|²,   |g|² itself for b2 = 1
        u = b1 u + (1 - b1) g / sqrt(s + eps),   0 where s = 0
        mu_k = max of s over all axes but k

    b1, b2: decay rates of the update u and of the squares s, in [0, 1].
    eps: added inside the square root, at least 0.

    In bfloat16 `mu` stops changing: widen it with `with_state_dtypes`.
    """

    def leaf(g, p, ctx, bound, u):
        weight = jnp.where(b2 == 1, 1.0, 1.0 - b2)
        s = weight * square(g) + b2 * bound
        is_zero = s == 0
        inverse = jnp.where(is_zero, 0, jax.lax.rsqrt(jnp.where(is_zero, 1, s) + eps))
        u = ema(u, g * inverse, b1)
        return u, s, u

    slots = {
        "mu": rx.Slot(is_wide=True, encode=_maxima, decode=_minimum),
        "nu": rx.Slot(),
    }
    return rx.Rule(leaf, ScaleBySM3State, slots)


@rx.public("optimizer", paper="arXiv:1901.11150")
def sm3(
    learning_rate: rx.ScalarOrSchedule,
    momentum: rx.ArrayLike = 0.9,
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """SM3, with optional weight decay.

        p = p - learning_rate (u + weight_decay p)

    u is that of `scale_by_sm3` for b1 = momentum.

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: which parameters decay; see `masked`.
    momentum: decay rate of the EMA of the updates, in [0, 1].

    In bfloat16 `mu` stops changing: widen it with `with_state_dtypes`.
    """
    direction = scale_by_sm3(momentum)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


def _maxima(s: jax.Array) -> list[jax.Array]:
    """For each axis, the largest element of each slice; a scalar itself."""
    if s.ndim < 2:
        return [s]
    rest = (tuple(j for j in range(s.ndim) if j != k) for k in range(s.ndim))
    return [nan_max(s, axes, initial=0) for axes in rest]


def _minimum(maxima: list[jax.Array]) -> jax.Array:
    """For each element, the smallest accumulator of its slices."""
    n = len(maxima)
    across = [
        jnp.expand_dims(x.real, tuple(j for j in range(n) if j != k)) if x.ndim else x
        for k, x in enumerate(maxima)
    ]
    shape = jnp.broadcast_shapes(*(x.shape for x in across))
    return ft.reduce(jnp.minimum, (jnp.broadcast_to(x, shape) for x in across))
