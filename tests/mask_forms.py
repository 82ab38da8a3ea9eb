"""Every form in which masks, labels and other specifications are given, and trees."""

import functools as ft
import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from cases import Pair, Record
from inside import ROWS, is_none

from stepax.contrib import GaLoreDimensionNumbers, MuonDimensionNumbers


def matrix() -> jax.Array:
    """The only shape, so that little is traced; a matrix, for the sake of Muon."""
    return jnp.full((2, 2), 0.5)


class Net(eqx.Module):
    """A module that is a tree, and must not be called."""

    layer: Any
    activation: Any
    scale: Any

    def __call__(self, x):
        raise AssertionError("a tree was called")


TREES: dict[str, Callable[[], Any]] = {
    "an array": matrix,
    "single leaves": lambda: {"a": {"w": matrix()}, "o": {"w": matrix()}},
    "single children": lambda: {"a": {"b": {"c": matrix()}}, "o": [({"w": matrix()},)]},
    "empty nodes": lambda: {
        "a": {"e": {}, "w": matrix()},
        "b": {"t": (), "w": matrix()},
        "e": {},
        "z": {"x": {"y": ()}},
    },
    "None": lambda: {
        "a": {"n": None, "w": matrix()},
        "b": {"w": matrix(), "x": None},
        "n": None,
        "p": {"n": {"m": None}},
    },
    "NamedTuple": lambda: Pair({"w": matrix()}, [matrix()]),
    "dataclass": lambda: Record((matrix(),), {"w": {"x": matrix()}}),
    "module": lambda: Net({"w": matrix()}, jax.nn.relu, {"x": (matrix(),)}),
}


def garden() -> Any:
    """All of them in one tree."""
    return {name: make() for name, make in TREES.items()}


# --- labels, "a" and "b" in turn for what is below the root ---------------------------


def _open(node: Any) -> tuple[list, Any]:
    """What is one level below a node, with names, and how to close it again."""
    is_below = lambda x: x is not node
    found, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=is_below)
    return [(_name(path[0]), x) for path, x in found if path], treedef


def _name(key: Any) -> str:
    return str(next(x for x in _parts(key) if x is not None))


def _parts(key: Any) -> list:
    return [getattr(key, k, None) for k in ("name", "key", "idx")]


def _in_turn(tree: Any) -> list[tuple[str, Any, str]]:
    """Name, child, and label of all that is below the root."""
    children = enumerate(_open(tree)[0])
    return [(name, x, "ab"[i % 2]) for i, (name, x) in children]


def prefix(tree: Any, depth: int) -> Any:
    """Labels as far down as `depth`; at each leaf if that is deeper."""
    children, treedef = _open(tree)
    if not children:
        return "a" if jax.tree.leaves(tree) else tree
    found = _in_turn(tree)
    return treedef.unflatten(_cut(x, depth - 1, label) for _, x, label in found)


def _cut(tree: Any, depth: int, label: str) -> Any:
    children, treedef = _open(tree)
    if depth == 0 or (not children and jax.tree.leaves(tree, is_leaf=is_none)):
        return label
    return treedef.unflatten(_cut(x, depth - 1, label) for _, x in children)


def whole(tree: Any) -> Any:
    """A label for each leaf, of which `None` is none, as in Optax."""
    children, treedef = _open(tree)
    if not children:
        return prefix(tree, 1)
    found = _in_turn(tree)
    return treedef.unflatten(
        jax.tree.map(lambda _, label=label: label, x) for _, x, label in found
    )


def names(tree: Any) -> Any:
    """A mapping from names to labels, of those that name an array."""
    found = _in_turn(tree)
    return {name: label for name, x, label in found if _has_array(x)} or {"**": "a"}


def patterns(tree: Any) -> Any:
    found = _in_turn(tree)
    of = lambda x, label: f"{x}/**" if label == "a" else f"{x}*/**"
    known = {of(name, label): label for name, x, label in found if _has_array(x)}
    return known or {"**": "a"}


def nested(tree: Any) -> Any:
    """Mappings of names down to the arrays."""
    found = _in_turn(tree)
    below = {k: _nested(x, label) for k, x, label in found if _has_array(x)}
    return below or {"**": "a"}


def _nested(tree: Any, label: str) -> Any:
    children = [(k, x) for k, x in _open(tree)[0] if _has_array(x)]
    return {k: _nested(x, label) for k, x in children} if children else label


