"""D-Adaptation: AdamW and SGD that estimate their learning rate from below.

Defazio and Mishchenko, 2023, Learning-Rate-Free Learning by D-Adaptation
(arXiv:2301.07733), Algorithms 5 and 4.

Difference of AdamW from the paper, as in Optax: the step size has Adam's bias
corrections; `bias_correction=False`, the default of the authors' program, omits them.
Difference of SGD from it: the norm of a first gradient that is zero is not divided by.
Differences from Optax: the estimate is unchanged where the weighted sum of gradients is
zero (Optax returns NaN); scalars in the state are stored in float32 or wider, and so
are the EMAs of float16 parameters, which would underflow in float16.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .. import tree
from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction, ema, square
from .._engine.arrays.numerics import quotient, safe_increment, safe_sqrt
from .._transforms.decay import ESTIMATED, add_decayed_weights
from .._transforms.scale import value_at
from .._wrappers.mechanic import MEAN, SUM, checking, decaying, dot, sums


@rx.optax_compatible
class DAdaptAdamWState(rx.optax.contrib.DAdaptAdamWState):
    """exp_avg, exp_avg_sq: EMAs of the steps and of |g|², shaped like the parameters.

    grad_sum: decaying sum of the steps, shaped like the parameters.
    estim_lr: the estimate d.  numerator_weighted: r, its numerator.  count: steps
        taken.  All three are scalars.
    """

    exp_avg: rx.ArrayTree
    exp_avg_sq: rx.ArrayTree
    grad_sum: rx.ArrayTree
    estim_lr: jax.Array
    numerator_weighted: jax.Array
    count: jax.Array


class DAdaptSGDState(NamedTuple):
    """params0, grad_sum: initial parameters, and s, the sum of the steps.

    Both are shaped like the parameters.

    estim_lr: the estimate d.  numerator_weighted: r, half of its numerator.
    grad_norm0: the norm of the first gradient that is not zero.  count: steps taken.
        All four are scalars.
    """

    params0: rx.Params
    grad_sum: rx.ArrayTree
    estim_lr: jax.Array
    numerator_weighted: jax.Array
    grad_norm0: jax.Array
    count: jax.Array


def corrected_rate(
    learning_rate: rx.ScalarOrSchedule,
    betas: tuple | None,
    d: jax.Array,
    count: jax.Array,
) -> jax.Array:
    """d learning_rate sqrt(1 - b2^t) / (1 - b1^t), where t = count + 1."""
    rate = d * value_at(learning_rate, count)
    if betas is None:
        return rate
    b1, b2 = betas
    t = safe_increment(count)
    correction = jnp.sqrt(bias_correction(b2, t)) / bias_correction(b1, t)
    return rate * correction


def scaled_decay(
    learning_rate: rx.ScalarOrSchedule,
    betas: tuple | None,
    weight_decay: rx.ScalarOrSchedule,
) -> Callable[[rx.MaskOrFn], rx.GradientTransformation]:
    """The weight decay of a step, computed from the state before it."""

    def decay(state):
        rate = corrected_rate(learning_rate, betas, state.estim_lr, state.count)
        return add_decayed_weights(-rate * value_at(weight_decay, state.count))

    return decay


_SLOTS = {"exp_avg": MEAN, "exp_avg_sq": rx.REAL, "grad_sum": SUM}
_SCALARS = {"numerator_weighted": rx.real_scalar(), **rx.COUNT}


@rx.traits("estimates its rate")
@rx.public("optimizer", paper="arXiv:2301.07733", shared=ESTIMATED)
def dadapt_adamw(
    learning_rate: rx.ScalarOrSchedule = 1.0,
    betas: tuple[rx.ArrayLike, rx.ArrayLike] = (0.9, 0.999),
    eps: rx.ArrayLike = 1e-8,
    estim_lr0: rx.ArrayLike = 1e-6,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    *,
    bias_correction: bool = True,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """AdamW with the learning rate multiplied by an estimate d of the distance to go
    (Defazio and Mishchenko, 2023, arXiv:2301.07733).

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
    bias_correction: whether the learning rate a has the two corrections; `False` in the
        authors' program by default.
    weight_decay_mask: parameters to decay; see `masked`.

    In bfloat16 `exp_avg`, `exp_avg_sq` and `grad_sum` stall: keep them in float32 with
    `with_state_dtypes`.
    """
    corrections = betas if bias_correction else None
    if weight_decay_mask is not None:
        given = learning_rate, betas, eps, estim_lr0
        plain = dadapt_adamw(*given, bias_correction=bias_correction)
        pull = scaled_decay(learning_rate, corrections, weight_decay)
        return decaying(plain, pull, weight_decay_mask)
    b1, b2 = betas
    q = jnp.sqrt(b2) if isinstance(b2, jax.Array) else b2**0.5

    def rate(d, count):
        return corrected_rate(learning_rate, corrections, d, count)

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

    rule = rx.Rule(
        leaf,
        DAdaptAdamWState,
        _SLOTS,
        {"estim_lr": rx.real_scalar(estim_lr0), **_SCALARS},
        prepare,
        leaf_stat,
        needs_params=True,
        elementwise=True,
    )
    return rx.build(rule)


_WHY = "its estimate of the distance assumes one learning rate and one decay"
_ONE = {"learning_rate": _WHY, "weight_decay": _WHY, **ESTIMATED}


@rx.traits("estimates its rate")
@rx.public("optimizer", paper="arXiv:2301.07733", shared=_ONE)
def dadapt_sgd(
    learning_rate: rx.ScalarOrSchedule = 1.0,
    momentum: rx.ArrayLike = 0.0,
    estim_lr0: rx.ArrayLike = 1e-6,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    *,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """SGD with the learning rate multiplied by an estimate d of the distance to go
    (Defazio and Mishchenko, 2023, arXiv:2301.07733).

        a = d learning_rate / ‖g_1‖,   g = g + weight_decay p
        r = r + a Σ g s,   s = s + a g,   d = max(d, 2 r / ‖s‖)
        p = momentum p + (1 - momentum) (p_0 - s)

    with norms over all parameters, and g_1 the first gradient that is not zero.

    learning_rate: a scalar near 1, or a schedule that decays from 1.
    momentum: weight of the last parameters, in [0, 1].
    estim_lr0: initial value of d, above 0 and below the true distance.
    weight_decay: a scalar, at least 0, or a schedule.
    weight_decay_mask: parameters to decay; see `masked`.

    In bfloat16 `grad_sum` stalls: keep it in float32 with `with_state_dtypes`.
    """
    rates = learning_rate, momentum, estim_lr0
    if weight_decay_mask is None:
        return rx.build(_sgd(*rates, weight_decay))
    rule = rx.build(_sgd(*rates, None))

    @rx.promote_freely
    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state("dadapt_sgd", DAdaptSGDState, state)
        # The norm of the gradient without decay, which the rule does not see.
        first = state.grad_norm0
        first = rx.branch(
            first == 0, lambda: tree.norm(updates).astype(first.dtype), lambda: first
        )
        decay = value_at(weight_decay, state.count)
        pull = add_decayed_weights(decay, weight_decay_mask)
        updates, _ = pull.update(updates, pull.init(params), params)
        return rule.update(updates, state._replace(grad_norm0=first), params)

    init = checking(rule.init, weight_decay_mask)
    return rx.transformation(init, update, inner={"": rule})


def _sgd(learning_rate, momentum, estim_lr0, weight_decay):
    """Without decay, which is in the gradients; the first norm is in the state."""
    measures = weight_decay is not None

    def rate(d, first, count):
        return quotient(d * value_at(learning_rate, count), first)

    def pulled(g, p, count):
        return g + value_at(weight_decay, count) * p if measures else g

    def leaf_stat(g, p, scalars, start, s):
        d, _, first, count = scalars
        h = pulled(g, p, count)
        squares = square(g), square(h), square(s + rate(d, first, count) * h)
        return *map(jnp.sum, squares), dot(h, s)

    def prepare(scalars, stat, extra):
        d, r, first, count = scalars
        found, pull, squares, numerator = sums(stat, 4)
        is_first = (first == 0) & measures
        first = jnp.where(is_first, safe_sqrt(found), first)
        a = rate(d, first, count)
        r = r + a * numerator
        # In the first step the learning rate was not known when the sum was measured.
        size = jnp.where(is_first, a * safe_sqrt(pull), safe_sqrt(squares))
        larger = jnp.maximum(d, quotient(2 * r, size))
        return (a, count), (larger, r, first, safe_increment(count))

    def leaf(g, p, ctx, start, s):
        a, count = ctx
        s = s + a * pulled(g, p, count)
        # In this order a small s is not rounded to the spacing of p.
        return (1 - momentum) * ((start - p) - s), start, s

    scalars = {
        "estim_lr": rx.real_scalar(estim_lr0),
        "numerator_weighted": rx.real_scalar(),
    }
    return rx.Rule(
        leaf,
        DAdaptSGDState,
        {"params0": rx.START, "grad_sum": SUM},
        {**scalars, "grad_norm0": rx.real_scalar(), **rx.COUNT},
        prepare,
        leaf_stat,
        needs_params=True,
        elementwise=True,
    )
