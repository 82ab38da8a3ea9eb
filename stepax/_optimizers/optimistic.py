"""Optimistic descent: extrapolate the gradient by its last change.

Mokhtari, Ozdaglar and Pattathil, 2020, A Unified Analysis of Extra-gradient and
Optimistic Gradient Methods for Saddle Point Problems (arXiv:1901.08511), the
generalized method; Daskalakis, Ilyas, Syrgkanis and Zeng, 2018, Training GANs with
Optimism (arXiv:1711.00141), Algorithm 1, for the form with Adam.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.factories.ranges import ANY
from .._transforms.decay import decayed, descend
from .._transforms.scale import scale, scale_by_learning_rate
from .._wrappers.chain import chain
from .adam import scale_by_adam


@rx.optax_compatible
class ScaleByOptimisticGradientState(NamedTuple):
    """is_initial_step: whether no step has been taken, a boolean scalar.

    previous_gradient: gradient of the last step, shaped like the parameters.
    """

    is_initial_step: jax.Array
    previous_gradient: rx.Updates


@rx.public(paper="arXiv:1901.08511", ranges={"alpha": ANY, "beta": ANY})
def scale_by_optimistic_gradient(
    alpha: rx.ArrayLike = 1.0, beta: rx.ArrayLike = 1.0
) -> rx.Rule:
    """Add a multiple of the change of the gradient.

        u = (alpha + beta) g - beta g_last,   g_last = g at the first step

    alpha: factor of the gradient.
    beta: factor of its change.
    """

    def prepare(scalars, stat, extra):
        (is_first,) = scalars
        return is_first, (jnp.zeros_like(is_first),)

    def leaf(g, p, is_first, last):
        last = jnp.where(is_first, g, last)
        return (alpha + beta) * g - beta * last, g

    slots = {"previous_gradient": rx.Slot(kind="other")}
    first = {"is_initial_step": lambda params: jnp.ones([], bool)}
    return rx.Rule(
        leaf, ScaleByOptimisticGradientState, slots, first, prepare, elementwise=True
    )


@rx.public("optimizer", paper="arXiv:1901.08511", ranges={"alpha": ANY, "beta": ANY})
def optimistic_gradient_descent(
    learning_rate: rx.ScalarOrSchedule | None,
    alpha: rx.ArrayLike = 1.0,
    beta: rx.ArrayLike = 1.0,
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Optimistic gradient descent, with optional weight decay
    (Mokhtari et al., 2020, arXiv:1901.08511).

        p = p - learning_rate (u + weight_decay p)

    u is that of `scale_by_optimistic_gradient`.

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    alpha, beta: factors of the gradient and of its change.
    """
    direction = scale_by_optimistic_gradient(alpha, beta)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


@rx.public("optimizer", paper="arXiv:1711.00141")
def optimistic_adam(
    learning_rate: rx.ScalarOrSchedule,
    optimism: rx.ArrayLike | None = None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    mu_dtype: rx.DTypeLike | None = None,
    *,
    nesterov: bool = True,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Optimistic Adam, with the updates r of `scale_by_adam`
    (Daskalakis et al., 2018, arXiv:1711.00141).

        p = p - learning_rate (r + weight_decay p) - optimism (r - r_last)

    learning_rate: a scalar, or, without `optimism`, a schedule.
    weight_decay: a scalar, at least 0, or a schedule; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    optimism: factor of the change; the learning rate if `None`.
    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    eps, eps_root: added outside and inside the square root; at least 0.
    mu_dtype: dtype of `mu`; defaults to the parameter's.
        In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    nesterov: whether to use Nesterov momentum.

    Raises a `ValueError` if both a schedule and `optimism` are given.
    """
    adam = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    if not callable(learning_rate):
        rate: Any = learning_rate
        step = scale_by_optimistic_gradient(
            rate, rate if optimism is None else optimism
        )
        decay = decayed(weight_decay, weight_decay_mask, learning_rate)
        return chain(adam, step, *decay, scale(-1))
    if optimism is not None:
        raise ValueError(
            "`learning_rate` is a schedule, which `optimism` does not follow; use "
            "`optimistic_adam_v2`, whose `beta` is relative to the learning rate"
        )
    return chain(
        adam,
        scale_by_optimistic_gradient(),
        *decayed(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )


@rx.public("optimizer", paper="arXiv:1711.00141", ranges={"alpha": ANY, "beta": ANY})
def optimistic_adam_v2(
    learning_rate: rx.ScalarOrSchedule | None,
    *,
    alpha: rx.ArrayLike = 1.0,
    beta: rx.ArrayLike = 1.0,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    mu_dtype: rx.DTypeLike | None = None,
    nesterov: bool = True,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Optimistic Adam, with the updates r of `scale_by_adam`
    (Daskalakis et al., 2018, arXiv:1711.00141).

        p = p - learning_rate (alpha r + beta (r - r_last) + weight_decay p)

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    alpha, beta: factors of r and of its change.
    Other arguments: those of `optimistic_adam`.
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        scale_by_optimistic_gradient(alpha, beta),
        *decayed(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )
