"""What optimizers that find their own step size share.

They keep a few numbers about all parameters together, in float32 or wider whatever the
parameters are, and the point where they started.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine import reduce
from .._engine.protocol import ScalarOrSchedule
from .._engine.rule import Slot, is_trainable


def sums(total: Any, size: int) -> Any:
    """The statistics that `once` gets; zeros where there are no leaves to measure."""
    return total or (jnp.zeros([]),) * size


def _inexact(params):
    """What may have a gradient; `None` in place of integers, functions and the like."""

    def keep(p):
        if not is_trainable(p) or not jnp.issubdtype(jnp.result_type(p), jnp.inexact):
            return None
        return p if hasattr(p, "dtype") else jnp.asarray(p)

    return jax.tree.map(keep, params)


def norm(params: Any) -> ArrayLike:
    """The norm of all parameters; 0 where only their shapes are known."""
    found = _inexact(params)
    is_shape = lambda p: isinstance(p, jax.ShapeDtypeStruct)
    return 0.0 if any(map(is_shape, jax.tree.leaves(found))) else reduce.norm(found)


def _roomy(p):
    """Zeros; the square of a small step times a gradient would vanish in float16."""
    is_half = jnp.result_type(p) == jnp.float16
    return jnp.zeros_like(p, jnp.float32 if is_half else None)


MEAN = Slot(make=_roomy)
MEAN_SQUARE = Slot(make=_roomy, decode=jnp.real)


def at(x: ScalarOrSchedule, count: jax.Array) -> Any:
    """A number, or the value of a schedule after `count` steps."""
    return x(count) if callable(x) else x


def quotient(x: Any, y: Any) -> jax.Array:
    """x / y, and 0 where y is 0."""
    is_zero = y == 0
    return jnp.where(is_zero, 0, x / jnp.where(is_zero, 1, y))


def dot(x: jax.Array, y: jax.Array) -> jax.Array:
    """Re Σ conj(x) y, the inner product of real and imaginary parts."""
    return jnp.sum(jnp.real(jnp.conj(x) * y))
