"""AMSGrad, AdaMax and Yogi: Adam with another denominator.

Reddi, Kale and Kumar, 2018, On the Convergence of Adam and Beyond (arXiv:1904.09237),
Algorithm 2: it never decreases; Kingma and Ba, 2015, Adam: A Method for Stochastic
Optimization (arXiv:1412.6980), Algorithm 2: the infinity norm, with the decay of
Loshchilov and Hutter, 2019 (arXiv:1711.05101); Zaheer, Reddi, Sachan, Kale and Kumar,
2018, Adaptive Methods for Nonconvex Optimization (NeurIPS 31), Algorithm 2: an estimate
with additive updates.

Differences from the papers: the EMAs of AMSGrad are bias-corrected, as in Adam, and the
maximum is taken of the corrected `nu`; AdaMax adds eps to |g|, so that nu is never
zero; the moments of Yogi are bias-corrected, as in Optax, although both start at a
small positive value.  Arguments turn the corrections off.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays import moments
from .._engine.arrays.moments import bias_correction, ema, square, square_like
from .._engine.arrays.numerics import safe_sqrt
from .._transforms.decay import descend
from .adam import ScaleByAdamState


@rx.optax_compatible
class ScaleByAmsgradState(rx.optax.ScaleByAmsgradState):
    """count: steps taken.

    mu, nu: EMAs of g and of |g|², shaped like the parameters.
    nu_max: largest bias-corrected `nu` so far, shaped like the parameters.
    """

    count: jax.Array
    mu: rx.ArrayTree
    nu: rx.ArrayTree
    nu_max: rx.ArrayTree


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
    mu_dtype: dtype of `mu`; defaults to the parameter's, as always for `nu`.
    bias_correction_mu, bias_correction_nu: whether to divide by 1 - b1^t, 1 - b2^t.

    In bfloat16 `nu` and `nu_max` stall: keep them in float32 with `with_state_dtypes`.
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
    prepare = rx.from_step(corrections)
    return rx.Rule(
        leaf, ScaleByAmsgradState, slots, rx.COUNT, prepare, elementwise=True
    )


@rx.public("optimizer", paper="arXiv:1904.09237")
def amsgrad(
    learning_rate: rx.ScalarOrSchedule | None,
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
    """AMSGrad, with optional weight decay (Reddi et al., 2018, arXiv:1904.09237).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_amsgrad`

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_amsgrad`.
    """
    direction = scale_by_amsgrad(
        b1, b2, eps, eps_root, mu_dtype, bias_correction_mu, bias_correction_nu
    )
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


@rx.public(paper="arXiv:1412.6980")
def scale_by_adamax(
    b1: rx.ArrayLike = 0.9, b2: rx.ArrayLike = 0.999, eps: rx.ArrayLike = 1e-8
) -> rx.Rule:
    """Divide the EMA of g by the largest recent |g|.

        mu = b1 mu + (1 - b1) g,   nu = max(|g| + eps, b2 nu)
        u = mu / (1 - b1^t) / nu

    b1: decay rate of the EMA of g, in [0, 1].
    b2: decay rate of the running maximum, in [0, 1].
    eps: added to |g|, above 0.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    """

    def leaf(g, p, c1, mu, nu):
        mu = ema(mu, g, b1)
        nu = jnp.maximum(jnp.abs(g) + eps, b2 * nu)
        return mu / c1 / nu, mu, nu

    slots = {"mu": rx.Slot(), "nu": rx.REAL}
    correction = rx.from_step(lambda t: bias_correction(b1, t))
    return rx.Rule(
        leaf, ScaleByAdamState, slots, rx.COUNT, correction, elementwise=True
    )


@rx.public("optimizer", paper="arXiv:1412.6980")
def adamax(
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """AdaMax, with optional weight decay (Kingma and Ba, 2015, arXiv:1412.6980).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_adamax`

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_adamax`.
    """
    direction = scale_by_adamax(b1, b2, eps)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


@rx.public("optimizer", paper="arXiv:1711.05101")
def adamaxw(
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 1e-4,
    mask: rx.MaskOrFn = None,
    *,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """AdaMax with decoupled weight decay
    (Loshchilov and Hutter, 2019, arXiv:1711.05101).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_adamax`

    learning_rate, weight_decay: scalars or schedules.
    mask, weight_decay_mask: parameters to decay (two aliases); see `masked`.
    Other arguments: those of `scale_by_adamax`.
    """
    direction = scale_by_adamax(b1, b2, eps)
    return descend(direction, learning_rate, weight_decay, mask, weight_decay_mask)


YOGI = (
    "https://papers.nips.cc/paper/2018/hash/"
    "90365351ccc7437a1309dc64e4db32a3-Abstract.html"
)


@rx.public(paper=YOGI)
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

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
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
    prepare = rx.from_step(corrections)
    return rx.Rule(leaf, ScaleByAdamState, slots, rx.COUNT, prepare, elementwise=True)


@rx.public("optimizer", paper=YOGI)
def yogi(
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-3,
    *,
    bias_correction: bool = True,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Yogi, with optional weight decay
    (Zaheer et al., 2018, Adaptive Methods for Nonconvex Optimization).

        p = p - learning_rate (u + weight_decay p), with u the output of `scale_by_yogi`

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    eps: added to the square root, at least 0.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_yogi`.
    """
    direction = scale_by_yogi(b1, b2, eps, bias_correction=bias_correction)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)
