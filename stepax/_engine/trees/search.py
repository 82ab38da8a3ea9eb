"""Finds and replaces values in a state by name, and maps over its parameter-like parts.

The name of a value is its field in a named tuple or its key in a dict; a named tuple
also has the name of its class.  Fields and classes of other nodes, such as Equinox
modules and registered dataclasses, are names too, but only if nothing else has the
name: Optax does not look into these nodes, and a name that is unambiguous there must be
so here.

`set` replaces everything that `get_all_with_path` finds; Optax's skips most values that
are more than one level below another value of the name, and accepts any new value.

A key that is not a name, but contains a "/" or a "*", is a path; see `paths`.
"""

import dataclasses
import difflib
import functools as ft
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.tree_util import DictKey, GetAttrKey

from ..base import ArrayTree, MaskedNode, OptState, TransformationLike, is_array
from ..functions.calls import explain_misuse
from . import paths, selection
from .errors import describe, holds_state, list_some
from .paths import NamedTupleKey, is_named_tuple, label, open_node, walk


Path: TypeAlias = tuple[Any, ...]  # of the keys of `jax.tree_util`, and our own
Filter: TypeAlias = Callable[[Path, Any], bool]
# A function from a node to whether its class names it, and the keys that name a child.
Kind: TypeAlias = tuple[Callable[[object], bool], tuple[type, ...]]


@explain_misuse
def get_all_with_path(
    tree: ArrayTree, key: Hashable, filtering: Filter | None = None
) -> list[tuple[Path, ArrayTree]]:
    """All values with a name, with their paths.

    tree: any tree, such as the state of an optimizer.
    key: the field of a named tuple, the key of a dict, or the name of a class; or a
        path, with the patterns of masks, as in "mu/encoder/kernel" or "nu/**/bias".
    filtering: called with a path and a value; values for which it is false are skipped.
        A path consists of the keys of `jax.tree_util`, and of `NamedTupleKey`s.
    """
    is_meant = (lambda path, x: True) if filtering is None else filtering
    # A dictionary, since one value may be found under two nodes of the name.
    for kind in _NAMED, _OTHER:
        named = dict(_search(tree, (), key, kind))
        if found := [(path, x) for path, x in named.items() if is_meant(path, x)]:
            return found
    # A name may look like a path, such as Haiku's `mlp/~/linear_0`; it comes first.
    along = paths.find(tree, key) if paths.is_path(key) else []
    return [(path, x) for path, x in along if is_meant(path, x)]


@explain_misuse
def get(
    tree: ArrayTree,
    key: Hashable,
    default: ArrayTree = None,
    filtering: Filter | None = None,
) -> ArrayTree:
    """The value with a name, or at a path.

    tree: any tree, such as the state of an optimizer.
    key: the field of a named tuple, the key of a dict, or the name of a class; or a
        path, with the patterns of masks, as in "mu/encoder/kernel".  It starts at the
        root, or otherwise at any depth.
    default: returned if there is no such value.  If it is `None`, a name that is almost
        one in the tree brings a warning.
    filtering: called with a path and a value; values for which it is false are skipped.

    Raises KeyError, with the paths, if there are several values; without a default also
    for a path that starts with a name in the tree but matches nothing.

    >>> stepax.tree.get(state, "mu/b")
    Array([0., 0.], dtype=float32)
    """
    found = get_all_with_path(tree, key, filtering)
    path = key if paths.is_path(key) else ""
    if len(found) > 1 and path:
        raise paths.several(path, found, "`get_all_with_path` returns them all")
    if len(found) > 1:
        raise KeyError(
            f"`{key}` names {len(found)} values, at {_show(found)}; "
            "choose one with `filtering`, a function of path and value"
        )
    if not found and default is None and filtering is None:
        # Optax returns `None` for any string.  One that is almost a name in the tree,
        # or starts with one, is more likely misspelled.
        if path and get_all_with_path(tree, path.split("/")[0]):
            raise KeyError(why_missing(tree, path))
        if not path and difflib.get_close_matches(
            str(key), {*_names(tree)}, cutoff=0.85
        ):
            warnings.warn(f"{why_missing(tree, key)}: returns `None`", stacklevel=3)
    return found[0][1] if found else default


