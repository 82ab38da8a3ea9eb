"""MoMo: momentum with a step size from a model of the loss.

Schaipp, Ohana, Eickenberg, Defazio and Gower, 2023, MoMo: Momentum Models for Adaptive
Learning Rates (arXiv:2305.07583), Algorithms 1 (MoMo) and 2 (MoMo-Adam), and section 4
for the lower bound.

Difference from the paper: weight decay shrinks the parameters but not the step, unless
`proximal_decay` is set.  Difference from Optax: a zero gradient gives a zero step.
"""

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction, bounded_square, ema, square
from .._engine.arrays.numerics import quotient, safe_increment, safe_sqrt
from .._transforms.decay import add_decayed_weights
from .._transforms.scale import product, scale, value_at
from .._wrappers.chain import chain
from .._wrappers.mechanic import decaying, dot, sums


PAPER = "arXiv:2305.07583"


@rx.optax_compatible
class MomoState(rx.optax.contrib.MomoState):
    """exp_avg: EMA of g, shaped like the parameters.  The others are scalars.

    barf, gamma: EMAs of the loss, and of the inner product of g and p.
    lb: lower bound of the loss.  count: steps taken.
    """

    exp_avg: rx.ArrayTree
    barf: jax.Array
    gamma: jax.Array
    lb: jax.Array
    count: jax.Array


@rx.optax_compatible
class MomoAdamState(rx.optax.contrib.MomoAdamState):
    """exp_avg, exp_avg_sq: EMAs of g and |g|², shaped like the parameters.

    barf, gamma: EMAs of the loss, and of the inner product of g and p, scalars.
    lb: lower bound of the loss.  count: steps taken.  Both are scalars.
    """

    exp_avg: rx.ArrayTree
    exp_avg_sq: rx.ArrayTree
    barf: jax.Array
    gamma: jax.Array
    lb: jax.Array
    count: jax.Array


def _rule(leaf, State, slots, lower_bound, prepare, leaf_stat):
    """The optimizer with the scalars of the model."""
    scalars = {
        "barf": rx.real_scalar(),
        "gamma": rx.real_scalar(),
        "lb": rx.real_scalar(lower_bound),
        **rx.COUNT,
    }
    rule = rx.Rule(
        leaf,
        State,
        slots,
        scalars,
        prepare,
        leaf_stat,
        needs_params=True,
        reads=("value",),
        elementwise=True,
    )
    return rx.build(rule)


_WHY = "it chooses one step size for all parameters, by a model of the loss"
_ONE = {"learning_rate": _WHY, "weight_decay": _WHY, "decay": _WHY}


@rx.traits("estimates its rate")
@rx.public("optimizer", paper=PAPER, shared=_ONE)
def momo(
    learning_rate: rx.ScalarOrSchedule = 1.0,
    beta: rx.ArrayLike = 0.9,
    lower_bound: rx.ArrayLike = 0.0,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    adapt_lower_bound: bool = False,
    *,
    proximal_decay: bool = False,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Momentum with the largest step size that a model of the loss allows
    (Schaipp et al., 2023, arXiv:2305.07583).

        d, f, c = EMAs of g, value, Σ g p, which start at their first values
        k = 1 + learning_rate weight_decay
        tau = min(learning_rate, max(k (f - c - lower_bound) + Σ d p, 0) / ‖d‖²)
        p = p / k - tau d,   (p - tau d) / k if proximal_decay

    `update` takes the keyword `value`, the loss at the parameters, a scalar.

    learning_rate: largest step size; a scalar or a schedule.
    beta: decay rate of the EMAs, in [0, 1].
    lower_bound: lower bound of the loss.
    weight_decay: a scalar, at least 0, or a schedule.
    adapt_lower_bound: whether to update the bound from observed losses.
    proximal_decay: whether to shrink the step, too, as in equation 16 of the paper.
    weight_decay_mask: which parameters decay, see `masked`; if given, tau is computed
        without decay, with k = 1.

    Raises a `TypeError` if `value` is missing.
    """
    if weight_decay_mask is not None:
        plain = momo(
            learning_rate, beta, lower_bound, adapt_lower_bound=adapt_lower_bound
        )
        pull = _pull(learning_rate, weight_decay, proximal_decay)
        return decaying(plain, pull, weight_decay_mask)

    def decay_at(count):
        return jnp.where(count == 0, 0.0, beta)

    def leaf_stat(g, p, scalars, d):
        d = ema(d, g, decay_at(scalars[-1]))
        return dot(d, p), dot(g, p), jnp.sum(square(d))

    def prepare(scalars, stat, extra):
        b, rates = decay_at(scalars[-1]), (learning_rate, weight_decay)
        tau, pull, new = _model(scalars, stat, extra, (b, 1.0), rates, bounds)
        return (b, tau, pull), new

    def leaf(g, p, ctx, d):
        b, tau, pull = ctx
        d = ema(d, g, b)
        return _move(p, tau * d, pull, proximal_decay), d

    bounds = lower_bound, adapt_lower_bound
    slots = {"exp_avg": rx.Slot()}
    return _rule(leaf, MomoState, slots, lower_bound, prepare, leaf_stat)


@rx.traits("estimates its rate")
@rx.public("optimizer", paper=PAPER, shared=_ONE)
def momo_adam(
    learning_rate: rx.ScalarOrSchedule = 1e-2,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    lower_bound: rx.ArrayLike = 0.0,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    adapt_lower_bound: bool = False,
    *,
    proximal_decay: bool = False,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Adam with the largest step size that a model of the loss allows
    (Schaipp et al., 2023, arXiv:2305.07583).

        d, f, c = EMAs of g, value, Σ g p;   v = b2 v + (1 - b2) |g|²
        D = sqrt(v / (1 - b2^t)) + eps,   h = 1 - b1^t
        k = 1 + learning_rate weight_decay
        gap = max(k (f - c - h lower_bound) + Σ d p, 0)
        tau = min(learning_rate / h, gap / Σ |d|² / D)
        p = p / k - tau d / D,   (p - tau d / D) / k if proximal_decay

    `update` takes the keyword `value`, the loss at the parameters, a scalar.

    b1, b2: decay rates of d, f and c, and of v, in [0, 1].
    eps: added to the square root, above 0.
    Other arguments: those of `momo`.

    In bfloat16 `exp_avg_sq` stalls: keep it in float32 with `with_state_dtypes`.

    Raises a `TypeError` if `value` is missing.
    """
    if weight_decay_mask is not None:
        plain = momo_adam(
            learning_rate, b1, b2, eps, lower_bound, adapt_lower_bound=adapt_lower_bound
        )
        pull = _pull(learning_rate, weight_decay, proximal_decay)
        return decaying(plain, pull, weight_decay_mask)

    def means(g, d, v, c2):
        d, v = ema(d, g, b1), ema(v, square(g), b2)
        return d, v, safe_sqrt(v / c2) + eps

    def correction(count):
        return bias_correction(b2, safe_increment(count))

    def leaf_stat(g, p, scalars, d, v):
        d, v, D = means(g, d, v, correction(scalars[-1]))
        return dot(d, p), dot(g, p), jnp.sum(bounded_square(d) / D)

    def prepare(scalars, stat, extra):
        count = scalars[-1]
        weight = b1, bias_correction(b1, safe_increment(count))
        rates = learning_rate, weight_decay
        tau, pull, new = _model(scalars, stat, extra, weight, rates, bounds)
        return (correction(count), tau, pull), new

    def leaf(g, p, ctx, d, v):
        c2, tau, pull = ctx
        d, v, D = means(g, d, v, c2)
        return _move(p, tau * d / D, pull, proximal_decay), d, v

    bounds = lower_bound, adapt_lower_bound
    slots = {"exp_avg": rx.Slot(), "exp_avg_sq": rx.REAL}
    return _rule(leaf, MomoAdamState, slots, lower_bound, prepare, leaf_stat)


def _model(shared, total, extra, weight, rates, bounds):
    """The step size, the weight decay factor, and the new scalars of the state."""
    f, gamma, lb, count = shared
    dp, gp, size = sums(total, 3)
    b, h = weight
    learning_rate, weight_decay = (value_at(x, count) for x in rates)
    value, gamma = jnp.asarray(extra["value"]), ema(gamma, gp, b)
    # A loss that is not finite would stay in the mean for ever.
    f = jnp.where(jnp.isfinite(value), ema(f, value, b), f)
    pull = learning_rate * weight_decay
    lowest, adapts = bounds
    if adapts:
        model = (1 + pull) * (f - gamma) + dp
        # A lower bound above the model would make all steps 0.
        is_above = model < (1 + pull) * h * lb
        lower = jnp.maximum(model / (2 * (1 + pull) * h), lowest)
        lb = jnp.where(is_above, lower, lb)
    gap = jnp.maximum((1 + pull) * (f - h * lb - gamma) + dp, 0)
    tau = jnp.minimum(learning_rate / h, quotient(gap, size))
    if adapts:
        lb = jnp.maximum((f + dp - gamma - 0.5 * tau * size) / h, lowest)
    return tau, pull, (f, gamma, lb, safe_increment(count))


def _move(p, step, pull, is_proximal):
    """p / (1 + pull) - step - p, or (p - step) / (1 + pull) - p."""
    if is_proximal:
        return -(step + pull * p) / (1 + pull)
    return -step - pull / (1 + pull) * p


def _pull(learning_rate, weight_decay, is_proximal):
    """The `pull` of a step, as in `_move`, computed from the state before it."""

    def decay(state):
        pull = value_at(product(learning_rate, weight_decay), state.count)
        if is_proximal:
            return chain(add_decayed_weights(-pull), scale(1 / (1 + pull)))
        return add_decayed_weights(-pull / (1 + pull))

    return decay
