"""Composition: a nest of transformations, run as a flat list of passes.

Every composite says which members it has, how its state holds theirs, and which leaves
they see.  `run` walks the nest in order; neighbours that are rules share a pass, also
across nested chains, masks and partitions.  What is no rule stands between passes.
"""

import functools as ft
import itertools as it
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax.core import Tracer

from ..base.protocol import Transformation, takes_extra_args, transformation
from . import leafwise
from .gradients import Gradients, Scope
from .kernel import Pass
from .packed_gradients import open_gradients
from .rule import Rule


class Composite:
    """A transformation that is made of others; subclasses say how."""

    members: Sequence[Any]

    def init(self, params: Any) -> Any:
        raise NotImplementedError

    def unpack(self, state: Any) -> Sequence[Any]:
        """The states of the members."""
        raise NotImplementedError

    def pack(self, states: list) -> Any:
        """The state, from those of the members."""
        raise NotImplementedError

    def scopes(self, flow: Gradients, scope: Scope) -> Sequence[Scope]:
        """The leaves that each member sees, of those in `scope`."""
        return [scope] * len(self.members)


class Opaque:
    """A step that runs a transformation nobody looks into."""

    size = 1

    def __init__(self, tx: Any):
        self.update = tx.update
        self.takes_extra = takes_extra_args(tx)

    def __call__(
        self, flow: Gradients, states: list, scopes: Sequence[Scope], extra: dict
    ) -> list:
        (state,), (scope,) = states, scopes
        extra = extra if self.takes_extra else {}
        params = flow.cut_params(scope)
        updates, state = self.update(flow.cut(scope), state, params, **extra)
        flow.merge(updates, scope)
        return [state]


def part_of(tx: Any) -> Any:
    """The rule or composite that a transformation runs; itself if it is opaque."""
    return tx.node if type(tx) is Transformation and tx.node else tx


def parts(part: Any) -> Iterator[Any]:
    """What a nest comes down to, in order: rules and opaque transformations."""
    if not isinstance(part, Composite):
        yield part
        return
    for member in part.members:
        yield from parts(part_of(member))


def keeps_dtypes(tx: Any) -> bool:
    """Whether the engine runs all of a transformation, which then minds the dtypes."""
    node = getattr(tx, "node", None)
    return node is not None and all(isinstance(x, Rule) for x in parts(node))


def _steps(node: Any) -> list:
    """The nest as passes and opaque steps."""
    steps, rules = [], []

    def close():
        if rules:
            steps.append(Pass(rules))
            rules.clear()

    for part in parts(node):
        if not isinstance(part, Rule):
            close()
            steps.append(Opaque(part))
            continue
        if (part.leaf_stat or part.global_stat) and any(rule.leaf for rule in rules):
            close()  # it reads all leaves of what came before it
        rules.append(part)
        if part.batched:
            close()
    close()
    return steps


def _states(part: Any, state: Any) -> Iterator[Any]:
    """The state of each part of a nest, in order."""
    if not isinstance(part, Composite):
        yield state
        return
    for member, s in zip(part.members, part.unpack(state), strict=True):
        yield from _states(part_of(member), s)


def _scopes(part: Any, flow: Gradients, scope: Scope) -> Iterator[Scope]:
    """The leaves that each part sees.

    Masks are resolved when their turn comes, on what the updates are then.
    """
    if not isinstance(part, Composite):
        yield scope
        return
    for member, reached in zip(part.members, part.scopes(flow, scope), strict=True):
        yield from _scopes(part_of(member), flow, reached)


def _close(part: Any, states: Iterator) -> Any:
    """The state of a nest, from those of its parts."""
    if not isinstance(part, Composite):
        return next(states)
    return part.pack([_close(part_of(member), states) for member in part.members])


def build(node: Rule | Composite) -> Transformation:
    """The transformation that runs a rule or a composite."""
    # The closure holds nodes, no transformations: libraries that walk the cells of a
    # closure would never end if `update` were found among its own.
    steps = _steps(node)

    def update(updates, state, params=None, **extra_args):
        return _run(node, steps, open_gradients(updates, params), state, extra_args)

    return transformation(node.init, update, node)