@explain_misuse
def flat(tree: ArrayTree, *, scalars: bool = False) -> dict[str, ArrayTree]:
    """All arrays of a tree by name, each once, for a logger.

    The names are those of `get`: "clip/norm_before" for a metric of `observe` in the
    part `clip` of a `named_chain`, "1/0/mu/encoder/kernel" for a moment.  They and
    their order depend on the structure only.

    tree: any tree, such as the state of an optimizer.
    scalars: whether to return only scalars.

    Raises ValueError if two arrays have the same name because a key contains a "/".

    >>> list(stepax.tree.flat({"layer": {"w": jnp.ones(2)}}))
    ['layer/w']
    """
    found = [(path, x) for path, x in walk(tree) if is_array(x)]
    long = [paths.join(path) for path, _ in found]
    short = ["/".join(paths.short_names(path)) for path, _ in found]
    known = Counter([*long, *(x for x, y in zip(short, long, strict=True) if x != y)])
    names = [x if known[x] == 1 else y for x, y in zip(short, long, strict=True)]
    if twice := [x for x, n in Counter(names).items() if n > 1]:
        raise ValueError(
            f"two arrays have the name `{twice[0]}`, since a key has a `/` in it"
        )
    pairs = zip(names, (x for _, x in found), strict=True)
    return {k: x for k, x in pairs if not scalars or jax.numpy.ndim(x) == 0}


@explain_misuse
def set(
    tree: ArrayTree, filtering: Filter | None = None, /, **kwargs: ArrayTree
) -> ArrayTree:
    """A copy of a tree in which all values with some names are replaced.

    tree: any tree, such as the state of an optimizer.
    filtering: called with a path and a value; values for which it is false are kept.
    kwargs: the names and their new values, as in `learning_rate=3e-4`, or paths, as in
        `**{"mu/encoder/kernel": x}`.  Of nested values, the outermost is replaced.  A
        new value must have the structure and the shapes of the old one, and gets its
        dtypes, weak types and devices, so that a step that is compiled for a state also
        accepts the new one.  As in Optax, the integers of a random key may replace a
        typed key, and a bare name may get any value in plain containers without named
        tuples, which are not states.

    Raises KeyError if a name or path is not in the tree, and lists similar ones, or if
    a path without "*" matches several values; ValueError and TypeError for a value that
    does not fit.

    >>> state = stepax.tree.set(state, count=jnp.int32(10))
    """
    if not (filtering is None or callable(filtering)):
        raise TypeError(
            f"`filtering` of `set` is {describe(filtering)}, expected a function of "
            "path and value; give new values by name, as in `set(state, count=0)`"
        )
    # The first key that matches a value wins, as do earlier patterns of masks.
    new = {}
    for key, value in kwargs.items():
        for path in _places(tree, key, filtering):
            new.setdefault(path, ft.partial(_replaced, key, path, value))
    return rebuilt(tree, new)


def _replaced(key: str, path: Path, value: ArrayTree, old: ArrayTree) -> ArrayTree:
    # Optax puts any value anywhere; in a state that would only fail in the next step.
    within = any(isinstance(k, NamedTupleKey) for k in path)
    below = jax.tree.leaves(old, is_leaf=is_named_tuple)
    if _is_name(path, key) and not (within or any(map(is_named_tuple, below))):
        return value
    return paths.replacement(key, path, old, value)


def rebuilt(tree: ArrayTree, new: Mapping[Path, Callable]) -> ArrayTree:
    """A copy of a tree; `new` has a function of the old value for some paths."""
    # Only nodes on the path to a new value are rebuilt.
    above = {path[:i] for path in new for i in range(len(path))}

    def at(path, node):
        if path in new:
            return new[path](node)
        if path not in above:
            return node
        children, treedef = open_node(node)
        return treedef.unflatten(at((*path, key), x) for key, x in children)

    return at((), tree)


def _places(tree: ArrayTree, key: str, filtering: Filter | None) -> list[Path]:
    """The paths of all values with a name, or at a path."""
    found = [path for path, _ in get_all_with_path(tree, key, filtering)]
    if not found:
        raise KeyError(why_missing(tree, key))
    if len(found) > 1 and "*" not in key and not _is_name(found[0], key):
        listed = [(path, None) for path in found]
        raise paths.several(key, listed, 'begin with more names, or with "**"')
    return found


