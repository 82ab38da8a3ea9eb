"""Decides which leaves a mask or labels mean.  Only this file does.

A specification of labels (of booleans, for a mask) may be

1. a function of the tree that returns one of the following.  A callable that is itself
   a tree with leaves, such as an Equinox module, is a tree of labels and never called;
2. a tree of labels with the structure of the tree, or a prefix of it;
3. a mapping from names or path patterns to labels, when it does not fit the structure.
   Names of a path are joined by "/"; "*" stands for any name and "**" for any number of
   names.  A pattern means everything below what it matches.  A name alone means the
   field of that name, or, if there is none, what is so called at any depth.  The first
   that matches a leaf decides.  Mappings may be nested, also inside a tree of labels.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.tree_util import Partial, tree_flatten_with_path, tree_structure

from ..base.protocol import is_array, is_none
from ..step.gradients import Labels
from . import errors
from .packed import outline


def is_function(spec: Any) -> bool:
    """Whether to call `spec`; a module that is callable and a tree counts as a tree."""
    if not callable(spec):
        return False
    is_tree = _is_node(spec) and tree_structure(spec).num_leaves > 0
    return isinstance(spec, Partial) or not is_tree


def _is_node(x: Any) -> bool:
    return not jax.tree_util.all_leaves([x], is_leaf=is_none)


def _is_like(spec: Any, tree: Any) -> bool:
    """Whether a callable that `is_function` takes for one has the form of `tree`.

    Such is a module all of whose labels are `None`, or a `Partial` that holds labels.
    """
    if type(spec) is not type(tree) or not _is_node(spec):
        return False
    structures = [jax.tree.structure(x, is_leaf=is_none) for x in (spec, tree)]
    return structures[0] == structures[1]


def resolve(
    spec: Any, tree: Any, what: str = "labels", kind: type | None = None
) -> Labels:
    """One label for each leaf of `tree`, `None` included, in flattening order.

    A leaf that is no array may end without a label, which is `None`.

    spec: see above.
    what: the name of the argument, for errors.
    kind: a class of labels that are trees themselves.
    """
    tree = outline(tree)
    if _has_no_leaf(tree):
        return _of_no_leaf(spec, tree)
    if is_function(spec) and not _is_like(spec, tree):
        spec = spec(tree)
    if kind is not None:
        found = resolve(_sealed(spec, kind), tree, what)
        return found.map(lambda x: x.label if isinstance(x, _Sealed) else x)
    try:
        return _by_structure(spec, tree)
    except (ValueError, TypeError) as error:
        if callable(spec) and type(spec) is not type(tree):
            raise _callable_tree(spec, what) from error
        if _has_mapping(spec):
            return _by_path(spec, tree, what)
        raise errors.mismatch(what, spec, "the parameters", tree) from error


def _of_no_leaf(spec: Any, tree: Any) -> Labels:
    """The labels of empty nodes, where a tree has them, and nobody has to be asked.

    Without leaves is also the opaque tree that `map_params` passes to `init`.
    """
    try:
        return Labels([]) if is_function(spec) else _by_structure(spec, tree)
    except (ValueError, TypeError):
        return Labels([])


@dataclass(frozen=True)
class _Sealed:
    """A label that is a tree, as a leaf."""

    label: Any


def _sealed(spec: Any, kind: type) -> Any:
    if isinstance(spec, kind):
        return _Sealed(spec)
    if isinstance(spec, dict):  # whose order JAX would change, and patterns have one
        return {key: _sealed(x, kind) for key, x in spec.items()}
    is_end = lambda x: isinstance(x, kind | dict)
    seal = lambda x: _sealed(x, kind) if is_end(x) else x
    return jax.tree.map(seal, spec, is_leaf=is_end)


def _has_mapping(spec: Any) -> bool:
    is_mapping = lambda x: isinstance(x, Mapping)
    return any(map(is_mapping, jax.tree.leaves(spec, is_leaf=is_mapping)))


def _callable_tree(spec: Any, what: str) -> TypeError:
    return TypeError(
        f"`{what}` is a `{type(spec).__name__}`, which is callable but also a tree "
        "with leaves, so it is taken for a tree, and does not fit the parameters; "
        f"if it is a function of them, pass `lambda params: {what}(params)`"
    )


def resolve_mask(spec: Any, tree: Any, what: str = "mask") -> Labels:
    """A boolean for each leaf of `tree`, `None` only for no array; see `resolve`."""
    tree = outline(tree)
    labels = resolve(spec, tree, what)
    if all(type(x) is bool for x in [*labels, *labels.empty]):
        return labels
    leaves = jax.tree.leaves(tree, is_leaf=is_none)

    def boolean(x, i=None):
        problem = _problem(x)
        if not problem:
            return bool(x)
        if i is None or not is_array(leaves[i]):
            return None
        path = errors.paths(tree)[i]
        raise TypeError(f"the value of `{what}` for {path} {problem}")

    return labels.map(boolean, range(len(labels)))


def _problem(x: Any) -> str:
    """Why `x` is no boolean; empty if it is one."""
    if isinstance(x, Tracer):
        return "is traced, but must be known before the program runs"
    if not isinstance(x, bool | int | np.bool_ | np.integer | np.ndarray | jax.Array):
        return f"is `{x!r}`, but must be a boolean"
    if np.ndim(x) > 0:
        return f"is an array of shape {np.shape(x)}, but must be one boolean"
    if not isinstance(x, bool | int) and x.dtype.kind not in "biu":
        return f"is of dtype {x.dtype}, but must be a boolean"
    return ""


def _by_structure(spec: Any, tree: Any) -> Labels:
    found, treedef = jax.tree.flatten(spec, is_leaf=is_none)
    below = treedef.flatten_up_to(tree)
    spans = [len(jax.tree.leaves(x, is_leaf=is_none)) for x in below]
    pairs = list(zip(found, spans, strict=True))
    labels = [x for x, n in pairs for _ in range(n)]
    return Labels(labels, treedef, spans, [x for x, n in pairs if n == 0])


# Ends the path of a node without leaves, such as a `MaskedNode`, which may stand for
# some: a specification may say more than there is.
_LEFT_OUT = None


def _names(path: Iterable, end: Any) -> tuple:
    found = path_names(path)
    return (*found, _LEFT_OUT) if _has_no_leaf(end) else found


def _has_no_leaf(tree: Any) -> bool:
    return not jax.tree.leaves(tree, is_leaf=is_none)


def path_names(path: Iterable) -> tuple[str, ...]:
    """The names of a path; a key with a "/" in it counts as several."""
    return tuple("/".join(map(_name, path)).split("/"))


def is_match(pattern: tuple, path: tuple) -> bool:
    """Whether a pattern, as names, matches all of a path."""
    return _match(pattern, path) == ()


def _name(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _show(path: Iterable) -> str:
    return "/".join(x for x in path if x is not _LEFT_OUT) or "the root"


def _by_path(spec: Any, tree: Any, what: str) -> Labels:
    # Leaves that a mask around this one leaves out still count as matched: a pattern
    # for all parameters may stand inside a partition that sees few of them.
    is_end = lambda x: x is None or _has_no_leaf(x)
    leaves, _ = tree_flatten_with_path(tree, is_leaf=is_end)
    below = {i: _names(path, x) for i, (path, x) in enumerate(leaves)}
    labels = [None] * len(leaves)
    left = _assign(spec, below, labels, what)
    missed = [_show(below[i]) for i in sorted(left) if is_array(leaves[i][1])]
    if missed:
        raise ValueError(
            f"nothing in `{what}` matches {errors.list_some(missed)}; the patterns are "
            f'{[k for k, _ in _branches(spec)]}, and a last "**" matches all that is '
            "left"
        )
    pairs = zip(labels, (leaf for _, leaf in leaves), strict=True)
    seen = [(x, leaf) for x, leaf in pairs if not _has_no_leaf(leaf)]
    found = [x if is_array(leaf) else None for x, leaf in seen]
    return Labels(found, jax.tree.structure(tree, is_leaf=is_none), [1] * len(found))


def _branches(spec: Any) -> list[tuple[str, Any]]:
    """What is one level below a node of a specification, with patterns for it."""
    if isinstance(spec, Mapping):
        return [(str(k), x) for k, x in spec.items()]
    below, _ = tree_flatten_with_path(spec, is_leaf=lambda x: x is not spec)
    return [(_name(key), x) for (key,), x in below]


def _assign(spec: Any, below: dict, labels: list, what: str) -> set[int]:
    """Write the labels of `spec` for the leaves in `below`; return those left over.

    below: from the numbers of leaves to their paths, or what is left of these.
    """
    left = set(below)
    for pattern, label in _branches(spec):
        match = _matcher(pattern, below.values())
        rests = {i: match(path) for i, path in below.items()}
        matched = {i: rest for i, rest in rests.items() if rest is not None}
        is_open = {i: rest[-1:] == (_LEFT_OUT,) for i, rest in matched.items()}
        fresh = {i: x for i, x in matched.items() if i in left or is_open[i]}
        if not fresh:
            raise _nothing(pattern, bool(matched), what, [*map(_show, below.values())])
        if isinstance(label, Mapping) or _is_node(label):
            left -= set(fresh) - _assign(label, fresh, labels, what)
            continue
        for i in fresh:
            labels[i] = label
        left -= set(fresh)
    return left


def _matcher(pattern: str, paths: Iterable[tuple]) -> Callable:
    """A function from a path to what follows the match, `None` if there is none."""
    wanted = tuple(pattern.split("/"))
    firsts = [path[:1] for path in paths if path[:1] != (_LEFT_OUT,)]
    is_field = any(_match(wanted, first) is not None for first in firsts)
    anywhere = len(wanted) == 1 and not is_field
    wanted = ("**", *wanted) if anywhere else wanted
    return lambda path: _match(wanted, path)


def _match(pattern: tuple, path: tuple) -> tuple | None:
    if not pattern or path == (_LEFT_OUT,):
        return path
    head, tail = pattern[0], pattern[1:]
    if head == "**":
        ends = (path[i:] for i in range(len(path) + 1))
        found = (_match(tail, x) for x in ends if x == path or x[:1] != (_LEFT_OUT,))
        return next((rest for rest in found if rest is not None), None)
    if path and (path[0] == head or fnmatchcase(path[0], head)):
        return _match(tail, path[1:])
    return None


def _nothing(pattern: str, taken: bool, what: str, paths: list[str]) -> ValueError:
    if taken:
        return ValueError(
            f"the pattern `{pattern}` in `{what}` has no leaf left: patterns before it "
            "match all that it matches; put it before them"
        )
    parts = sorted({part for path in paths for part in [path, *path.split("/")]})
    near = difflib.get_close_matches(pattern, parts, n=3)
    hint = f"; did you mean {' or '.join(f'`{x}`' for x in near)}?" if near else ""
    return ValueError(
        f"the pattern `{pattern}` in `{what}` matches no leaf of "
        f"{errors.list_some(paths)}{hint}"
    )
