"""Nested transformations, run as one flat program.

A `Plan` walks the nest once, when it is first needed, and lists the operations of
a step: unpack the state of a composite, run a pass of neighbouring rules, call a
transformation that is foreign to the engine, and at the end pack the states again.
Neighbouring rules share a pass, even across nested chains, masks and partitions.
"""

import functools as ft
import itertools as it
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from ..arrays.coding import holds_codes
from ..arrays.placement import placed_init
from ..base import (
    OptState,
    Params,
    TransformationLike,
    Updates,
    is_none,
    require_pair,
)
from ..base.call import Call, call_of
from ..base.node import Node, Transformation, node_of, takes_extra_args
from ..base.stepped import all_by_leaf, combined
from ..trees.pack import pack, unpack
from ..trees.packed import Packed
from ..trees.selection import Scope
from . import Gradients, leafwise
from .kernel import Pass
from .nest import Chain, Composite, like_updates
from .packed_gradients import gradients_of
from .rule import APPLY, Rule


def origins_of(call: Call | None, first: int = 0) -> Iterator[Call]:
    """The origins of the rules that a call made by itself, from an index on."""
    if call is None or call.checked is None:
        return iter(())
    return (replace(call, at=(at,)) for at in it.count(first))


def adopt(closure: Node, call: Call) -> None:
    """Record the call in the plans that a closure made."""
    at = 0
    for tx in closure.own_members():
        node = node_of(tx)
        if node.plan is not None:
            node.plan.origins = ft.partial(origins_of, call, at)
        at += len(list(node.own_rules()))


class _Open(NamedTuple):
    """Unpack the state of a composite into those of its members.

    at: the index of its state in the list of states.
    first: the index of the state of its first member; the others follow.
    """

    node: Composite
    at: int
    first: int


@dataclass
class _Run:
    """Run a pass, or a foreign transformation, on the states at these indices."""

    step: "Pass | _InSteps | _Foreign"
    at: list[int]


class _Listing:
    """The steps of a nest, and the `size` of the flat list of states."""

    def __init__(self, node: Node, trains: str, origins: Iterator[Call]):
        self.size = 1
        self.steps: list[_Open | _Run] = []
        self._may_idle = False
        self._pending: list[tuple[Rule, str, int]] = []
        self._add(node, trains, 0, origins)
        self._close_pass()
        self.opened = [step for step in self.steps if isinstance(step, _Open)]

    def _add(
        self,
        tx: TransformationLike | Node,
        trains: str,
        at: int,
        origins: Iterator[Call],
    ) -> None:
        """Append the operations of `tx`; its state has the index `at`.

        origins: the origins of the rules that were not made by a factory in `tx`.
        """
        # Errors name the outermost optimizer, which the user called.
        if call := call_of(tx):
            trains, origins = trains or call.trains, origins_of(call)
        node = node_of(tx)
        if isinstance(node, Rule):
            origin = next(origins, None)
            rule = node if node.origin else replace(node, origin=origin)
            # A pass runs its rules leaf by leaf, but this rule reads all leaves of the
            # preceding result, as clipping by the global norm does.
            reads_all = rule.leaf_stat is not None or rule.global_stat is not None
            is_alone = self._may_idle and rule.in_steps is not None
            reads_all = reads_all and any(before.leaf for before, _, _ in self._pending)
            if reads_all or is_alone:
                self._close_pass()
            # Masks may exclude what it adds to, such as integers.
            self._pending.append((rule, "" if rule is APPLY else trains, at))
            # Its whole-matrix stage runs after the leaves, at the end of a pass.
            if rule.batched or is_alone:
                self._close_pass()
        elif isinstance(node, Composite):
            first, self.size = self.size, self.size + len(node.members)
            self.steps.append(_Open(node, at, first))
            for n, member in enumerate(node.members):
                self._add(member, trains, first + n, origins)
        else:
            self._close_pass()
            self._append(_Foreign(tx, node), node.in_steps, [at])
            self._may_idle = self._may_idle or node.may_idle

    def _close_pass(self) -> None:
        if self._pending:
            rules, trains, at = zip(*self._pending, strict=True)
            self._append(Pass(rules, trains), rules[0].in_steps, list(at))
            self._pending = []

    def _append(self, step: "Pass | _Foreign", of: str | None, at: list[int]) -> None:
        gated = _InSteps(step, of) if self._may_idle and of else step
        self.steps.append(_Run(gated, at))


