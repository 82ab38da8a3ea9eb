"""Carries a state over to another transformation or to other bits; resets its parts."""

import functools as ft
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.tree_util import keystr, tree_flatten_with_path

from ..arrays.coding import Coded, encoded, is_coded, opened
from ..arrays.joined import grouped
from ..arrays.numerics import is_numeric
from ..arrays.placement import put_on
from ..base import (
    ArrayTree,
    OptState,
    Params,
    TransformationLike,
    is_array,
    require_transformation,
)
from ..functions.calls import explain_misuse
from . import errors, paths, selection
from .paths import NamedTupleKey
from .search import copy_at, get_all_with_path, is_present, rebuilt, why_missing


class Migration(NamedTuple):
    """The result of `migrate`.

    state: the new state.
    fresh: paths in the new state of values that keep their initial value.
    unused: paths in the old state of values that the new state does not use.

    >>> isinstance(stepax.tree.migrate(state, state), stepax.tree.Migration)
    True
    """

    state: OptState
    fresh: tuple[str, ...]
    unused: tuple[str, ...]


class Named(NamedTuple):
    """A leaf of a state.

    names: its path.
    owner: the class of the state that it belongs to, "" in a plain tree.
    own: its path within that state, from the field on; otherwise the whole path.
    where: the keys of the path to that state.
    """

    value: jax.Array
    names: tuple[str, ...]
    owner: str
    own: tuple[str, ...]
    where: tuple = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return jnp.shape(self.value)


@explain_misuse
def migrate(old_state: OptState, new_state: OptState) -> Migration:
    """Carry over values of the same name and shape, regardless of wrappers.

    The name of a value is its field in a state, followed by the path of its parameter:
    `mu/encoder/kernel` is the same whether Adam is alone, in a chain, under a mask or
    in `MultiSteps`.  If several old values have that name, one in a state of the same
    class is preferred, then one at the same path, and then one in the same copy, where
    a wrapper such as `rollback` holds a state twice, otherwise the present one; if
    there are as many in the new state, the one at the same position.  A value that is
    still ambiguous is not carried over.  One old value may be used several times, such
    as the step count of a partition.

    old_state: the state to carry over; plain dictionaries from a checkpoint also work.
    new_state: the result of `init` of the new transformation, which sets structure and
        dtypes.

    Returns the new state, and which values are fresh and which old ones are unused.  If
    all arrays of a state are fresh, so are its scalars: a group of parameters that is
    new starts with the step count 0.  Anything else goes on: schedules, plateaus
    and noise.  Where a group shares a count with others, a warning says what to do.

    >>> new = stepax.chain(stepax.clip(1.0), stepax.adam(0.1)).init(params)
    >>> stepax.tree.migrate(state, new).fresh
    ()
    """
    for state in old_state, new_state:
        errors.refuse_transformation("migrate", state)
    old, new = named(old_state), named(new_state)
    treedef = jax.tree.structure(new_state)
    # Every ending of an old path is a name, so that a state without classes, as it
    # comes from a checkpoint, is found as well.  One pass: states have many leaves.
    by_name = {}
    for leaf in old:
        for i in range(len(leaf.names)):
            by_name.setdefault(leaf.names[i:], []).append(leaf)
    chosen = [_choose(leaf, by_name.get(leaf.own, []), new) for leaf in new]
    _leave_to_nearest(new, chosen)
    renew(new, chosen)
    pairs = list(zip(new, chosen, strict=True))
    used = {id(was) for was in chosen}
    return Migration(
        treedef.unflatten(_carried(was, x) for x, was in pairs),
        tuple("/".join(x.names) for x, was in pairs if was is None),
        tuple("/".join(x.names) for x in old if id(x) not in used),
    )


def _leave_to_nearest(new: Sequence[Named], chosen: list) -> None:
    """Take an array only where the path is most like its own, in each copy of a state.

    A vector of `flatten` has the same name in all groups, whatever is in it.
    """

    def near(i):
        pair = new[i].names, chosen[i].names
        ends = pair, [names[::-1] for names in pair]
        return sum(x == y for a, b in ends for x, y in zip(a, b, strict=False))

    taken = [i for i, was in enumerate(chosen) if was is not None and was.shape]
    place = lambda i: (id(chosen[i]), copy_at(new[i].where))
    for at in grouped(taken, place).values():
        best = max(map(near, at))
        for i in at:
            if near(i) < best:
                chosen[i] = None


