"""D-Adaptation: AdamW that estimates its learning rate from below.

Defazio and Mishchenko, 2023, Learning-Rate-Free Learning by D-Adaptation
(arXiv:2301.07733), Algorithm 5, with Adam's bias corrections in the step size.

Differences from Optax: the estimate is unchanged where the weighted sum of gradients is
zero (Optax returns NaN); scalars in the state are stored in float32 or wider, and so
are the EMAs of float16 parameters, which would underflow in float16.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.arrays.moments import bias_correction, ema, square
from .._engine.arrays.numerics import safe_increment, safe_sqrt
from .._engine.base.optax_types import optax_compatible
from .._engine.base.protocol import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    ScalarOrSchedule,
)
from .._engine.factories.registry import public
from .._engine.step.plan import build
from .._engine.step.rule import COUNT, REAL, Rule, real_scalar
from .._transforms.decay import add_decayed_weights
from .._transforms.scale import value_at
from .._wrappers.parameter_free import MEAN, decaying, dot, quotient, sums


@optax_compatible
class DAdaptAdamWState(NamedTuple):
    """exp_avg, exp_avg_sq: EMAs of the steps and of |g|², shaped like the parameters.

    grad_sum: decaying sum of the steps, shaped like the parameters.
    estim_lr: the estimate d.  numerator_weighted: r, its numerator.  count: steps
        taken.  All three are scalars.
    """

    exp_avg: Any
    exp_avg_sq: Any
    grad_sum: Any
    estim_lr: jax.Array
    numerator_weighted: jax.Array
    count: jax.Array


def corrected_rate(
    learning_rate: ScalarOrSchedule, betas: tuple, d: jax.Array, count: jax.Array
) -> jax.Array:
    """d learning_rate sqrt(1 - b2^t) / (1 - b1^t), where t = count + 1."""
    b1, b2 = betas
    t = safe_increment(count)
    correction = jnp.sqrt(bias_correction(b2, t)) / bias_correction(b1, t)
    return d * value_at(learning_rate, count) * correction


def scaled_decay(
    learning_rate: ScalarOrSchedule, betas: tuple, weight_decay: ScalarOrSchedule
) -> Callable[[Any], GradientTransformation]:
    """The weight decay of a step, computed from the state before it."""

    def decay(state):
        rate = corrected_rate(learning_rate, betas, state.estim_lr, state.count)
        return add_decayed_weights(-rate * value_at(weight_decay, state.count))

    return decay


_SLOTS = {"exp_avg": MEAN, "exp_avg_sq": REAL, "grad_sum": MEAN}
_SCALARS = {"numerator_weighted": real_scalar(), **COUNT}


@public("optimizer", paper="arXiv:2301.07733")
def dadapt_adamw(
    learning_rate: ScalarOrSchedule = 1.0,
    betas: tuple[ArrayLike, ArrayLike] = (0.9, 0.999),
    eps: ArrayLike = 1e-8,
    estim_lr0: ArrayLike = 1e-6,
    weight_decay: ScalarOrSchedule = 0.0,
    *,
    weight_decay_mask: MaskOrFn = None,
) -> GradientTransformationExtraArgs:
    """AdamW with the learning rate multiplied by an estimate d of the distance to go.

        a = d learning_rate sqrt(1 - b2^t) / (1 - b1^t),   q = sqrt(b2)
        r = q r + (1 - q) a Σ g s / (sqrt(v) + eps)
        m = b1 m + (1 - b1) a g,   v = b2 v + (1 - b2) |g|²,   s = q s + (1 - q) a g
        d = max(d, r / ((1 - q) Σ |s|))
        p = p - m / (sqrt(v) + eps) - weight_decay a p

    learning_rate: a scalar near 1, or a schedule that decays from 1.
    betas: b1 and b2, in [0, 1].
    eps: added to the square root, above 0.
    estim_lr0: initial value of d, above 0 and below the true distance.
    weight_decay: a scalar, at least 0, or a schedule.
    weight_decay_mask: which parameters decay; see `masked`.

    In bfloat16 `exp_avg`, `exp_avg_sq` and `grad_sum` stop changing: widen them with
    `with_state_dtypes`.
    """
    if weight_decay_mask is not None:
        plain = dadapt_adamw(learning_rate, betas, eps, estim_lr0)
        pull = scaled_decay(learning_rate, betas, weight_decay)
        return decaying(plain, pull, weight_decay_mask)
    b1, b2 = betas
    q = jnp.sqrt(b2) if isinstance(b2, jax.Array) else b2**0.5

    def rate(d, count):
        return corrected_rate(learning_rate, betas, d, count)

    def leaf_stat(g, p, scalars, m, v, s):
        d, _, count = scalars
        a = rate(d, count)
        numerator = a * dot(g, s / (safe_sqrt(v) + eps))
        return numerator, jnp.sum(jnp.abs(q * s + (1 - q) * a * g))

    def prepare(scalars, stat, extra):
        d, r, count = scalars
        numerator, size = sums(stat, 2)
        a = rate(d, count)
        r = ema(r, numerator, q)
        d = jnp.maximum(d, quotient(r, (1 - q) * size))
        return (a, a * value_at(weight_decay, count)), (d, r, safe_increment(count))

    def leaf(g, p, ctx, m, v, s):
        a, decay = ctx
        m = b1 * m + (1 - b1) * a * g
        v = ema(v, square(g), b2)
        s = q * s + (1 - q) * a * g
        return -m / (safe_sqrt(v) + eps) - decay * p, m, v, s

    rule = Rule(
        leaf,
        DAdaptAdamWState,
        _SLOTS,
        {"estim_lr": real_scalar(estim_lr0), **_SCALARS},
        prepare,
        leaf_stat,
        needs_params=True,
        elementwise=True,
    )
    return build(rule)
