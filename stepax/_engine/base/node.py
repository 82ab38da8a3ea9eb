"""What a transformation runs: a rule, a composite, a closure, or a foreign one.

Each node knows the transformations that it runs, the keywords that it reads, and
whether a call of it was a step.
"""

import copy
import functools as ft
import inspect
import itertools as it
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NoReturn, Self, TypeAlias

import jax
from jax.core import Tracer

from ..arrays.placement import placed_init
from ..functions.calls import explain_misuse, no_attribute
from ..functions.signatures import keywords_of
from . import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    TransformationLike,
    Updates,
    require_pair,
    require_transformation,
)
from .call import Call, call_of
from .stepped import accumulates, all_by_leaf


Keywords: TypeAlias = frozenset[str] | None


class Node:
    """A node of a nest of transformations.

    init: makes the first state, without placement on a mesh.
    call: the call of the factory that returned it.
    plan: the operations of a step, for a rule or composite that is run by itself.
    is_plain: whether it counts as a transformation without keywords, as in Optax; it
        drops them.
    members: the transformations that it runs, in order.
    is_exact: whether its updates are float32 for narrower gradients, and must not be
        rounded.
    keeps_dtypes: whether the engine runs all of it, and so keeps the dtypes.
    has_sanitizer: whether a rule in it cleans gradients before anything else reads
        them.
    in_steps, varied: as in a `Rule`.
    take_step, stepped: as in a `Closure`.
    callees: the transformations that a closure calls, by the field of its state.
    """

    init: Callable[[Params], OptState]
    call: Call | None = None
    plan: Any = None
    is_plain: bool = False
    members: Sequence[TransformationLike] = ()
    is_exact: bool = False
    in_steps: Literal["leaf", "any"] | None = None
    varied: Any = None
    take_step: Callable[..., tuple[Params, OptState]] | None = None
    stepped: Callable[[OptState, OptState, dict], Any] | None = None
    keeps_dtypes: bool = False
    has_sanitizer: bool = False
    callees: Mapping[str, TransformationLike] = MappingProxyType({})
    _judged: Callable[..., list]  # of those that may idle

    @property
    def title(self) -> str:
        """What errors call it."""
        return self.call.name if self.call else type(self).__name__

    def changed(self, **fields: Any) -> Self:
        """A copy with other fields."""
        new = copy.copy(self)
        for k in ("may_idle", "holds_exact"):  # found out of the old fields
            vars(new).pop(k, None)
        vars(new).update(fields)  # also of a frozen class
        return new

    def parts(self) -> "Iterator[Node]":
        """The rules, closures and foreign transformations in it, in order."""
        yield self

    def walk(self) -> "Iterator[Node]":
        """The node and all below it, in preorder."""
        yield self
        for member in self.members:
            yield from node_of(member).walk()

    def own_rules(self) -> "Iterator[Node]":
        """The rules in it that no factory within it made, in order."""
        for member in self.own_members():
            yield from node_of(member).own_rules()

    def own_members(self) -> list[TransformationLike]:
        """The members that no factory made."""
        return [x for x in self.members if call_of(x) is None]

    def keywords(self) -> Keywords:
        """The keywords of `update` that it reads; `None` if it may be any."""
        return _union(part.keywords() for part in self.parts())

    @property
    def is_varied(self) -> bool:
        """Whether it finds hyperparameters by the paths of leaves."""
        return any(node.varied is not None for node in self.walk())

    @ft.cached_property
    def holds_exact(self) -> bool:
        """Whether some part of it is exact."""
        return any(node.is_exact for node in self.walk())

    @ft.cached_property
    def may_idle(self) -> bool:
        """Whether there may be calls of `update` that are no steps."""
        return any(node.stepped is not None for node in self.walk())

    def was_step(self, old: OptState, new: OptState, extra: dict) -> bool | jax.Array:
        """Whether the call with keywords `extra` that made the state `new` was a step.

        It is one of a chain if it is one of all members, and of parts with leaves of
        their own if it is one of any; a Python boolean if it is known.
        """
        return self.steps(old, new, extra)[0]

    def steps(self, old: OptState, new: OptState, extra: dict, seen=None) -> list:
        """`was_step` for each leaf, true for those out of scope.

        seen: the gradients and the scope; without, there is one for all leaves.
        """
        is_in = [True] if seen is None else seen[1] or [True] * len(seen[0].leaves)
        if not self.may_idle:
            return [True] * len(is_in)
        found = self._judged(old, new, extra, seen)
        return [x if on else True for x, on in zip(found, is_in, strict=True)]


class _Caller(Node):
    """A node that is two functions, into which plans do not look."""

    hands_on: str | None = None
    shows: Callable[..., tuple] | None = None

    @property
    def has_sanitizer(self) -> bool:
        place = self.hands_on
        return place is not None and node_of(self.callees[place]).has_sanitizer

    @property
    def members(self) -> Sequence[TransformationLike]:
        return list(self.callees.values())

    def _judged(self, old: OptState, new: OptState, extra: dict, seen: Any) -> list:
        did = True if self.stepped is None else self.stepped(old, new, extra)
        did = did if isinstance(did, Tracer) else bool(did)
        found = [[did] * (len(seen[0].leaves) if seen else 1)]
        # Others that it calls see something else than the gradients.
        for place, member in [*self.callees.items()][:1]:
            was, now = (getattr(x, place, None) if place else x for x in (old, new))
            if now is not None:
                seen = seen if self.shows is None else None
                inner = node_of(member).steps(was, now, extra, seen)
                found.append(inner if seen else inner * len(found[0]))
        return all_by_leaf(found)


