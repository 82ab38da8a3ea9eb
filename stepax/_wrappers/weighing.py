"""Weighted means and sums of gradients, one gradient at a time."""

from typing import Any

import jax
import jax.numpy as jnp

from .._engine.trees.numbers import share


def divided(x: jax.Array, n: jax.Array) -> jax.Array:
    """`x / n` for a real scalar."""
    if jnp.iscomplexobj(x):  # complex division would spread an infinity to both parts
        return jax.lax.complex(divided(x.real, n), divided(x.imag, n))
    return x / n.astype(x.dtype)


@jax.jit
def mean_with(mean, g, total, w):
    """A mean with one more gradient; `total` is the sum of weights with its own."""
    n = total if w is None else share(total, w, mean.dtype)
    return mean + divided(g.astype(mean.dtype) - mean, n)


@jax.jit
def sum_with(total, g, _, w):
    """A sum with one more gradient, called like `mean_with`."""
    g = g.astype(total.dtype)
    return total + (g if w is None else jnp.asarray(w).astype(total.dtype) * g)


def weigh(state: Any, n: jax.Array, w: Any) -> tuple[jax.Array, Any]:
    """The sum of the weights up to this call, and what the state stores of it.

    n: the number of calls up to this one, which is the sum without weights.
    w: the weight of this call, 1 if it is `None`.
    """
    before = state.weight
    has_any = before > 0
    if w is None:
        total = jnp.where(has_any, before + 1, n.astype(jnp.float32))
        return total, jnp.where(has_any, total, 0)
    total = jnp.where(has_any, before, (n - 1).astype(jnp.float32)) + w
    return total, total
