"""Gradient descent: plain, with momentum, with noise, and by sign.

Polyak, 1964, Some methods of speeding up the convergence of iteration methods
(doi:10.1016/0041-5553(64)90137-5); Sutskever, Martens, Dahl and Hinton, 2013, On the
importance of initialization and momentum in deep learning, for Nesterov's form;
Bernstein et al., 2018, signSGD (arXiv:1802.04434), Algorithms 1 and 2; Neelakantan et
al., 2015, Adding Gradient Noise Improves Learning for Very Deep Networks
(arXiv:1511.06807).
"""

from typing import Any, NamedTuple

import jax

from .._engine import rules as rx
from .._transforms.decay import decayed, descend
from .._transforms.mean import ema
from .._transforms.noise import add_noise
from .._transforms.scale import scale_by_learning_rate, scale_by_sign
from .._wrappers.chain import chain
from .._wrappers.partition import identity


@rx.optax_compatible
class TraceState(NamedTuple):
    """trace: decayed sum of the gradients, shaped like the parameters."""

    trace: Any


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
    accumulator_dtype: storage dtype of `trace`; the parameter's if `None`.
    """

    def leaf(g, p, ctx, trace):
        trace = g + decay * trace
        return (g + decay * trace if nesterov else trace), trace

    return rx.Rule(
        leaf, TraceState, {"trace": rx.Slot(dtype=accumulator_dtype)}, elementwise=True
    )


@rx.public("optimizer")
def sgd(
    learning_rate: rx.ScalarOrSchedule,
    momentum: rx.ArrayLike | None = None,
    nesterov: bool = False,
    accumulator_dtype: rx.DTypeLike | None = None,
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Gradient descent, with optional momentum and decoupled weight decay.

        p = p - learning_rate (u + weight_decay p),   u = g, or u of `trace`

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: which parameters decay; see `masked`.
    momentum: decay rate of `trace`; no momentum if `None`.
    nesterov: whether to use Nesterov momentum; unused without momentum.
    accumulator_dtype: storage dtype of the sum; the parameter's if `None`.
    """
    is_plain = momentum is None
    direction = identity() if is_plain else trace(momentum, nesterov, accumulator_dtype)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


@rx.public("optimizer", paper="arXiv:1802.04434")
def sign_sgd(
    learning_rate: rx.ScalarOrSchedule,
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Steps of equal size in every coordinate, apart from weight decay.

        p = p - learning_rate (sign(g) + weight_decay p)

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: which parameters decay; see `masked`.
    """
    direction = scale_by_sign()
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


@rx.public("optimizer", paper="arXiv:1802.04434")
def signum(
    learning_rate: rx.ScalarOrSchedule,
    beta: rx.ArrayLike = 0.9,
    accumulator_dtype: rx.DTypeLike | None = None,
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """The sign of the EMA of g: m = beta m + (1 - beta) g, u = sign(m).

        p = p - learning_rate (u + weight_decay p)

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: which parameters decay; see `masked`.
    beta: decay rate of the EMA, in [0, 1].
    accumulator_dtype: storage dtype of the EMA; the parameter's if `None`.
    """
    return chain(
        ema(beta, debias=False, accumulator_dtype=accumulator_dtype),
        scale_by_sign(),
        *decayed(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )


@rx.public("optimizer", paper="arXiv:1511.06807")
def noisy_sgd(
    learning_rate: rx.ScalarOrSchedule,
    eta: rx.ArrayLike = 0.01,
    gamma: rx.ArrayLike = 0.55,
    key: jax.Array | int | None = None,
    *,
    seed: int | None = None,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Gradient descent with decaying Gaussian noise.

        p = p - learning_rate (g + N(0, eta / t^gamma) + weight_decay p)

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: which parameters decay; see `masked`.
    eta, gamma: initial variance of the noise, and exponent of its decay; at least 0.
    key: a random key, or an integer seed for one.
    seed: deprecated name of `key`.

    Raises a `ValueError` if both `key` and `seed` are given.
    """
    direction = add_noise(eta, gamma, key, seed=seed)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)