Inner: TypeAlias = Mapping[str, TransformationLike]


@dataclass(frozen=True, eq=False)
class Closure(_Caller):
    """A transformation of ours that is two functions; it declares what it calls.

    init: its `init`, without placement on a mesh.
    update: (updates, state, params, **extra) -> (updates, state).
    inner: a dict of the transformations that it calls, keyed by the field of its state
        that holds their state, such as "inner_state" or "states/0", or by "" if its
        state is theirs; a function that returns this if they are made at each step.
    hands_on: the field of the member to which it passes all gradients on unread, if
        there is one; `None` if it reads or judges them.
    shows: (updates, params) -> (updates, params, back), if that member sees trees of
        another form; `back` turns its updates into those of the first form.
    reads_any: whether it may itself read any keyword.
    only_places: whether it does the same as `inner[""]`, on other devices.
    stepped: (old state, new state, keywords) -> whether a call was a step, for one that
        accumulates or refuses gradients.
    take_step: (gradients, state, params, extra) -> (params, state), if that is better
        than `update`; see `stepax.step`.
    in_steps, is_exact: as in a `Node`.
    """

    init: Callable[[Params], OptState]
    update: Callable[..., tuple[Updates, OptState]]
    inner: Inner | Callable[[], Inner] = field(default_factory=dict)
    hands_on: str | None = None
    shows: Callable[..., tuple] | None = None
    reads_any: bool = False
    only_places: bool = False
    stepped: Callable[[OptState, OptState, dict], Any] | None = None
    take_step: Callable[..., tuple[Params, OptState]] | None = None
    in_steps: Literal["leaf", "any"] | None = None
    is_exact: bool = False

    @property
    def callees(self) -> Inner:
        return self.inner() if callable(self.inner) else self.inner

    def own_members(self) -> list[TransformationLike]:
        return [] if callable(self.inner) else super().own_members()

    def keywords(self) -> Keywords:
        if self.reads_any:
            return None
        own, _ = keywords_of(self.update)
        return _union([own, *(node_of(x).keywords() for x in self.members)])


class Foreign(_Caller):
    """A transformation that is not one of ours, or a class such as `MultiSteps`."""

    def __init__(self, tx: TransformationLike):
        self.tx, self.call = tx, call_of(tx)

    @property
    def title(self) -> str:
        return self.call.name if self.call else type(self.tx).__name__

    def init(self, params: Params, /) -> OptState:
        return self.tx.init(params)

    @property
    def callees(self) -> Inner:
        # `MultiSteps`, ours and Optax's, is a separate class, and Optax's pair of its
        # methods is a plain one.
        update = getattr(self.tx, "update", None)
        inner = getattr(getattr(update, "__self__", self.tx), "inner_opt", None)
        return {} if inner is None else {"inner_opt_state": inner}

    @property
    def hands_on(self) -> str | None:
        given = self.call.bound.arguments if self.call and self.callees else {}
        is_ours = given.get("should_skip_update_fn", 0) is None
        return "inner_opt_state" if is_ours else None

    def keywords(self) -> Keywords:
        """As far as the signature says.

        It does not if it takes any keyword without naming one, as in Optax's `chain`.
        """
        if self.callees:
            parts = (node_of(x).keywords() for x in self.members)
            return _union([keywords_of(self.tx.update)[0], *parts])
        is_pair = isinstance(self.tx, GradientTransformation)
        if is_pair and not isinstance(self.tx, GradientTransformationExtraArgs):
            return frozenset()
        names, takes_any = keywords_of(self.tx.update)
        return None if takes_any and not names else names

    @property
    def stepped(self) -> Callable[[OptState, OptState, dict], Any] | None:
        return accumulates if self.callees else None


def _union(sets: Iterable[Keywords]) -> Keywords:
    found = list(sets)
    known = [x for x in found if x is not None]
    return frozenset().union(*known) if len(known) == len(found) else None


def node_of(tx: Any) -> Any:
    """What a transformation runs; a node unchanged."""
    # By the exact type: a user's subclass may override `update`.
    if type(tx) is Transformation:
        return tx.node
    return tx if isinstance(tx, Node) else Foreign(tx)


def rule_at(made: Any, at: tuple) -> Any:
    """The rule of what a factory returned; see `Call.at`."""
    if not at:
        return made
    index, *label = at
    rule: Any = next(it.islice(node_of(made).own_rules(), index, None))
    return rule.varied.rule(*label) if label else rule