class Plan:
    """The operations of a step of a nest, listed when first needed.

    node: the rule or composite.
    trains: the name of an optimizer, which raises for integers; "" for other parts.
    origins: makes the origins of its rules that were not made by a factory within it.
    """

    def __init__(self, node: Node):
        self.node, self.trains = node, node.call.trains if node.call else ""
        self.origins: Callable[[], Iterator[Call]] = ft.partial(origins_of, node.call)

    @ft.cached_property
    def listing(self) -> _Listing:
        """Its operations."""
        return _Listing(self.node, self.trains, self.origins())

    @ft.cached_property
    def applied(self) -> "Plan":
        """The plan that returns new parameters instead of updates."""
        members = cast(list[TransformationLike], [self.node, APPLY])
        plan = Plan(Chain(members))
        plan.trains, plan.origins = self.trains, self.origins
        return plan

    @property
    def is_elementwise(self) -> bool:
        """Whether it consists of elementwise rules."""
        rules = list(self.node.parts())
        return all(isinstance(rule, Rule) and rule.elementwise for rule in rules)

    def __call__(
        self,
        updates: Updates,
        state: OptState,
        params: Params,
        extra: dict,
        accepted: jax.Array | None = None,
    ) -> tuple[Updates, OptState]:
        """The updates and the next state.

        accepted: whether the state may change; if not, the updates are unspecified.
        """
        gradients = gradients_of(updates, params)
        gradients.accepted = accepted
        listing = self.listing
        states: list = [None] * listing.size
        scopes: list[Scope] = [None] * listing.size
        states[0], scopes[0] = state, gradients.whole_scope()
        for step in listing.steps:
            if isinstance(step, _Open):
                node, at, first = step
                states[first : first + len(node.members)] = node.unpack(states[at])
                # Only now: a mask function is called with the updates at this point of
                # the chain.
                if node.has_scopes or scopes[at] is not None:
                    found = node.scopes(gradients, scopes[at])
                    scopes[first : first + len(node.members)] = found
                continue
            old, seen = [states[i] for i in step.at], [scopes[i] for i in step.at]
            new = step.step(gradients, old, seen, extra)
            for i, x in zip(step.at, new, strict=True):
                states[i] = x
        # Innermost first, as the state of a composite is made of those of its members.
        for node, at, first in reversed(listing.opened):
            states[at] = node.pack(states[first : first + len(node.members)])
        return gradients.updates, states[0]


def build(node: Rule | Composite) -> Transformation:
    """The transformation that runs a rule or a composite, without a call."""
    plan = Plan(node)

    # The closure holds nodes, not a transformation: libraries that walk the cells of a
    # closure would never return if they found `update` in its own cells.
    def update(updates, state, params=None, **extra_args):
        return plan(updates, state, params, extra_args)

    return Transformation.of(placed_init(node.init), update, node.changed(plan=plan))


class _Foreign:
    """Calls a transformation that the engine does not inspect."""

    def __init__(self, tx: Any, node: Node):
        self.node, self.update = node, tx.update
        self.takes_extra = takes_extra_args(tx)

    def __call__(
        self, gradients: Gradients, states: list, scopes: Sequence[Scope], extra: dict
    ) -> list:
        (state,), (scope,) = states, scopes
        # Optax's plain transformations raise for a keyword that they do not know.
        extra = extra if self.takes_extra else {}
        params = gradients.cut_params(scope)
        with gradients.telling(scope):
            found = self.update(gradients.cut(scope), state, params, **extra)
        updates, new = require_pair(self.update, found)
        if self.node.may_idle:
            did = self.node.steps(state, new, extra, (gradients, scope))
            gradients.stepped = all_by_leaf(
                [gradients.stepped or [True] * len(did), did]
            )
        gradients.merge(updates, scope)
        return [new]


class _InSteps:
    """Runs a rule or a closure in calls that are steps; in others nothing changes."""

    def __init__(self, run: "Pass | _Foreign", of: str):
        self.run, self.of = run, of

    def __call__(
        self, gradients: Gradients, states: list, scopes: Sequence[Scope], extra: dict
    ) -> list:
        did = gradients.stepped or [True] * len(gradients.leaves)
        rows = zip(did, scopes[0] or [True] * len(did), strict=True)
        is_any = combined([x for x, on in rows if on], True)
        if is_any is False:
            return states
        did = [is_any] * len(did) if self.of == "any" else did
        before = gradients.updates
        gradients.accepted = None if is_any is True else is_any
        new = self.run(gradients, states, scopes, extra)
        gradients.accepted = None
        if isinstance(self.run, _Foreign):
            new = jax.tree.map(ft.partial(jnp.where, is_any), new, states)
        gradients.open(_where(did, gradients.updates, before))
        return new


def _where(did: list, new: Updates, old: Updates) -> Updates:
    """The new updates of the leaves for which a call was a step, otherwise the old."""
    if all(on is did[0] for on in did):
        choose = lambda x, was: x if x is was else jnp.where(did[0], x, was)
        return jax.tree.map(choose, new, old)
    if isinstance(new, Packed):
        return pack(_where(did, unpack(new), unpack(old)), like=new)
    before, treedef = jax.tree.flatten(old, is_leaf=is_none)
    rows = zip(did, treedef.flatten_up_to(new), before, strict=True)
    return treedef.unflatten(
        x if x is was else jnp.where(on, x, was) for on, x, was in rows
    )


def step_if(
    accepted: ArrayLike,
    tx: TransformationLike,
    updates: Updates,
    state: OptState,
    params: Params,
    extra: dict,
) -> tuple[Updates, OptState]:
    """The result of `tx.update` if accepted, otherwise zeros and the old state."""
    # Elementwise rules select in the same pass over memory, at no cost; a `lax.cond`
    # would have to write the updates out.  Work that costs more than memory traffic,
    # such as a matrix product, is better skipped by a branch.  So are codes: a step is
    # not computed from the codes that it stores, and would be computed twice.
    plan = node_of(tx).plan
    is_traced = isinstance(accepted, Tracer)
    if plan is None or not (is_traced and plan.is_elementwise) or holds_codes(state):
        take = ft.partial(tx.update, updates, state, params, **extra)
        return leafwise.branch_step(accepted, take, like_updates(updates, tx), state)
    u, new = plan(updates, state, params, extra, accepted)

    def choose(g, u):
        return jnp.where(accepted, u.astype(g.dtype), jnp.zeros_like(g))

    return leafwise.map_gradients(choose, updates, updates=u), new
