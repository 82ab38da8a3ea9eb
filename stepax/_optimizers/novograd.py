"""NovoGrad: momentum of gradients that are normalized array by array.

Ginsburg et al., 2019, Stochastic Gradient Methods with Layer-wise Adaptive Moments for
Training of Deep Networks (arXiv:1905.11286), Algorithm 1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from .._engine.chain import chain
from .._engine.compose import build
from .._engine.moments import ema
from .._engine.numerics import safe_increment, safe_norm
from .._engine.protocol import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    ScalarOrSchedule,
)
from .._engine.ranges import ANY
from .._engine.registry import public
from .._engine.rule import COUNT, Rule, Slot
from .._engine.twin import twin
from .._transforms.scale import scale_by_learning_rate


@twin
class ScaleByNovogradState(NamedTuple):
    """count: steps taken.

    mu: sum of normalized gradients, shaped as the parameters.
    nu: mean of ‖g‖², a scalar for each parameter.
    """

    count: jax.Array
    mu: Any
    nu: Any


@public(paper="arXiv:1905.11286", ranges={"weight_decay": ANY})
def scale_by_novograd(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.25,
    eps: ArrayLike = 1e-8,
    eps_root: ArrayLike = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mu_dtype: DTypeLike | None = None,
) -> GradientTransformation:
    """Add up gradients, each divided by the running norm of its array.

        nu = b2 nu + (1 - b2) ‖g‖²,   ‖g‖² at the first step
        mu = b1 mu + g / (sqrt(nu + eps_root) + eps) + weight_decay p
        u = mu

    b1, b2: decay of the sum and of the mean, in [0, 1).
    eps, eps_root: added to the root, and inside it; at least 0.
    weight_decay: a number at least 0, or a schedule of the step.
    mu_dtype: stored dtype of `mu`; the parameter's if `None`.
    """

    def once(shared, total, extra):
        (count,) = shared
        decay = weight_decay(count) if callable(weight_decay) else weight_decay
        return (count == 0, jnp.asarray(decay)), (safe_increment(count),)

    def leaf(g, p, c, mu, nu):
        is_first, decay = c
        norm_sq = safe_norm(g, 0.0) ** 2
        nu = jnp.where(is_first, norm_sq, ema(nu, norm_sq, b2))
        x = g / (jnp.sqrt(nu + eps_root) + eps) + decay * p
        mu = jnp.where(is_first, x, b1 * mu + x)
        return mu, mu, nu

    scalar = Slot(lambda p: jnp.zeros_like(p, shape=()), alike=False, decode=jnp.real)
    slots = {"mu": Slot(dtype=mu_dtype), "nu": scalar}
    return build(
        Rule(leaf, ScaleByNovogradState, slots, COUNT, once, needs_params=True)
    )


@public("optimizer", paper="arXiv:1905.11286")
def novograd(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.25,
    eps: ArrayLike = 1e-6,
    eps_root: ArrayLike = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
) -> GradientTransformationExtraArgs:
    """NovoGrad: p = p - learning_rate u, with u of `scale_by_novograd`.

    learning_rate: a number, or a schedule of the step.
    The others are those of `scale_by_novograd`.
    """
    return chain(
        scale_by_novograd(b1, b2, eps, eps_root, weight_decay),
        scale_by_learning_rate(learning_rate),
    )
