"""Adam, with decoupled weight decay, and with Nesterov momentum.

Kingma and Ba, 2015, Adam: A Method for Stochastic Optimization (arXiv:1412.6980),
Algorithm 1; Loshchilov and Hutter, 2019 (arXiv:1711.05101); Dozat, 2016, Incorporating
Nesterov Momentum into Adam, and its Algorithm 2, with the schedule of its experiments,
as in PyTorch, for momentum that increases at first.

Difference from Dozat: `nu` is bias-corrected as in Adam, without his factor of b2.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays import moments
from .._engine.arrays.moments import corrected, corrections, ema, square_like
from .._engine.arrays.numerics import safe_increment, safe_sqrt
from .._transforms.decay import descend


NADAM = "https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ"
_RANGES = {"momentum_decay": rx.AT_LEAST_0}


@rx.optax_compatible
class ScaleByAdamState(rx.optax.ScaleByAdamState):
    """count: steps taken.  mu, nu: EMAs of g and |g|², shaped like the parameters."""

    count: jax.Array
    mu: rx.ArrayTree
    nu: rx.ArrayTree


@rx.public(paper="arXiv:1412.6980")
def scale_by_adam(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    mu_dtype: rx.DTypeLike | None = None,
    *,
    nesterov: bool = False,
) -> rx.Rule:
    """Divide the EMA of g by the root of the EMA of |g|².

        mu = b1 mu + (1 - b1) g,   nu = b2 nu + (1 - b2) |g|²
        u = mu / (1 - b1^t) / (sqrt(nu / (1 - b2^t) + eps_root) + eps)

    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    eps: added to the square root, at least 0.
    eps_root: added inside the square root; above 0 to differentiate through the update.
    mu_dtype: dtype of `mu`; defaults to the parameter's, as always for `nu`.
        In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    nesterov: whether to use Nesterov momentum.
    """

    def leaf(g, p, ctx, mu, nu):
        c1, c2, c1_next = ctx
        mu = ema(mu, g, b1)
        nu = ema(nu, square_like(g, nu), b2)
        m = corrected(mu, g, b1, c1, c1_next)
        return m / (safe_sqrt(nu / c2 + eps_root) + eps), mu, nu

    slots = {"mu": rx.Slot(dtype=mu_dtype), "nu": rx.MEAN_SQUARE}
    prepare = rx.from_step(corrections(b1, b2, nesterov))
    return rx.Rule(leaf, ScaleByAdamState, slots, rx.COUNT, prepare, elementwise=True)


@rx.public("optimizer", paper="arXiv:1412.6980")
def adam(
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    mu_dtype: rx.DTypeLike | None = None,
    *,
    nesterov: bool = False,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Adam, with optional weight decay (Kingma and Ba, 2015, arXiv:1412.6980).

        p = p - learning_rate (u + weight_decay p), with u the output of `scale_by_adam`

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_adam`.

    >>> tx = stepax.adam(1e-3)
    """
    direction = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


@rx.public("optimizer", paper="arXiv:1711.05101")
def adamw(
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    mu_dtype: rx.DTypeLike | None = None,
    weight_decay: rx.ScalarOrSchedule = 1e-4,
    mask: rx.MaskOrFn = None,
    *,
    nesterov: bool = False,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019, arXiv:1711.05101).

        p = p - learning_rate (u + weight_decay p), with u the output of `scale_by_adam`

    learning_rate, weight_decay: scalars or schedules.
    mask, weight_decay_mask: parameters to decay (two aliases); see `masked`.
    Other arguments: those of `scale_by_adam`.

    >>> tx = stepax.adamw(1e-3, weight_decay=0.1, mask={"b": False, "**": True})
    """
    direction = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    return descend(direction, learning_rate, weight_decay, mask, weight_decay_mask)


@rx.optax_compatible
class ScaleByNadamState(NamedTuple):
    """count: steps taken.  momentum_product: product of the momenta of all steps.

    mu, nu: EMAs of g and of |g|², shaped like the parameters.
    """

    count: jax.Array
    momentum_product: jax.Array
    mu: rx.ArrayTree
    nu: rx.ArrayTree


@rx.public(paper=NADAM, ranges=_RANGES)
def scale_by_nadam(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    momentum_decay: rx.ArrayLike = 4e-3,
) -> rx.Rule:
    """Adam with Nesterov momentum that increases to `b1`.

        b(t) = b1 (1 - 0.96^(t momentum_decay) / 2),   B(t) = b(1) ... b(t)
        mu = b1 mu + (1 - b1) g,   nu = b2 nu + (1 - b2) |g|²
        m = b(t + 1) mu / (1 - B(t + 1)) + (1 - b(t)) g / (1 - B(t))
        u = m / (sqrt(nu / (1 - b2^t) + eps_root) + eps)

    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    eps, eps_root: added outside and inside the square root; at least 0.
    momentum_decay: how fast the momentum increases, at least 0.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    """

    def momentum(t, dtype):
        exponent = momentum_decay * math.log(0.96) * t.astype(dtype)
        return b1 * (1 - 0.5 * jnp.exp(exponent))

    def prepare(scalars, stat, extra):
        count, product = scalars
        t = safe_increment(count)
        now, later = (momentum(x, product.dtype) for x in (t, t + 1))
        product = product * now
        ahead, here = later / (1 - product * later), (1 - now) / (1 - product)
        return (ahead, here, moments.bias_correction(b2, t)), (t, product)

    def leaf(g, p, ctx, mu, nu):
        ahead, here, c2 = ctx
        mu = ema(mu, g, b1)
        nu = ema(nu, square_like(g, nu), b2)
        return (ahead * mu + here * g) / (safe_sqrt(nu / c2 + eps_root) + eps), mu, nu

    slots = {"mu": rx.Slot(), "nu": rx.MEAN_SQUARE}
    scalars = {**rx.COUNT, "momentum_product": rx.real_scalar(1.0)}
    return rx.Rule(leaf, ScaleByNadamState, slots, scalars, prepare, elementwise=True)


@rx.public("optimizer", paper=NADAM, ranges=_RANGES)
def nadam(
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    mu_dtype: rx.DTypeLike | None = None,
    *,
    nesterov: bool = True,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
    momentum_decay: rx.ArrayLike | None = None,
) -> rx.GradientTransformationExtraArgs:
    """Adam with Nesterov momentum: `adam` with `nesterov=True` by default
    (Dozat, 2016, openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ).

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    momentum_decay: makes the momentum increase with the step, as PyTorch does with
        4e-3; see `scale_by_nadam`, which has neither `mu_dtype` nor `nesterov`.
    Other arguments: those of `scale_by_adam`.
    """
    if momentum_decay is None:
        direction = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    else:
        direction = scale_by_nadam(b1, b2, eps, eps_root, momentum_decay)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


@rx.public("optimizer", paper=NADAM)
def nadamw(
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    mu_dtype: rx.DTypeLike | None = None,
    weight_decay: rx.ScalarOrSchedule = 1e-4,
    mask: rx.MaskOrFn = None,
    *,
    nesterov: bool = True,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """AdamW with Nesterov momentum: `adamw` with `nesterov=True` by default
    (Dozat, 2016, openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ).

    learning_rate, weight_decay: scalars or schedules.
    mask, weight_decay_mask: parameters to decay (two aliases); see `masked`.
    Other arguments: those of `scale_by_adam`.
    """
    direction = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    return descend(direction, learning_rate, weight_decay, mask, weight_decay_mask)
