"""The components of a transformation, their names, and the states that they own.

Composites, such as chains and masks, know their members; a closure declares the
transformations that it calls, and the fields of its state that hold theirs.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import jax
import numpy as np
from jax.core import Tracer
from jax.tree_util import tree_flatten_with_path

from .. import rules as rx
from ..arrays import partition_arrays
from ..arrays.numerics import has_dtype
from ..factories.scheduled import MadeSchedule
from ..functions.signatures import name_of
from ..trees.pack import unpack
from ..trees.paths import join, matches
from ..trees.selection import Scope


if TYPE_CHECKING:
    from rich.console import Group


Table: TypeAlias = tuple[list[str], list[list[str]]]  # a header, and rows


class Printable:
    """Base of classes that print as tables: as text, or in color by `rich`."""

    def tables(self) -> list[Table]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n\n".join(text_of(*table) for table in self.tables())

    __repr__ = __str__

    def __rich__(self) -> "Group":
        # Only `rich` itself calls this, so it is installed; nothing else needs it.
        from rich.console import Group
        from rich.table import Table

        shown = []
        for header, rows in self.tables():
            table = Table()
            for name in header:
                table.add_column(name, overflow="fold")
            for row in rows:
                # Otherwise `rich` takes `['w']` in a path for markup.
                table.add_row(*(cell.replace("[", r"\[") for cell in row))
            shown.append(table)
        return Group(*shown)


def text_of(header: list[str], rows: list[list[str]]) -> str:
    """A table with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * n for n in widths]
    lines = [header, rule, *rows]
    padded = [map(str.ljust, row, widths) for row in lines]
    return "\n".join("  ".join(row).rstrip() for row in padded)


def show_bytes(n: int) -> str:
    # In integers: a logarithm of 1024**k may round to either side.
    power = min(max(n, 1).bit_length() - 1, 40) // 10
    return f"{n / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


T = TypeVar("T")

Names: TypeAlias = tuple[str, ...]


class Made:
    """What a call made; of a user's factory nothing more is known."""

    call: Any

    @property
    def name(self) -> str:
        """The factory that made it; "" if it is not one of Stepax."""
        is_ours = self.call and self.call.build.__module__.startswith("stepax.")
        return self.call.name if is_ours else ""

    @property
    def given(self) -> Mapping[str, Any]:
        return self.call.bound.arguments if self.name else {}

    @property
    def traits(self) -> frozenset[str]:
        return self.call.traits if self.name else frozenset()


@dataclass(eq=False)
class Component(Made):
    """A transformation inside of another one.

    path: the keys that lead to its state, in that of the whole.
    state: its state; `None` if it was not found in the state of its wrapper.
    scope: the leaves that it sees; `None` for all, or if they are not known.
    parts: the transformations that it is made of, in order; none if the leaves that
        they see cannot be found, as inside of `lookahead`.
    """

    tx: Any
    path: tuple
    state: rx.OptState
    scope: Scope
    parts: "list[Component]" = field(default_factory=list)

    def __post_init__(self):
        self.call = rx.call_of(self.tx)

    @property
    def place(self) -> str:
        """The path of its state, or its name if it is the whole."""
        return join(self.path) or self.name or part_name(self)

    @property
    def is_leaf(self) -> bool:
        """Whether it transforms updates itself, rather than combining others."""
        return not isinstance(rx.node_of(self.tx), rx.Composite)

    def reached(self, leaves: list) -> list[int]:
        """The indices of the leaves that it sees."""
        on = [True] * len(leaves) if self.scope is None else self.scope
        return [i for i, is_on in enumerate(on) if is_on]

    def walk(self) -> "Iterator[Component]":
        """The component and all components below it, in preorder."""
        yield self
        for part in self.parts:
            yield from part.walk()


def open_components(
    tx: Any,
    state: rx.OptState,
    gradients: rx.Gradients | None = None,
    scope: Scope = None,
    path: tuple = (),
) -> Component:
    """A transformation with its parts; `gradients` of parameters resolve masks."""
    component, node = Component(tx, path, state, scope), rx.node_of(tx)
    if isinstance(node, rx.Composite):
        states = None if state is None else node.unpack(state)
        component.parts = list(_members(node, states, gradients, scope, path))
    else:
        if state is not None and isinstance(node, rx.Rule):
            node.check_state(state)
        for name, inner in node.callees.items():
            below, found = _below(state, name)
            if state is not None and found is None and not below:
                given, hint = rx.errors.describe(state), rx.errors.state_hint(state)
                said = f"`{part_name(component)}` was given {given} as its state"
                raise rx.errors.of_step(f"{said}, without `{name}`{hint}")
            part = open_components(inner, found, gradients, scope, path + below)
            component.parts.append(part)
    return component