def _run(node, steps, flow, state, extra):
    states, scopes = list(_states(node, state)), _scopes(node, flow, None)
    new = []
    for step in steps:
        old = states[len(new) : len(new) + step.size]
        new += step(flow, old, list(it.islice(scopes, step.size)), extra)
    return flow.updates, _close(node, iter(new))


def step_if(
    accepted: Any, tx: Any, updates: Any, state: Any, params: Any, extra: dict
) -> tuple[Any, Any]:
    """What `tx.update` returns, or zeros and the state as it was.

    Rules that work number by number choose in the pass what is kept, which costs
    nothing; a branch would have to write out the updates.
    """
    node = part_of(tx)
    is_simple = all(isinstance(x, Rule) and x.elementwise for x in parts(node))
    if not isinstance(accepted, Tracer) or not is_simple:
        step = lambda: tx.update(updates, state, params, **extra)
        return leafwise.branch_step(accepted, step, updates, state)
    flow = open_gradients(updates, params)
    flow.accepted = accepted
    u, new = _run(node, _steps(node), flow, state, extra)
    choose = lambda g, u: jnp.where(accepted, u.astype(g.dtype), jnp.zeros_like(g))
    return leafwise.map_gradients(choose, updates, updates=u), new


class Guards:
    """The guards of a nest, wherever they are: they clean gradients before all else.

    They are found in chains, masks and partitions, and behind what hands gradients on
    unseen; not behind what judges them, such as `apply_if_finite`.
    """

    def __init__(self, tx: Any):
        self.tx = tx

    # Not before it is needed, because the factories in a nest are called for it.
    @ft.cached_property
    def part(self) -> Any:
        """The nest, if there is a guard in it."""
        return self.tx if _is_guarded(self.tx) else None

    def clean(self, updates: Any, state: Any, params: Any) -> tuple[Any, list]:
        """The updates without what the guards remove, and the states of these."""
        if self.part is None:
            return updates, []
        flow, found = Gradients(updates, params), []

        def run(rule, state, scope):
            found.extend(Pass([rule])(flow, [state], [scope], {}))
            return state

        _visit_guards(self.part, state, run, flow, None)
        return flow.treedef.unflatten(flow.leaves), found

    def read(self, state: Any) -> list:
        """The states of the guards in that of the nest."""
        found = []
        if self.part is not None:
            _visit_guards(self.part, state, lambda rule, s, scope: found.append(s))
        return found

    def write(self, state: Any, found: list) -> Any:
        """The state of the nest with other states of the guards."""
        if self.part is None:
            return state
        new = iter(found)
        return _visit_guards(self.part, state, lambda rule, s, scope: next(new))


def _is_guarded(tx: Any) -> bool:
    part = part_of(tx)
    if isinstance(part, Composite):
        return any(map(_is_guarded, part.members))
    passes_on = getattr(part, "passes_on", None)
    if passes_on is not None:
        return _is_guarded(passes_on[1]())
    return isinstance(part, Rule) and part.sanitizes


def _visit_guards(tx, state, visit, flow=None, scope=None) -> Any:
    """The state of a nest with what `visit(rule, state, scope)` returns for guards.

    flow: where the masks on the way are resolved; without it there is no scope.
    """
    part = part_of(tx)
    if isinstance(part, Rule):
        return visit(part, state, scope) if part.sanitizes else state
    if not _is_guarded(part):
        return state
    if not isinstance(part, Composite):
        field, member = part.passes_on
        new = _visit_guards(member(), getattr(state, field), visit, flow, scope)
        return state._replace(**{field: new})
    members, states = part.members, part.unpack(state)
    scopes = part.scopes(flow, scope) if flow else [None] * len(members)
    rows = zip(members, states, scopes, strict=True)
    return part.pack([_visit_guards(tx, s, visit, flow, at) for tx, s, at in rows])
