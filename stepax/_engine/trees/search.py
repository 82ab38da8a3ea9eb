"""Finds and replaces values in a state by name, and maps over those like parameters.

A value is named by the field of a named tuple, or the key of a dict, that it stands in,
and a named tuple also by its class.  Fields and classes of other nodes, such as Equinox
modules and registered dataclasses, are names too, but only where nothing else has the
name: Optax does not see them, so what it finds without doubt must be found here.

`set` replaces all that `get_all_with_path` finds; Optax's leaves alone most of what is
more than one level below another value of the name, and takes any value.

What names nothing, but has a "/" or a "*" in it, is a path; see `paths`.
"""

import dataclasses
import difflib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeAlias

import jax
from jax.tree_util import DictKey, GetAttrKey, tree_flatten_with_path

from ..base.protocol import MaskedNode
from ..functions.calls import explain_misuse
from . import paths
from .errors import describe, list_some


@dataclass(frozen=True)
class NamedTupleKey:
    """One step of a path: a field of a named tuple.

    tuple_name: the name of the tuple's class.
    name: the name of the field.
    """

    tuple_name: str
    name: str

    def __str__(self) -> str:
        return f"{self.tuple_name}.{self.name}"


Path: TypeAlias = tuple[Any, ...]  # of the keys of `jax.tree_util`, and our own
Filter: TypeAlias = Callable[[Path, Any], bool]


@explain_misuse
def get_all_with_path(
    tree: Any, key: Any, filtering: Filter | None = None
) -> list[tuple[Path, Any]]:
    """All values of one name, with their paths.

    tree: any tree, such as the state of an optimizer.
    key: the field of a named tuple, the key of a dict, or the name of a class; or a
        path, with the patterns of masks, as in "mu/encoder/kernel" or "nu/**/bias".
    filtering: called with a path and a value; those for which it is false are left out.
        Steps of a path are the keys of `jax.tree_util`, and `NamedTupleKey`.
    """
    for kind in _NAMED, _OTHER:
        found = dict(_search(tree, (), key, kind))
        if filtering is not None:
            found = {path: x for path, x in found.items() if filtering(path, x)}
        if found:
            return list(found.items())
    if not paths.is_path(key):
        return []
    along = paths.find(tree, key, open_node)
    return [(p, x) for p, x in along if filtering is None or filtering(p, x)]


@explain_misuse
def get(
    tree: Any, key: Any, default: Any = None, filtering: Filter | None = None
) -> Any:
    """The value of one name, or at one path.

    tree: any tree, such as the state of an optimizer.
    key: the field of a named tuple, the key of a dict, or the name of a class; or a
        path, with the patterns of masks, as in "mu/encoder/kernel".  It starts at the
        root, or else anywhere.
    default: returned if there is no such value.
    filtering: called with a path and a value; those for which it is false are left out.

    Raises KeyError if there are several, and lists their paths, and for a path without
    a default that begins with a name of the tree and leads nowhere.
    """
    found = get_all_with_path(tree, key, filtering)
    if len(found) > 1 and paths.is_path(key):
        raise paths.several(key, found, "`get_all_with_path` returns them all")
    if len(found) > 1:
        raise KeyError(
            f"`{key}` names {len(found)} values, at {_show(found)}; "
            "choose one by `filtering`, a function of path and value"
        )
    if not found and default is None and paths.is_path(key) and filtering is None:
        # Optax returns `None` for any string, also one that may be a typing error.
        if get_all_with_path(tree, key.split("/")[0]):
            raise KeyError(paths.why_missing(tree, key))
    return found[0][1] if found else default


