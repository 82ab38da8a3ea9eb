"""The names of the arrays in a checkpoint.

A slot, that is, an array of a state, is identified by the class of its state, its
field, and the path of its parameter.  Its position in a chain is not part of its name.
"""

from collections import Counter
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from jax.tree_util import SequenceKey

from .._engine.base import COMPATIBLE, ArrayTree, OptState, Params, is_array
from .._engine.trees import selection
from .._engine.trees.errors import describe, fields_of, holds_state, list_some
from .._engine.trees.migrate import named
from .._engine.trees.pack import unpack
from .values import is_finite, kind_of, shape_and_dtype


class Entry(NamedTuple):
    """The name and description of an array.

    names: its path in its tree.
    where: the names, without indices, on the path to the state that it belongs to.
    owner: the class of that state; "" for a parameter, or if unknown.
    own: its path in that state; the whole path if there is no state.
    shape, dtype: shape and dtype of the array; random keys have a dtype of their own.
    digest: digest of its values; `None` if they are not known.
    kind: the library of the value, see `values.kind_of`.
    """

    names: tuple[str, ...]
    where: tuple[str, ...]
    owner: str
    own: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    digest: int | None = None
    kind: str = ""

    @property
    def key(self) -> str:
        """The name under which it is stored."""
        return "/".join(self.names)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names above its state that are no fields of states."""
        return labels_of(self.where)

    @property
    def key_kind(self) -> str:
        """The implementation of random keys; "" for other arrays."""
        return self.dtype[4:-1] if self.dtype.startswith("key<") else ""

    @property
    def is_coded(self) -> bool:
        """Whether its name is that of a part of a slot in few bits."""
        return bool(self.owner) and self.own[-1:] in (("codes",), ("scales",))

    @property
    def is_remainder(self) -> bool:
        """Whether its name is that of a master weight, or of a remainder's array."""
        is_part = self.own[-1:] in (("rounded",), ("remainder",))
        return self.owner == "MasterWeightsState" or bool(self.owner) and is_part

    def __str__(self) -> str:
        own = "/".join(self.own) or "the root"
        if not self.owner:
            return f"`{own}`"
        labels = "/".join(self.labels)
        return f"`{self.owner}.{own}`" + (f" under `{labels}`" if labels else "")


