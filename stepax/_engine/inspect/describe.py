"""Descriptions of a transformation: its parts, their parameters and their state."""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.tree_util import tree_flatten_with_path

from ..base.protocol import (
    GradientTransformation,
    OptState,
    Params,
    is_array,
    is_none,
    partition_arrays,
    require_transformation,
)
from ..factories.scheduled import MadeSchedule
from ..functions.calls import explain_misuse
from ..step.gradients import Gradients
from ..trees import selection
from ..trees.pack import unpack
from ..trees.paths import join
from . import narrow_means
from .components import Component, open_components
from .hyperparams import Value, all_values
from .keywords import reads
from .tables import Printable, Table, show_bytes


# Numbers of paths that are listed for a part, and in a printed table.
FEW, MANY = 5, 20


@dataclass(frozen=True)
class PartDescription:
    """One component of a transformation.

    name: the call that made it, without its components.
    path: path of its state within the whole state.
    leaves: number of parameters that it updates.
    paths: paths of these parameters, if they are few and not all.
    bytes: size of its state, including that of its components.
    dtypes: the dtypes of its state.
    reads: the keywords that its `update` reads; `None` if they are not known.
    parts: its components.
    """

    name: str
    path: str
    leaves: int
    paths: tuple[str, ...] | None
    bytes: int
    dtypes: tuple[str, ...]
    reads: tuple[str, ...] | None
    parts: "tuple[PartDescription, ...]"

    def lines(self, depth: int = 0) -> Iterator[tuple[int, "PartDescription"]]:
        """This component and all below it, with their depths."""
        yield depth, self
        for part in self.parts:
            yield from part.lines(depth + 1)


