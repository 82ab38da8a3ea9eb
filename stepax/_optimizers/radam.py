"""Rectified Adam: plain momentum until the EMA of |g|² is reliable; also schedule-free.

Liu et al., 2020, On the Variance of the Adaptive Learning Rate and Beyond
(arXiv:1908.03265), Algorithm 2.  Difference from the paper: the threshold for rho is 5
rather than 4.

Defazio et al., 2024, The Road Less Scheduled (arXiv:2405.15682), with this
rectification as its warm-up, as in the authors' code,
https://github.com/facebookresearch/schedule_free.  The weights of the average use the
rectified learning rate, too.  Unlike in other schedule-free optimizers, they use that
of the current step: `learning_rate(0)` belongs to the first one.
"""

import functools as ft
import math

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays import moments
from .._engine.arrays.moments import corrected, corrections, ema, square, square_like
from .._engine.arrays.numerics import safe_increment, safe_sqrt
from .._transforms.decay import add_decayed_weights, descend
from .._transforms.scale import scale_by_learning_rate, value_at
from .._wrappers.chain import chain
from .adam import ScaleByAdamState
from .rmsprop import ScaleByRmsWithCountState
from .schedule_free import SHARED, schedule_free


@rx.public(paper="arXiv:1908.03265")
def scale_by_radam(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    threshold: rx.ArrayLike = 5.0,
    *,
    nesterov: bool = False,
) -> rx.Rule:
    """Adam, rectified for the variance of its denominator in early steps.

        rho_inf = 2 / (1 - b2) - 1,   rho = rho_inf - 2 t b2^t / (1 - b2^t)
        r² = (rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho)
        m = mu / (1 - b1^t)
        u = r m / (sqrt(nu / (1 - b2^t) + eps_root) + eps)   if rho >= threshold
        u = m   otherwise

    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1]; b2 above 0.6.
    eps, eps_root: added outside and inside the square root; at least 0.
    threshold: least rho, the effective number of gradients in `nu`, for which `nu` is
        used; above 4.
    nesterov: whether to use Nesterov momentum.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    """

    def rectification(t):
        c1, c2, c1_next = corrections(b1, b2, nesterov)(t)
        return c1, c2, c1_next, _rho(b2, t, c2)

    def leaf(g, p, ctx, mu, nu):
        c1, c2, c1_next, rho = ctx
        mu = ema(mu, g, b1)
        nu = ema(nu, square_like(g, nu), b2)
        m = corrected(mu, g, b1, c1, c1_next)
        is_steady = rho >= threshold
        r = rectifier(b2, rho, is_steady)
        rectified = r * m / (safe_sqrt(nu / c2 + eps_root) + eps)
        return jnp.where(is_steady, rectified, m), mu, nu

    slots = {"mu": rx.Slot(), "nu": rx.MEAN_SQUARE}
    prepare = rx.from_step(rectification)
    return rx.Rule(leaf, ScaleByAdamState, slots, rx.COUNT, prepare, elementwise=True)


