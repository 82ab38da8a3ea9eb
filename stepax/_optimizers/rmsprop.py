"""RMSProp: divide by a running root mean square, or standard deviation.

Tieleman and Hinton, 2012, Lecture 6.5 of Neural Networks for Machine Learning;
Graves, 2013, Generating Sequences With Recurrent Neural Networks (arXiv:1308.0850),
equations 38 to 41, for the centered form.

Difference from Graves: momentum is applied after the learning rate.
Difference from Optax: a variance that rounding makes negative is treated as zero.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays import moments
from .._engine.arrays.moments import ema, square, square_like
from .._engine.arrays.numerics import safe_sqrt
from .._transforms.decay import decayed
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain
from .._wrappers.partition import identity
from .sgd import trace


@rx.optax_compatible
class ScaleByRmsState(NamedTuple):
    """nu: EMA of |g|², shaped like the parameters."""

    nu: Any


@rx.optax_compatible
class ScaleByRmsWithCountState(NamedTuple):
    """count: steps taken.  nu: EMA of |g|², shaped like the parameters."""

    count: jax.Array
    nu: Any


@rx.optax_compatible
class ScaleByRStdDevState(NamedTuple):
    """mu, nu: EMAs of g and of |g|², shaped like the parameters."""

    mu: Any
    nu: Any


@rx.optax_compatible
class ScaleByRStdDevWithCountState(NamedTuple):
    """count: steps taken.  mu, nu: EMAs of g and |g|², shaped like the parameters."""

    count: jax.Array
    mu: Any
    nu: Any


@rx.public(
    paper="https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf"
)
def scale_by_rms(
    decay: rx.ArrayLike = 0.9,
    eps: rx.ArrayLike = 1e-8,
    initial_scale: rx.ArrayLike = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> rx.GradientTransformation:
    """Divide by the root of the EMA of |g|².

        nu = decay nu + (1 - decay) |g|²
        u = g / sqrt(nu + eps),   or g / (sqrt(nu) + eps)

    decay: decay rate of the EMA of |g|², in [0, 1].
    eps: added inside or outside the square root, above 0.
    initial_scale: initial value of `nu`, at least 0.
    eps_in_sqrt: whether `eps` is added inside the square root.
    bias_correction: whether to divide `nu` by 1 - decay^t.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """

    def leaf(g, p, ctx, nu):
        nu = ema(nu, square_like(g, nu), decay)
        return _divide(g, _corrected(nu, ctx), eps, eps_in_sqrt), nu

    slots = {"nu": replace(_mean_square(initial_scale), by_rows=True)}
    if bias_correction:
        return _counting(leaf, ScaleByRmsWithCountState, slots, decay)
    return rx.build(rx.Rule(leaf, ScaleByRmsState, slots, elementwise=True))


@rx.public(paper="arXiv:1308.0850")
def scale_by_stddev(
    decay: rx.ArrayLike = 0.9,
    eps: rx.ArrayLike = 1e-8,
    initial_scale: rx.ArrayLike = 0.0,
    eps_in_sqrt: bool = True,
    bias_correction: bool = False,
) -> rx.GradientTransformation:
    """Divide by the running standard deviation of the gradient.

        mu = decay mu + (1 - decay) g,   nu = decay nu + (1 - decay) |g|²
        u = g / sqrt(nu - |mu|² + eps),   or g / (sqrt(nu - |mu|²) + eps)

    decay: decay rate of the EMAs of g and |g|², in [0, 1].
    eps: added inside or outside the square root, above 0.
    initial_scale: initial value of `nu`, at least 0.
    eps_in_sqrt: whether `eps` is added inside the square root.
    bias_correction: whether to divide `mu` and `nu` by 1 - decay^t.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """

    def leaf(g, p, ctx, mu, nu):
        mu = ema(mu, g, decay)
        nu = ema(nu, square(g), decay)
        variance = jnp.maximum(_corrected(nu, ctx) - square(_corrected(mu, ctx)), 0)
        return _divide(g, variance, eps, eps_in_sqrt), mu, nu

    # The difference of two rounded means may be 0, so both must stay exact.
    square_mean = replace(_mean_square(initial_scale), kind="other")
    slots = {"mu": rx.Slot(kind="other"), "nu": square_mean}
    if bias_correction:
        return _counting(leaf, ScaleByRStdDevWithCountState, slots, decay)
    return rx.build(rx.Rule(leaf, ScaleByRStdDevState, slots, elementwise=True))


@rx.public("optimizer", paper="arXiv:1308.0850")
def rmsprop(
    learning_rate: rx.ScalarOrSchedule,
    decay: rx.ArrayLike = 0.9,
    eps: rx.ArrayLike = 1e-8,
    initial_scale: rx.ArrayLike = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: rx.ArrayLike | None = None,
    nesterov: bool = False,
    bias_correction: bool = False,
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """RMSProp, with optional momentum and weight decay.

        p = p + trace(-learning_rate u) - learning_rate weight_decay p

    with u of `scale_by_rms` or `scale_by_stddev`.

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: which parameters decay; see `masked`.
    decay: decay rate of the EMA of |g|², in [0, 1].
    eps, eps_in_sqrt: added to the divisor, above 0; whether inside the square root.
    initial_scale: initial value of `nu`, at least 0.
    bias_correction: whether to bias-correct `nu`, as Adam does.
    centered: whether to use `scale_by_stddev`.
    momentum, nesterov: decay rate of `trace`, no momentum if `None`; whether to use
        Nesterov momentum.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    scale = scale_by_stddev if centered else scale_by_rms
    return chain(
        scale(decay, eps, initial_scale, eps_in_sqrt, bias_correction),
        scale_by_learning_rate(learning_rate),
        identity() if momentum is None else trace(momentum, nesterov),
        *decayed(weight_decay, weight_decay_mask, learning_rate, -1.0),
    )


def _mean_square(initial: rx.ArrayLike) -> rx.Slot:
    return replace(rx.REAL, make=lambda p: jnp.full_like(p, initial))


def _counting(leaf, State, slots, decay):
    """The rule with bias-corrected EMAs."""
    correction = rx.from_step(lambda t: moments.bias_correction(decay, t))
    return rx.build(rx.Rule(leaf, State, slots, rx.COUNT, correction, elementwise=True))


def _corrected(mean, c):
    return mean if c is None else mean / c


def _divide(g, square, eps, eps_in_sqrt):
    if eps_in_sqrt:
        return g * jax.lax.rsqrt(square + eps)
    return g * (1 / (safe_sqrt(square) + eps))
