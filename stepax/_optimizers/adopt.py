"""ADOPT and LaProp: averages of gradients that are divided first.

Taniguchi et al., 2024, ADOPT: Modified Adam Can Converge with Any beta2 with the
Optimal Rate (arXiv:2411.02853), Algorithm 2, with the authors' clipping: the EMA of
|g|² excludes the current gradient.  Ziyin, Wang and Ueda, 2020, LaProp: Separating
Momentum and Adaptivity in Adam (arXiv:2002.04839), Algorithm 1.

Difference of ADOPT from the paper: the initialization of `nu`, which the paper does not
count as a step, is the first step, with an update of 0 and without weight decay, as in
the authors' program.  Difference of LaProp from its authors' program: weight decay is
multiplied by the learning rate, so theirs is `weight_decay / learning_rate` here; it
acts after the step, as in that program.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import corrections, ema, square, square_like
from .._engine.arrays.numerics import over_root, safe_increment, safe_sqrt, upcast
from .._transforms.decay import decayed, descend_and_decay
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain
from .adam import ScaleByAdamState


# The bound of the paper; a lambda, so that the signature prints as Optax's.
_FOURTH_ROOT = lambda count: upcast(count) ** 0.25


@rx.public(paper="arXiv:2411.02853")
def scale_by_adopt(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.9999,
    eps: rx.ArrayLike = 1e-6,
    mu_dtype: rx.DTypeLike | None = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[jax.Array], rx.ArrayLike] = _FOURTH_ROOT,
) -> rx.Rule:
    """Average gradients, each divided by the root of the preceding EMA of |g|².

        x = clip(g / max(sqrt(nu), eps), clip_value_fn(t - 1))
        mu = b1 mu + (1 - b1) x,   nu = b2 nu + (1 - b2) |g|²
        u = mu

    At the first step nu = |g|² and u = 0.  Complex elements are clipped in modulus.

    b1, b2: decay rates of the EMAs of the scaled g and of |g|², in [0, 1].
    eps: lower bound of the square root, at least 0.
    mu_dtype: dtype of `mu`; defaults to the parameter's, as always for `nu`.
        In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    nesterov: whether to use Nesterov momentum.
    use_clipping: whether to clip; recommended at the start of training.
    clip_value_fn: maps the number of steps taken to the bound, at least 0.
    """

    def prepare(scalars, stat, extra):
        (count,) = scalars
        is_first = count == 0
        # `mu` starts at the second step; `nu` starts as |g|² of the first.
        decays = jnp.where(is_first, 1, b1), jnp.where(is_first, 0, b2)
        bound = jnp.asarray(clip_value_fn(count)) if use_clipping else None
        return (is_first, *decays, bound), (safe_increment(count),)

    def leaf(g, p, ctx, mu, nu):
        is_first, b1, b2, bound = ctx
        divisor = jnp.maximum(safe_sqrt(nu), eps)
        x = g / jnp.where(is_first | (divisor == 0), 1, divisor)
        x = x if bound is None else _clip(x, bound)
        mu = ema(mu, x, b1)
        nu = ema(nu, square_like(g, nu), b2)
        return ema(mu, x, b1) if nesterov else mu, mu, nu

    slots = {"mu": rx.Slot(dtype=mu_dtype), "nu": rx.MEAN_SQUARE}
    return rx.Rule(leaf, ScaleByAdamState, slots, rx.COUNT, prepare, elementwise=True)


def _clip(x, bound):
    """`x` with a modulus of at most `bound`."""
    if not jnp.iscomplexobj(x):
        return jnp.clip(x, -bound, bound)
    length = safe_sqrt(square(x))
    return x * jnp.where(length > bound, bound / jnp.where(length == 0, 1, length), 1)


@rx.public("optimizer", paper="arXiv:2411.02853")
def adopt(
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.9999,
    eps: rx.ArrayLike = 1e-6,
    mu_dtype: rx.DTypeLike | None = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[jax.Array], rx.ArrayLike] = _FOURTH_ROOT,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """ADOPT, with optional weight decay, which begins at the second step
    (Taniguchi et al., 2024, arXiv:2411.02853).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_adopt`

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_adopt`.
    """
    clipping = {"use_clipping": use_clipping, "clip_value_fn": clip_value_fn}
    return chain(
        scale_by_adopt(b1, b2, eps, mu_dtype, nesterov=nesterov, **clipping),
        *decayed(weight_decay, weight_decay_mask, _after_first),
        scale_by_learning_rate(learning_rate),
    )


def _after_first(count: rx.ArrayLike) -> jax.Array:
    return jnp.where(count == 0, 0.0, 1.0)


LAPROP = "arXiv:2002.04839"


@rx.public(paper=LAPROP)
def scale_by_laprop(
    b1: rx.ArrayLike = 0.9, b2: rx.ArrayLike = 0.999, eps: rx.ArrayLike = 1e-15
) -> rx.Rule:
    """Average gradients, each divided by the root of the EMA of |g|².

        nu = b2 nu + (1 - b2) |g|²
        mu = b1 mu + (1 - b1) g / (sqrt(nu / (1 - b2^t)) + eps)
        u = mu / (1 - b1^t)

    b1, b2: decay rates of the EMAs of the quotient and of |g|², in [0, 1].
    eps: added to the square root, at least 0.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    """

    def leaf(g, p, ctx, mu, nu):
        c1, c2, _ = ctx
        nu = ema(nu, square_like(g, nu), b2)
        mu = ema(mu, over_root(g, nu / c2, eps), b1)
        return mu / c1, mu, nu

    prepare = rx.from_step(corrections(b1, b2, False))
    slots = {"mu": rx.Slot(), "nu": rx.MEAN_SQUARE}
    return rx.Rule(leaf, ScaleByAdamState, slots, rx.COUNT, prepare, elementwise=True)


@rx.public("optimizer", paper=LAPROP)
def laprop(
    learning_rate: rx.ScalarOrSchedule = 4e-4,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-15,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """LaProp, with weight decay after the step (Ziyin et al., 2020, arXiv:2002.04839).

        p = (p - learning_rate u) (1 - learning_rate weight_decay)

    with u the output of `scale_by_laprop`.

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_laprop`.
    """
    direction = scale_by_laprop(b1, b2, eps)
    return descend_and_decay(direction, learning_rate, weight_decay, weight_decay_mask)