@dataclass(frozen=True)
class Description(Printable):
    """The result of `describe`; printed as text, or in color by `rich`.

    whole: the transformation and its components.
    parameters: bytes of state for each parameter, by path.
    shared: bytes of state that do not belong to a single parameter.
    hyperparams: hyperparameters by path, each with a value and a kind: "injected" if it
        can be changed in the state, otherwise "scheduled" or "fixed".
    warnings: about state that is stored too narrowly, such as Adam's `nu` in bfloat16,
        and what to do about it.
    """

    whole: PartDescription
    parameters: dict[str, int]
    shared: int
    hyperparams: dict[str, Value]
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The description as dictionaries, lists, strings and numbers, for JSON."""
        return _plain(dataclasses.asdict(self))

    def tables(self) -> list[Table]:
        """The tables that are printed, without empty ones."""
        parts = [_row(depth, part) for depth, part in self.whole.lines()]
        sizes = sorted(self.parameters.items(), key=lambda pair: -pair[1])
        # Largest first: a model has thousands of parameters, and few take the memory.
        rows = [[path, show_bytes(n)] for path, n in sizes[:MANY]]
        if rest := sizes[MANY:]:
            rows.append([f"{len(rest)} more", show_bytes(sum(n for _, n in rest))])
        rows.append(["shared by all", show_bytes(self.shared)])
        numbers = [
            [k, "not known" if x.value is None else _show(x.value), x.kind]
            for k, x in self.hyperparams.items()
        ]
        tables = [
            (["part", "state at", "parameters", "state", "dtypes", "reads"], parts),
            (["parameter", "state"], rows),
            (["hyperparameter", "value", "kind"], numbers),
            (["warning"], [[text] for text in self.warnings]),
        ]
        return [table for table in tables if table[1]]


@explain_misuse
def describe(
    tx: GradientTransformation, params: Params, *, state: OptState | None = None
) -> Description:
    """Describe the parts of a transformation, their parameters and their state.

    No step is run, and no array as large as a parameter is allocated.  A transformation
    of another library is described as far as its state and signature allow.

    tx: the transformation.
    params: the parameters, or `jax.ShapeDtypeStruct`s in their place; packed ones are
        described as if they were not packed.
    state: the state from which to read hyperparameters; the initial state if `None`.

    Raises a `TypeError` if `tx` is not a transformation, and the errors of its `init`.
    Returns an object to print, whose `to_dict` returns the same as data.
    """
    require_transformation(tx, "`tx` of `describe`")
    params, state = unpack((params, state))
    arrays, rebuild = partition_arrays(params)
    found: list = []

    # The description leaves the trace in a list, as it is not an array that could be
    # returned.
    def look(arrays):
        tree = rebuild(arrays)
        gradients = Gradients(_gradients(tree), tree)
        component = open_components(tx, tx.init(tree), gradients)
        found.extend(_described(component, gradients))

    # Abstractly: `init` of a model that fills the memory must not allocate it again.
    jax.eval_shape(look, arrays)
    whole, sizes, shared, numbers, warnings = found
    return Description(whole, sizes, shared, _values(tx, state, numbers), warnings)


def _gradients(params: Params) -> Params:
    # Parameters replace gradients, as only shapes and dtypes are read.
    return jax.tree.map(lambda p: p if is_array(p) else None, params)


def _described(component: Component, gradients: Gradients) -> list:
    paths = [selection.path_names(path) for path, _ in _with_path(gradients)]
    names = ["/".join(path) for path in paths]
    pairs = zip(names, gradients.leaves, strict=True)
    sizes, shared = {name: 0 for name, g in pairs if g is not None}, 0
    # Longest first, so that the state of `a/b/c` is not counted for a parameter `b/c`.
    by_length = sorted(filter(None, paths), key=len, reverse=True)
    for path, x in _arrays(component.state):
        owner = next((p for p in by_length if _is_within(p, path)), None)
        owner = owner and "/".join(owner)
        if owner in sizes:
            sizes[owner] += _size(x)
        else:
            shared += _size(x)
    warnings = narrow_means.warnings(component)
    return [
        _part(component, gradients, names),
        sizes,
        shared,
        all_values(component),
        warnings,
    ]


def _with_path(gradients: Gradients) -> list:
    tree = gradients.treedef.unflatten(gradients.leaves)
    return tree_flatten_with_path(tree, is_leaf=is_none)[0]


def _arrays(state: OptState) -> list[tuple[tuple[str, ...], jax.Array]]:
    below, _ = tree_flatten_with_path(state)
    return [(selection.path_names(path), x) for path, x in below if hasattr(x, "dtype")]


def _is_within(part: tuple, path: tuple) -> bool:
    """Whether the names of a parameter occur in a path, after its first name."""
    # The first name is the field of a state, such as `mu`, also if a parameter has it.
    starts = range(1, len(path) - len(part) + 1)
    return any(path[i : i + len(part)] == part for i in starts)


def _size(x: jax.Array) -> int:
    return x.size * x.dtype.itemsize


def _part(
    component: Component, gradients: Gradients, names: list[str]
) -> PartDescription:
    scope = component.scope
    on = [g is not None for g in gradients.leaves]
    if scope is not None:
        on = [a and bool(b) for a, b in zip(on, scope, strict=True)]
    touched = [name for name, is_on in zip(names, on, strict=True) if is_on]
    is_few = len(touched) <= FEW and scope is not None
    arrays = [x for _, x in _arrays(component.state)]
    known = reads(component.tx)
    return PartDescription(
        name=_name(component),
        path=join(component.path),
        leaves=len(touched),
        paths=tuple(touched) if is_few else None,
        bytes=sum(map(_size, arrays)),
        dtypes=tuple(sorted({str(x.dtype) for x in arrays})),
        reads=None if known is None else tuple(sorted(known)),
        parts=tuple(_part(part, gradients, names) for part in component.parts),
    )


def _name(component: Component) -> str:
    recipe = component.recipe
    if recipe is None:  # the function in which `update` was written
        made_in = getattr(
            component.tx.update, "__qualname__", type(component.tx).__name__
        )
        return made_in.split(".<locals>")[0].removesuffix(".update")
    if recipe.title:
        return _short(recipe.title, 200)
    numbers = {k: x for k, x in recipe.given.items() if not _holds_parts(x)}
    shown = ", ".join(f"{k}={_show(x)}" for k, x in numbers.items())
    return f"{recipe.build.__name__}({shown})"


def _holds_parts(x: object) -> bool:
    # Transformations among the arguments are listed as separate components.
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, tuple | list) and not isinstance(x, GradientTransformation):
        return any(map(_holds_parts, x))
    return hasattr(x, "init") and hasattr(x, "update")


def _values(
    tx: GradientTransformation, state: OptState | None, traced: dict[str, Value]
) -> dict[str, Value]:
    """The current values of hyperparameters; `None` where they cannot be known."""
    try:
        # Without parameters, an initial state holds nothing but scalars, and is cheap.
        found = all_values(open_components(tx, tx.init(()) if state is None else state))
    except Exception:
        # An `init` of another library need not accept an empty tree; a state that was
        # given, however, must be readable.
        if state is not None:
            raise
        found = {}
    unknown = lambda x: Value(None, x.kind) if isinstance(x.value, Tracer) else x
    return {k: found.get(k) or unknown(x) for k, x in traced.items()}


def _plain(x: object) -> Any:
    if isinstance(x, dict):
        return {k: _plain(v) for k, v in x.items()}
    if isinstance(x, tuple | list):
        return [_plain(v) for v in x]
    if x is None or isinstance(x, bool | int | float | str):
        return x
    try:
        found = np.asarray(x)
    except Exception:  # a random key, or a traced value
        return str(x)
    return found.tolist() if found.dtype.kind in "biuf" else str(x)


def _row(depth: int, part: PartDescription) -> list[str]:
    listed = f": {', '.join(part.paths)}" if part.paths else ""
    keywords = "not known" if part.reads is None else ", ".join(part.reads)
    cells = ["  " * depth + part.name, part.path, f"{part.leaves}{listed}"]
    return [*cells, show_bytes(part.bytes), ", ".join(part.dtypes), keywords]


def _show(x: object) -> str:
    # A schedule is callable, but is known by its call rather than by a name.
    if isinstance(x, MadeSchedule):
        return _short(repr(x), 160)
    if callable(x):
        return getattr(x, "__name__", type(x).__name__)
    if isinstance(x, Tracer):
        return "…"
    plain = _plain(x)
    return _short(f"{plain:.6g}" if isinstance(plain, float) else str(plain), 40)


def _short(text: str, most: int) -> str:
    """A text with functions shown by name only, truncated if it is too long."""
    # Addresses would make two descriptions of the same transformation differ.
    text = re.sub(r"<function (?:\S+\.)?(\S+) at 0x\w+>", r"\1", text)
    return text if len(text) <= most else f"{text[: most - 1]}…"
