"""Schedule-free RAdam, whose warm-up is its rectification.

Defazio et al., 2024, The Road Less Scheduled (arXiv:2405.15682), with the rectification
of Liu et al., 2020 (arXiv:1908.03265), as in the authors' code,
https://github.com/facebookresearch/schedule_free.

The weights of the average use the rectified learning rate, too.  Unlike in other
schedule-free optimizers, they use that of the current step: `learning_rate(0)` belongs
to the first one.
"""

import functools as ft

import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction, ema, square
from .._engine.arrays.numerics import safe_increment, safe_sqrt
from .._transforms.decay import add_decayed_weights
from .._transforms.scale import scale_by_learning_rate, value_at
from .._wrappers.chain import chain
from .radam import number_of_gradients, rectifier
from .rmsprop import ScaleByRmsWithCountState
from .schedule_free import SHARED, schedule_free


# The effective number of gradients from which the mean square is used.
_STEADY = 4


@rx.recipe
def _scale_by_steady_rms(b2: rx.ArrayLike, eps: rx.ArrayLike) -> rx.Rule:
    """Divide by the root mean square, once it averages enough gradients."""

    def correction(t):
        c2 = bias_correction(b2, t)
        return c2, number_of_gradients(b2, t) > _STEADY

    def leaf(g, p, ctx, nu):
        c2, is_steady = ctx
        nu = ema(nu, square(g), b2)
        return jnp.where(is_steady, g / (safe_sqrt(nu / c2) + eps), g), nu

    prepare = rx.from_step(correction)
    State = ScaleByRmsWithCountState
    return rx.Rule(leaf, State, {"nu": rx.REAL}, rx.COUNT, prepare, elementwise=True)


@rx.scheduled
def _rectified(
    learning_rate: rx.ScalarOrSchedule, b2: rx.ArrayLike, is_silent: bool, first: int
) -> rx.ScalarOrSchedule:
    """The learning rate of a step as a function of its number, starting at `first`."""

    def rate(count):
        t = safe_increment(jnp.asarray(count)) - first
        rho = number_of_gradients(b2, t)
        r = rectifier(b2, rho, rho > _STEADY)
        factor = jnp.where(rho > _STEADY, r, 0) if is_silent else r
        return value_at(learning_rate, t - 1) * factor

    return rate


@rx.public(
    "optimizer",
    paper="arXiv:2405.15682",
    ranges={
        "b1": rx.Range(0, 1, excludes_least=True),
        "weight_step_power": rx.AT_LEAST_0,
    },
    shared=SHARED,
)
def schedule_free_radam(
    learning_rate: rx.ScalarOrSchedule = 0.0025,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_lr_power: rx.ArrayLike = 2.0,
    *,
    weight_step_power: rx.ArrayLike = 0.0,
    silent_sgd_phase: bool = True,
    weight_decay_mask: rx.MaskOrFn = None,
    state_dtype: rx.DTypeLike | None = None,
) -> rx.GradientTransformationExtraArgs:
    """`schedule_free` RAdam, without momentum.

        nu = b2 nu + (1 - b2) |g|²
        z = z - a r (g / (sqrt(nu / (1 - b2^t)) + eps) + weight_decay y)   if rho > 4
        z = z - a (g + weight_decay y)   before, unless `silent_sgd_phase`

    a is the learning rate, and r and rho are those of `scale_by_radam`.  The weights of
    the average are those for the learning rates a r.

    learning_rate, weight_decay: scalars or schedules.
    b1: weight of the average x in the parameters y, in (0, 1].
    b2: decay rate of the EMA of |g|², in [0, 1]; above 0.6.
    eps: added to the square root, at least 0.
    weight_lr_power, weight_step_power: exponents of the learning rate and the step in
        the weights, at least 0.
    silent_sgd_phase: whether the first steps, with rho <= 4, do nothing.
    weight_decay_mask: which parameters decay; see `masked`.
    state_dtype: storage dtype of z; the parameter's if `None`.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    of_step = ft.partial(_rectified, learning_rate, b2, silent_sgd_phase)
    base = chain(
        _scale_by_steady_rms(b2, eps),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(of_step(0)),
    )
    more = {"weight_step_power": weight_step_power}
    return schedule_free(base, of_step(1), b1, weight_lr_power, state_dtype, **more)
