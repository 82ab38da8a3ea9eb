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
from jax.typing import ArrayLike, DTypeLike

from .._engine.arrays.moments import bias_correction, ema, square_like
from .._engine.arrays.numerics import safe_sqrt
from .._engine.base import GradientTransformationExtraArgs, MaskOrFn, ScalarOrSchedule
from .._engine.base.optax_types import optax_compatible
from .._engine.factories.registry import public
from .._engine.step.rule import COUNT, MAXIMUM, MEAN_SQUARE, Rule, Slot, from_step
from .._transforms.decay import decayed
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain


@optax_compatible
class ScaleByAmsgradState(NamedTuple):
    """count: steps taken.

    mu, nu: EMAs of g and of |g|², shaped like the parameters.
    nu_max: largest bias-corrected `nu` so far, shaped like the parameters.
    """

    count: jax.Array
    mu: Any
    nu: Any
    nu_max: Any


@public(paper="arXiv:1904.09237")
def scale_by_amsgrad(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    eps_root: ArrayLike = 0.0,
    mu_dtype: DTypeLike | None = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
) -> Rule:
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

    largest = replace(MAXIMUM, by_rows=True)
    slots = {"mu": Slot(dtype=mu_dtype), "nu": MEAN_SQUARE, "nu_max": largest}
    return Rule(
        leaf,
        ScaleByAmsgradState,
        slots,
        COUNT,
        from_step(corrections),
        elementwise=True,
    )


@public("optimizer", paper="arXiv:1904.09237")
def amsgrad(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    eps_root: ArrayLike = 0.0,
    mu_dtype: DTypeLike | None = None,
    bias_correction_mu: bool = True,
    bias_correction_nu: bool = True,
    *,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: MaskOrFn = None,
) -> GradientTransformationExtraArgs:
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
    return chain(
        scale_by_amsgrad(
            b1, b2, eps, eps_root, mu_dtype, bias_correction_mu, bias_correction_nu
        ),
        *decayed(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )
