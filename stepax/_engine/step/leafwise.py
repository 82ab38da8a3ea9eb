"""Functions over whole trees of gradients, for closures; and the fused step.

`apply_updates` gets updates that have been rounded, and written for every leaf, also
where nothing changes.  `step` adds them in the pass that computes them.  So it rounds
once, and the engine knows which arrays take the place of which, and can order what is
read and written (`xla/order.py`).
"""

import functools as ft
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_flatten_with_path
from jax.typing import ArrayLike

from ..arrays.joined import join_small
from ..arrays.numerics import (
    every_finite,
    has_dtype,
    is_numeric,
    reduce_scalars,
    upcast,
)
from ..arrays.precision import is_inexact
from ..base import (
    ArrayTree,
    EmptyState,
    MaskedNode,
    OptState,
    Params,
    TransformationLike,
    Updates,
    as_array,
    is_array,
    require_transformation,
)
from ..base.node import Transformation
from ..functions.calls import explain_misuse
from ..trees import errors
from ..trees.apply import apply_updates, map_pairs
from ..trees.packed import Packed
from ..xla import branch
from . import Gradients, has_no_gradient, is_float0


T = TypeVar("T")


def _unchanged(g, *row):
    return g


def map_gradients(
    f: Callable,
    updates: Updates,
    /,
    *,
    idle: Callable = _unchanged,
    **others: ArrayTree,
) -> ArrayTree:
    """`f` of each gradient and of the corresponding leaves of the other trees.

    idle: called instead of `f`, with the same arguments, for a leaf without a gradient,
        which is `None` or float0.
    others: trees like `updates`, by their names in errors.

    Raises a `ValueError` that names the path where structures or shapes differ.
    """
    # Not `jax.tree.map`: its errors name neither the tree nor the path, and `f` would
    # broadcast arrays of another shape.
    gradients = Gradients(updates, None)
    columns = {name: gradients.leaves_of(tree, name) for name, tree in others.items()}
    rows = zip(gradients.leaves, *columns.values(), strict=True)
    out = []
    for i, (g, *xs) in enumerate(rows):
        if has_no_gradient(g):
            out.append(idle(g, *xs))
            continue
        for name, x in zip(columns, xs, strict=True):
            if not isinstance(x, jax.Array) or x.shape != g.shape:
                _check(gradients, i, name, x)
        out.append(f(g, *xs))
    return gradients.treedef.unflatten(out)


def _check(gradients: Gradients, i: int, name: str, x: ArrayTree) -> None:
    if not is_array(x):
        raise ValueError(
            f"there is a gradient at {gradients.path(i)}, but no array in `{name}`: "
            "did the parameter exist when `init` was called?"
        )
    gradients.check_shape(i, jnp.shape(x), f"`{name}`")


def require_floats(name: str, updates: Updates, params: Params = None) -> None:
    """Raise a `TypeError` for an integer gradient of an integer parameter."""
    gradients = Gradients(updates, params)
    for i, g in enumerate(gradients.leaves):
        # Python's integers are weakly typed, and treated like other scalars.
        if has_no_gradient(g) or is_inexact(g) or jax.typeof(g).weak_type:
            continue
        if params is None or not is_inexact(jnp.asarray(gradients.params[i])):
            raise errors.not_floating(name, gradients.path(i), g.dtype)


def check_gradients(updates: Updates, /, **others: ArrayTree) -> None:
    """Raise like `map_gradients` if the other trees do not fit."""
    map_gradients(_unchanged, updates, **others)


def zeros_like_updates(updates: Updates) -> Updates:
    """Updates that change nothing."""
    return map_gradients(jnp.zeros_like, updates)


def is_absent(x: object) -> bool:
    """Whether there is no gradient or parameter in a place of a tree."""
    return x is None or isinstance(x, MaskedNode)


def keep_dtypes(new: T, old: T) -> T:
    """`new` with the dtypes of `old`, strongly typed, where both have arrays."""

    # A state that changed its dtypes, or became weakly typed, could not be carried
    # through a `lax.scan`, and `jit` would trace the second step again.
    def one(x, was):
        if not is_numeric(x) or not is_array(x) or not has_dtype(was):
            return x
        # Nearly always alike, which is found sooner than converted outside of `jit`.
        is_alike = isinstance(x, jax.Array) and x.dtype == was.dtype
        if is_alike and not x.weak_type:
            return x
        return jax.lax.convert_element_type(x, was.dtype)

    try:
        wanted = jax.tree.structure(new).flatten_up_to(old)
    except (ValueError, TypeError):
        # The two trees only differ if the state was not made by this optimizer.
        error = errors.mismatch("state", old, "what a step makes of it", new)
        hint = "was this state made by another optimizer?"
        raise ValueError(f"{error}; {hint}") from None
    leaves, treedef = jax.tree.flatten(new)
    return treedef.unflatten(map(one, leaves, wanted))


def branch_step(
    is_accepted: ArrayLike,
    step: Callable[[], tuple[Updates, OptState]],
    updates: Updates,
    state: OptState,
) -> tuple[Updates, OptState]:
    """`step()` if it is accepted, otherwise zeros and the unchanged state.

    updates: arrays in the dtypes of its updates.
    """

    # Both sides of a `lax.cond` must have the same dtypes.
    def go():
        return keep_dtypes(step(), (updates, state))

    return branch(is_accepted, go, lambda: (zeros_like_updates(updates), state))


