"""Functions over whole trees of gradients, for what is written as a closure."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .flow import Flow, align, is_float0


def _as_it_is(g, *row):
    return g


def map_gradients(
    f: Callable, updates: Any, /, *, idle: Callable = _as_it_is, **others: Any
) -> Any:
    """`f` of each gradient and what stands in its place in the other trees.

    idle: takes the same for leaves without a gradient, which are `None` or float0.
    others: trees like `updates`, under the names that errors give them.
    """
    flow = Flow(updates, None)
    columns = [align(flow, tree, name) for name, tree in others.items()]
    rows = zip(flow.leaves, *columns, strict=True)
    out = [idle(g, *x) if g is None or is_float0(g) else f(g, *x) for g, *x in rows]
    return flow.treedef.unflatten(out)


def zeros_like_updates(updates: Any) -> Any:
    """Updates that change nothing."""
    return map_gradients(jnp.zeros_like, updates)


def keep_dtypes(new: Any, old: Any) -> Any:
    """`new` with the dtypes of `old`, strongly typed, where both have arrays."""

    def one(x, was):
        if not isinstance(x, jax.Array) or not hasattr(was, "dtype"):
            return x
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):
            return x
        return jax.lax.convert_element_type(x, was.dtype)

    return jax.tree.map(one, new, old)


def all_finite(updates: Any) -> jax.Array:
    """Whether every number in a tree is finite, as in an empty one."""
    return count_not_finite(updates) == jnp.zeros([], jnp.int32)


@jax.jit
def _not_finite(x):
    return jnp.sum(~jnp.isfinite(x), dtype=jnp.int32)


@jax.jit
def _total(counts):
    return sum(counts, jnp.zeros([], jnp.int32))


def count_not_finite(updates: Any) -> jax.Array:
    """How many numbers in a tree are NaN or infinite."""
    leaves = [x for x in jax.tree.leaves(updates) if not is_float0(x)]
    return _total([_not_finite(x) for x in leaves])
