"""Carries a state over when its transformation has changed."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..base.optax_types import COMPATIBLE
from ..base.protocol import OptState
from ..functions.calls import explain_misuse
from . import selection
from .search import NamedTupleKey, open_node


class Migration(NamedTuple):
    """What `migrate` returns.

    state: the new state.
    fresh: paths in the new state of the values that are as at first.
    unused: paths in the old state of the values that are nowhere in the new one.
    """

    state: OptState
    fresh: tuple[str, ...]
    unused: tuple[str, ...]


class Named(NamedTuple):
    """A leaf of a state.

    names: its path.
    owner: the class of the state that it belongs to, "" in a plain tree.
    own: what follows that in its path, from the field on; else the whole path.
    where: the keys that lead to that state.
    """

    value: Any
    names: tuple[str, ...]
    owner: str
    own: tuple[str, ...]
    where: tuple = ()


@explain_misuse
def migrate(old_state: OptState, new_state: OptState) -> Migration:
    """Carry over what has the same name and shape, whatever is wrapped around it.

    The name of a value is the field of the state that it stands in, and the path of its
    parameter below that: `mu/encoder/kernel` is the same whether Adam stands alone, in
    a chain, under a mask or in `MultiSteps`.  If several old values have the name, the
    one in a state of the same class is meant, then the one at the same path, and else,
    if the new state has as many, the one in the same order; a value that still could be
    one of several is left as it is.  One old value may become several, such as the
    count of steps of a partition.

    old_state: what to carry over; a checkpoint that holds names and no classes will do.
    new_state: from `init` of the new transformation; gives structure and dtypes.

    Returns the new state, and which values are fresh and which old ones were not used.
    """
    old, new = named(old_state), named(new_state)
    treedef = jax.tree.structure(new_state)
    by_name = {}
    for leaf in old:
        for i in range(len(leaf.names)):
            by_name.setdefault(leaf.names[i:], []).append(leaf)
    chosen = [_choose(leaf, by_name.get(leaf.own, []), new) for leaf in new]
    pairs = list(zip(new, chosen, strict=True))
    used = {id(was) for was in chosen}
    return Migration(
        treedef.unflatten(_carried(was, x) for x, was in pairs),
        tuple("/".join(x.names) for x, was in pairs if was is None),
        tuple("/".join(x.names) for x in old if id(x) not in used),
    )


def named(state: Any) -> list[Named]:
    """The leaves of a state, or of any tree, in flattening order."""
    return [_named(path, x) for path, x in _walk(state, ())]


def _walk(node: Any, path: tuple) -> Iterator[tuple[tuple, Any]]:
    if jax.tree_util.all_leaves([node]):
        yield path, node
    for step, x in open_node(node)[0]:
        yield from _walk(x, (*path, step))


def _named(path: tuple, value: Any) -> Named:
    # Parameters may be named tuples, too, inside of a state.
    states = [i for i, key in enumerate(path) if _is_of_state(key)]
    names = selection.path_names(path) if path else ()
    if not states:
        return Named(value, names, "", names)
    last = states[-1]
    own = selection.path_names(path[last:])
    return Named(value, names, path[last].tuple_name, own, path[:last])


def _is_of_state(key: Any) -> bool:
    if not isinstance(key, NamedTupleKey):
        return False
    return key.tuple_name in COMPATIBLE or key.tuple_name.endswith("State")


def _choose(leaf: Named, candidates: list[Named], new: list[Named]) -> Named | None:
    """The old value to carry over; `None` if there is none, or no telling which."""
    shape = jnp.shape(leaf.value)
    found = [x for x in candidates if jnp.shape(x.value) == shape]
    for is_nearer in _same_owner, _same_path:
        found = [x for x in found if is_nearer(x, leaf)] or found
    if len(found) < 2:
        return found[0] if found else None
    alike = [x for x in new if x.own == leaf.own and x.owner == leaf.owner]
    if len(alike) != len(found):
        return None
    return found[next(i for i, x in enumerate(alike) if x is leaf)]


def _same_owner(old: Named, new: Named) -> bool:
    return old.owner == new.owner


def _same_path(old: Named, new: Named) -> bool:
    return old.names == new.names


def _carried(old: Named | None, new: Named) -> Any:
    """A value in a buffer of its own, since another may be made of it, too."""
    if old is None:
        return new.value
    dtype = jnp.result_type(new.value)
    is_key = jnp.issubdtype(dtype, jax.dtypes.extended)
    return jnp.copy(old.value) if is_key else jnp.array(old.value, dtype)
