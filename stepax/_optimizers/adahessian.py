"""AdaHessian: Adam with the diagonal of the Hessian in place of squared gradients.

Yao et al., 2021, ADAHESSIAN: An Adaptive Second Order Optimizer for Machine Learning
(arXiv:2006.00719), Algorithm 1.

Differences from the authors' program: the diagonal is not averaged over the spatial
axes of kernels, which `hessian_diagonal_fn` may do; with `update_interval` above 1 its
squares are averaged when it is estimated, and their bias is corrected by the number of
estimates.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction, ema, square
from .._engine.arrays.numerics import safe_sqrt
from .._transforms.decay import descend
from .sophia import HUTCHINSON, Mean, averaged_curvature, scale_by_curvature


class AdaHessianState(NamedTuple):
    """count: steps taken.

    mu: EMA of g.  nu: EMA of the squared estimates of the Hessian's diagonal.  Both are
        shaped like the parameters.
    hessian_fn_state: state of the estimator.
    """

    count: jax.Array
    mu: Any
    nu: Any
    hessian_fn_state: Any


@rx.public(
    "optimizer",
    paper="arXiv:2006.00719",
    holomorphic=False,
    ranges={"hessian_power": rx.AT_LEAST_0},
)
def adahessian(
    learning_rate: rx.ScalarOrSchedule = 0.15,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-4,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
    *,
    hessian_power: rx.ArrayLike = 1.0,
    update_interval: rx.ArrayLike = 1,
    hessian_diagonal_fn: rx.GradientTransformation = HUTCHINSON,
) -> rx.GradientTransformationExtraArgs:
    """AdaHessian, with decoupled weight decay.

        nu = b2 nu + (1 - b2) h²    every update_interval steps, starting at the first
        mu = b1 mu + (1 - b1) g
        u = mu / (1 - b1^t) / (sqrt(nu / (1 - b2^n))^hessian_power + eps)
        p = p - learning_rate (u + weight_decay p)

    with h of `hessian_diagonal_fn` and n the number of estimates so far.

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of g and of h², in [0, 1].
    eps: added to the power of the root, above 0.
    weight_decay_mask: which parameters decay; see `masked`.
    hessian_power: exponent of the curvature, at least 0; 0 ignores it.
    update_interval: steps between estimates, at least 1.
    hessian_diagonal_fn: a transformation whose updates are h; it receives the keywords
        of `update`.  The default reads `obj_fn`, the loss as a function of the
        parameters.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.

    Raises a `TypeError` for complex parameters.
    """
    precondition = _preconditioned(b1, b2, eps, hessian_power, update_interval)
    rules = precondition, averaged_curvature(b2, square)
    when = update_interval, True
    direction = scale_by_curvature(
        "adahessian", AdaHessianState, rules, hessian_diagonal_fn, when
    )
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


@rx.recipe
def _preconditioned(
    b1: rx.ArrayLike,
    b2: rx.ArrayLike,
    eps: rx.ArrayLike,
    power: rx.ArrayLike,
    interval: rx.ArrayLike,
) -> rx.Rule:
    """The EMA of g divided by a power of nu, which is passed as the parameters."""

    def context(t):
        estimates = (t - 1) // interval + 1
        c1, c2 = bias_correction(b1, t), bias_correction(b2, estimates)
        # As an array: each literal exponent would be compiled separately.
        return c1, c2, jnp.asarray(power)

    def leaf(g, nu, ctx, mu):
        c1, c2, exponent = ctx
        mu = ema(mu, g, b1)
        root = safe_sqrt(nu / c2)
        # 0^0 is 1; the derivative of the power would be infinite at 0.
        at_0 = jnp.where(exponent == 0, 1.0, 0.0)
        scaled = jnp.where(root == 0, 1, root) ** exponent
        return mu / c1 / (jnp.where(root == 0, at_0, scaled) + eps), mu

    prepare = rx.from_step(context)
    slots = {"mu": rx.Slot()}
    return rx.Rule(
        leaf, Mean, slots, rx.COUNT, prepare, needs_params=True, elementwise=True
    )