def examine(
    tx: Any,
    params: rx.Params,
    read: Callable[[Component, rx.Gradients], T],
    state: rx.OptState | None = None,
) -> T:
    """What `read` returns for a transformation with a state, or the initial one.

    Its arguments have abstract arrays in the initial state, and parameters in place of
    gradients: no step is run, and nothing as large as a parameter is allocated.
    """
    arrays, rebuild = partition_arrays(unpack(params))
    found: list[T] = []

    # The result leaves the trace in a list, as it is not an array that could be
    # returned.
    def look(arrays):
        tree = rebuild(arrays)
        only = jax.tree.map(lambda p: p if rx.is_array(p) else None, tree)
        gradients = rx.Gradients(only, tree)
        first = tx.init(tree)
        opened = open_components(tx, first if state is None else state, gradients)
        found.append(read(opened, gradients))

    # Abstractly: `init` of a model that fills the memory must not allocate it again.
    jax.eval_shape(look, arrays)
    return found[0]


def _members(node, states, gradients, scope, path) -> Iterator[Component]:
    scopes = [None] * len(node.members)
    try:
        scopes = scopes if gradients is None else node.scopes(gradients, scope)
    except (TypeError, ValueError):
        # `init` has accepted its masks: a wrapper gives it another tree.
        return
    if states is None:
        rows = [(None, ())] * len(node.members)
    else:
        rows = zip(states, _places(node, states), strict=True)
    for tx, (state, below), reached in zip(node.members, rows, scopes, strict=True):
        yield open_components(tx, state, gradients, reached, path + below)


def _places(node: rx.Composite, states: Iterable) -> list[tuple]:
    """The path of each member's state in the state of the composite."""
    marked, depths = [], []
    for i, state in enumerate(states):
        below, treedef = tree_flatten_with_path(state)
        # The index of the member represents each leaf of its state.
        marked.append(treedef.unflatten(i for _ in below) if below else i)
        depths.append(len(below[0][0]) if below else 0)
    first = {}
    for path, i in tree_flatten_with_path(node.pack(marked))[0]:
        first.setdefault(i, path[: len(path) - depths[i]])
    return [first[i] for i in range(len(marked))]


def _below(state: rx.OptState, place: str) -> tuple[tuple, Any]:
    """The path to a field of a state, and its value."""
    names = tuple(filter(None, place.split("/")))
    found = matches(state, (), names, rx.selection.path_names) if names else ()
    return next(iter(found), ((), None if names else state))


def part_name(component: Component) -> str:
    """The call that made a component, without its own components."""
    call = component.call
    if call is None:  # the function in which `update` was written
        made_in = getattr(
            component.tx.update, "__qualname__", type(component.tx).__name__
        )
        return made_in.split(".<locals>")[0].removesuffix(".update")
    if call.title:
        return _short(call.title, 200)
    numbers = {k: x for k, x in call.given.items() if not holds_parts(x)}
    shown = ", ".join(f"{k}={show(x)}" for k, x in numbers.items())
    return f"{call.name}({shown})"


def holds_parts(x: object) -> bool:
    # Transformations among the arguments are listed as separate components.
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, tuple | list) and not isinstance(x, rx.GradientTransformation):
        return any(map(holds_parts, x))
    return rx.is_transformation(x)


def show(x: object) -> str:
    """A hyperparameter as text, truncated."""
    # A schedule is callable, but is known by its call rather than by a name.
    if isinstance(x, MadeSchedule):
        return _short(repr(x), 160)
    if callable(x):
        return name_of(x, type(x).__name__)
    if isinstance(x, Tracer):
        return "…"
    found = plain(x)
    return _short(f"{found:.6g}" if isinstance(found, float) else str(found), 40)


def _short(text: str, most: int) -> str:
    """A text with functions shown by name only, truncated if it is too long."""
    # Addresses would make two descriptions of the same transformation differ.
    text = re.sub(r"<function (?:\S+\.)?(\S+) at 0x\w+>", r"\1", text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def plain(x: object) -> Any:
    """A value as dictionaries, lists, strings and numbers."""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, tuple | list):
        return [plain(v) for v in x]
    if x is None or isinstance(x, bool | int | float | str):
        return x
    try:
        found = np.asarray(x)
    except Exception:  # a random key, or a traced value
        return str(x)
    return found.tolist() if found.dtype.kind in "biuf" else str(x)


def arrays_in(state: rx.OptState) -> list[tuple[Names, jax.Array]]:
    """The arrays of a state, with the names of their paths."""
    below, _ = tree_flatten_with_path(state)
    return [(rx.selection.path_names(path), x) for path, x in below if has_dtype(x)]


def owned_arrays(
    state: rx.OptState, params: Sequence[Names]
) -> Iterator[tuple[Names | None, jax.Array]]:
    """Each array of a state, with the path of its parameter; `None` if it has none."""
    known = set(filter(None, params))
    # Longest first, so that the state of `a/b/c` is not counted for a parameter `b/c`.
    lengths = sorted({len(names) for names in known}, reverse=True)
    for path, x in arrays_in(state):
        # The first name is the field of a state, such as `mu`, also if a parameter has
        # it.
        parts = (path[i : i + n] for n in lengths for i in range(1, len(path) - n + 1))
        yield next((part for part in parts if part in known), None), x