def map_stored(
    f: Callable,
    stored: ArrayTree,
    name: str,
    params: Params,
    is_stored: Callable[[jax.Array], bool] = is_inexact,
) -> Params:
    """`f(x, p)` where a state has a floating-point array x for p, otherwise p.

    name: the name of `stored` in the state, for errors.
    is_stored: which arrays count, instead of floating-point ones.

    Raises a `ValueError` that names the path where structures or shapes differ.
    """

    def leaf(path, x, p):
        if not has_dtype(x) or not is_stored(x):
            return p
        if jnp.shape(p) != jnp.shape(x):
            raise ValueError(
                f"`params` has shape {jnp.shape(p)} at {keystr(path) or 'the root'}, "
                f"but `{name}` in the state has {x.shape}"
            )
        return f(x, jnp.asarray(p))

    xs, treedef = tree_flatten_with_path(stored, is_leaf=is_absent)
    ps = errors.matched(treedef, "params", params, f"`{name}`", lambda: stored)
    pairs = zip(xs, ps, strict=True)
    return treedef.unflatten(leaf(path, x, p) for (path, x), p in pairs)


def all_finite(updates: Updates) -> jax.Array:
    """Whether all elements of a tree are finite; true for an empty one."""
    leaves = [as_array(x) for x in jax.tree.leaves(updates) if not is_float0(x)]
    return _all(list(map(_finite, join_small(leaves))))


# Jitted, so that outside of `jit` a leaf is one program, and not one per operation.
@jax.jit
def _finite(x):
    return every_finite(upcast(x))


@jax.jit
def _all(flags):
    return reduce_scalars(flags, jnp.logical_and, jnp.all) if flags else jnp.array(True)


# A loss that is NaN makes all gradients NaN, and models have more elements than an
# int32 can count: the counts saturate, where a sum would wrap around.
_MOST = jnp.iinfo(jnp.int32).max


@jax.jit
def _not_finite(x):
    # Unsigned, as a single array may have more than 2^31 elements.
    number = jnp.sum(~jnp.isfinite(x), dtype=jnp.uint32)
    return jnp.minimum(number, jnp.uint32(_MOST)).astype(jnp.int32)


@jax.jit
def _total(counts):
    # Compared before it is added: m + n may overflow.
    return ft.reduce(
        lambda m, n: jnp.where(m > _MOST - n, jnp.int32(_MOST), m + n),
        counts,
        jnp.zeros([], jnp.int32),
    )


def count_not_finite(updates: Updates) -> jax.Array:
    """The number of NaN or infinite elements of a tree, at most 2^31 - 1."""
    leaves = [x for x in jax.tree.leaves(updates) if not is_float0(x)]
    return _total([_not_finite(as_array(x)) for x in leaves])


# Classes, besides `Transformation`, whose `take_step` is a fused step.
_CLASSES: set[type] = set()


def steps_in_one(cls: type[T]) -> type[T]:
    """Let `step` call `take_step` of a class, with the signature of a closure's."""
    _CLASSES.add(cls)
    return cls


@explain_misuse
def step(
    tx: TransformationLike,
    gradients: Updates,
    state: OptState,
    params: Params,
    **extra_args: Any,
) -> tuple[Params, OptState]:
    """Take one step: update the state and the parameters in one pass over memory.

        u, state = update(g, state, p),   p = p + u

    Equal to `update` and `apply_updates` bit for bit, except that one rounding is
    saved, because the updates are never stored.

    Donate parameters and state, and return them in the order of the arguments, as in
    `jax.jit(f, donate_argnums=(0, 1))` with `f(params, state, ...)`: XLA pairs donated
    arrays with results in this order, and most steps then need no memory of their own.

    tx: the transformation.  Any transformation works; one without rules of this library
        or a fused step runs its `update`.
    gradients: a tree like `params`; `None` leaves a parameter unchanged.
    state: the result of `tx.init(params)` or of the last step.
    params: a tree of arrays.
    extra_args: keywords for `update`.

    Returns the new parameters and the next state.  Raises the errors of `update`.

    >>> params, state = stepax.step(tx, gradients, state, params)
    """
    require_transformation(tx, "the first argument of `step`")
    if params is None:
        raise ValueError("`step` changes the parameters, but `params` is `None`")
    # By the exact type: an attribute of this name may mean anything in another class,
    # and a subclass may override `update`.
    if type(tx) in _CLASSES:
        return cast(Any, tx).take_step(gradients, state, params, extra_args)
    if type(tx) is Transformation:
        node = tx.node
        if node.take_step:
            return node.take_step(gradients, state, params, extra_args)
        if node.plan and _fits(gradients, params):
            states = state, EmptyState()
            plan = node.plan.applied
            new, (state, _) = plan(gradients, states, params, extra_args)
            return map_pairs(
                lambda p, x, check: p if has_no_gradient(x) else x,
                ("params", "updates"),
                params,
                new,
            ), state
    updates, state = tx.update(gradients, state, params, **extra_args)
    return apply_updates(params, updates), state


def _fits(gradients: Updates, params: Params) -> bool:
    """Whether the results of a pass can be stored as the parameters."""
    if not isinstance(gradients, Packed):
        return not isinstance(params, Packed)
    return isinstance(params, Packed) and params.layout == gradients.layout