def _is_name(path, key):
    """Whether a key is a name, perhaps one that looks like a path."""
    return not paths.is_path(key) or (bool(path) and label(path[-1]) == key)


# Which nodes are named by their class, and which steps of a path name a value.
_NAMED = is_named_tuple, (NamedTupleKey, DictKey)
_OTHER = dataclasses.is_dataclass, (GetAttrKey,)


def _search(
    tree: ArrayTree, path: Path, key: Hashable, kind: Kind
) -> Iterator[tuple[Path, ArrayTree]]:
    """Paths and values in Optax's order: those of a level before those below it."""
    nodes = list(_first_nodes(tree, path, key, kind))
    for _, _, found in nodes:
        yield from found
    for path, node, _ in nodes:
        for step, x in open_node(node)[0]:
            yield from _search(x, (*path, step), key, kind)


def _first_nodes(tree, path, key, kind):
    """The outermost nodes that have the name or a child of the name, with these."""
    is_named_by_class, steps = kind
    children = open_node(tree)[0]
    here = [(step, x) for step, x in children if isinstance(step, steps)]
    found = [((*path, step), x) for step, x in here if label(step) == key]
    if is_named_by_class(tree) and type(tree).__name__ == key:
        found.insert(0, (path, tree))
    if found:
        yield path, tree, found
        return
    for step, x in children:
        yield from _first_nodes(x, (*path, step), key, kind)


# The fields of states that do not belong to the present parameters, and their classes.
_ASIDE = {"RollbackState.kept_state", "SAMState.adv_state"}
_HOLDERS = {x.partition(".")[0] for x in _ASIDE}


def is_present(path: Path, value: ArrayTree = None) -> bool:
    """Whether a value is not in a state that a wrapper keeps aside; a filter."""
    return _ASIDE.isdisjoint(map(str, path))


def copy_at(path: Path) -> tuple[str, ...]:
    """Which of the states that wrappers hold twice a path leads to."""
    names = [str(key) for key in path]
    return tuple(x for x in names if x.partition(".")[0] in _HOLDERS)


def _show(found):
    """Paths as Python expressions, each with the class that it is a field of."""
    return list_some(f"`{spell(path)}`" for path, _ in found)


def spell(path):
    steps = [f".{k.name}" if isinstance(k, NamedTupleKey) else str(k) for k in path]
    owner = path[-1].tuple_name if path and isinstance(path[-1], NamedTupleKey) else ""
    return "".join(steps) + (f" of {owner}" if owner else "") or "the root"


def why_missing(tree, key):
    """The message for a name or a path that is not in a tree."""
    found = get_all_with_path(tree, key)
    if found:
        return f"`filtering` leaves out every `{key}`, at {_show(found)}"
    is_path = paths.is_path(key)
    # A path may start anywhere, so each ending of a known path is a candidate.
    names = [selection.path_names(path) for path, _ in walk(tree)]
    ends = ["/".join(x[i:]) for x in names for i in range(len(x))]
    known = ends if is_path else [*_names(tree)]
    near = difflib.get_close_matches(str(key), dict.fromkeys(known), cutoff=0)
    where, kind = ("at the path", "paths") if is_path else ("named", "names")
    listed = f"the nearest {kind} are {list_some(f'`{x}`' for x in near)}"
    text = f"no value is {where} `{key}`; {listed if near else 'the tree has no names'}"
    if is_path or not holds_state(tree) or "hyperparams" in known:
        return text
    return (
        f"{text}; if it is an argument of an optimizer, make this one by "
        "`inject_hyperparams`, which keeps arguments in its state"
    )


def _names(tree):
    """All names in a tree, with repetitions."""
    if is_named_tuple(tree):
        yield type(tree).__name__
    for step, x in open_node(tree)[0]:
        if isinstance(step, NamedTupleKey | DictKey | GetAttrKey):
            yield str(label(step))
        yield from _names(x)


@jax.tree_util.register_static
class _Placeholder:
    """Passed to `init` for the parameters, to find the parts shaped like them."""


