"""Adam with Nesterov momentum that increases at first.

Dozat, 2016, Incorporating Nesterov Momentum into Adam, Algorithm 2, with the schedule
of its experiments, as in PyTorch.

Difference from Dozat: `nu` is bias-corrected as in Adam, without his factor of b2.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction, ema, square_like
from .._engine.arrays.numerics import safe_increment, safe_sqrt


@rx.optax_compatible
class ScaleByNadamState(NamedTuple):
    """count: steps taken.  momentum_product: product of the momenta of all steps.

    mu, nu: EMAs of g and of |g|², shaped like the parameters.
    """

    count: jax.Array
    momentum_product: jax.Array
    mu: Any
    nu: Any


@rx.public(
    paper="https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ",
    ranges={"momentum_decay": rx.AT_LEAST_0},
)
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

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
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
        return (ahead, here, bias_correction(b2, t)), (t, product)

    def leaf(g, p, ctx, mu, nu):
        ahead, here, c2 = ctx
        mu = ema(mu, g, b1)
        nu = ema(nu, square_like(g, nu), b2)
        return (ahead * mu + here * g) / (safe_sqrt(nu / c2 + eps_root) + eps), mu, nu

    slots = {"mu": rx.Slot(), "nu": rx.MEAN_SQUARE}
    scalars = {**rx.COUNT, "momentum_product": rx.real_scalar(1.0)}
    return rx.Rule(leaf, ScaleByNadamState, slots, scalars, prepare, elementwise=True)
