"""Prodigy: D-Adaptation that gives recent gradients more weight.

Mishchenko and Defazio, 2023, Prodigy: An Expeditiously Adaptive Parameter-Free Learner
(arXiv:2306.06101), Algorithm 4, with Adam's bias corrections in the step size.

Differences from Optax: the estimate is unchanged where the weighted sum of gradients is
zero (Optax returns NaN); scalars in the state are stored in float32 or wider, and so
are the EMAs of float16 parameters, which would underflow in float16.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.arrays.moments import ema, square
from .._engine.arrays.numerics import safe_increment, safe_sqrt
from .._engine.base.optax_types import optax_compatible
from .._engine.base.protocol import (
    GradientTransformationExtraArgs,
    MaskOrFn,
    ScalarOrSchedule,
)
from .._engine.factories.registry import public
from .._engine.step.plan import build
from .._engine.step.rule import COUNT, REAL, START, Rule, real_scalar
from .._transforms.scale import value_at
from .._wrappers.parameter_free import MEAN, decaying, dot, quotient, sums
from .dadapt import corrected_rate, scaled_decay


@optax_compatible
class ProdigyState(NamedTuple):
    """exp_avg, exp_avg_sq: EMAs of d g and of d² |g|², shaped like the parameters.

    grad_sum, params0: decaying sum of the steps, and initial parameters; shaped alike.
    estim_lr: the estimate d.  numerator_weighted: r, its numerator.  count: steps
        taken.  All three are scalars.
    """

    exp_avg: Any
    exp_avg_sq: Any
    grad_sum: Any
    params0: Any
    estim_lr: jax.Array
    numerator_weighted: jax.Array
    count: jax.Array


_SLOTS = {"exp_avg": MEAN, "exp_avg_sq": REAL, "grad_sum": MEAN, "params0": START}
_SCALARS = {"numerator_weighted": real_scalar(), **COUNT}


@public("optimizer", paper="arXiv:2306.06101")
def prodigy(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[ArrayLike, ArrayLike] = (0.9, 0.999),
    beta3: ArrayLike | None = None,
    eps: ArrayLike = 1e-8,
    estim_lr0: ArrayLike = 1e-6,
    estim_lr_coef: ArrayLike = 1.0,
    weight_decay: ScalarOrSchedule = 0.0,
    safeguard_warmup: bool = False,
    weight_decay_mask: MaskOrFn = None,
) -> GradientTransformationExtraArgs:
    """AdamW with the learning rate multiplied by an estimate d of the distance to go.

        a = d learning_rate sqrt(1 - b2^t) / (1 - b1^t)
        r = b3 r + d / d0 a Σ g (p0 - p),   s = b3 s + d / d0 a g
        m = b1 m + (1 - b1) d g,   v = b2 v + (1 - b2) d² |g|²
        d = max(d, estim_lr_coef r / Σ |s|)
        p = p - a m / (sqrt(v) + d eps) - weight_decay a p

    learning_rate: a scalar near 1, or a schedule that decays from 1.
    betas, beta3: b1 and b2, and b3, in [0, 1]; b3 is sqrt(b2) if `None`.
    eps: added to the square root, in units of d; above 0.
    estim_lr0: initial value of d, above 0 and below the true distance.
    estim_lr_coef: factor of the estimate, above 0.
    weight_decay: a scalar, at least 0, or a schedule.
    safeguard_warmup: whether s accumulates d g instead of a g, so that small learning
        rates at the start do not make d too large.
    weight_decay_mask: which parameters decay; see `masked`.

    In bfloat16 `exp_avg`, `exp_avg_sq` and `grad_sum` stop changing: widen them with
    `with_state_dtypes`.
    """
    if weight_decay_mask is not None:
        given = learning_rate, betas, beta3, eps, estim_lr0, estim_lr_coef
        plain = prodigy(*given, safeguard_warmup=safeguard_warmup)
        pull = scaled_decay(learning_rate, betas, weight_decay)
        return decaying(plain, pull, weight_decay_mask)
    b1, b2 = betas
    b3 = jnp.sqrt(b2) if beta3 is None else beta3

    def scales(d, count):
        """The step size, and the weight of this gradient in the sum."""
        a = corrected_rate(learning_rate, betas, d, count)
        return a, d / estim_lr0 * (d if safeguard_warmup else a)

    def leaf_stat(g, p, scalars, m, v, s, p0):
        d, _, count = scalars
        a, weight = scales(d, count)
        numerator = d / estim_lr0 * a * dot(g, p0 - p)
        return numerator, jnp.sum(jnp.abs(b3 * s + weight * g))

    def prepare(scalars, stat, extra):
        d, r, count = scalars
        numerator, size = sums(stat, 2)
        a, weight = scales(d, count)
        r = b3 * r + numerator
        larger = jnp.maximum(d, quotient(estim_lr_coef * r, size))
        c = d, larger * eps, a, weight, a * value_at(weight_decay, count)
        return c, (larger, r, safe_increment(count))

    def leaf(g, p, ctx, m, v, s, p0):
        d, d_eps, a, weight, decay = ctx
        m = ema(m, d * g, b1)
        v = ema(v, square(d * g), b2)
        s = b3 * s + weight * g
        return -a * m / (safe_sqrt(v) + d_eps) - decay * p, m, v, s, p0

    rule = Rule(
        leaf,
        ProdigyState,
        _SLOTS,
        {"estim_lr": real_scalar(estim_lr0), **_SCALARS},
        prepare,
        leaf_stat,
        needs_params=True,
        elementwise=True,
    )
    return build(rule)
