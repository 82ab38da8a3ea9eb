"""Yogi: Adam with additive updates of the estimate of squared gradients.

Zaheer, Reddi, Sachan, Kale and Kumar, 2018, Adaptive Methods for Nonconvex
Optimization (NeurIPS 31), Algorithm 2.

Difference from the paper, as in Optax: the moments are bias-corrected as in Adam,
although both start at a small positive value; `bias_correction=False` turns that off.
"""

from dataclasses import replace

import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays import moments
from .._engine.arrays.moments import ema, square
from .._engine.arrays.numerics import safe_sqrt
from .._transforms.decay import descend
from .adam import ScaleByAdamState


PAPER = (
    "https://papers.nips.cc/paper/2018/hash/"
    "90365351ccc7437a1309dc64e4db32a3-Abstract.html"
)


@rx.public(paper=PAPER)
def scale_by_yogi(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-3,
    eps_root: rx.ArrayLike = 0.0,
    initial_accumulator_value: rx.ArrayLike = 1e-6,
    *,
    bias_correction: bool = True,
) -> rx.Rule:
    """Divide the EMA of g by the root of an additively updated estimate of |g|².

        mu = b1 mu + (1 - b1) g
        nu = nu - (1 - b2) sign(nu - |g|²) |g|²
        u = mu / c1 / (sqrt(nu / c2 + eps_root) + eps)

    with c1 = 1 - b1^t and c2 = 1 - b2^t, or both 1 without `bias_correction`.

    b1: decay rate of the EMA of g, in [0, 1].
    b2: 1 minus the rate at which `nu` moves towards |g|², in [0, 1].
    eps, eps_root: added outside and inside the square root; at least 0.
    initial_accumulator_value: initial value of both `mu` and `nu`, at least 0.
    bias_correction: whether to bias-correct `mu` and `nu`, as Adam does.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """

    def corrections(t):
        if not bias_correction:
            return 1, 1
        return moments.bias_correction(b1, t), moments.bias_correction(b2, t)

    def leaf(g, p, ctx, mu, nu):
        c1, c2 = ctx
        mu = ema(mu, g, b1)
        step = (1 - b2) * jnp.sign(nu - square(g)) * square(g)
        nu = jnp.where(jnp.isinf(nu), nu, nu - step)
        return mu / c1 / (safe_sqrt(nu / c2 + eps_root) + eps), mu, nu

    def start(p):
        return jnp.full_like(p, initial_accumulator_value)

    slots = {"mu": rx.Slot(make=start), "nu": replace(rx.SQUARES, make=start)}
    return rx.Rule(
        leaf,
        ScaleByAdamState,
        slots,
        rx.COUNT,
        rx.from_step(corrections),
        elementwise=True,
    )


@rx.public("optimizer", paper=PAPER)
def yogi(
    learning_rate: rx.ScalarOrSchedule,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-3,
    *,
    bias_correction: bool = True,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Yogi, with optional weight decay.

        p = p - learning_rate (u + weight_decay p),   u of `scale_by_yogi`

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    b1: decay rate of the EMA of g, in [0, 1].
    b2: 1 minus the rate at which `nu` moves towards |g|², in [0, 1].
    eps: added to the square root, at least 0.
    weight_decay_mask: which parameters decay; see `masked`.
    bias_correction: whether to bias-correct `mu` and `nu`, as Adam does.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    direction = scale_by_yogi(b1, b2, eps, bias_correction=bias_correction)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)
