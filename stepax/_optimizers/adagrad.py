"""AdaGrad, Adadelta, SM3 and MADGRAD: divide by the root of past squared gradients.

Duchi, Hazan and Singer, 2011, Adaptive Subgradient Methods for Online Learning and
Stochastic Optimization (Journal of Machine Learning Research 12), Figure 1, diagonal;
Zeiler, 2012, ADADELTA: An Adaptive Learning Rate Method (arXiv:1212.5701), Algorithm 1;
Anil, Gupta, Koren and Singer, 2019, Memory-Efficient Adaptive Optimization
(arXiv:1901.11150), Algorithm SM3-II, whose accumulators are one for each slice of an
array along each axis.

Differences from the papers, as in Optax: AdaGrad adds eps inside the square root, and
outside with `eps_in_sqrt=False`; SM3 has momentum on the updates and, for b2 below 1,
EMAs instead of sums.

Defazio and Jelassi, 2021, Adaptivity without Compromise: A Momentumized, Adaptive, Dual
Averaged Gradient Method for Stochastic Optimization (arXiv:2101.11075), Algorithm 1:
dual averaging from the first parameters, with a cube root.  Difference from the paper,
as in its authors' code and Optax: eps is also added to the learning rate.  Difference
from Optax: u is computed by the formula of `scale_by_madgrad`, rather than as the
difference of the new and old parameters, which suffers from cancellation and moves
parameters with a zero gradient.
"""

import functools as ft
from dataclasses import replace

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import ema, square, square_like
from .._engine.arrays.numerics import safe_increment, safe_sqrt, upcast
from .._transforms.decay import AVERAGED, add_decayed_weights, descend
from .._transforms.scale import scale_by_learning_rate, value_at
from .._wrappers.chain import chain
from .._wrappers.partition import identity


PAPER = "https://jmlr.org/papers/v12/duchi11a.html"


@rx.optax_compatible
class ScaleByRssState(rx.optax.ScaleByRssState):
    """sum_of_squares: sum of |g|² over all steps, shaped like the parameters."""

    sum_of_squares: rx.ArrayTree


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

    initial_accumulator_value: initial value of the sum of squares, at least 0.
    eps: added to the sum or to its square root, at least 0.
    eps_in_sqrt: whether `eps` is added to the sum rather than to its square root.

    In bfloat16 `sum_of_squares` stalls: keep it in float32 with `with_state_dtypes`.
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
    learning_rate: rx.ScalarOrSchedule | None,
    initial_accumulator_value: rx.ArrayLike = 0.1,
    eps: rx.ArrayLike = 1e-7,
    *,
    eps_in_sqrt: bool = True,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """AdaGrad, with optional weight decay
    (Duchi et al., 2011, jmlr.org/papers/v12/duchi11a.html).

        p = p - learning_rate (u + weight_decay p), with u the output of `scale_by_rss`

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_rss`.

    >>> tx = stepax.adagrad(0.1)
    """
    direction = scale_by_rss(initial_accumulator_value, eps, eps_in_sqrt=eps_in_sqrt)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


@rx.optax_compatible
class ScaleByAdaDeltaState(rx.optax.ScaleByAdaDeltaState):
    """e_g, e_x: EMAs of |g|² and of |u|², shaped like the parameters."""

    e_g: rx.ArrayTree
    e_x: rx.ArrayTree


@rx.public(paper="arXiv:1212.5701")
def scale_by_adadelta(rho: rx.ArrayLike = 0.9, eps: rx.ArrayLike = 1e-6) -> rx.Rule:
    """Rescale the gradient to the RMS of past updates.

        e_g = rho e_g + (1 - rho) |g|²
        u = sqrt(e_x + eps) / sqrt(e_g + eps) g
        e_x = rho e_x + (1 - rho) |u|²

    rho: decay rate of both EMAs, in [0, 1].
    eps: added inside both square roots, above 0; it sets the size of the first update.

    In bfloat16 `e_g` and `e_x` stall: keep them in float32 with `with_state_dtypes`.
    """

    def leaf(g, p, ctx, e_g, e_x):
        e_g = ema(e_g, square(g), rho)
        u = jnp.sqrt(e_x + eps) / jnp.sqrt(e_g + eps) * g
        return u, e_g, ema(e_x, square(u), rho)

    return rx.Rule(
        leaf, ScaleByAdaDeltaState, {"e_g": rx.REAL, "e_x": rx.REAL}, elementwise=True
    )


