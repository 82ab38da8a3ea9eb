"""Prodigy: D-Adaptation that gives recent gradients more weight.

Mishchenko and Defazio, 2023, Prodigy: An Expeditiously Adaptive Parameter-Free Learner
(arXiv:2306.06101), Algorithm 4, with Adam's bias corrections in the step size, as in
Optax; `bias_correction=False` is the default of the authors' program.

Differences from Optax: the estimate is unchanged where the weighted sum of gradients is
zero (Optax returns NaN); scalars in the state are stored in float32 or wider, and so
are the EMAs of float16 parameters, which would underflow in float16.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import ema, is_number, square
from .._engine.arrays.numerics import quotient, safe_increment, safe_sqrt
from .._transforms.decay import ESTIMATED
from .._transforms.scale import value_at
from .._wrappers.mechanic import MEAN, SUM, decaying, dot, sums
from .dadapt import corrected_rate, scaled_decay


@rx.optax_compatible
class ProdigyState(rx.optax.contrib.ProdigyState):
    """exp_avg, exp_avg_sq: EMAs of d g and of d² |g|², shaped like the parameters.

    grad_sum, params0: decaying sum of the steps, and initial parameters; of the same
        shapes.
    estim_lr: the estimate d.  numerator_weighted: r, its numerator.  count: steps
        taken.  All three are scalars.
    """

    exp_avg: rx.ArrayTree
    exp_avg_sq: rx.ArrayTree
    grad_sum: rx.ArrayTree
    params0: rx.Params
    estim_lr: jax.Array
    numerator_weighted: jax.Array
    count: jax.Array


class GrowthLimitedProdigyState(NamedTuple):
    """As `ProdigyState`, with a limit to the growth of `estim_lr`.

    estim_lr_max: the value that it grows to, a scalar.
    """

    exp_avg: rx.ArrayTree
    exp_avg_sq: rx.ArrayTree
    grad_sum: rx.ArrayTree
    params0: rx.Params
    estim_lr: jax.Array
    numerator_weighted: jax.Array
    count: jax.Array
    estim_lr_max: jax.Array


_RANGES = {
    "growth_rate": rx.Range(1, is_cap=True, is_added=True),
    "slice_p": rx.AT_LEAST_1,
}


@rx.traits("estimates its rate")
@rx.public("optimizer", paper="arXiv:2306.06101", ranges=_RANGES, shared=ESTIMATED)
def prodigy(
    learning_rate: rx.ScalarOrSchedule = 1.0,
    betas: tuple[rx.ArrayLike, rx.ArrayLike] = (0.9, 0.999),
    beta3: rx.ArrayLike | None = None,
    eps: rx.ArrayLike = 1e-8,
    estim_lr0: rx.ArrayLike = 1e-6,
    estim_lr_coef: rx.ArrayLike = 1.0,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    safeguard_warmup: bool = False,
    weight_decay_mask: rx.MaskOrFn = None,
    *,
    bias_correction: bool = True,
    slice_p: int = 1,
    growth_rate: rx.ArrayLike = math.inf,
) -> rx.GradientTransformationExtraArgs:
    """AdamW with the learning rate multiplied by an estimate d of the distance to go
    (Mishchenko and Defazio, 2023, arXiv:2306.06101).

        a = d learning_rate sqrt(1 - b2^t) / (1 - b1^t)
        r = b3 r + d / d0 a Σ g (p0 - p),   s = b3 s + d / d0 a g
        m = b1 m + (1 - b1) d g,   v = b2 v + (1 - b2) d² |g|²
        d = max(d, estim_lr_coef r / Σ |s|)
        p = p - a m / (sqrt(v) + d eps) - weight_decay a p

    learning_rate: a scalar near 1, or a schedule that decays from 1.
    betas, beta3: b1 and b2, and b3, in [0, 1]; b3 is sqrt(b2) if `None`.
    eps: added to the square root, in units of d; above 0.
    estim_lr0: initial value of d, above 0 and below the true distance.
    estim_lr_coef: factor of the estimate, at least 0.
    weight_decay: a scalar, at least 0, or a schedule.
    safeguard_warmup: whether s accumulates d g instead of a g, so that small learning
        rates at the start do not make d too large.
    weight_decay_mask: parameters to decay; see `masked`.
    bias_correction: whether the learning rate a has the two corrections; `False` in the
        authors' program by default.
    slice_p: both sums are over every `slice_p`-th element of an array, and so are the
        states `grad_sum` and `params0`; at least 1.
    growth_rate: largest factor of d in a step, at least 1; not at the first growth.

    In bfloat16 `exp_avg`, `exp_avg_sq` and `grad_sum` stall: keep them in float32 with
    `with_state_dtypes`.

    >>> tx = stepax.contrib.prodigy(1.0)
    """
    corrections = betas if bias_correction else None
    if weight_decay_mask is not None:
        given = learning_rate, betas, beta3, eps, estim_lr0, estim_lr_coef
        options: Any = {"slice_p": slice_p, "growth_rate": growth_rate}
        options |= {"bias_correction": bias_correction}
        plain = prodigy(*given, safeguard_warmup=safeguard_warmup, **options)
        pull = scaled_decay(learning_rate, corrections, weight_decay)
        return decaying(plain, pull, weight_decay_mask)
    b3 = jnp.sqrt(betas[1]) if beta3 is None else beta3

    def scales(d, count):
        """The step size, the weight of this gradient in the sum, and the decay."""
        a = corrected_rate(learning_rate, corrections, d, count)
        weight = d / estim_lr0 * (d if safeguard_warmup else a)
        return a, weight, a * value_at(weight_decay, count)

    estimate = estim_lr0, estim_lr_coef, growth_rate
    return rx.build(_rule(scales, (*betas, b3), eps, estimate, slice_p))


def _rule(scales, betas, eps, estimate, every):
    b1, b2, b3 = betas
    d0, coefficient, growth_rate = estimate
    is_limited = not (is_number(growth_rate) and growth_rate == math.inf)

    def part(x):
        return x if every == 1 else jnp.ravel(x)[::every]

    def leaf_stat(g, p, scalars, m, v, s, p0):
        d, _, count, *_ = scalars
        a, weight, _ = scales(d, count)
        numerator = d / d0 * a * dot(part(g), p0 - part(p))
        return numerator, jnp.sum(jnp.abs(b3 * s + weight * part(g)))

    def prepare(scalars, stat, extra):
        d, r, count, *most = scalars
        numerator, size = sums(stat, 2)
        r = b3 * r + numerator
        found = quotient(coefficient * r, size)
        larger, most = _grown(d, found, most, d0, growth_rate)
        a, weight, decay = scales(d, count)
        c = d, larger * eps, a, weight, decay
        return c, (larger, r, safe_increment(count), *most)

    def leaf(g, p, ctx, m, v, s, p0):
        d, d_eps, a, weight, decay = ctx
        m = ema(m, d * g, b1)
        v = ema(v, square(d * g), b2)
        s = b3 * s + weight * part(g)
        return -a * m / (safe_sqrt(v) + d_eps) - decay * p, m, v, s, p0

    scalars = {"estim_lr": rx.real_scalar(d0), "numerator_weighted": rx.real_scalar()}
    scalars |= {
        **rx.COUNT,
        **({"estim_lr_max": rx.real_scalar(d0)} if is_limited else {}),
    }
    return rx.Rule(
        leaf,
        GrowthLimitedProdigyState if is_limited else ProdigyState,
        _slots(every, part),
        scalars,
        prepare,
        leaf_stat,
        needs_params=True,
        elementwise=every == 1,
    )


def _grown(d, found, most, first, growth_rate):
    """The new d, and in a list its target, if its growth is limited."""
    if not most:
        return jnp.maximum(d, found), most
    most = jnp.maximum(*most, found)
    # The first estimate above the initial value is not limited.
    d = jnp.where(d == jnp.asarray(first, d.dtype), jnp.maximum(d, found), d)
    return jnp.minimum(most, d * growth_rate), [most]


def _slots(every, part):
    means = {"exp_avg": MEAN, "exp_avg_sq": rx.REAL}
    if every == 1:
        return means | {"grad_sum": SUM, "params0": rx.START}

    def zeros(p):
        return rx.zeros_for(p, part)

    def first(p):
        is_shape = isinstance(p, jax.ShapeDtypeStruct)  # without elements
        return zeros(p) if is_shape else part(p)

    return means | {
        "grad_sum": rx.Slot(zeros, alike=False, is_wide=True),
        "params0": rx.Slot(first, alike=False),
    }