@explain_misuse
def set(tree: Any, filtering: Filter | None = None, /, **kwargs: Any) -> Any:
    """A copy of a tree in which all values of some names are replaced.

    tree: any tree, such as the state of an optimizer.
    filtering: called with a path and a value; those for which it is false are kept.
    kwargs: the names and their new values, as in `learning_rate=3e-4`, or paths, as in
        `**{"mu/encoder/kernel": x}`.  Where one value contains another, the outer one
        is replaced.  A new value must have the structure and the shapes of what was
        there, and gets its dtypes, weak types and devices, so that a step that is
        compiled for a state also takes the new one.  As in Optax, the integers of a
        random key may stand in place of a typed one, and at a bare name anything may be
        put into plain containers without named tuples, which are no state.

    Raises KeyError if a name or path is not in the tree, and lists similar ones, or if
    a path without "*" leads to several values; ValueError and TypeError for a value
    that does not fit there.
    """
    new = {}
    for key, value in kwargs.items():
        for path in _places(tree, key, filtering):
            new.setdefault(path, (key, value))
    above = {path[:i] for path in new for i in range(len(path))}

    def replace(path, node):
        if path in new:
            return _replacement(path, node, *new[path])
        if path not in above:
            return node
        children, treedef = open_node(node)
        return treedef.unflatten(replace((*path, key), x) for key, x in children)

    return replace((), tree)


def _places(tree: Any, key: str, filtering: Filter | None) -> list[Path]:
    """Where the values of a name or path are."""
    found = [path for path, _ in get_all_with_path(tree, key, filtering)]
    if not found:
        raise KeyError(_why_missing(tree, key))
    if len(found) > 1 and "*" not in key and not _is_name(found[0], key):
        listed = [(path, None) for path in found]
        raise paths.several(key, listed, 'begin with more names, or with "**"')
    return found


def _replacement(path: Path, old: Any, key: str, value: Any) -> Any:
    if _is_name(path, key) and not _is_state(path, old):
        return value
    return paths.replacement(key, path, old, value)


def _is_state(path: Path, value: Any) -> bool:
    """Whether a value is in a named tuple, or holds one, as in states."""
    within = any(isinstance(k, NamedTupleKey) for k in path)
    below = jax.tree.leaves(value, is_leaf=_is_named_tuple)
    return within or any(map(_is_named_tuple, below))


def _is_name(path, key):
    """Whether a key is a name, perhaps one that looks like a path."""
    return not paths.is_path(key) or (bool(path) and _label(path[-1]) == key)


def open_node(node):
    """What is one level below a node, with keys, and how to close it again."""
    below, treedef = tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    children = [(path[0], x) for path, x in below if path]
    if _is_named_tuple(node):
        children = [(_of_tuple(node, key), x) for key, x in children]
    return children, treedef


def _of_tuple(node, key):
    is_field = isinstance(key, GetAttrKey)
    return NamedTupleKey(type(node).__name__, key.name) if is_field else key


def _is_named_tuple(x):
    return isinstance(x, tuple) and hasattr(x, "_fields")


# Which nodes are named by their class, and which steps of a path name a value.
_NAMED = _is_named_tuple, (NamedTupleKey, DictKey)
_OTHER = dataclasses.is_dataclass, (GetAttrKey,)


def _search(tree: Any, path: Path, key: Any, kind: Any) -> Iterator[tuple[Path, Any]]:
    """Paths and values in Optax's order: what nodes have, and then what is in them."""
    nodes = list(_first_nodes(tree, path, key, kind))
    for _, _, found in nodes:
        yield from found
    for path, node, _ in nodes:
        for step, x in open_node(node)[0]:
            yield from _search(x, (*path, step), key, kind)


def _first_nodes(tree, path, key, kind):
    """The outermost nodes that are or have what is searched, and what that is."""
    is_named_by_class, steps = kind
    children = open_node(tree)[0]
    here = [(step, x) for step, x in children if isinstance(step, steps)]
    found = [((*path, step), x) for step, x in here if _label(step) == key]
    if is_named_by_class(tree) and type(tree).__name__ == key:
        found.insert(0, (path, tree))
    if found:
        yield path, tree, found
        return
    for step, x in children:
        yield from _first_nodes(x, (*path, step), key, kind)


def _label(step):
    return step.key if isinstance(step, DictKey) else getattr(step, "name", None)


def _show(found):
    """Paths as one would write them in Python, and whose field each is."""
    return list_some(f"`{_spell(path)}`" for path, _ in found)


