"""Branches that cost only the side that is taken."""

from collections.abc import Callable
from typing import Any

import jax


def branch(pred: Any, on_true: Callable[[], Any], on_false: Callable[[], Any]) -> Any:
    """What the chosen function returns; the other one is not run.

    Outside of `jit` the condition is known and Python decides: `lax.cond` would compile
    both sides anew on every call.  Under `vmap` it becomes a select.
    """
    if isinstance(pred, jax.core.Tracer):
        return jax.lax.cond(pred, on_true, on_false)
    return on_true() if pred else on_false()