# Fields of states that hold scalars by name.
_BY_NAME = ("hyperparams", "measurement", "measurements", "metrics")
# Fields that say whether means and last gradients are those of first steps.
_COUNTS = ("count", "t", "weight", "is_initial_step")


def renew(new: Sequence[Any], chosen: list) -> None:
    """Take nothing for what is beside slots that are all fresh, such as a step count.

    Warns of slots that are fresh beside a count that is not.

    new: the leaves of the new state, with `names`, `own`, `owner` and `shape`.
    chosen: what is carried over to each; `None` if it is fresh.
    """
    late, owned = [], [i for i, x in enumerate(new) if x.owner]
    above = [x.names[: len(x.names) - len(x.own)] for x in new]
    for at in grouped(owned, lambda i: above[i]).values():
        slots = [i for i in at if len(new[i].own) > 1 and new[i].own[0] not in _BY_NAME]
        # A parameter that is the whole tree has no path.
        slots = slots or [i for i in at if new[i].shape]
        fresh = [i for i in slots if chosen[i] is None]
        kept = [i for i in {*at}.difference(slots) if chosen[i] is not None]
        if len(fresh) == len(slots) > 0:
            for i in kept:
                chosen[i] = None
        elif any(new[i].own[0] in _COUNTS for i in kept):
            late += ["/".join(new[i].names) for i in fresh]
    if late:
        text = (
            "these values are new, but the step count beside them is old: "
            f"{errors.list_some(late)}; their bias is not corrected, and first steps "
            "may be several times too large: give new parameters a group of their own "
            "by `partition`, or set the count to 0"
        )
        warnings.warn(text, stacklevel=4)


def named(state: OptState) -> list[Named]:
    """The leaves of a state, or of any tree, in flattening order."""
    return [_named(path, x) for path, x in paths.walk(state)]


def _named(path: tuple, value: jax.Array) -> Named:
    # Parameters may be named tuples, too, but inside of a state; hence the test of
    # names.  The innermost state owns the value: the outer ones are wrappers.
    states = [
        i
        for i, key in enumerate(path)
        if isinstance(key, NamedTupleKey) and errors.is_state(key.tuple_name)
    ]
    names = selection.path_names(path) if path else ()
    if not states:
        return Named(value, names, "", names)
    last = states[-1]
    own = selection.path_names(path[last:])
    return Named(value, names, path[last].tuple_name, own, path[:last])


def _choose(leaf: Named, candidates: list[Named], new: list[Named]) -> Named | None:
    """The old value to carry over; `None` if there is none, or it is ambiguous."""
    # The shape is a condition, the rest a preference: among equals no filter may leave
    # nothing, hence the `or`.
    found = [x for x in candidates if x.shape == leaf.shape]
    found = [x for x in found if x.owner == leaf.owner] or found
    found = [x for x in found if x.names == leaf.names] or found
    if len(found) > 1:
        copy, present = copy_at(leaf.where), [x for x in found if is_present(x.where)]
        found = [x for x in found if copy_at(x.where) == copy] or present
    if len(found) < 2:
        return found[0] if found else None
    alike = [x for x in new if x.own == leaf.own and x.owner == leaf.owner]
    alike = [x for x in alike if copy_at(x.where) == copy_at(leaf.where)]
    # As many on both sides: two Adams in a chain are told apart by their order.
    if len(alike) != len(found):
        return None
    return found[next(i for i, x in enumerate(alike) if x is leaf)]


def _carried(old: Named | None, new: Named) -> jax.Array:
    """The value in the new state, in a new buffer."""
    # One old value may be used twice, and a step that donates its state must not
    # receive a buffer twice.
    if old is None:
        return new.value
    dtype = jnp.result_type(new.value)
    is_key = jnp.issubdtype(dtype, jax.dtypes.extended)
    return jnp.copy(old.value) if is_key else jnp.array(old.value, dtype)


