"""Rprop and RMSProp: steps by the sign of the gradient, or by its running size.

Riedmiller and Braun, 1993, A Direct Adaptive Method for Faster Backpropagation Learning
(doi:10.1109/ICNN.1993.298623); Igel and Hüsken, 2003, Empirical Evaluation of the
Improved Rprop Learning Algorithms (doi:10.1016/S0925-2312(01)00700-7), Rprop-.

Difference of Rprop from the papers, as in Optax: a step is taken once the next gradient
has the same sign, so that the first update is zero; with `immediate` it is taken at
once, as in iRprop- of the second paper.

Tieleman and Hinton, 2012, Lecture 6.5 of Neural Networks for Machine Learning, for
RMSProp as Rprop of mini-batches; Graves, 2013, Generating Sequences With Recurrent
Neural Networks (arXiv:1308.0850), equations 38 to 41, for the centered form.

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
from .._transforms.scale import scale, scale_by_learning_rate, value_at
from .._wrappers.chain import chain
from .._wrappers.partition import identity
from .sgd import trace


RPROP = "doi:10.1109/ICNN.1993.298623"


@rx.optax_compatible
class ScaleByRpropState(rx.optax.ScaleByRpropState):
    """step_sizes: above 0.  prev_updates: last signed steps, 0 after a sign change.

    Both shaped like the parameters.
    """

    step_sizes: rx.ArrayTree
    prev_updates: rx.Updates


@rx.traits("normalizes")
@rx.public(paper=RPROP, holomorphic=False)
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


@rx.public("optimizer", paper=RPROP, holomorphic=False)
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
    """Rprop, with optional weight decay
    (Riedmiller and Braun, 1993, doi:10.1109/ICNN.1993.298623).

        p = p - u - learning_rate weight_decay p, with u the output of `scale_by_rprop`

    learning_rate: initial step size, above 0; for a schedule r, the initial step size
        is r(0), or 1 if that is 0, and u is multiplied by r(t) over it.
    weight_decay: a scalar, at least 0, or a schedule; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_rprop`.
    """
    first: Any = value_at(learning_rate, 0)
    descend = scale(-1.0)
    if callable(learning_rate):
        first = jnp.where(first == 0, 1.0, first)
        descend = scale_by_learning_rate(lambda count: learning_rate(count) / first)
    bounds = min_step_size, max_step_size
    return chain(
        scale_by_rprop(first, eta_minus, eta_plus, *bounds, immediate=immediate),
        *decayed(weight_decay, weight_decay_mask, first),
        descend,
    )


@rx.optax_compatible
class ScaleByRmsState(rx.optax.ScaleByRmsState):
    """nu: EMA of |g|², shaped like the parameters."""

    nu: rx.ArrayTree


@rx.optax_compatible
class ScaleByRmsWithCountState(NamedTuple):
    """count: steps taken.  nu: EMA of |g|², shaped like the parameters."""

    count: jax.Array
    nu: rx.ArrayTree


@rx.optax_compatible
class ScaleByRStdDevState(rx.optax.ScaleByRStdDevState):
    """mu, nu: EMAs of g and of |g|², shaped like the parameters."""

    mu: rx.ArrayTree
    nu: rx.ArrayTree


@rx.optax_compatible
class ScaleByRStdDevWithCountState(NamedTuple):
    """count: steps taken.  mu, nu: EMAs of g and |g|², shaped like the parameters."""

    count: jax.Array
    mu: rx.ArrayTree
    nu: rx.ArrayTree


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

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
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
    bias_correction: whether to divide `mu` and `nu` by 1 - decay^t.
    Other arguments: those of `scale_by_rms`.
    """

    def leaf(g, p, ctx, mu, nu):
        mu = ema(mu, g, decay)
        nu = ema(nu, square(g), decay)
        variance = _corrected(nu, ctx) - square(_corrected(mu, ctx))
        # Not `maximum`, whose derivative at 0 is half of it.
        variance = jnp.where(variance < 0, 0, variance)
        return _divide(g, variance, eps, eps_in_sqrt), mu, nu

    # The difference of two rounded means may be 0, so both must stay exact.
    square_mean = replace(_mean_square(initial_scale), kind="other")
    slots = {"mu": rx.Slot(kind="other"), "nu": square_mean}
    if bias_correction:
        return _counting(leaf, ScaleByRStdDevWithCountState, slots, decay)
    return rx.build(rx.Rule(leaf, ScaleByRStdDevState, slots, elementwise=True))


@rx.public("optimizer", paper="arXiv:1308.0850")
def rmsprop(
    learning_rate: rx.ScalarOrSchedule | None,
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
    """RMSProp, with optional momentum and weight decay (Graves, 2013, arXiv:1308.0850).

        p = p + trace(-learning_rate u) - learning_rate weight_decay p

    with u the output of `scale_by_rms` or `scale_by_stddev`.

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    centered: whether to use `scale_by_stddev`.
    momentum, nesterov: decay rate of `trace`, no momentum if `None`; whether to use
        Nesterov momentum.
    Other arguments: those of `scale_by_rms`.
    """
    divided = scale_by_stddev if centered else scale_by_rms
    return chain(
        divided(decay, eps, initial_scale, eps_in_sqrt, bias_correction),
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
