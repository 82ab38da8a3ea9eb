"""Composition: a nest of transformations, run as one flat program.

Every composite says which members it has, how its state holds theirs, and which leaves
they see.  A `Plan` walks the nest once, when a transformation is made, and writes down
what a step does: open the state of a composite, run a pass of neighbouring rules, call
a transformation that nobody looks into, and at the end close the states again.
Neighbours that are rules share a pass, also across nested chains, masks and partitions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ..base.protocol import (
    Transformation,
    init_of,
    placed_init,
    takes_extra_args,
)
from ..trees import errors
from ..trees.labels import Scope
from ..trees.packed import Packed
from . import leafwise
from .gradients import Gradients
from .kernel import Pass
from .packed_gradients import PackedGradients
from .rule import Rule


class Composite:
    """A transformation that is made of others; subclasses say how."""

    members: Sequence[Any]
    # Whether members see other leaves than the whole does.
    has_scopes = False

    def init(self, params: Any) -> Any:
        raise NotImplementedError

    def unpack(self, state: Any) -> Sequence[Any]:
        """The states of the members."""
        raise NotImplementedError

    def pack(self, states: Sequence[Any]) -> Any:
        """The state, from those of the members."""
        raise NotImplementedError

    def scopes(self, gradients: Gradients, scope: Scope) -> Sequence[Scope]:
        """The leaves that each member sees, of those in `scope`."""
        return [scope] * len(self.members)


class Chain(Composite):
    """Members in order; the state is a tuple of theirs."""

    def __init__(self, members: Sequence[Any]):
        self.members = members

    def init(self, params):
        return tuple(init_of(tx)(params) for tx in self.members)

    def unpack(self, state):
        n = len(self.members)
        if type(state) is not tuple or len(state) != n:
            errors.require_states(f"a chain of {n} transformations", n, state)
        return state

    def pack(self, states):
        return tuple(states)


def node_of(tx: Any) -> Any:
    """The rule or composite that a transformation runs; itself if nobody looks in."""
    return tx.node if type(tx) is Transformation and tx.node else tx


def flatten(tx: Any) -> Iterator[Any]:
    """What a nest comes down to, in order: rules, and what nobody looks into."""
    node = node_of(tx)
    if not isinstance(node, Composite):
        yield node
        return
    for member in node.members:
        yield from flatten(member)


def keeps_dtypes(tx: Any) -> bool:
    """Whether the engine runs all of a transformation, and so keeps the dtypes."""
    return all(isinstance(part, Rule) for part in flatten(tx))


class _Open(NamedTuple):
    """Take the states of the members out of that of a composite.

    at: where its state is among all states.
    first: from where on those of its members are.
    """

    node: Composite
    at: int
    first: int


@dataclass
class _Run:
    """Run a pass, or a foreign transformation, on the states at these places."""

    step: Any
    at: list[int]


class Plan:
    """What a step of a nest does, in order.

    node: the rule or composite.
    trains: the optimizer that it is, which refuses integers; "" for none.
    """

    def __init__(self, node: Rule | Composite, trains: str = ""):
        self.node = node
        self.size = 1
        self.steps: list[_Open | _Run] = []
        self._pending: list[tuple[Rule, str, int]] = []
        self._add(node, trains, 0)
        self._close_pass()
        self.opened = [step for step in self.steps if isinstance(step, _Open)]

    def _add(self, tx: Any, trains: str, at: int) -> None:
        """Write down what `tx` does; its state is at place `at`."""
        recipe = getattr(tx, "recipe", None)
        trains = trains or (recipe.trains if recipe else "")
        node = node_of(tx)
        if isinstance(node, Rule):
            self._add_rule(node, trains, at)
        elif isinstance(node, Composite):
            first, self.size = self.size, self.size + len(node.members)
            self.steps.append(_Open(node, at, first))
            for n, member in enumerate(node.members):
                self._add(member, trains, first + n)
        else:
            self._close_pass()
            self.steps.append(_Run(_Foreign(node), [at]))

    def _add_rule(self, rule: Rule, trains: str, at: int) -> None:
        reads_all = rule.leaf_stat is not None or rule.global_stat is not None
        if reads_all and any(before.leaf for before, _, _ in self._pending):
            self._close_pass()  # it reads all leaves of what came before it
        self._pending.append((rule, trains, at))
        if rule.batched:
            self._close_pass()

    def _close_pass(self) -> None:
        if self._pending:
            rules, trains, at = zip(*self._pending, strict=True)
            self.steps.append(_Run(Pass(rules, trains), list(at)))
            self._pending = []

    @property
    def is_elementwise(self) -> bool:
        """Whether all of it is elementwise rules."""
        rules = list(flatten(self.node))
        return all(isinstance(rule, Rule) and rule.elementwise for rule in rules)

    def __call__(
        self,
        updates: Any,
        state: Any,
        params: Any,
        extra: dict,
        accepted: jax.Array | None = None,
    ) -> tuple[Any, Any]:
        """The updates and the next state.

        accepted: whether the state may change; the updates are garbage where not.
        """
        kind = PackedGradients if isinstance(updates, Packed) else Gradients
        gradients = kind(updates, params)
        gradients.accepted = accepted
        states: list = [None] * self.size
        scopes: list[Scope] = [None] * self.size
        states[0] = state
        for step in self.steps:
            if isinstance(step, _Open):
                node, at, first = step
                states[first : first + len(node.members)] = node.unpack(states[at])
                # Masks are resolved when their turn comes, on what the updates are.
                if node.has_scopes or scopes[at] is not None:
                    found = node.scopes(gradients, scopes[at])
                    scopes[first : first + len(node.members)] = found
                continue
            old, seen = [states[i] for i in step.at], [scopes[i] for i in step.at]
            new = step.step(gradients, old, seen, extra)
            for i, x in zip(step.at, new, strict=True):
                states[i] = x
        for node, at, first in reversed(self.opened):
            states[at] = node.pack(states[first : first + len(node.members)])
        return gradients.updates, states[0]


def build(node: Rule | Composite) -> Transformation:
    """The transformation that runs a rule or a composite, without a recipe."""
    plan = Plan(node)

    # The closure holds nodes, no transformations: libraries that walk the cells of a
    # closure would never end if `update` were found among its own.
    def update(updates, state, params=None, **extra_args):
        return plan(updates, state, params, extra_args)

    tx = Transformation(placed_init(node.init), update)
    tx.node, tx.plan, tx.bare_init = node, plan, node.init
    return tx


class _Foreign:
    """A step that calls a transformation nobody looks into."""

    def __init__(self, tx: Any):
        self.update = tx.update
        self.takes_extra = takes_extra_args(tx)

    def __call__(
        self, gradients: Gradients, states: list, scopes: Sequence[Scope], extra: dict
    ) -> list:
        (state,), (scope,) = states, scopes
        extra = extra if self.takes_extra else {}
        params = gradients.cut_params(scope)
        updates, state = self.update(gradients.cut(scope), state, params, **extra)
        gradients.merge(updates, scope)
        return [state]


def step_if(
    accepted: Any, tx: Any, updates: Any, state: Any, params: Any, extra: dict
) -> tuple[Any, Any]:
    """What `tx.update` returns, or zeros and the state as it was.

    Elementwise rules choose in the pass what is kept, which costs nothing; a branch
    would have to write out the updates.
    """
    plan = getattr(tx, "plan", None)
    if not isinstance(accepted, Tracer) or plan is None or not plan.is_elementwise:
        step = lambda: tx.update(updates, state, params, **extra)
        return leafwise.branch_step(accepted, step, updates, state)
    u, new = plan(updates, state, params, extra, accepted)
    choose = lambda g, u: jnp.where(accepted, u.astype(g.dtype), jnp.zeros_like(g))
    return leafwise.map_gradients(choose, updates, updates=u), new