@explain_misuse
def reset(
    tx: TransformationLike,
    state: OptState,
    params: Params,
    where: str | Sequence[str],
) -> OptState:
    """A copy of a state with some parts reset to the values from `tx.init(params)`.

    All other parts are kept, and so are the structure, shapes, dtypes and, outside
    `jit`, devices: a step compiled for the old state also accepts the new one.  Step
    counts are parts, too: the bias of reset moments is corrected only if their count is
    also reset.

    tx: the transformation that the state belongs to.
    state: its state.
    params: the parameters, from which states such as a slow copy restart.
    where: a name or a path pattern, as in `tree.get`, or several: "mu" and "mu/**"
        select all means, "nu/embed/**" selects `nu` of the parameters in `embed`.

    Raises a `KeyError` for a pattern that matches nothing, and lists similar paths; a
    `ValueError` for a state that does not fit `tx` and `params`.

    >>> state = stepax.tree.reset(tx, state, params, where=["mu", "nu", "count"])
    """
    require_transformation(tx, "`tx` of `reset`")
    fresh = tx.init(params)
    if jax.tree.structure(fresh) != jax.tree.structure(state):
        raise errors.mismatch("state", state, "what `tx.init(params)` makes", fresh)
    new = {}
    for pattern in [where] if isinstance(where, str) else where:
        if not (found := get_all_with_path(fresh, pattern)):
            raise KeyError(why_missing(state, pattern))
        new |= {path: ft.partial(_reset, pattern, path, x) for path, x in found}
    return rebuilt(state, new)


def _reset(pattern: str, path: tuple, new: ArrayTree, old: ArrayTree) -> ArrayTree:
    return jax.tree.map(_beside, paths.fitted(pattern, path, old, new), old)


def _beside(x: Any, was: Any) -> Any:
    """`x` on the devices of `was`."""
    is_known = all(isinstance(y, jax.Array) for y in (x, was))
    if not is_known or isinstance(x, Tracer) or isinstance(was, Tracer):
        return x
    return put_on(x, was.sharding) if x.sharding != was.sharding else x


@explain_misuse
def dequantize(state: OptState) -> OptState:
    """A state of `low_bit_states` in full precision, with float32 instead of codes.

    It has the structure of the inner transformation's state, and is accepted by that
    transformation, by Optax's of the same name, by `get` and by `migrate`.

    state: any state, or tree; arrays that are not coded are unchanged.

    >>> state = stepax.low_bit_states(tx, min_size=1).init(params)
    >>> stepax.tree.dequantize(state)[0].mu["b"]
    Array([0., 0.], dtype=float32)
    """

    def one(x):
        is_shape = is_coded(x) and isinstance(x.codes, jax.ShapeDtypeStruct)
        return jax.eval_shape(opened, x) if is_shape else opened(x)

    return jax.tree.map(one, state, is_leaf=is_coded)


@explain_misuse
def quantize(state: OptState, like: OptState) -> OptState:
    """A state in few bits; the inverse of `dequantize`.

    state: a state in full precision, possibly Optax's of the same names.
    like: a state of `low_bit_states`, or `jax.eval_shape(tx.init, params)`, which says
        how each array is stored.

    Raises a `ValueError`, with the path, if structures or shapes differ.

    >>> coded = stepax.low_bit_states(tx, min_size=1).init(params)
    >>> coded = stepax.tree.quantize(state, like=coded)
    """
    given, _ = tree_flatten_with_path(state, is_leaf=is_coded)
    wanted, treedef = tree_flatten_with_path(like, is_leaf=is_coded)
    # By their paths, as the classes of another library differ.
    if [keystr(path) for path, _ in given] != [keystr(path) for path, _ in wanted]:
        raise errors.mismatch("state", dequantize(state), "`like`", dequantize(like))
    pairs = zip(given, wanted, strict=True)
    return treedef.unflatten(_stored(path, x, old) for (path, x), (_, old) in pairs)


def _stored(path: tuple, x: Any, old: Any) -> Any:

    def shape(x):
        return x.shape if is_coded(x) else jnp.shape(x)

    if not (is_coded(x) or is_array(x)) or not (is_coded(old) or is_numeric(old)):
        return x
    if shape(x) != shape(old):
        raise ValueError(
            f"`state` has shape {shape(x)} at {keystr(path) or 'the root'}, but `like` "
            f"has {shape(old)}"
        )
    if is_coded(old):
        return stored_as(x, old)
    return jax.lax.convert_element_type(opened(x), old.dtype)


def stored_as(x: Any, old: Coded) -> Coded:
    """An array in codes, in the form of `old`."""
    if is_coded(x) and x.form == old.form:
        return x
    return encoded(jnp.asarray(opened(x)), old.form)


def stored_like(tree: ArrayTree, like: ArrayTree) -> ArrayTree:
    """`tree`, with arrays coded where `like` has codes, if it has its structure."""
    old, treedef = jax.tree.flatten(like, is_leaf=is_coded)
    found = errors.matched(treedef, "state", tree, "`like`", lambda: dequantize(like))
    pairs = zip(found, old, strict=True)
    return treedef.unflatten(stored_as(x, y) if is_coded(y) else x for x, y in pairs)
