"""The names of what a checkpoint holds.

A slot, which is an array of a state, is known by the class of the state that it belongs
to, by its field, and by the path of its parameter.  Where it stands in a chain is no
part of its name.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jax.tree_util import SequenceKey

from .._engine.base.optax_types import COMPATIBLE
from .._engine.base.protocol import is_array
from .._engine.trees import selection
from .._engine.trees.errors import list_some
from .._engine.trees.migrate import named
from .values import kind_of, shape_and_dtype


class Entry(NamedTuple):
    """An array, by its names.

    names: its path in the tree that it is from.
    where: the names, without numbers, on the way to the state that it belongs to.
    owner: the class of that state; "" for a parameter, or if it is not known.
    own: its path in that state; the whole path if there is none.
    shape, dtype: of the array; a random key has a dtype of its own.
    digest: of its numbers; `None` if they are not known.
    kind: whose value it was, see `values.kind_of`.
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

    def __str__(self) -> str:
        own = "/".join(self.own) or "the root"
        return f"`{self.owner}.{own}`" if self.owner else f"`{own}`"


def entries(tree: Any) -> list[Entry]:
    """One for each array of a tree without packed ones, in flattening order.

    Raises ValueError if two have one name.
    """
    return [x for x, _ in arrays_of(tree)]


def arrays_of(tree: Any) -> list[tuple[Entry, Any]]:
    """The same, each with its array."""
    found = [(_entry(x), x.value) for x in named(tree) if is_array(x.value)]
    names = [x.key for x, _ in found]
    if len(set(names)) < len(names):
        twice = sorted({x for x in names if names.count(x) > 1})
        listed = list_some(f"`{x}`" for x in twice)
        raise ValueError(
            f"several arrays have the name {listed}, joined from the names on their "
            "paths; rename one of them"
        )
    return found


def _entry(leaf: Any) -> Entry:
    steps = [key for key in leaf.where if not isinstance(key, SequenceKey)]
    where = selection.path_names(steps) if steps else ()
    shape, dtype = shape_and_dtype(leaf.value)
    kind = kind_of(leaf.value)
    return Entry(leaf.names, where, leaf.owner, leaf.own, shape, str(dtype), kind=kind)


Paths = Iterable[tuple[str, ...]]


def rename(
    renamed: Mapping[str, str], params: list[Entry], state: list[Entry]
) -> tuple[list[Entry], list[Entry]]:
    """Parameters and slots under new paths of the parameters.

    renamed: from paths to paths; what is below them moves along.

    Raises ValueError for a path that is none of a parameter, nor leads to one.
    """
    pairs = {_split(old): _split(new) for old, new in renamed.items()}
    known = [x.names for x in params]
    for old in pairs:
        if not any(_begins(path, old) for path in known):
            raise ValueError(
                f"`renamed` has the path `{'/'.join(old)}`, but the parameters of the "
                f"checkpoint are {list_some(params)}"
            )
    new = {path: _renamed(path, pairs) for path in known}

    def one(x: Entry) -> Entry:
        path = param_of(x, new)
        if path is None:
            return x
        swap = lambda names: (*names[: len(names) - len(path)], *new[path])
        return x._replace(names=swap(x.names), own=swap(x.own))

    return [one(x) for x in params], [one(x) for x in state]


def _split(path: str) -> tuple[str, ...]:
    return tuple(path.strip("/").split("/")) if path else ()


def _begins(path: tuple, start: tuple) -> bool:
    return path[: len(start)] == start


def _renamed(path: tuple, pairs: Mapping[tuple, tuple]) -> tuple:
    found = [old for old in pairs if _begins(path, old)]
    if not found:
        return path
    old = max(found, key=len)
    return (*pairs[old], *path[len(old) :])


def param_of(entry: Entry, params: Iterable[tuple]) -> tuple | None:
    """The path of the parameter that an array belongs to, if its path ends with it."""
    params = params if isinstance(params, Mapping) else set(params)
    ends = (entry.own[i:] for i in range(len(entry.own) + 1))
    return next((end for end in ends if end in params), None)


def adopt(old: list[Entry], new: list[Entry]) -> list[Entry]:
    """Slots without a class get that of the slots in `new` that they are like.

    A plain tree has the names of fields only: a node with the fields of one class in
    `new`, and of no other, is taken for one of that class, and else a slot for the one
    with the very same path.
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
    """For each node in the tree of `old`, the classes in `new` that it may be of."""
    used, below = {}, {}
    for x in new:
        if x.owner:
            used.setdefault(x.owner, set()).add(x.own[0])
    for x in old:
        for i, name in enumerate(x.names):
            below.setdefault(x.names[:i], set()).add(name)

    def is_like(owner: str, names: set[str]) -> bool:
        kind = COMPATIBLE.get(owner)
        allowed = used[owner] if kind is None else {*getattr(kind, "_fields", ())}
        return used[owner] <= names <= allowed

    return {
        node: [owner for owner in used if is_like(owner, names)]
        for node, names in below.items()
    }