def mixed(tree: Any) -> Any:
    """A tree of labels in which some are mappings of patterns."""
    children, treedef = _open(tree)
    if not children:
        return "a"
    found = _in_turn(tree)
    has_below = lambda x: _open(x)[0] and _has_array(x)
    pick = lambda x, label: {"**": label} if has_below(x) else _cut(x, 99, label)
    return treedef.unflatten(pick(x, label) for _, x, label in found)


def _has_array(x: Any) -> bool:
    return any(map(eqx.is_array, jax.tree.leaves(x)))


class Chooser(eqx.nn.Identity):
    """A function of the parameters that is a module without leaves."""

    form: Callable = eqx.field(static=True)

    def __init__(self, form):
        self.form = form

    def __call__(self, x, **kwargs):
        return self.form(x)


STATIC: dict[str, Callable[[Any], Any]] = {
    "tree": whole,
    "prefix of depth 1": ft.partial(prefix, depth=1),
    "prefix of depth 2": ft.partial(prefix, depth=2),
    "prefix of depth 3": ft.partial(prefix, depth=3),
    "prefix of any depth": ft.partial(prefix, depth=99),
    "names": names,
    "patterns": patterns,
    "nested names": nested,
    "patterns in a tree": mixed,
}

# From the parameters to a specification.  A function is given the gradients, too, and
# answers by what it is given, as users' do; so it sees all of a tree or nothing.
FORMS: dict[str, Callable[[Any], Any]] = {
    **STATIC,
    **{f"function, {k}": (lambda tree, f=f: f) for k, f in STATIC.items()},
    "functools.partial": lambda tree: ft.partial(lambda f, p: f(p), names),
    "Partial": lambda tree: jax.tree_util.Partial(lambda c, p: whole(p), 1.0),
    "callable module": lambda tree: Chooser(ft.partial(prefix, depth=1)),
}


def valued(spec: Any, values: dict[str, Any]) -> Any:
    """A specification with other values in place of the labels."""
    if isinstance(spec, str):
        return values[spec]
    if isinstance(spec, dict):
        return {k: valued(x, values) for k, x in spec.items()}
    if callable(spec) and not isinstance(spec, Net):
        return lambda params: valued(spec(params), values)
    is_end = lambda x: isinstance(x, str | dict)
    f = lambda x: valued(x, values) if is_end(x) else x
    return jax.tree.map(f, spec, is_leaf=is_end)


# --- whoever takes a specification ---------------------------------------------------

BOOLEANS = {"a": True, "b": False}

# By a part of the name of the argument, and what stands for each label.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "labels": {"a": "a", "b": "b"},
    "mask": BOOLEANS,
    "tables": BOOLEANS,
    "where": BOOLEANS,
    "galore weight_dimension_numbers": {"a": GaLoreDimensionNumbers(), "b": None},
    "muon weight_dimension_numbers": {"a": MuonDimensionNumbers(), "b": None},
    "lower": {"a": -1.0, "b": -2.0},
    "upper": {"a": 1.0, "b": 2.0},
}


def specs_of(factory: Callable) -> dict[str, dict[str, Any]]:
    """The arguments of a factory that are specifications, and their values."""
    found = {}
    for p in inspect.signature(factory).parameters.values():
        if p.default is False:
            continue  # a switch
        module = factory.__module__.rpartition(".")[2]
        for words, values in ARGUMENTS.items():
            *of, name = words.split()
            if p.name.endswith(name) and (not of or of[0] == module):
                found[p.name] = values
    return found


TAKERS = {
    f"{row.name}, {name}": (row, name, values)
    for row in ROWS.values()
    for name, values in specs_of(row.factory).items()
}


def options_beside(row, name):
    """A weight decay, without which a mask is not read; and one name for each thing."""
    known = inspect.signature(row.factory).parameters
    decay = {"weight_decay": 0.1} if "weight_decay" in known else {}
    other = {"mask": None} if name == "weight_decay_mask" and "mask" in known else {}
    return decay | other | ({"key": 0} if row.kind == "aggregate" else {})


def doubled(o: Any, inner: Any) -> Any:
    """Nobody looks into it: it is given trees that are cut."""
    return o.MultiSteps(inner, 2).gradient_transformation()
