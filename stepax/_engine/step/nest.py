"""Nests of transformations: what they contain, and the keywords that they read.

Every composite knows its members, how its state holds theirs, and which leaves they
see.  A closure knows the transformations that it calls.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

from ..base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    Transformation,
    TransformationLike,
    init_of,
)
from ..trees import errors
from ..trees.selection import Scope
from . import Gradients
from .rule import Rule


class Composite:
    """A transformation that is made of others, as subclasses define."""

    members: Sequence[TransformationLike]
    # Whether members see different leaves than the composite.
    has_scopes = False

    def init(self, params: Params, /) -> OptState:
        """The first state."""
        return self.pack([init_of(tx)(params) for tx in self.members])

    def unpack(self, state: OptState) -> Sequence[OptState]:
        """The states of the members."""
        raise NotImplementedError

    def pack(self, states: Sequence[OptState]) -> OptState:
        """The state, from those of the members."""
        raise NotImplementedError

    def scopes(self, gradients: Gradients, scope: Scope) -> Sequence[Scope]:
        """The leaves that each member sees, among those in `scope`."""
        return [scope] * len(self.members)


class Chain(Composite):
    """Members in order; the state is a tuple of theirs."""

    def __init__(self, members: Sequence[TransformationLike]):
        self.members = members

    def unpack(self, state):
        n = len(self.members)
        # A named tuple is the state of something else, even if it has as many fields.
        if type(state) is not tuple or len(state) != n:
            errors.require_states(f"a chain of {n} transformations", n, state)
        return state

    def pack(self, states):
        return tuple(states)


Part: TypeAlias = TransformationLike | Rule | Composite


def node_of(tx: Part) -> Part:
    """The rule or composite that a transformation runs; a foreign one unchanged."""
    # By the exact type: a user's subclass may override `update`.
    if type(tx) is Transformation and tx.record.node:
        return cast(Rule | Composite, tx.record.node)
    return tx


def flatten(tx: Part) -> Iterator[TransformationLike | Rule]:
    """The rules and foreign transformations in a nest, in order."""
    node = node_of(tx)
    if not isinstance(node, Composite):
        yield node
        return
    for member in node.members:
        yield from flatten(member)


def wrapped_by(tx: Any) -> Mapping[str, Any]:
    """The transformations that a closure calls, by the field of its state."""
    if type(tx) is Transformation:
        return {} if tx.record.node else tx.members
    # `MultiSteps`, ours and Optax's, is a separate class.
    inner = getattr(tx, "inner_opt", None)
    return {} if inner is None else {"inner_opt_state": inner}


def reads(tx: Any) -> frozenset[str] | None:
    """The keywords of `update` that a transformation reads; `None` if it may be any.

    Rules declare their keywords.  Our closures have them in their signature, or wrap
    transformations that read them.  Of other transformations only the signature is
    known, which is no help if it takes any keyword without naming one, as in Optax's
    `chain`.
    """
    if isinstance(tx, Rule):
        return frozenset(tx.reads)
    is_ours = type(tx) is Transformation
    if is_ours and tx.node:
        return _union(map(reads, flatten(tx)))
    if is_ours and tx.record.reads_any:
        return None
    inner = wrapped_by(tx)
    if is_ours or inner:  # `MultiSteps`, ours and Optax's
        return _union([_named(tx.update)[0], *map(reads, inner.values())])
    if isinstance(tx, GradientTransformation) and not isinstance(
        tx, GradientTransformationExtraArgs
    ):
        return frozenset()
    names, takes_any = _named(tx.update)
    return None if takes_any and not names else names


def _named(update: Callable) -> tuple[frozenset[str], bool]:
    """The keywords in a signature besides `params`, and whether it takes any other."""
    try:
        parameters = list(inspect.signature(update).parameters.values())
    except (TypeError, ValueError):
        return frozenset(), True
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    at = [p for i, p in enumerate(parameters) if i > 2 or p.kind is by_name[1]]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return frozenset(p.name for p in at if p.kind in by_name), takes_any


def _union(sets: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    found = list(sets)
    known = [x for x in found if x is not None]
    return frozenset().union(*known) if len(known) == len(found) else None


def walk(tx: Any) -> Iterator[Any]:
    """A transformation and all its members and callees, in preorder."""
    yield tx
    node = node_of(tx)
    inside = node.members if isinstance(node, Composite) else wrapped_by(tx).values()
    for part in inside:
        yield from walk(part)


def keeps_dtypes(tx: TransformationLike) -> bool:
    """Whether the engine runs all of a transformation, and so keeps the dtypes."""
    return all(isinstance(part, Rule) for part in flatten(tx))


def varies(tx: TransformationLike | Rule) -> bool:
    """Whether a transformation finds hyperparameters by the paths of leaves."""
    nodes = map(node_of, walk(tx))
    return any(isinstance(node, Rule) and node.varied is not None for node in nodes)
