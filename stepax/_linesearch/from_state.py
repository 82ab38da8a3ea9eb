"""Value and gradient that a line search has already computed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._engine.control import branch
from .._engine.flow import Flow
from .._engine.leafwise import keep_dtypes
from .._engine.precision import is_inexact
from .._engine.search import get
from .line import put


_MISSING = object()


def value_and_grad_from_state(value_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Like `jax.value_and_grad`, but takes both from the state of a line search.

    Returns a function of the parameters, further arguments of `value_fn`, and the
    keyword `state`.  It evaluates `value_fn` only where the value in the state is not
    finite, as at first.  What it returns is that of the parameters which the last
    search led to, and wrong for any others.

    value_fn: the function that is minimized; its value is one number.

    The function raises a `ValueError` if the state holds no value or no gradient, a
    `KeyError` if it holds several.
    """

    def from_state(params, *args, state, **kwargs):
        value, grad = _stored(state, "value"), _stored(state, "grad")
        flow = Flow(grad, params)
        live = [i for i, g in enumerate(flow.leaves) if g is not None and is_inexact(g)]
        known = jnp.asarray(value), [flow.leaves[i] for i in live]

        def value_of(leaves):
            return value_fn(put(flow, live, leaves, flow.params), *args, **kwargs)

        def compute():
            leaves = [jnp.asarray(flow.params[i]) for i in live]
            return keep_dtypes(jax.value_and_grad(value_of)(leaves), known)

        value, grads = branch(jnp.isfinite(value), lambda: known, compute)
        return value, put(flow, live, grads, [None] * len(flow.leaves))

    return from_state


def _stored(state: Any, name: str) -> Any:
    found = get(state, name, _MISSING)
    if found is _MISSING:
        raise ValueError(f"`state` holds no `{name}`, as that of a line search does")
    if found is None:
        raise ValueError(
            f"`{name}` in `state` is `None`; search with `store_grad=True`"
        )
    return found
