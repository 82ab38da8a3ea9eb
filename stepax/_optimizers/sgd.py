"""Gradient descent: plain, with momentum, with noise, by sign, with Polyak's step size.

Polyak, 1964, Some methods of speeding up the convergence of iteration methods
(doi:10.1016/0041-5553(64)90137-5); Sutskever, Martens, Dahl and Hinton, 2013, On the
importance of initialization and momentum in deep learning, for Nesterov's form;
Bernstein et al., 2018, signSGD (arXiv:1802.04434), Algorithms 1 and 2; Neelakantan et
al., 2015, Adding Gradient Noise Improves Learning for Very Deep Networks
(arXiv:1511.06807).

Loizou, Vaswani, Laradji and Lacoste-Julien, 2021, Stochastic Polyak Step-size for SGD
(arXiv:2002.10542), equation SPS_max, is proportional to the gap between the loss and
its minimum; Garrigos, Gower and Schaipp, 2023, Function Value Learning
(arXiv:2307.14528), for the positive part.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import square
from .._transforms.decay import decayed, descend
from .._transforms.mean import ema
from .._transforms.noise import add_noise
from .._transforms.scale import scale_by_learning_rate, scale_by_sign
from .._wrappers.chain import chain
from .._wrappers.partition import identity


@rx.optax_compatible
class TraceState(rx.optax.TraceState):
    """trace: decayed sum of the gradients, shaped like the parameters."""

    trace: rx.ArrayTree


@rx.public(paper="doi:10.1016/0041-5553(64)90137-5", ranges={"decay": rx.MOMENTUM})
def trace(
    decay: rx.ArrayLike,
    nesterov: bool = False,
    accumulator_dtype: rx.DTypeLike | None = None,
) -> rx.Rule:
    """Accumulate a decaying sum of gradients (momentum).

        trace = g + decay trace
        u = trace,   or g + decay trace if `nesterov`

    decay: decay rate of the sum, in [0, 1].
    nesterov: whether to use Nesterov momentum.
    accumulator_dtype: dtype of `trace`; defaults to the parameter's.
    """

    def leaf(g, p, ctx, trace):
        trace = g + decay * trace
        return (g + decay * trace if nesterov else trace), trace

    return rx.Rule(
        leaf, TraceState, {"trace": rx.Slot(dtype=accumulator_dtype)}, elementwise=True
    )


@rx.public("optimizer")
def sgd(
    learning_rate: rx.ScalarOrSchedule | None,
    momentum: rx.ArrayLike | None = None,
    nesterov: bool = False,
    accumulator_dtype: rx.DTypeLike | None = None,
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Gradient descent, optional momentum (Polyak, 1964) and decoupled weight decay.

        p = p - learning_rate (u + weight_decay p),   u = g, or u of `trace`

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    momentum: decay rate of `trace`; no momentum if `None`.
    nesterov: whether to use Nesterov momentum; unused without momentum.
    accumulator_dtype: dtype of the sum; defaults to the parameter's.

    >>> tx = stepax.sgd(0.1, momentum=0.9)
    """
    is_plain = momentum is None
    direction = identity() if is_plain else trace(momentum, nesterov, accumulator_dtype)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


