"""Decides which leaves a mask or labels mean.  Only this file does.

A specification of labels (of booleans, for a mask) may be

1. a function of the tree that returns one of the following.  A callable that is itself
   a tree with leaves, such as an Equinox module, is a tree of labels and never called;
2. a tree of labels with the structure of the tree, or a prefix of it;
3. a mapping from names or path patterns to labels, when it does not fit the structure.
   Names of a path are joined by "/"; "*" stands for any name and "**" for any number of
   names.  A pattern means everything below what it matches.  A name alone means the
   field of that name, or, if there is none, what is so called at any depth.  Mappings
   may be nested.  The first that matches a leaf decides.
"""

import difflib
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import jax
import numpy as np
from jax.tree_util import Partial, tree_flatten_with_path, tree_structure

from . import errors
from .protocol import is_array, is_none


def is_function(spec: Any) -> bool:
    """Whether to call `spec`; a module that is callable and a tree counts as a tree."""
    if not callable(spec):
        return False
    structure = tree_structure(spec)
    is_leaf = structure.num_nodes == 1 and structure.num_leaves == 1
    return isinstance(spec, Partial) or is_leaf or structure.num_leaves == 0


def resolve(spec: Any, tree: Any, what: str = "labels") -> list:
    """One label for each leaf of `tree`, `None` included, in flattening order.

    A leaf that is no array may end without a label, which is `None`.

    spec: see above.
    what: the name of the argument, for errors.
    """
    if not jax.tree.leaves(tree, is_leaf=is_none):
        return []  # also the opaque tree that `map_params` passes to `init`
    if is_function(spec):
        spec = spec(tree)
    try:
        return _by_structure(spec, tree)
    except (ValueError, TypeError) as error:
        if isinstance(spec, Mapping):
            return _by_path(spec, tree, what)
        if not callable(spec):
            raise errors.mismatch(what, spec, "the parameters", tree) from error
        raise TypeError(
            f"`{what}` is a `{type(spec).__name__}`, which is callable but also a tree "
            "with leaves, so it is taken for a tree, and does not fit the parameters; "
            f"if it is a function of them, pass `lambda params: {what}(params)`"
        ) from error


def resolve_mask(spec: Any, tree: Any, what: str = "mask") -> list[bool]:
    """A boolean for each leaf of `tree`; see `resolve`."""
    labels = resolve(spec, tree, what)
    if all(type(x) is bool for x in labels):
        return labels
    leaves = jax.tree.leaves(tree, is_leaf=is_none)
    pairs = zip(labels, leaves, strict=True)
    return [_boolean(x, p, i, tree, what) for i, (x, p) in enumerate(pairs)]


def _boolean(x: Any, leaf: Any, i: int, tree: Any, what: str) -> bool:
    if not is_array(leaf):
        return False
    if isinstance(x, bool | int | np.bool_ | np.ndarray | jax.Array):
        if isinstance(x, jax.core.Tracer):
            problem = "is traced, but must be known before the program runs"
        elif np.ndim(x) == 0:
            return bool(x)
        else:
            problem = f"is an array of shape {np.shape(x)}, but must be one boolean"
    else:
        problem = f"is `{x!r}`, but must be a boolean"
    raise TypeError(f"the value of `{what}` for {errors.paths(tree)[i]} {problem}")


def _by_structure(spec: Any, tree: Any) -> list:
    found, treedef = jax.tree.flatten(spec, is_leaf=is_none)
    below = treedef.flatten_up_to(tree)
    counts = (len(jax.tree.leaves(x, is_leaf=is_none)) for x in below)
    return [x for x, n in zip(found, counts, strict=True) for _ in range(n)]


def _name(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _by_path(spec: Mapping, tree: Any, what: str) -> list:
    leaves, _ = tree_flatten_with_path(tree, is_leaf=is_none)
    names = ["/".join(map(_name, path)) for path, _ in leaves]
    below = {i: tuple(name.split("/")) for i, name in enumerate(names)}
    labels = [None] * len(leaves)
    unlabelled = _assign(spec, below, labels, what, names)
    missed = [names[i] for i in sorted(unlabelled) if is_array(leaves[i][1])]
    if missed:
        raise ValueError(
            f"nothing in `{what}` matches {errors.some(missed)}; the patterns are "
            f'{list(spec)}, and a last "**" matches all that is left'
        )
    return labels


def _assign(
    spec: Mapping, below: dict, labels: list, what: str, names: list[str]
) -> set[int]:
    """Write the labels of `spec` for the leaves in `below`; return those left over."""
    left = set(below)
    for pattern, label in spec.items():
        match = _matcher(str(pattern), below.values())
        rests = {i: match(path) for i, path in below.items()}
        matched = {i: rest for i, rest in rests.items() if rest is not None}
        fresh = {i: rest for i, rest in matched.items() if i in left}
        if not fresh:
            raise _nothing(pattern, bool(matched), what, [names[i] for i in below])
        if isinstance(label, Mapping):
            left -= set(fresh) - _assign(label, fresh, labels, what, names)
            continue
        for i in fresh:
            labels[i] = label
        left -= set(fresh)
    return left


def _matcher(pattern: str, paths: Any) -> Callable:
    """A function from a path to what follows the match, `None` if there is none."""
    names = tuple(pattern.split("/"))
    anywhere = len(names) == 1 and not any(path[:1] == names for path in paths)
    names = ("**", *names) if anywhere and pattern != "**" else names
    return lambda path: _match(names, path)


def _match(pattern: tuple, path: tuple) -> tuple | None:
    if not pattern:
        return path
    head, *tail = pattern
    if head == "**":
        ends = (_match(tuple(tail), path[i:]) for i in range(len(path) + 1))
        return next((rest for rest in ends if rest is not None), None)
    if path and fnmatchcase(path[0], head):
        return _match(tuple(tail), path[1:])
    return None


def _nothing(pattern: str, taken: bool, what: str, names: list[str]) -> ValueError:
    if taken:
        return ValueError(
            f"the pattern `{pattern}` in `{what}` has no leaf left: patterns before it "
            "match all that it matches; put it before them"
        )
    parts = sorted({part for name in names for part in [name, *name.split("/")]})
    near = difflib.get_close_matches(str(pattern), parts, n=3)
    hint = f"; did you mean {' or '.join(f'`{x}`' for x in near)}?" if near else ""
    return ValueError(
        f"the pattern `{pattern}` in `{what}` matches no leaf of "
        f"{errors.some(names)}{hint}"
    )
