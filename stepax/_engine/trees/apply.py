"""Updates of parameters, by addition, interpolation or copies, and of running means.

Leaves that are not numeric are skipped by running means, as in `stepax.tree`.
"""

import functools as ft
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..arrays import moments as means
from ..arrays.numerics import abs_sq, is_numeric, strong_type
from ..arrays.precision import is_inexact
from ..base import ArrayTree, Params, Updates, as_array, is_array, is_none
from ..functions.calls import explain_misuse
from . import errors


def map_pairs(
    leaf: Callable, names: tuple[str, str], first: ArrayTree, second: ArrayTree
) -> ArrayTree:
    """`leaf(x, y, check)` for the leaves of two trees; `None` counts as a leaf.

    check: raises, with the path, unless x and y are arrays of one shape.
    """
    leaves, treedef = jax.tree.flatten(first, is_leaf=is_none)
    # Not `jax.tree.map`, whose errors show whole structures but name no path.
    like = f"`{names[0]}`"
    others = errors.matched(treedef, names[1], second, like, lambda: first)
    pairs = enumerate(zip(leaves, others, strict=True))
    return treedef.unflatten(
        leaf(x, y, ft.partial(_check, x, y, names, first, i)) for i, (x, y) in pairs
    )


def _check(x, y, names, tree, i, same_dtype=False):
    # The index of the leaf suffices: paths are computed only for errors.
    for name, z in zip(names, (x, y), strict=True):
        if not is_array(z):
            raise TypeError(
                f"`{name}` holds {errors.describe(z)} at {errors.paths(tree)[i]}, "
                "expected an array"
            )
    x, y = as_array(x), as_array(y)
    if jnp.shape(x) != jnp.shape(y):
        raise ValueError(
            f"`{names[1]}` has shape {jnp.shape(y)} at {errors.paths(tree)[i]}, "
            f"expected {jnp.shape(x)} as in `{names[0]}`"
        )
    # `typeof` also knows the dtype that a Python scalar gets.
    if same_dtype and jax.typeof(x).dtype != jax.typeof(y).dtype:
        raise TypeError(
            f"`{names[1]}` has dtype {jax.typeof(y).dtype} at {errors.paths(tree)[i]}, "
            f"expected {jax.typeof(x).dtype} as in `{names[0]}`"
        )


# Jitted once for each pair of shapes: three operations would be three dispatches.
@jax.jit
def _add(p, u):
    # Python scalars are arrays here, but not where users disable `jit` to debug.
    p, u = jnp.asarray(p), jnp.asarray(u)
    with jax.numpy_dtype_promotion("standard"):
        # Added in the wider dtype and rounded once, as in Optax.
        return (p + u).astype(p.dtype)


@explain_misuse
def apply_updates(params: Params, updates: Updates) -> Params:
    """Add the updates to the parameters.

    p + u, in the dtype of p

    params: a tree of arrays; Python numbers become arrays.
    updates: a tree of the same structure and shapes.  Where it holds `None` or a float0
        array, the parameter is unchanged, whatever its type.

    Raises ValueError if structures or shapes differ, and TypeError if a leaf is not an
    array; both name the path.
    """

    def leaf(p, u, check):
        # float0 is the gradient that JAX gives for integers; there is nothing to add.
        if p is None or u is None or not is_numeric(u):
            return p
        check()
        return _add(as_array(p), as_array(u))

    return map_pairs(leaf, ("params", "updates"), params, updates)


@jax.jit
def _mix(new, old, part, rest):
    with jax.numpy_dtype_promotion("standard"):
        return strong_type(jnp.asarray(part * new + rest * old))


@explain_misuse
def incremental_update(
    new_tensors: Params, old_tensors: Params, step_size: ArrayLike
) -> Params:
    """Interpolate between the old tensors and the new ones.

    step_size * new + (1 - step_size) * old

    new_tensors: a tree of arrays; where it holds `None`, so does the result.
    old_tensors: a tree of the same structure and shapes.  Leaves that cannot be
        averaged, such as a function or a random key, are taken from here.
    step_size: the weight of the new tensors, in [0, 1].

    Raises ValueError, with the path, if structures or shapes differ.
    """
    # Outside the jitted function, where Python scalars are subtracted in double
    # precision.
    rest = 1 - step_size

    def leaf(new, old, check):
        if new is None:
            return None
        if not (is_array(new) and is_numeric(new)):
            return old
        check()
        return _mix(as_array(new), as_array(old), step_size, rest)

    return map_pairs(leaf, ("new_tensors", "old_tensors"), new_tensors, old_tensors)


# Jitted here, once: a `cond` called from Python would recompile with each call.
@jax.jit
def _choose(steps, period, new, old):
    is_due = steps % period == 0
    chosen = jax.lax.cond(is_due, lambda: new, lambda: old)
    return jax.tree.map(
        lambda x: strong_type(jnp.asarray(x)) if is_numeric(x) else x, chosen
    )


@explain_misuse
def periodic_update(
    new_tensors: Params, old_tensors: Params, steps: ArrayLike, update_period: ArrayLike
) -> Params:
    """Take the new tensors periodically, and keep the old ones in between.

    new  where steps % update_period == 0
    old  otherwise

    new_tensors: a tree of arrays.
    old_tensors: a tree of the same structure, shapes and dtypes.  Leaves that are not
        arrays, such as functions, are taken from here.
    steps: the number of steps so far, an integer >= 0.
    update_period: the number of steps from one update to the next, an integer >= 1.

    Raises ValueError if structures or shapes differ, and TypeError if dtypes do; both
    name the path.
    """
    names = "new_tensors", "old_tensors"

    def array_or_none(x, y, check):
        if not is_array(x) and not is_array(y):
            return None
        check(same_dtype=True)
        return as_array(x)

    def keep(x, old):
        return None if x is None else as_array(old)

    def merge(x, old):
        return old if x is None else x

    new = map_pairs(array_or_none, names, new_tensors, old_tensors)
    old = jax.tree.map(keep, new, old_tensors, is_leaf=is_none)
    chosen = _choose(steps, update_period, new, old)
    return jax.tree.map(merge, chosen, old_tensors, is_leaf=is_none)


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

    order: the power.
    Other arguments: those of `update_moment`.
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