def labels_of(where: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(x for x in where if not x.endswith(("_state", "_states")))


def entries(tree: ArrayTree) -> list[Entry]:
    """One entry for each array of a tree, unpacked, in flattening order."""
    return [x for x, _ in arrays_of(tree)]


def arrays_of(tree: ArrayTree) -> list[tuple[Entry, Any]]:
    """The entries, each with its array."""
    leaves = named(unpack(tree))
    found = [(_entry(x), x.value) for x in leaves if is_array(x.value)]
    names = [x.key for x, _ in found]
    if len(set(names)) < len(names):
        twice = sorted(x for x, n in Counter(names).items() if n > 1)
        listed = list_some(f"`{x}`" for x in twice)
        raise ValueError(
            f"several arrays have the name {listed}, joined from the names on their "
            "paths; rename one of them"
        )
    return found


def _entry(leaf: Any) -> Entry:
    where, kind = where_of(leaf.where), kind_of(leaf.value)
    shape, dtype = shape_and_dtype(leaf.value)
    return Entry(leaf.names, where, leaf.owner, leaf.own, shape, str(dtype), kind=kind)


def where_of(path: tuple) -> tuple[str, ...]:
    """The names on a path, without indices."""
    keys = [key for key in path if not isinstance(key, SequenceKey)]
    return selection.path_names(keys) if keys else ()


def rename(
    renamed: Mapping[str, str], params: list[Entry], state: list[Entry]
) -> tuple[list[Entry], list[Entry]]:
    """Move parameters, all below them, and their slots from old paths to new ones.

    The label of a group, or of another part of a state, may be renamed as well.
    """
    if not isinstance(renamed, Mapping):
        raise TypeError(
            f"`renamed` is {describe(renamed)}, expected a dict from old to new paths"
        )
    pairs = {_split(old, renamed): _split(new, renamed) for old, new in renamed.items()}
    known = [x.names for x in params]
    starts = {path[:i] for path in known for i in range(len(path) + 1)}
    labels = {(label,) for x in state for label in x.labels} - starts
    for old in pairs:
        if old not in starts | labels:
            raise ValueError(
                f"`renamed` has the path `{'/'.join(old)}`, but the parameters of the "
                f"checkpoint are {list_some(params)}"
            )
    new = {path: _renamed(path, pairs) for path in known}
    moved = {old[0]: "/".join(pairs[old]) for old in pairs if old in labels}

    def one(x: Entry) -> Entry:
        x = x._replace(where=tuple(moved.get(k, k) for k in x.where))
        path = param_of(x, new)
        if path is None:
            return x
        is_end = x.own[len(x.own) - len(path) :] == path
        tail = () if is_end else x.own[-1:]
        most = len(path) + len(tail)
        ends = (*new[path], *tail)
        names, own = ((*xs[: len(xs) - most], *ends) for xs in (x.names, x.own))
        return x._replace(names=names, own=own)

    return [one(x) for x in params], [one(x) for x in state]


def _split(path: Any, renamed: Mapping) -> tuple[str, ...]:
    if not isinstance(path, str):
        raise TypeError(
            f"`renamed` is {dict(renamed)}, expected strings: paths, such as `a/kernel`"
        )
    return tuple(path.strip("/").split("/")) if path else ()


def _renamed(path: tuple, pairs: Mapping[tuple, tuple]) -> tuple:
    """A path with its longest prefix that is in `pairs` replaced."""
    lengths = reversed(range(len(path) + 1))
    i = next((i for i in lengths if path[:i] in pairs), None)
    return path if i is None else (*pairs[path[:i]], *path[i:])


def param_of(entry: Entry, params: Container[tuple]) -> tuple | None:
    """The path of the parameter that ends the path of an array, or of its codes."""
    owns = [entry.own, entry.own[:-1]] if entry.is_coded else [entry.own]
    ends = (own[i:] for own in owns for i in range(len(own) + 1))
    return next((end for end in ends if end in params), None)


def adopt(old: list[Entry], new: list[Entry]) -> list[Entry]:
    """Give slots without a class the class of matching slots in `new`.

    A plain tree only has field names: a node with the fields of exactly one class in
    `new` is taken to be of that class; otherwise a slot is matched by its exact path.
    """
    if all(x.owner for x in old):
        return old
    owners, by_path = _owners(old, new), {x.names: x for x in new}

    def one(x: Entry) -> Entry:
        for i in reversed(range(len(x.names))):
            if not x.owner and len(found := owners[x.names[:i]]) == 1:
                where = tuple(k for k in x.names[:i] if not k.isdigit())
                return x._replace(owner=found[0], own=x.names[i:], where=where)
        like = x if x.owner else by_path.get(x.names, x)
        return x._replace(owner=like.owner, own=like.own, where=like.where)

    return [one(x) for x in old]


def _owners(old: list[Entry], new: list[Entry]) -> dict[tuple, list[str]]:
    """For each node in the tree of `old`, its possible classes in `new`."""
    used, below = {}, {}
    for x in new:
        if x.owner:
            used.setdefault(x.owner, set()).add(x.own[0])
    for x in old:
        for i, name in enumerate(x.names):
            below.setdefault(x.names[:i], set()).add(name)

    def is_like(owner: str, names: set[str]) -> bool:
        kind = COMPATIBLE.get(owner)
        allowed = used[owner] if kind is None else {*(fields_of(kind) or ())}
        return used[owner] <= names <= allowed

    return {
        node: [owner for owner in used if is_like(owner, names)]
        for node, names in below.items()
    }


def require_order(params: Params, state: OptState) -> None:
    """Raise if `params` is a state and `state` looks like its parameters.

    Both are required, because a tree that contains states, such as a train state, may
    be saved as parameters.
    """
    if not holds_state(params) or holds_state(state):
        return
    slots = entries(params)
    given = [x for x in entries(state) if not x.key_kind]
    has_values = any(x.owner == "" or x.own[1:] for x in slots)
    mirrored = {(x.own[1:], x.shape) for x in slots if x.owner}
    if given and (all((x.names, x.shape) in mirrored for x in given) or not has_values):
        raise ValueError(
            "`params` is the state of a transformation, and `state` is not: the order "
            "is `save(directory, step, params, state)`"
        )


def require_finite(trees: Mapping[str, ArrayTree]) -> None:
    """Raise for NaN and infinities, except for infinite scalars of a state."""
    rows = [(name, x, a) for name, t in trees.items() for x, a in arrays_of(t)]
    if found := [
        f"`{x.key}` of `{name}`"
        for name, x, a in rows
        if not is_finite(x.key, a, or_infinite=name == "state" and not x.shape)
    ]:
        raise ValueError(
            f"not finite: {list_some(found)}; nothing is saved: go on from the last "
            "step, or save with `finite=False`"
        )
