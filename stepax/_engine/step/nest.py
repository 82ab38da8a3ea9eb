"""Nests of transformations: what they contain, and the keywords that they read.

Every composite knows its members, how its state holds theirs, and which leaves they
see.  A closure knows the transformations that it calls.
"""

import functools as ft
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import jax
from jax.core import Tracer

from ..arrays.precision import compute_dtype, is_inexact
from ..base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    Transformation,
    TransformationLike,
    Updates,
    init_of,
)
from ..trees import errors
from ..trees.selection import Scope
from . import Gradients
from .leafwise import map_gradients
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


def is_ours(tx: Part) -> bool:
    """Whether no member is foreign; such may take trees of other things than arrays."""
    return all(isinstance(x, Rule | Transformation) for x in flatten(tx))


def wrapped_by(tx: Any) -> Mapping[str, Any]:
    """The transformations that a closure calls, by the field of its state."""
    if type(tx) is Transformation:
        return {} if tx.record.node else tx.members
    # `MultiSteps`, ours and Optax's, is a separate class, and Optax's pair of its
    # methods is a plain one.
    update = getattr(tx, "update", None)
    inner = getattr(getattr(update, "__self__", tx), "inner_opt", None)
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


def _declares(tx: Any, name: str) -> bool:
    """Whether some part has a field of `Record`."""
    found = tx.record.found if type(tx) is Transformation else {}
    if name not in found:
        found[name] = any(_declared(part, name) for part in walk(tx))
    return found[name]


def _declared(tx: Any, name: str) -> Any:
    if type(tx) is Transformation:
        return getattr(tx.record, name)
    return accumulates if name == "stepped" and wrapped_by(tx) else None


def like_updates(updates: Updates, *txs: TransformationLike) -> Updates:
    """The gradients in the dtypes that updates of these transformations have.

    Wrappers round updates to the dtypes of gradients, unless a part forbids it.
    """
    if not any(_declares(tx, "is_exact") for tx in txs):
        return updates
    return map_gradients(
        lambda g: g.astype(compute_dtype(g)) if is_inexact(g) else g, updates
    )


def accumulates(old: OptState, new: OptState, extra: dict) -> jax.Array:
    """Whether a call of `MultiSteps` was a step; see `Record.stepped`."""
    return new.gradient_step != old.gradient_step


def may_idle(tx: TransformationLike) -> bool:
    """Whether there may be calls of `update` that are no steps."""
    return _declares(tx, "stepped")


def stepped(tx: TransformationLike, old: Any, new: Any, extra: dict) -> Any:
    """Whether the call with keywords `extra` that made the state `new` was a step.

    It is one of a chain if it is one of all members, and of parts with leaves of their
    own if it is one of any; a Python boolean if it is known.
    """
    if not may_idle(tx):
        return True
    node = node_of(tx)
    if isinstance(node, Composite):
        rows = zip(node.members, node.unpack(old), node.unpack(new), strict=True)
        return combined([stepped(*row, extra) for row in rows], node.has_scopes)
    says, found = _declared(node, "stepped"), []
    if says is not None:
        did = says(old, new, extra)
        found = [did if isinstance(did, Tracer) else bool(did)]
    # Others that it calls see something else than the gradients.
    for field, member in [*wrapped_by(node).items()][:1]:
        was, now = (getattr(x, field, None) if field else x for x in (old, new))
        found += [] if now is None else [stepped(member, was, now, extra)]
    return combined(found, False)


def combined(found: Sequence[bool | jax.Array], is_any: bool) -> bool | jax.Array:
    """Whether all of some are true, or any."""
    if any(x is is_any for x in found):
        return is_any
    unknown = [x for x in found if not isinstance(x, bool)]
    if not unknown:
        return not is_any or not found
    return ft.reduce(operator.or_ if is_any else operator.and_, unknown)