def placeholder() -> object:
    """Optax's placeholder if Optax is loaded, otherwise our own."""
    # Optax's `masked` with a mask given as a tree accepts only its own.  The class is
    # private, but `tree_map_params` passes an instance to `init`.
    given = []
    theirs = getattr(sys.modules.get("optax"), "tree_map_params", map_params)
    if theirs is not map_params:
        theirs(SimpleNamespace(init=given.append), lambda x: x, None)
    return given[0] if given else _Placeholder()


@explain_misuse
def map_params(
    initable: Any,  # Optax's transformations as well
    f: Callable[..., Any],
    state: OptState,
    /,
    *rest: ArrayTree,
    transform_non_params: Callable[..., Any] | None = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> OptState:
    """Map a function over the parts of a state that are shaped like the parameters.

    f(value, *leaves of rest)    at each parameter, in each such part
    transform_non_params(value)  elsewhere

    initable: the transformation that made the state, or its `init`.
    f: called with a value of the state and the leaves of `rest` for that parameter.
    state: the state.
    rest: trees of the structure of the parameters, such as specs of a sharding.
    transform_non_params: applied to the rest of the state; unchanged if `None`.
    is_leaf: as in `jax.tree.map`; if it is true of a `MaskedNode`, `f` is called with
        it, otherwise masked parameters stay masked.

    Raises ValueError if the state was made by another transformation.
    """
    init = getattr(initable, "init", initable)
    if not callable(init):
        raise TypeError(
            f"`initable` is {describe(initable)}, expected a gradient "
            "transformation or an `init` function"
        )
    hole = placeholder()

    def is_place(x):
        return type(x) is type(hole)

    places, treedef = jax.tree.flatten(init(hole), is_leaf=is_place)
    try:
        values = treedef.flatten_up_to(state)
    except (ValueError, TypeError) as error:
        raise ValueError(
            "`state` differs from what `initable` makes; pass the transformation that "
            f"made it ({error})"
        ) from None

    is_asked = (lambda x: False) if is_leaf is None else is_leaf

    # A masked parameter has no state, so neither `f` nor the trees of `rest` are opened
    # there.
    def stop(x):
        return isinstance(x, MaskedNode) or is_asked(x)

    def leaf(x, *others):
        return x if isinstance(x, MaskedNode) and not is_asked(x) else f(x, *others)

    def part(place, value):
        if is_place(place):
            return jax.tree.map(leaf, value, *rest, is_leaf=stop)
        return value if transform_non_params is None else transform_non_params(value)

    return treedef.unflatten(map(part, places, values))


class SlotMark:
    """A placeholder that rules mark: it says which slot a part of a state is."""

    slot: Any = None  # where a closure or another library made the part

    def of(self, slot: Any) -> "SlotMark":
        """The mark of a slot."""
        new = type(self)()
        new.slot = slot
        return new


@ft.cache
def _mark_class(kind: type) -> Callable[[], SlotMark]:
    # Static, so that it comes back as the same instance, whatever maps over the state.
    return jax.tree_util.register_static(type("SlotMark", (SlotMark, kind), {}))


class Part(NamedTuple):
    """A part of a state that is shaped like the parameters.

    name: its field, "" if it has none.
    owner: the class of the state that it belongs to, "" if there is none.
    slot: the slot of a rule that it is; `None` if it is not a slot.
    """

    name: str
    owner: str
    slot: Any


def slots_like_params(
    initable: TransformationLike,
) -> tuple[list[Part | None], Any]:
    """The parts of a state, `None` if not like parameters, and their structure."""
    state = initable.init(_mark_class(type(placeholder()))())

    def is_part(x):
        return isinstance(x, SlotMark)

    treedef = jax.tree.structure(state, is_leaf=is_part)
    return [_part(path, x) for path, x in walk(state, is_part)], treedef


def _part(path, x):
    if not isinstance(x, SlotMark):
        return None
    named = [k for k in path if isinstance(k, NamedTupleKey | GetAttrKey | DictKey)]
    owners = [k.tuple_name for k in named if isinstance(k, NamedTupleKey)]
    name = str(label(named[-1])) if named else ""
    return Part(name, owners[-1] if owners else "", x.slot)
