"""Running means over trees of gradients, and their bias correction.

Leaves that are not numeric are skipped, as in `stepax.tree`.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..arrays import moments as means
from ..arrays.numerics import abs_sq, is_numeric, strong_type
from ..arrays.precision import is_inexact
from ..base import ArrayTree, Updates, is_none
from ..functions.calls import explain_misuse


@explain_misuse
def update_moment(
    updates: Updates, moments: ArrayTree, decay: ArrayLike, order: int
) -> ArrayTree:
    """The running mean of a power of the gradients.

    (1 - decay) g^order + decay m

    updates: the gradients g; where it holds `None`, so does the result.
    moments: the means m so far.
    decay: weight of the past, in [0, 1].
    order: the power, by multiplication even for complex g.
    """
    return _update_moment(lambda g: g**order, updates, moments, decay)


@explain_misuse
def update_moment_per_elem_norm(
    updates: Updates, moments: ArrayTree, decay: ArrayLike, order: int
) -> ArrayTree:
    """The running mean of a power of the gradients' absolute values.

    (1 - decay) |g|^order + decay m   for complex g
    (1 - decay) g^order + decay m     for real g

    updates: the gradients g; where it holds `None`, so does the result.
    moments: the means m so far.
    decay: weight of the past, in [0, 1].
    order: the power.
    """
    # |g|² needs no square root, so even powers are powers of it; `//` keeps an integer
    # exponent, for which JAX multiplies.
    half = order // 2 if order % 2 == 0 else order / 2

    def power(g):
        return abs_sq(g) ** half if jnp.iscomplexobj(g) else g**order

    return _update_moment(power, updates, moments, decay)


def _update_moment(power, updates, moments, decay):
    # Optax's formula, also for decays near 1, where rules use `moments.ema`.
    return _map(lambda g, m: (1 - decay) * power(g) + decay * m, updates, moments)


def _map(f, updates, moments):
    # `None` in the updates is the result; float0 gradients leave the mean unchanged.
    def leaf(g, m):
        if g is None or not is_numeric(g):
            return g if g is None else m
        return f(g, m)

    return jax.tree.map(leaf, updates, moments, is_leaf=is_none)


@explain_misuse
def update_infinity_moment(
    updates: Updates, moments: ArrayTree, decay: ArrayLike, eps: ArrayLike
) -> ArrayTree:
    """The running maximum of the gradients' absolute values.

    max(|g| + eps, decay m)

    updates: the gradients g; where it holds `None`, so does the result.
    moments: the maxima m so far.
    decay: weight of the past, in [0, 1].
    eps: added to |g|, >= 0.
    """
    return _map(lambda g, m: jnp.maximum(jnp.abs(g) + eps, decay * m), updates, moments)


@explain_misuse
def bias_correction(moment: ArrayTree, decay: ArrayLike, count: ArrayLike) -> ArrayTree:
    """Correct running means for their start at zero.

    m / (1 - decay^count), with the divisor rounded to the dtype of m

    moment: the running means m.
    decay: weight of the past at each step, in [0, 1).
    count: the number of gradients in the means, >= 1.
    """
    leaves, treedef = jax.tree.flatten(moment)
    with jax.numpy_dtype_promotion("standard"):
        weight = means.bias_correction(decay, count)
    # All leaves in one jitted call: one dispatch outside of `jit`.
    corrected = iter(_divide_all(list(filter(is_numeric, leaves)), weight))
    return treedef.unflatten(next(corrected) if is_numeric(m) else m for m in leaves)


@jax.jit
def _divide_all(ms, weight):
    ms = list(map(jnp.asarray, ms))
    divisors = [weight.astype(m.dtype) if is_inexact(m) else weight for m in ms]
    with jax.numpy_dtype_promotion("standard"):
        return [strong_type(m / c) for m, c in zip(ms, divisors, strict=True)]
