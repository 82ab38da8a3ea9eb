"""Adam with Nesterov momentum that increases at first.

Dozat, 2016, Incorporating Nesterov Momentum into Adam, Algorithm 2, with the schedule
of its experiments, as in PyTorch.

Difference from Dozat: `nu` is bias-corrected as in Adam, without his factor of b2.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.arrays.moments import bias_correction, ema, square_like
from .._engine.arrays.numerics import safe_increment, safe_sqrt
from .._engine.base.optax_types import optax_compatible
from .._engine.factories.ranges import AT_LEAST_0
from .._engine.factories.registry import public
from .._engine.step.rule import COUNT, MEAN_SQUARE, Rule, Slot, real_scalar


@optax_compatible
class ScaleByNadamState(NamedTuple):
    """count: steps taken.  momentum_product: product of the momenta of all steps.

    mu, nu: EMAs of g and of |g|², shaped like the parameters.
    """

    count: jax.Array
    momentum_product: jax.Array
    mu: Any
    nu: Any


@public(
    paper="https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ",
    ranges={"momentum_decay": AT_LEAST_0},
)
def scale_by_nadam(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    eps_root: ArrayLike = 0.0,
    momentum_decay: ArrayLike = 4e-3,
) -> Rule:
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

    slots = {"mu": Slot(), "nu": MEAN_SQUARE}
    scalars = {**COUNT, "momentum_product": real_scalar(1.0)}
    return Rule(leaf, ScaleByNadamState, slots, scalars, prepare, elementwise=True)
