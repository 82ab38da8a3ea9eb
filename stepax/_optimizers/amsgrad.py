"""AMSGrad: Adam with a denominator that never decreases.

Reddi, Kale and Kumar, 2018, On the Convergence of Adam and Beyond (arXiv:1904.09237),
Algorithm 2.

Differences from the paper: the EMAs are bias-corrected, as in Adam, and the maximum is
taken of the corrected `nu`.  Both corrections can be turned off.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction, ema, square_like
from .._engine.arrays.numerics import safe_sqrt
from .._transforms.decay import descend


@rx.optax_compatible
class ScaleByAmsgradState(NamedTuple):
    """count: steps taken.

    mu, nu: EMAs of g and of |g|², shaped like the parameters.
    nu_max: largest bias-corrected `nu` so far, shaped like the parameters.
    """

    count: jax.Array
    mu: Any
    nu: Any
    nu_max: Any


@rx.public(paper="arXiv:1904.09237")
def scale_by_amsgrad(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    mu_dtype: rx.DTypeLike | None = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> rx.Rule:
    """Divide the EMA of g by the root of the largest EMA of |g|² so far.

        mu = b1 mu + (1 - b1) g,   nu = b2 nu + (1 - b2) |g|²
        nu_max = max(nu_max, nu / (1 - b2^t))
        u = mu / (1 - b1^t) / (sqrt(nu_max + eps_root) + eps)

    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    eps, eps_root: added outside and inside the square root; at least 0.
    mu_dtype: storage dtype of `mu`; the parameter's if `None`, as always for `nu`.
    bias_correction_mu, bias_correction_nu: whether to divide by 1 - b1^t, 1 - b2^t.

    In bfloat16 `nu` and `nu_max` stop changing: widen them with `with_state_dtypes`.
    """

    def corrections(t):
        c1 = bias_correction(b1, t) if bias_correction_mu else None
        return c1, bias_correction(b2, t) if bias_correction_nu else None

    def leaf(g, p, ctx, mu, nu, nu_max):
        c1, c2 = ctx
        mu = ema(mu, g, b1)
        nu = ema(nu, square_like(g, nu), b2)
        m = mu / c1 if bias_correction_mu else mu
        nu_max = jnp.maximum(nu_max, nu / c2 if bias_correction_nu else nu)
        return m / (safe_sqrt(nu_max + eps_root) + eps), mu, nu, nu_max

    largest = replace(rx.MAXIMUM, by_rows=True)
    slots = {"mu": rx.Slot(dtype=mu_dtype), "nu": rx.MEAN_SQUARE, "nu_max": largest}
    return rx.Rule(
        leaf,
        ScaleByAmsgradState,
        slots,
        rx.COUNT,
        rx.from_step(corrections),
        elementwise=True,
    )


@rx.public("optimizer", paper="arXiv:1904.09237")
def amsgrad(
    learning_rate: rx.ScalarOrSchedule,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    mu_dtype: rx.DTypeLike | None = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """AMSGrad, with optional weight decay.

        p = p - learning_rate (u + weight_decay p),   u of `scale_by_amsgrad`

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    eps, eps_root: added outside and inside the square root; at least 0.
    mu_dtype: storage dtype of `mu`; the parameter's if `None`.
    bias_correction_mu, bias_correction_nu: whether to divide by 1 - b1^t, 1 - b2^t.
    weight_decay_mask: which parameters decay; see `masked`.

    In bfloat16 `nu` and `nu_max` stop changing: widen them with `with_state_dtypes`.
    """
    direction = scale_by_amsgrad(
        b1, b2, eps, eps_root, mu_dtype, bias_correction_mu, bias_correction_nu
    )
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)
