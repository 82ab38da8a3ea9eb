"""Reads what states keep for the parameters, such as their averages.

A state may hold another one twice: `rollback` keeps a copy of it, and `sam` has a
second optimizer.  What is read is the one that belongs to the present parameters, and
for each parameter there has to be a single one.
"""

import itertools as it
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from .._engine import rules as rx
from .._engine.arrays.moments import is_number
from .._engine.arrays.precision import widen
from .._engine.trees.search import Path, is_present, spell
from .flatten import as_params


def found_in(
    state: rx.OptState, name: str, fields: tuple[str, ...] = ()
) -> list[tuple[Path, Any]]:
    """The states of a class, with their paths, but for those that are kept aside.

    name: that of the class.
    fields: those that make `state` itself one, if its class has another name.
    """
    found = rx.get_all_with_path(state, name, is_present)
    is_one = fields and {*fields}.issubset(rx.errors.fields_of(state) or ())
    return [((), state)] if is_one and not found else found


def present(
    caller: str, State: Any, state: rx.OptState, fields: tuple[str, ...] = ()
) -> list[tuple[Path, Any]]:
    """As `found_in`; raises if there is none."""
    if found := found_in(state, State.__name__, fields):
        return found
    raise rx.errors.foreign_state(caller, State, state)


def stored_in(
    caller: str, found: list, read: Callable[[Any], rx.ArrayTree], params: rx.Params
) -> list:
    """What states with paths store for the parameters, each of which only one may."""
    trees = [as_params(read(x), params) for _, x in found]
    for (path, _), tree in zip(found, trees, strict=True):
        if rx.is_array(tree) and not rx.is_array(params):
            raise ValueError(
                f"`{caller}`: the state at {spell(path)} is of those parameters that "
                "`flatten` joins inside of a mask; pass its part of the state, with a "
                "tree of these parameters alone"
            )
    held = [{path for path, _ in jax.tree.leaves_with_path(tree)} for tree in trees]
    for i, j in it.combinations(range(len(held)), 2):
        if held[i] & held[j]:
            a, b = found[i][0], found[j][0]
            raise ValueError(
                f"`{caller}`: the states at {spell(a)} and {spell(b)} are of the same "
                "parameters; pass the part of the state that has one of them"
            )
    return trees


class Reader(NamedTuple):
    """How an optimizer evaluates.

    fields: those of its state by which one of another class is known.
    read: (state, params, wide, name) -> the parameters for evaluation, in the dtypes of
        `wide`; the state is of `params`.
    has_names: whether there may be several, by name.
    """

    fields: tuple[str, ...]
    read: Callable[[rx.OptState, rx.Params, rx.Params, str | None], rx.Params]
    has_names: bool = False


# By the names of the classes of states.
READERS: dict[str, Reader] = {}


@rx.explain_misuse
def eval_params(
    state: rx.OptState,
    params: rx.Params,
    name: str | None = None,
    *,
    blend: rx.ArrayLike = 1.0,
) -> rx.Params:
    """The parameters for evaluation: an average, or the iterate of the optimizer.

        (1 - blend) p + blend x, in the dtypes of the parameters p

    x is the average of `averages`, or what `gpa`, `ema_nesterov`, `schedule_free` and
    `splus` evaluate.  Of other optimizers it is `params`.

    state: a state that holds one of these, anywhere in it.
    params: the parameters in training; leaves for which the state has no x, such as
        integers, are taken from here.
    name: that of the average, if `averages` has several.
    blend: weight of x, usually in [0, 1]; below 1 while the parameters still move,
        which an average follows late.

    Raises a `ValueError` if the state holds two for one parameter, if there are several
    averages and `name` is missing, if there is none of this name, and if the arguments
    are swapped.

    >>> tx = stepax.averages(stepax.sgd(0.1), 0.99)
    >>> stepax.eval_params(tx.init(params), params)["b"]
    Array([0., 0.], dtype=float32)
    """
    rx.errors.refuse_transformation("eval_params", state)
    reader = _reader(state, name)
    if reader is None:
        if rx.errors.holds_state(params) and not rx.errors.holds_state(state):
            raise ValueError(
                "`params` of `eval_params` holds a state, and `state` does not: the "
                "order is `eval_params(state, params)`"
            )
        return params
    if is_number(blend) and blend == 1:
        return reader.read(state, params, params, name)
    wide = jax.tree.map(widened, params)

    def between(p, x, a):
        return (x + blend * (a - x)).astype(p.dtype) if rx.is_inexact(p) else p

    with jax.numpy_dtype_promotion("standard"):
        return jax.tree.map(
            between, params, wide, reader.read(state, params, wide, name)
        )


def _reader(state: rx.OptState, name: str | None) -> Reader | None:
    """What reads this state; `None` if it holds nothing for evaluation."""
    places = {}
    for kind, reader in READERS.items():
        if found := found_in(state, kind, reader.fields):
            places[kind] = found[0][0]
    if name is not None and any(READERS[kind].has_names for kind in places):
        places = {k: at for k, at in places.items() if READERS[k].has_names}
    if len(places) > 1:
        told = " and ".join(f"`{k}` at {spell(at)}" for k, at in places.items())
        raise ValueError(
            f"`eval_params`: the state holds {told}; pass the part of the state whose "
            "parameters are to be evaluated"
        )
    if not places and name is not None:
        raise ValueError(
            f"`eval_params`: the state holds no average, so none named {name!r}: wrap "
            "the optimizer with `averages`"
        )
    return READERS[next(iter(places))] if places else None


def widened(p: rx.ArrayLike) -> jax.Array:
    """A parameter in float32 or wider; unchanged if it is not floating-point."""
    x = rx.as_array(p)
    return widen(x, rx.compute_dtype(x))


def evaluates(
    State: type,
    at: Callable[[jax.Array, jax.Array, rx.ArrayLike], jax.Array],
    fields: tuple[str, str],
) -> None:
    """Let `eval_params` read the states of an optimizer; see `evaluated`."""

    def read(state, params, wide, name):
        if name is not None:
            raise ValueError(
                f"`eval_params`: a `{State.__name__}` has no names, but `name` is "
                f"{name!r}"
            )
        return evaluated("eval_params", State, at, fields, state, params, wide)

    READERS[State.__name__] = Reader(fields, read)


def evaluated(
    name: str,
    State: type,
    at: Callable[[jax.Array, jax.Array, rx.ArrayLike], jax.Array],
    fields: tuple[str, str],
    state: rx.OptState,
    params: rx.Params,
    wide: rx.Params,
) -> rx.Params:
    """`at(p, x, scalar)` for parameters p for which the state has an x.

    name: the name of the calling function, for errors.
    State: the named tuple to look for, anywhere in the state.
    fields: the fields of x and of the scalar.
    params, wide: see `Reader`.

    Raises a `ValueError` if there is no such state, or two for one parameter.
    """
    first, second = fields
    found = present(name, State, state, fields)
    trees = stored_in(name, found, lambda x: getattr(x, first), params)
    for (_, x), stored in zip(found, trees, strict=True):
        scalar = getattr(x, second)
        wide = rx.map_stored(
            lambda x, p, scalar=scalar: at(p, x, scalar), stored, first, wide
        )
    return wide


@rx.computed_wide
def mean_of(y, z, weight):
    """The x for which y = weight x + (1 - weight) z."""
    return z + (y - z) / weight  # exactly y where z = y