def _spell(path):
    steps = [f".{k.name}" if isinstance(k, NamedTupleKey) else str(k) for k in path]
    owner = path[-1].tuple_name if path and isinstance(path[-1], NamedTupleKey) else ""
    return "".join(steps) + (f" of {owner}" if owner else "") or "the root"


def _why_missing(tree, key):
    found = get_all_with_path(tree, key)
    if found:
        return f"`filtering` leaves out every `{key}`, at {_show(found)}"
    if paths.is_path(key):
        return paths.why_missing(tree, key)
    near = difflib.get_close_matches(key, dict.fromkeys(_names(tree)), cutoff=0)
    known = f"the nearest names are {list_some(f'`{x}`' for x in near)}"
    return f"no value is named `{key}`; {known if near else 'the tree has no names'}"


def _names(tree):
    """All names in a tree, with repetitions."""
    if _is_named_tuple(tree):
        yield type(tree).__name__
    for step, x in open_node(tree)[0]:
        if isinstance(step, NamedTupleKey | DictKey | GetAttrKey):
            yield str(_label(step))
        yield from _names(x)


@jax.tree_util.register_static
class _Placeholder:
    """Given to `init` for parameters: where it comes out again, the state has some."""


def _placeholder() -> Any:
    """Optax's placeholder if Optax is loaded: its masks, given as trees, know no other.

    Its class is private, but its own `tree_map_params` hands an instance out.
    """
    given = []
    theirs = getattr(sys.modules.get("optax"), "tree_map_params", map_params)
    if theirs is not map_params:
        theirs(SimpleNamespace(init=given.append), lambda x: x, None)
    return given[0] if given else _Placeholder()


def parts_like_params(initable: Any) -> tuple[list[str | None], Any]:
    """The parts of a state, in order, and its structure with these as leaves.

    Of a part that is shaped as the parameters the field is returned, of others `None`.
    """
    placeholder = _placeholder()
    is_place = lambda x: type(x) is type(placeholder)
    state = initable.init(placeholder)
    parts, treedef = tree_flatten_with_path(state, is_leaf=is_place)
    return [_field(path) if is_place(x) else None for path, x in parts], treedef


def _field(path):
    """The last name on a path, "" if there is none."""
    named = [k for k in path if isinstance(k, GetAttrKey | DictKey)]
    return str(_label(named[-1])) if named else ""


@explain_misuse
def map_params(
    initable: Any,
    f: Callable,
    state: Any,
    /,
    *rest: Any,
    transform_non_params: Callable | None = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Map a function over those parts of a state that are shaped as the parameters.

    f(value, *leaves of rest)    at each parameter, in each such part
    transform_non_params(value)  elsewhere

    initable: the transformation that made the state, or its `init`.
    f: gets a value of the state and the leaves of `rest` of the same parameter.
    state: the state.
    rest: trees of the structure of the parameters, such as specs of a sharding.
    transform_non_params: `None` leaves the rest of the state as it is.
    is_leaf: as in `jax.tree.map`; where it is true of a `MaskedNode`, `f` sees that,
        else masked parameters stay masked.

    Raises ValueError if the state was made by another transformation.
    """
    init = getattr(initable, "init", initable)
    if not callable(init):
        raise TypeError(
            f"`initable` is {describe(initable)}, expected a gradient "
            "transformation or an `init` function"
        )
    placeholder = _placeholder()
    is_place = lambda x: type(x) is type(placeholder)
    places, treedef = jax.tree.flatten(init(placeholder), is_leaf=is_place)
    try:
        values = treedef.flatten_up_to(state)
    except (ValueError, TypeError) as error:
        raise ValueError(
            "`state` differs from what `initable` makes; give the transformation "
            f"that made it ({error})"
        ) from None

    def stop(x):
        return isinstance(x, MaskedNode) or (is_leaf is not None and is_leaf(x))

    def leaf(x, *others):
        is_asked = is_leaf is not None and is_leaf(x)
        return x if isinstance(x, MaskedNode) and not is_asked else f(x, *others)

    def part(place, value):
        if is_place(place):
            return jax.tree.map(leaf, value, *rest, is_leaf=stop)
        return value if transform_non_params is None else transform_non_params(value)

    return treedef.unflatten(map(part, places, values))