@rx.public("optimizer", paper="arXiv:1908.03265")
def radam(
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    threshold: rx.ArrayLike = 5.0,
    *,
    nesterov: bool = False,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Rectified Adam, with optional weight decay (Liu et al., 2020, arXiv:1908.03265).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_radam`

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_radam`.
    """
    direction = scale_by_radam(b1, b2, eps, eps_root, threshold, nesterov=nesterov)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


def rectifier(b2: rx.ArrayLike, rho: jax.Array, is_steady: jax.Array) -> jax.Array:
    """The factor r for an effective number rho of gradients; 1 if it is not steady."""
    rho_inf = _most_gradients(b2)
    ratio = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
    # Below the threshold the square root may have a negative argument, whose NaN would
    # reach the derivative.
    return jnp.sqrt(jnp.where(is_steady, ratio, 1))


def _most_gradients(b2):
    return 2 / moments.one_minus(b2) - 1


def _rho(b2, t, c2):
    """rho in Optax's order, unless b2 is so near 1 that its terms are far larger."""
    usual = _most_gradients(b2) - 2 * t * moments.power(b2, t) / c2
    log, is_near = moments.logarithm_near_1(b2)
    if is_near is False:
        return usual
    return jnp.where(is_near, _of_logarithm(log, t.astype(usual.dtype)), usual)


def number_of_gradients(b2: rx.ArrayLike, t: jax.Array) -> jax.Array:
    """rho without cancellation: the effective number of gradients in an EMA.

    In float32, for b2 = 0.999, the two terms of its formula leave an error of 0.02.
    """
    least = 1e-30  # bound of b2, so that its logarithm is finite
    if moments.is_number(b2):
        log = math.log(max(b2, least))
    else:
        log = jnp.log(jnp.maximum(b2, least))
    return _of_logarithm(log, t.astype(float))


def _of_logarithm(log, t):
    """rho from log(b2), which is t - t L(t x / 2) + L(x / 2).

    Here x = -log(b2), and L(y) = coth(y) - 1/y.
    """
    half = -log / 2
    return t * _one_less_langevin(t * half) + 1 - _one_less_langevin(half)


# The Taylor coefficients of L(y) / y in y², the highest first; for y = 0.5 the next
# would add 1e-11.
_LANGEVIN = (4 / 18243225, -1382 / 638512875, 2 / 93555, -1 / 4725, 2 / 945, -1 / 45)
_LANGEVIN += (1 / 3,)


def _one_less_langevin(y):
    """1 - L(y) for y >= 0."""
    z = jnp.where(y < 0.5, y * y, 0)
    series = 1 - y * ft.reduce(lambda total, c: c + z * total, _LANGEVIN)
    far = jnp.maximum(y, 0.5)
    return jnp.where(y < 0.5, series, 1 / far - 2 / jnp.expm1(2 * far))


# The effective number of gradients from which the mean square is used.
_STEADY = 4


@rx.recorded
def _scale_by_steady_rms(b2: rx.ArrayLike, eps: rx.ArrayLike) -> rx.Rule:
    """Divide by the root mean square, once it averages enough gradients."""

    def correction(t):
        c2 = moments.bias_correction(b2, t)
        return c2, number_of_gradients(b2, t) > _STEADY

    def leaf(g, p, ctx, nu):
        c2, is_steady = ctx
        nu = ema(nu, square(g), b2)
        return jnp.where(is_steady, g / (safe_sqrt(nu / c2) + eps), g), nu

    prepare = rx.from_step(correction)
    State = ScaleByRmsWithCountState
    return rx.Rule(leaf, State, {"nu": rx.REAL}, rx.COUNT, prepare, elementwise=True)


@rx.scheduled
def _rectified(
    learning_rate: rx.ScalarOrSchedule, b2: rx.ArrayLike, is_silent: bool, first: int
) -> rx.ScalarOrSchedule:
    """The learning rate of a step as a function of its number, starting at `first`."""

    def rate(count):
        t = safe_increment(jnp.asarray(count)) - first
        rho = number_of_gradients(b2, t)
        r = rectifier(b2, rho, rho > _STEADY)
        factor = jnp.where(rho > _STEADY, r, 0) if is_silent else r
        return value_at(learning_rate, t - 1) * factor

    return rate


@rx.public(
    "optimizer",
    paper="arXiv:2405.15682",
    ranges={
        "b1": rx.Range(0, 1, excludes_least=True),
        "weight_step_power": rx.AT_LEAST_0,
    },
    shared=SHARED,
)
def schedule_free_radam(
    learning_rate: rx.ScalarOrSchedule = 0.0025,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_lr_power: rx.ArrayLike = 2.0,
    *,
    weight_step_power: rx.ArrayLike = 0.0,
    silent_sgd_phase: bool = True,
    weight_decay_mask: rx.MaskOrFn = None,
    state_dtype: rx.DTypeLike | None = None,
) -> rx.GradientTransformationExtraArgs:
    """`schedule_free` RAdam, without momentum (Defazio et al., 2024, arXiv:2405.15682).

        nu = b2 nu + (1 - b2) |g|²
        z = z - a r (g / (sqrt(nu / (1 - b2^t)) + eps) + weight_decay y)   if rho > 4
        z = z - a (g + weight_decay y)   before, unless `silent_sgd_phase`

    a is the learning rate, and r and rho are those of `scale_by_radam`.  The weights of
    the average are those for the learning rates a r.

    learning_rate, weight_decay: scalars or schedules.
    b1: weight of the average x in the parameters y, in (0, 1].
    b2: decay rate of the EMA of |g|², in [0, 1]; above 0.6.
    eps: added to the square root, at least 0.
    weight_lr_power, weight_step_power: exponents of the learning rate and the step in
        the weights, at least 0.
    silent_sgd_phase: whether the first steps, with rho <= 4, do nothing.
    weight_decay_mask: parameters to decay; see `masked`.
    state_dtype: dtype of z; defaults to the parameter's.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    """
    of_step = ft.partial(_rectified, learning_rate, b2, silent_sgd_phase)
    base = chain(
        _scale_by_steady_rms(b2, eps),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(of_step(0)),
    )
    more = {"weight_step_power": weight_step_power}
    return schedule_free(base, of_step(1), b1, weight_lr_power, state_dtype, **more)