@rx.public("optimizer", paper="arXiv:1802.04434")
def sign_sgd(
    learning_rate: rx.ScalarOrSchedule | None,
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Steps of equal size in every coordinate, apart from weight decay
    (Bernstein et al., 2018, arXiv:1802.04434).

        p = p - learning_rate (sign(g) + weight_decay p)

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    """
    direction = scale_by_sign()
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


@rx.public("optimizer", paper="arXiv:1802.04434")
def signum(
    learning_rate: rx.ScalarOrSchedule | None,
    beta: rx.ArrayLike = 0.9,
    accumulator_dtype: rx.DTypeLike | None = None,
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """The sign of the EMA of g: m = beta m + (1 - beta) g, u = sign(m)
    (Bernstein et al., 2018, arXiv:1802.04434).

        p = p - learning_rate (u + weight_decay p)

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    beta: decay rate of the EMA, in [0, 1].
    accumulator_dtype: dtype of the EMA; defaults to the parameter's.
    """
    return chain(
        ema(beta, debias=False, accumulator_dtype=accumulator_dtype),
        scale_by_sign(),
        *decayed(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )


@rx.public("optimizer", paper="arXiv:1511.06807")
def noisy_sgd(
    learning_rate: rx.ScalarOrSchedule | None,
    eta: rx.ArrayLike = 0.01,
    gamma: rx.ArrayLike = 0.55,
    key: jax.Array | int | None = None,
    *,
    seed: int | None = None,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Gradient descent with decaying Gaussian noise
    (Neelakantan et al., 2015, arXiv:1511.06807).

        p = p - learning_rate (g + N(0, eta / t^gamma) + weight_decay p)

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    eta, gamma: initial variance of the noise, and exponent of its decay; at least 0.
    key: a random key, or an integer seed for one.
    seed: deprecated name of `key`.

    Raises a `ValueError` if both `key` and `seed` are given.
    """
    direction = add_noise(eta, gamma, key, seed=seed)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


@rx.traits("normalizes")
@rx.public(paper="arXiv:2002.10542")
def scale_by_polyak(
    f_min: rx.ArrayLike = 0.0,
    max_learning_rate: rx.ArrayLike = 1.0,
    eps: rx.ArrayLike = 0.0,
    variant: Literal["sps", "sps+"] | str = "sps",
) -> rx.Rule:
    """Multiply by Polyak's step size.

        u = min(gap / (‖g‖² + eps), max_learning_rate) g
        gap = value - f_min,   max(value - f_min, 0) for "sps+"

    `update` takes the keyword `value`, the loss at the parameters, a scalar.

    f_min: minimum of the loss.
    max_learning_rate: upper bound of the step size, above 0.
    eps: added to the divisor, at least 0; a zero gradient gives a zero update.
    variant: "sps" or "sps+".

    Raises a `ValueError` for other variants, and a `TypeError` if `value` is missing.
    """
    rx.require_one_of("variant", variant, ("sps", "sps+"))

    def prepare(scalars, stat, extra):
        norm = jnp.asarray(stat)
        gap = jnp.asarray(extra["value"]).astype(norm.dtype) - f_min
        gap = jnp.maximum(gap, 0) if variant == "sps+" else gap
        is_zero = norm + eps == 0
        step_size = gap / jnp.where(is_zero, 1, norm + eps)
        return jnp.where(is_zero, 0, jnp.minimum(step_size, max_learning_rate)), ()

    return rx.Rule(
        lambda g, p, step_size: (step_size * g,),
        prepare=prepare,
        leaf_stat=lambda g, p, scalars: jnp.sum(square(g)),
        reads=("value",),
        elementwise=True,
    )


@rx.public("optimizer", paper="arXiv:2002.10542")
def polyak_sgd(
    max_learning_rate: rx.ArrayLike = 1.0,
    scaling: rx.ScalarOrSchedule = 1.0,
    f_min: rx.ArrayLike = 0.0,
    eps: rx.ArrayLike = 0.0,
    variant: Literal["sps", "sps+"] | str = "sps",
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Gradient descent with Polyak's step size: p = p - scaling (u + weight_decay p)
    (Loizou et al., 2021, arXiv:2002.10542).

    u is the output of `scale_by_polyak` for the gradient, multiplied by -scaling first.
    Weight decay does not depend on the step size, which is 0 at the minimum.

    scaling, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_polyak`.
    """
    return chain(
        sgd(scaling),
        scale_by_polyak(f_min, max_learning_rate, eps, variant),
        *decayed(weight_decay, weight_decay_mask, scaling, -1.0),
    )
