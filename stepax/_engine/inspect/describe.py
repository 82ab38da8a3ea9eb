"""Descriptions of a transformation: its parts, their parameters and their state."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.core import Tracer

from ..._diagnose.diagnose import static_findings
from .. import inspect, rules as rx
from ..factories.by_path import amount_of
from ..trees.pack import unpack
from ..trees.paths import join
from . import Component, Printable, Table
from .hyperparams import Value, all_values


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
    patterns: for each argument that is a mapping from path patterns, by the path of its
        part, the parameters for which each pattern decides.
    warnings: the errors and warnings that `diagnose` finds without a step, such as
        Adam's `nu` in bfloat16, and what to do about them.
    """

    whole: PartDescription
    parameters: dict[str, int]
    shared: int
    hyperparams: dict[str, Value]
    patterns: dict[str, dict[str, tuple[str, ...]]]
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The description as dictionaries, lists, strings and numbers, for JSON."""
        return inspect.plain(dataclasses.asdict(self))

    def tables(self) -> list[Table]:
        """The tables that are printed, without empty ones."""
        parts = [_row(depth, part) for depth, part in self.whole.lines()]
        sizes = sorted(self.parameters.items(), key=lambda pair: -pair[1])
        # Largest first: a model has thousands of parameters, and few take the memory.
        rows = [[path, inspect.show_bytes(n)] for path, n in sizes[:MANY]]
        if rest := sizes[MANY:]:
            rows.append(
                [f"{len(rest)} more", inspect.show_bytes(sum(n for _, n in rest))]
            )
        rows.append(["shared by all", inspect.show_bytes(self.shared)])
        numbers = [
            [k, "not known" if x.value is None else inspect.show(x.value), x.kind]
            for k, x in self.hyperparams.items()
        ]
        matched = [
            [argument, pattern, f"{len(paths)}: {rx.errors.list_some(paths, FEW)}"]
            for argument, found in self.patterns.items()
            for pattern, paths in found.items()
        ]
        tables = [
            (["part", "state at", "parameters", "state", "dtypes", "reads"], parts),
            (["parameter", "state"], rows),
            (["hyperparameter", "value", "kind"], numbers),
            (["argument", "pattern", "parameters"], matched),
            (["warning"], [[text] for text in self.warnings]),
        ]
        return [table for table in tables if table[1]]


@rx.explain_misuse
def describe(
    tx: rx.TransformationLike,
    params: rx.Params,
    *,
    state: rx.OptState | None = None,
) -> Description:
    """Describe a transformation: its components, their parameters and their state.

    No step is run, and no array as large as a parameter is allocated.  A transformation
    of another library is described as far as its state and signature allow.

    tx: the transformation.
    params: the parameters, or `jax.ShapeDtypeStruct`s in their place; packed ones are
        described as if they were not packed.
    state: the state from which to read hyperparameters; the initial state if `None`.

    Raises a `TypeError` if `tx` is not a transformation, a `ValueError` for the state
    of another one, and the errors of its `init`.
    Returns an object to print, whose `to_dict` returns the same as data.

    >>> stepax.describe(tx, params).to_dict()["whole"]["bytes"]
    52
    """
    rx.require_transformation(tx, "`tx` of `describe`")
    found = inspect.examine(tx, params, _described)
    return replace(found, hyperparams=_values(tx, unpack(state), found.hyperparams))


def _described(component: Component, gradients: rx.Gradients) -> Description:
    """The description, with traced hyperparameters."""
    paths = rx.selection.leaf_names(gradients.treedef.unflatten(gradients.leaves))
    names = ["/".join(path) for path in paths]
    pairs = zip(names, gradients.leaves, strict=True)
    sizes, shared = {name: 0 for name, g in pairs if g is not None}, 0
    for owner, x in inspect.owned_arrays(component.state, paths):
        name = None if owner is None else "/".join(owner)
        if name in sizes:
            sizes[name] += _size(x)
        else:
            shared += _size(x)
    numbers, patterns = all_values(component), _matched(component, gradients)
    alarms = static_findings(component, gradients).alarms
    warnings = tuple(f"{x.message}: {x.cure}" for x in alarms)
    whole = _part(component, gradients, names)
    return Description(whole, sizes, shared, numbers, patterns, warnings)


# Arguments that are mappings from patterns, which may leave parameters out.
_OPEN = ("factors", "fragments", "g", "pairs")


def _matched(component: Component, gradients: rx.Gradients) -> dict[str, dict]:
    """What the patterns among the arguments match, by the paths of the arguments."""
    found = {}
    for part in component.walk():
        tree = gradients.outline(part.scope)
        for name, x in part.given.items():
            spec = amount_of(x)
            if not isinstance(spec, Mapping) or inspect.holds_parts(spec):
                continue
            # Other mappings, as of names to metrics, match no parameters.
            with suppress(ValueError, TypeError):
                matched = rx.selection.decided(spec, tree, name in _OPEN)
                # A part passes its arguments on to those below it.
                if (name, matched) not in ((path[-1], x) for path, x in found.items()):
                    found.setdefault((*part.path, name), matched)
    return {join(path): x for path, x in found.items()}


def _size(x: jax.Array) -> int:
    return x.size * x.dtype.itemsize


def _part(
    component: Component, gradients: rx.Gradients, names: list[str]
) -> PartDescription:
    reached = component.reached(gradients.leaves)
    touched = [names[i] for i in reached if gradients.leaves[i] is not None]
    is_few = len(touched) <= FEW and component.scope is not None
    arrays = [x for _, x in inspect.arrays_in(component.state)]
    known = rx.node_of(component.tx).keywords()
    return PartDescription(
        name=inspect.part_name(component),
        path=join(component.path),
        leaves=len(touched),
        paths=tuple(touched) if is_few else None,
        bytes=sum(map(_size, arrays)),
        dtypes=tuple(sorted({str(x.dtype) for x in arrays})),
        reads=None if known is None else tuple(sorted(known)),
        parts=tuple(_part(part, gradients, names) for part in component.parts),
    )


def _values(
    tx: rx.TransformationLike, state: rx.OptState | None, traced: dict[str, Value]
) -> dict[str, Value]:
    """The current values of hyperparameters; `None` where they cannot be known."""
    try:
        # Without parameters, an initial state holds nothing but scalars, and is cheap.
        found = all_values(
            inspect.open_components(tx, tx.init(()) if state is None else state)
        )
    except Exception:
        # An `init` of another library need not accept an empty tree; a state that was
        # given, however, must be readable.
        if state is not None:
            raise
        found = {}
    unknown = {
        k: Value(None, x.kind) if isinstance(x.value, Tracer) else x
        for k, x in traced.items()
    }
    return {k: found.get(k) or x for k, x in unknown.items()}


def _row(depth: int, part: PartDescription) -> list[str]:
    listed = f": {', '.join(part.paths)}" if part.paths else ""
    keywords = "not known" if part.reads is None else ", ".join(part.reads)
    cells = ["  " * depth + part.name, part.path, f"{part.leaves}{listed}"]
    return [*cells, inspect.show_bytes(part.bytes), ", ".join(part.dtypes), keywords]