class Transformation(GradientTransformationExtraArgs):
    """The result of our own factories, which also knows what it runs.

    Equal calls make equal transformations, so that a transformation can be a static
    argument of `jax.jit`.  It is printed and pickled as the call that made it.

    >>> isinstance(stepax.adam(1e-3), stepax.rules.Transformation)
    True
    """

    # An attribute, not a field: it remains a pair, which unpacks to `init` and
    # `update`.
    node: Node

    def __new__(cls, init: Callable, update: Callable) -> "Transformation":
        # Rebuilt from its functions, as `jax.tree.map` does, of which no more is known.
        return cls.of(init, update, Closure(init, update, reads_any=True))

    @classmethod
    def _make(cls, iterable: Any) -> "Transformation":
        return cls(*iterable)

    @classmethod
    def of(cls, init: Callable, update: Callable, node: Node) -> "Transformation":
        """The pair of functions that run a node."""
        tx = tuple.__new__(cls, (init, update))
        tx.node = node
        return tx

    @property
    def call(self) -> Call | None:
        """The call that made it."""
        return self.node.call

    def __repr__(self) -> str:
        return repr(self.call) if self.call else super().__repr__()

    def __getattr__(self, name: str) -> NoReturn:
        node = vars(self).get("node")
        raise no_attribute(node.call.name if node and node.call else "", name)

    def __reduce_ex__(self, protocol):
        # Closures cannot be pickled; the call that made them can.
        if self.call is None:
            return super().__reduce_ex__(protocol)
        again, title = self.call.again(), self.call.title
        return (_titled, (again, title)) if title else (again, ())

    def _replace(self, **functions: Any) -> GradientTransformationExtraArgs:
        # What is known about it need not hold for other functions.
        return GradientTransformationExtraArgs(**self._asdict() | functions)


def transformation(
    init: Callable[[Params], OptState],
    update: Callable[..., tuple[Updates, OptState]],
    **known: Any,
) -> Transformation:
    """A transformation that is a closure; `known` are fields of its `Closure`."""
    return Transformation.of(placed_init(init), update, Closure(init, update, **known))


def with_init(tx: Transformation, init: Callable[[Params], OptState]) -> Transformation:
    """A transformation with another `init`, whose states its `update` accepts."""
    # Without a call: the one that made `tx` would make the old `init`.
    node = tx.node.changed(init=init, call=None)
    return Transformation.of(placed_init(init), tx.update, node)


def with_call(tx: Transformation, call: Call | None) -> Transformation:
    """A transformation that is printed, compared and pickled as another call."""
    node = tx.node.changed(call=call)
    return Transformation.of(tx.init, tx.update, node)


def titled(tx: Transformation, title: str) -> Transformation:
    """A transformation that is printed under another title."""
    said = "<" if "Array(" in title else title
    name_functions(tx.init, tx.update, title.partition("(")[0], said)
    return with_call(tx, tx.call and tx.call.titled(title))


def name_functions(init: Any, update: Any, name: str, said: str) -> None:
    """Say which call made them.

    Python names them in errors, such as that for a missing state, and where the pair is
    printed as a tuple, as by `nnx.Optimizer`.

    said: the call; not said if it has the address of an object, or is long.
    """
    said = f"{name}(...)" if "<" in said or len(said) > 120 else said
    init.__qualname__, update.__qualname__ = f"{said}.init", f"{said}.update"


def _titled(again: Callable, title: str) -> Any:
    return titled(again(), title)


def init_of(tx: TransformationLike) -> Callable[[Params], OptState]:
    """`init` of a member of a composite, without placement on a mesh."""
    # The outermost `init` places the whole state, once.
    return tx.node.init if type(tx) is Transformation else tx.init


def takes_extra_args(tx: TransformationLike) -> bool:
    """Whether `tx.update` may be called with keywords beyond `params`."""
    # The type answers this for our classes and Optax's.  Of any other class the
    # signature is inspected, because libraries define their own transformations.
    if isinstance(tx, GradientTransformationExtraArgs | Transformation):
        return True
    if isinstance(tx, GradientTransformation):
        return False
    kinds = (p.kind for p in inspect.signature(tx.update).parameters.values())
    return inspect.Parameter.VAR_KEYWORD in kinds


@explain_misuse
def with_extra_args_support(
    tx: TransformationLike,
) -> GradientTransformationExtraArgs:
    """Wrap a transformation so that its `update` accepts any keyword.

    Keywords that a plain transformation cannot take are dropped; one that takes
    keywords is returned unchanged.

    tx: the transformation.
    """
    if isinstance(tx, GradientTransformationExtraArgs):
        return tx
    return with_keywords(tx, "the argument of `with_extra_args_support`")


def with_keywords(tx: Any, where: str) -> Transformation:
    """As `with_extra_args_support`; errors name `where`, and pairs are checked."""
    require_transformation(tx, where)
    if type(tx) is Transformation:
        if isinstance(tx, GradientTransformationExtraArgs):
            return tx
        return Transformation.of(tx.init, tx.update, tx.node.changed(is_plain=False))
    takes_extra = takes_extra_args(tx)

    def update(updates, state, params=None, **extra_args):
        extra_args = extra_args if takes_extra else {}
        found = tx.update(updates, state, params, **extra_args)
        return require_pair(tx.update, found)

    return transformation(tx.init, update, inner={"": tx}, hands_on="")
