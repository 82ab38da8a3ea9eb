"""Code shared by optimizers that determine their own step size.

They store a few scalars about all parameters together, in float32 or wider whatever the
dtype of the parameters, and the initial parameters.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.numerics import has_dtype
from .._engine.trees import reduce
from .partition import masked


def sums(total: Any, size: int) -> Any:
    """The statistics passed to `prepare`; zeros if there are no leaves."""
    return total or (jnp.zeros([]),) * size


def _inexact(params):
    """The parameters that can have gradients; `None` for integers, functions, etc."""

    def keep(p):
        if not rx.is_trainable(p) or not jnp.issubdtype(
            jnp.result_type(p), jnp.inexact
        ):
            return None
        p = rx.as_array(p)
        return p if has_dtype(p) else jnp.asarray(p)

    return jax.tree.map(keep, params)


def norm(params: Any) -> rx.ArrayLike:
    """The norm of all parameters; 0 if only their shapes are known."""
    found = _inexact(params)

    def is_shape(p):
        return isinstance(p, jax.ShapeDtypeStruct)

    return 0.0 if any(map(is_shape, jax.tree.leaves(found))) else reduce.norm(found)


# Stored wide: a small step size times a gradient would underflow in float16.
MEAN = rx.Slot(is_wide=True)
SUM = rx.Slot(is_wide=True, kind="sum")


def dot(x: jax.Array, y: jax.Array) -> jax.Array:
    """Re Σ conj(x) y, the inner product over real and imaginary parts."""
    return jnp.sum(jnp.real(jnp.conj(x) * y))


def decaying(
    tx: rx.GradientTransformationExtraArgs,
    decay: Callable[[Any], rx.GradientTransformation],
    mask: rx.MaskOrFn,
) -> rx.GradientTransformationExtraArgs:
    """Add masked weight decay to an optimizer without changing its state.

    decay: maps the state before a step to the transformation for masked parameters.
    """

    @rx.promote_freely
    def update(updates, state, params=None, **extra_args):
        updates, new = tx.update(updates, state, params, **extra_args)
        pull = masked(decay(state), mask)
        return pull.update(updates, pull.init(params), params)[0], new

    return rx.transformation(tx.init, update, inner={"": tx})
