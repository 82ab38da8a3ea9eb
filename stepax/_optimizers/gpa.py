"""Generalized primal averaging: an exponential mean of iterates, at every step.

Defazio, Mishchenko, Raman, Shi and Xiao, 2025, Smoothing DiLoCo with Primal Averaging
for Faster Training of LLMs (arXiv:2512.17131), in the form of the authors' code,
https://github.com/facebookresearch/optimizers.  As in `schedule_free` there are three
sequences: y, the parameters, at which gradients are computed; z, which the inner
optimizer updates; and x, the mean of z, for evaluation, which is not stored.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.numerics import safe_increment
from .._transforms.decay import AVERAGED
from .._transforms.scale import product, scale_by_learning_rate, value_at
from .._wrappers.chain import Followed, chain, own_fields
from .._wrappers.partition import partition, split
from .._wrappers.readers import evaluates, mean_of
from .adam import scale_by_adam


class GPAState(NamedTuple):
    """State of `gpa`.

    count: steps taken, a scalar.
    interpolation: weight of x in y, a scalar.
    z: the sequence that the inner optimizer updates, shaped like the parameters.
    inner_state: state of the inner optimizer.
    """

    count: jax.Array
    interpolation: jax.Array
    z: rx.Params
    inner_state: rx.OptState


_Average = own_fields(GPAState)


PAPER = "arXiv:2512.17131"
_RANGES = {
    "train_interpolation": rx.Range(0, 1, excludes_least=True),
    "eval_interpolation": rx.UP_TO_1,
}


@rx.recorded
def _average(
    train_interpolation: rx.ArrayLike,
    eval_interpolation: rx.ArrayLike,
    decay: rx.ScalarOrSchedule,
    decay_at_y: bool,
    state_dtype: rx.DTypeLike | None,
) -> rx.Rule:
    """Map updates of z to updates of y.

    decay: the fraction of z, or of y, that a step subtracts.
    """
    mu, c = train_interpolation, 1 - eval_interpolation

    def prepare(scalars, stat, extra):
        count, _ = scalars
        return jnp.asarray(value_at(decay, count)), (safe_increment(count), mu)

    def leaf(u, y, pull, z):
        lost = pull * y if decay_at_y else jnp.zeros_like(y)
        z = z if decay_at_y else z - pull * z
        toward = c * (z - (y - lost))
        return toward - lost + (1 - mu * (1 - c)) * u, z + u

    scalars = {**rx.COUNT, "interpolation": rx.real_scalar(mu)}
    slots = {"z": rx.Slot(rx.copy_of, state_dtype, kind="copy")}
    options: Any = {"needs_params": True, "elementwise": True, "in_steps": "any"}
    return rx.Rule(leaf, _Average, slots, scalars, prepare, **options)


@rx.public("wrapper", paper=PAPER, ranges=_RANGES, shared=AVERAGED)
def gpa(
    inner: rx.TransformationLike,
    train_interpolation: rx.ArrayLike = 0.7,
    eval_interpolation: rx.ArrayLike = 0.9967,
    *,
    state_dtype: rx.DTypeLike | None = None,
) -> rx.GradientTransformationExtraArgs:
    """Average the iterates of an optimizer, and compute gradients near the average.

        z = z + u(g),   u of the inner optimizer at y
        x = eval_interpolation x + (1 - eval_interpolation) z
        y = train_interpolation x + (1 - train_interpolation) z

    The parameters are y; evaluate at x, see `eval_params`.  Weight decay of the
    inner optimizer applies to y.

    inner: an optimizer, with its learning rate.
    train_interpolation: weight of x in y, in (0, 1].
    eval_interpolation: decay rate of the mean x, in [0, 1].
    state_dtype: dtype of z; defaults to the parameter's.
    """
    rx.require_transformation(inner, "`inner` of `gpa`")
    own: Any = _average(
        train_interpolation, eval_interpolation, 0.0, False, state_dtype
    )
    return rx.build(Followed("gpa", inner, own, GPAState))


@rx.public("optimizer", paper=PAPER, ranges=_RANGES, shared=AVERAGED)
def gpa_adamw(
    learning_rate: rx.ScalarOrSchedule = 1.0,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    *,
    train_interpolation: rx.ArrayLike = 0.7,
    eval_interpolation: rx.ArrayLike = 0.9967,
    decay_at_y: bool = False,
    weight_decay_mask: rx.MaskOrFn = None,
    state_dtype: rx.DTypeLike | None = None,
) -> rx.GradientTransformationExtraArgs:
    """`gpa` of Adam, with decay of the iterates z
    (Defazio et al., 2025, arXiv:2512.17131).

        z = (1 - learning_rate weight_decay) z,   or y in its place, if `decay_at_y`
        z = z - learning_rate u, with u the output of `scale_by_adam`

    The parameters are y; evaluate at x, see `eval_params`.

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    eps: added to the square root, at least 0.
    train_interpolation: weight of the mean x in y, in (0, 1].
    eval_interpolation: decay rate of the mean x, in [0, 1].
    decay_at_y: whether the parameters y decay, rather than z.
    weight_decay_mask: parameters to decay; see `masked`.  The state is then that of
        `partition`.
    state_dtype: dtype of z; defaults to the parameter's.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    """

    def averaged(decay):
        adam = chain(scale_by_adam(b1, b2, eps), scale_by_learning_rate(learning_rate))
        own: Any = _average(
            train_interpolation, eval_interpolation, decay, decay_at_y, state_dtype
        )
        return rx.build(Followed("gpa_adamw", adam, own, GPAState))

    decay = product(learning_rate, weight_decay)
    if weight_decay_mask is None:
        return averaged(decay)
    # Decay applies to z, which only the averaging rule has.
    labels = split(weight_decay_mask, "decays", "stays", "weight_decay_mask")
    return partition({"decays": averaged(decay), "stays": averaged(0.0)}, labels)


evaluates(GPAState, mean_of, ("z", "interpolation"))
