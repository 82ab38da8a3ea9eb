"""Schedule-free learning: averaging of iterates instead of learning rate decay.

Defazio, Yang, Mehta, Mishchenko, Khaled and Cutkosky, 2024, The Road Less Scheduled
(arXiv:2405.15682), equations 3 to 5, with the weights of the authors' code,
https://github.com/facebookresearch/schedule_free.  There are three sequences: y, the
parameters, at which gradients are computed; z, which the base optimizer updates; and x,
the average of z, for evaluation, which is not stored.

As in that code, and in Optax, the weights count steps from 1: the first weight uses
`learning_rate(1)`.  Base optimizers count from 0, so that the first step of a warm-up
from 0 does nothing; `first_step=1` of the shortcuts counts like that code.  A schedule
that is injected is read once in a step, so that its weights count from 0, too, and
differ by one step from those of the schedule itself.

Differences from Optax: y moves by c (z - y) + (1 - b1 (1 - c)) u, as in that code. This
avoids x and the rounding of its division by b1.  Averages are stored in float32 or
wider.  `schedule_free_eval_params` finds the state inside other states.
"""

import functools as ft
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from .. import schedules
from .._engine import rules as rx
from .._engine.arrays.moments import is_number
from .._engine.arrays.numerics import safe_increment
from .._engine.factories.recorded import as_factory
from .._transforms.decay import AVERAGED, add_decayed_weights, decayed
from .._transforms.scale import scale_by_learning_rate, value_at
from .._wrappers.chain import Followed, chain, own_fields
from .._wrappers.readers import evaluated, evaluates, mean_of
from .adam import scale_by_adam
from .rmsprop import scale_by_rms
from .sgd import sgd


@rx.optax_compatible
class ScheduleFreeState(rx.optax.contrib.ScheduleFreeState):
    """State of `schedule_free`; all but the last two are scalars.

    b1: weight of x in y.
    weight_sum: sum of the weights in the average.
    step_count: number of the next step, starting at 1.
    max_lr: largest learning rate so far.
    base_optimizer_state: state of the base optimizer.
    z: the sequence that the base optimizer updates, shaped like the parameters.
    """

    b1: jax.Array
    weight_sum: jax.Array
    step_count: jax.Array
    max_lr: jax.Array
    base_optimizer_state: rx.OptState
    z: rx.Params


_Average = own_fields(ScheduleFreeState, "base_optimizer_state")


# One average of the iterates, whose weights all parameters share.
SHARED = {
    "learning_rate": "the weights of its average follow one learning rate",
    **AVERAGED,
}

_RANGES = {
    "b1": rx.Range(0, 1, excludes_least=True),
    "inner_momentum": replace(rx.MOMENTUM, is_added=True),
    "weight_step_power": rx.Range(0, is_added=True),
}


@ft.partial(as_factory, own_ranges=_RANGES)
def average_iterates(
    learning_rate: rx.ScalarOrSchedule,
    b1: rx.ArrayLike,
    weight_lr_power: rx.ArrayLike,
    state_dtype: rx.DTypeLike | None,
    weight_step_power: rx.ArrayLike = 0.0,
) -> rx.GradientTransformation:
    """Map updates of z to updates of y."""

    def prepare(scalars, stat, extra):
        b1_, weight_sum, t, max_lr = scalars
        rate = value_at(learning_rate, t)
        max_lr = jnp.maximum(max_lr, jnp.asarray(rate).astype(max_lr.dtype))
        weight = t.astype(max_lr.dtype) ** weight_step_power * max_lr**weight_lr_power
        weight_sum = weight_sum + weight
        c = weight / jnp.where(weight_sum == 0, 1, weight_sum)
        return c, (b1_, weight_sum, safe_increment(t), max_lr)

    def leaf(u, y, c, z):
        z = z + u
        # y + c (z - y) + (1 - b1 (1 - c)) u with the old z, which need not be kept.
        return c * (z - y) + (1 - c) * (1 - b1) * u, z

    scalars = {
        "b1": rx.real_scalar(b1),
        "weight_sum": rx.real_scalar(),
        "step_count": lambda params: jnp.ones([], jnp.int32),
        "max_lr": rx.real_scalar(),
    }
    slots = {"z": rx.Slot(rx.copy_of, state_dtype, kind="copy")}
    return rx.build(
        rx.Rule(
            leaf, _Average, slots, scalars, prepare, needs_params=True, elementwise=True
        )
    )


@rx.public("wrapper", paper="arXiv:2405.15682", ranges=_RANGES, shared=SHARED)
def schedule_free(
    base_optimizer: rx.TransformationLike,
    learning_rate: rx.ScalarOrSchedule,
    b1: rx.ArrayLike = 0.9,
    weight_lr_power: rx.ArrayLike = 2.0,
    state_dtype: rx.DTypeLike | None = None,
    *,
    weight_step_power: rx.ArrayLike = 0.0,
) -> rx.GradientTransformationExtraArgs:
    """Average the iterates of an optimizer, and compute gradients near the average.

        z = z + u(g),   u of the base optimizer at y
        x = (1 - c_t) x + c_t z,   c_t = w_t / (w_1 + ... + w_t)
        y = b1 x + (1 - b1) z
        w_t = t^weight_step_power (max of learning_rate(1 ... t))^weight_lr_power

    The parameters are y; evaluate at x, see `schedule_free_eval_params`.

    base_optimizer: an optimizer without momentum, which b1 replaces.
    learning_rate: the learning rate of the base optimizer, a scalar or a schedule, such
        as a warm-up; it is only used for the weights w.
    b1: weight of x in y, in (0, 1].
    weight_lr_power: exponent of the learning rate in the weights, at least 0; with 0
        all iterates have equal weight.
    state_dtype: dtype of z; defaults to the parameter's.
    weight_step_power: exponent of the step in the weights, at least 0.
    """
    rx.require_transformation(base_optimizer, "`base_optimizer` of `schedule_free`")
    averaging = average_iterates(
        learning_rate, b1, weight_lr_power, state_dtype, weight_step_power
    )
    return rx.build(
        Followed(
            "schedule_free",
            base_optimizer,
            averaging,
            ScheduleFreeState,
            "base_optimizer_state",
        )
    )


@rx.explain_misuse
def schedule_free_eval_params(state: rx.OptState, params: rx.Params) -> rx.Params:
    """The parameters for evaluation: x = z + (y - z) / b1.

    state: the state of `schedule_free`, or a state that contains it, such as that of
        `chain`, `MultiSteps` or `partition`; parameters without a z are returned
        unchanged.
    params: y, the current parameters.

    Raises a `ValueError` if there is no such state.
    """
    name, fields = "schedule_free_eval_params", ("z", "b1")
    return evaluated(name, ScheduleFreeState, mean_of, fields, state, params, params)


@rx.public("optimizer", paper="arXiv:2405.15682", ranges=_RANGES, shared=SHARED)
def schedule_free_sgd(
    learning_rate: rx.ScalarOrSchedule = 1.0,
    warmup_steps: int | None = None,
    b1: rx.ArrayLike = 0.9,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_lr_power: rx.ArrayLike = 2.0,
    state_dtype: rx.DTypeLike | None = None,
    *,
    first_step: int = 0,
    weight_decay_mask: rx.MaskOrFn = None,
    weight_step_power: rx.ArrayLike = 0.0,
) -> rx.GradientTransformationExtraArgs:
    """`schedule_free` SGD: z = z - learning_rate (g + weight_decay y)
    (Defazio et al., 2024, arXiv:2405.15682).

    learning_rate: a scalar or a schedule.
    warmup_steps: steps over which a constant learning rate rises linearly from 0; no
        warm-up if `None`.
    b1: weight of the average x in the parameters y, in (0, 1].
    weight_decay: a scalar or a schedule; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    first_step: number of the first step for the schedule: 0, or 1 as in the authors'
        code.
    weight_lr_power, weight_step_power: exponents of the learning rate and the step in
        the weights, at least 0.
    state_dtype: dtype of z; defaults to the parameter's.

    Raises a `ValueError` if both a schedule and `warmup_steps` are given.
    """
    rate = _warmed_up(learning_rate, warmup_steps)
    base = sgd(_counted_from(first_step, rate))
    if weight_decay is not None:
        base = chain(*decayed(weight_decay, weight_decay_mask), base)
    more = {"weight_step_power": weight_step_power}
    return schedule_free(base, rate, b1, weight_lr_power, state_dtype, **more)


@rx.public("optimizer", paper="arXiv:2405.15682", ranges=_RANGES, shared=SHARED)
def schedule_free_adamw(
    learning_rate: rx.ScalarOrSchedule = 0.0025,
    warmup_steps: int | None = None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_lr_power: rx.ArrayLike = 2.0,
    state_dtype: rx.DTypeLike | None = None,
    *,
    first_step: int = 0,
    weight_decay_mask: rx.MaskOrFn = None,
    weight_step_power: rx.ArrayLike = 0.0,
    inner_momentum: rx.ArrayLike = 0.0,
) -> rx.GradientTransformationExtraArgs:
    """`schedule_free` AdamW, without momentum unless `inner_momentum` is given
    (Defazio et al., 2024, arXiv:2405.15682).

        nu = b2 nu + (1 - b2) |g|²
        z = z - learning_rate (g / (sqrt(nu / (1 - b2^t)) + eps) + weight_decay y)

    learning_rate, weight_decay: scalars or schedules.
    b2: decay rate of the EMA of |g|², in [0, 1].
    eps: added to the square root, at least 0.
    inner_momentum: decay rate of a bias-corrected EMA that replaces g; 0 for none.
    Other arguments: those of `schedule_free_sgd`.

    Raises a `ValueError` if both a schedule and `warmup_steps` are given.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.

    >>> tx = stepax.contrib.schedule_free_adamw(1e-3, warmup_steps=100)
    >>> smooth = stepax.eval_params(tx.init(params), params)
    """
    rate = _warmed_up(learning_rate, warmup_steps)
    # An array may change later, and then needs its EMA from the start.
    has_momentum = not is_number(inner_momentum) or inner_momentum != 0
    base = chain(
        scale_by_adam(inner_momentum, b2, eps)
        if has_momentum
        else scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(_counted_from(first_step, rate)),
    )
    more = {"weight_step_power": weight_step_power}
    return schedule_free(base, rate, b1, weight_lr_power, state_dtype, **more)


def _warmed_up(rate: Any, steps: int | None) -> rx.ScalarOrSchedule:
    if steps is None:
        return rate
    if callable(rate):
        raise ValueError(
            "`learning_rate` is a schedule and `warmup_steps` is given: expected only "
            "one of them, since a schedule can contain a warm-up"
        )
    return schedules.warmup_constant_schedule(0.0, rate, steps)


def _counted_from(first: int, rate: rx.ScalarOrSchedule) -> rx.ScalarOrSchedule:
    return (lambda count: rate(count + first)) if callable(rate) else rate


evaluates(ScheduleFreeState, mean_of, ("z", "b1"))