@rx.public("optimizer", paper="arXiv:1212.5701")
def adadelta(
    learning_rate: rx.ScalarOrSchedule | None = None,
    rho: rx.ArrayLike = 0.9,
    eps: rx.ArrayLike = 1e-6,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Adadelta (Zeiler, 2012, arXiv:1212.5701):
    p = p - learning_rate u, with u the output of `scale_by_adadelta`.

    Weight decay is added to the gradient: g + weight_decay p.

    learning_rate: a scalar or a schedule; 1 in the paper.  With `None` the updates are
        u itself, as in Optax, and have to be subtracted.
    weight_decay: a scalar, at least 0, or a schedule.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_adadelta`.
    """
    is_bare = learning_rate is None
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_adadelta(rho, eps),
        identity() if is_bare else scale_by_learning_rate(learning_rate),
    )


@rx.optax_compatible
class ScaleBySM3State(rx.optax.ScaleBySM3State):
    """mu: for each parameter, a list of accumulators, one vector per axis.

    nu: EMA of the updates, shaped like the parameters.
    """

    mu: rx.ArrayTree
    nu: rx.ArrayTree


@rx.traits("normalizes")
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

    In bfloat16 `mu` stalls: keep it in float32 with `with_state_dtypes`.
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
    """SM3, with optional weight decay (Anil et al., 2019, arXiv:1901.11150).

        p = p - learning_rate (u + weight_decay p)

    u is that of `scale_by_sm3` for b1 = momentum.

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    momentum: decay rate of the EMA of the updates, in [0, 1].

    In bfloat16 `mu` stalls: keep it in float32 with `with_state_dtypes`.
    """
    direction = scale_by_sm3(momentum)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


def _maxima(s: jax.Array) -> list[jax.Array]:
    """For each axis, the largest element of each slice; a scalar itself."""
    if s.ndim < 2:
        return [s]
    rest = [tuple(j for j in range(s.ndim) if j != k) for k in range(s.ndim)]
    largest = [jnp.max(s, axes, initial=0) for axes in rest]
    if not jnp.issubdtype(s.dtype, jnp.floating):
        return largest
    # XLA's maximum may lose a NaN, which the sum of squares keeps.
    rows = [(most, jnp.sum(s, axes)) for most, axes in zip(largest, rest, strict=True)]
    return [jnp.where(jnp.isnan(total), total, most) for most, total in rows]


def _minimum(maxima: list[jax.Array]) -> jax.Array:
    """For each element, the smallest accumulator of its slices."""
    n = len(maxima)
    across = [
        jnp.expand_dims(x.real, tuple(j for j in range(n) if j != k)) if x.ndim else x
        for k, x in enumerate(maxima)
    ]
    shape = jnp.broadcast_shapes(*(x.shape for x in across))
    return ft.reduce(jnp.minimum, (jnp.broadcast_to(x, shape) for x in across))


MADGRAD = "arXiv:2101.11075"


@rx.optax_compatible
class MadgradState(rx.optax.contrib.MadgradState):
    """count: steps taken.

    grad_sum_sq, s: weighted sums of |g|² and g.  x0: the initial parameters.
    All three shaped like the parameters.
    """

    count: jax.Array
    grad_sum_sq: rx.ArrayTree
    s: rx.ArrayTree
    x0: rx.Params


@rx.traits("descends")
@rx.public(paper=MADGRAD, shared=AVERAGED)
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

    In bfloat16 `grad_sum_sq` stalls: keep it in float32 with `with_state_dtypes`.
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


@rx.public("optimizer", paper=MADGRAD, shared=AVERAGED)
def madgrad(
    learning_rate: rx.ScalarOrSchedule,
    momentum: rx.ArrayLike = 0.9,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    eps: rx.ArrayLike = 1e-6,
    *,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """MADGRAD (Defazio and Jelassi, 2021, arXiv:2101.11075):
    p = p + u, with u the output of `scale_by_madgrad` for g + weight_decay p.

    weight_decay: a scalar, at least 0, or a schedule.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_madgrad`.
    """
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_madgrad(learning_rate, momentum, eps),
    )
