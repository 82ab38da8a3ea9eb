"""Runs neighbouring rules over all leaves: one call per leaf, one trace per shape.

The function of a leaf is jitted inside the caller's program.  Leaves of equal shape
share one trace and one function of the lowered program, which keeps tracing fast for
models of many layers.  XLA inlines the calls, so the compiled code is the same as for a
plain loop over the leaves.
"""

import functools as ft
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import jax.numpy as jnp

from ..arrays import precision
from ..arrays.numerics import increment, reduce_scalars
from ..arrays.placement import is_on_mesh
from ..arrays.stacked import Axes, Static, one_of
from ..trees import errors
from ..trees.selection import Scope
from ..xla import order
from ..xla.programs import Shared, has_tracer
from . import Gradients, mistakes
from .batched import Batched
from .leaf_program import measure, run_rules, run_stage
from .mistakes import Mistake
from .packed_gradients import PackedGradients
from .rule import APPLY, Rule


# The dtype of an integer's gradient, compared in line: a call of `is_float0` for each
# leaf takes longer.
_FLOAT0 = jax.dtypes.float0


@dataclass(slots=True)
class Leaf:
    """What a pass knows about one leaf.

    at: its index among the leaves of the gradients.
    g: the original gradient; `None` if there is none.
    on: the indices of the rules that change it.
    rules: all rules of the pass, with those for this leaf in place of varied ones.
    axes: for each rule the axes along which the leaf is a stack; none if it does not
        matter to the rule.
    u: the update so far.
    p: the parameter; `None` if no rule reads it.
    slots: for each rule, the stored value of each of its slots.
    """

    at: int
    g: Any
    on: tuple[int, ...]
    rules: tuple[Rule, ...]
    axes: tuple[Axes, ...]
    u: Any
    p: Any = None
    slots: list[list] = field(default_factory=list)


class Pass:
    """Consecutive rules, run together.

    trains: for each rule the optimizer that it is part of, which raises for integers;
        "" for a rule by itself.
    """

    def __init__(self, rules: Sequence[Rule], trains: Sequence[str]):
        self.rules = tuple(rules)
        self.trains = tuple(trains)
        # The name in profiles and traces.
        self.name = "_then_".join(rule.name or rule.State.__name__ for rule in rules)
        self.at_work = tuple(n for n, rule in enumerate(rules) if rule.leaf is not None)
        self.readers = {n for n, rule in enumerate(rules) if rule.needs_params}
        self.is_varied = any(rule.varied for rule in rules)
        # A slot of a replicated parameter may be sharded, and then `leaf` returns an
        # array sharded like it.  The update must be sharded like the gradient.
        slots = rules[-1].slots.values()
        self.has_homes = any(slot.in_leaf and slot.alike for slot in slots)
        self.replaced: dict[tuple, Rule] = {}
        self.programs: dict[tuple, Shared] = {}

    def __call__(
        self, gradients: Gradients, states: list, scopes: Sequence[Scope], extra: dict
    ) -> list:
        """The new states; the updates are written to `gradients`."""
        # In a rule everything has one precision, but real factors meet complex
        # gradients, which strict promotion would reject.
        with jax.numpy_dtype_promotion("standard"), jax.named_scope(self.name):
            runs: Any = gradients
            rules = None
            if self.is_varied:
                rules = self._by_leaf(gradients, scopes)
            if isinstance(gradients, PackedGradients):
                joins = [rule.takes_joined for rule in self.rules]
                runs, scopes = gradients.runs(scopes, joins, rules)
                rules = runs.labels
            leaves = self._open(runs, states, scopes, rules)
            contexts, scalars = self._prepare(runs, states, leaves, extra)
            self._step(runs, states, leaves, contexts)
            if self.rules[-1].batched:
                self._batch(runs, leaves, contexts[-1])
            for leaf in leaves:
                runs.leaves[leaf.at] = leaf.u
            rows = zip(self.rules, states, scopes, scalars, strict=True)
            new = [_state(n, runs, leaves, *row) for n, row in enumerate(rows)]
            if isinstance(gradients, PackedGradients):
                gradients.close(runs)
            return new

    def _by_leaf(self, gradients, scopes):
        """The rules for each leaf; a varied one stays where it is out of scope."""
        columns = []
        for n, (rule, scope) in enumerate(zip(self.rules, scopes, strict=True)):
            labels = [None] * len(gradients.leaves)
            if rule.varied:
                found = iter(rule.varied.labels(gradients.outline(scope)))
                within = scope or [True] * len(labels)
                labels = [next(found, None) if on else None for on in within]
            for label in {*labels} - {label for m, label in self.replaced if m == n}:
                self.replaced[n, label] = rule.for_label(label)
            columns.append([self.replaced[n, label] for label in labels])
        return list(zip(*columns, strict=True))

    def _open(self, gradients, states, scopes, rules):
        """The leaves, with the parameters and the slots that rules read."""
        at_work, leaves = self.at_work, []
        sees_all = all(scopes[n] is None for n in at_work)
        # Elementwise rules run as without `stacked`.
        pairs = zip(self.rules, scopes, strict=True)
        axes = [x.axes if x and not rule.takes_joined else None for rule, x in pairs]
        no_axes = ((),) * len(axes)
        for i, g in enumerate(gradients.leaves):
            on = at_work
            if g is None or g.dtype == _FLOAT0:
                on = ()
            elif not sees_all:
                on = tuple(n for n in on if scopes[n] is None or scopes[n][i])
            mine = tuple(x[i] if x else () for x in axes) if any(axes) else no_axes
            own = self.rules if rules is None else rules[i]
            leaves.append(Leaf(i, g, on, own, mine, g))
        for n, (rule, state) in enumerate(zip(self.rules, states, strict=True)):
            if type(state) is not rule.State:
                rule.check_state(state)
            self._read_slots(n, gradients, state, leaves)
        kinds = {leaf.g.dtype for leaf in leaves if leaf.on}
        if not all(jnp.issubdtype(kind, jnp.inexact) for kind in kinds):
            mistakes.check_trained(gradients, self.rules, self.trains, leaves)
        # `gradients.params` raises if there are none, so it is read only if needed.
        if self.readers:
            for leaf, p in zip(leaves, gradients.params, strict=True):
                leaf.p = None if self.readers.isdisjoint(leaf.on) else p
        return leaves

    def _read_slots(self, n, gradients, state, leaves):
        """Give each leaf the slots of a rule."""
        rule, rows = self.rules[n], [[] for _ in leaves]
        for name, slot in rule.slots.items():
            column = gradients.leaves_of(getattr(state, name), name)
            for leaf, row, x in zip(leaves, rows, column, strict=True):
                # In line for an array of the right shape, which it nearly always is;
                # the check converts anything else, or raises.
                if n in leaf.on and not (
                    isinstance(x, jax.Array)
                    and (x.shape == leaf.g.shape or not slot.alike)
                ):
                    x = mistakes.check_stored(gradients, leaf.at, rule, name, x)
                row.append(x)
        for leaf, row in zip(leaves, rows, strict=True):
            leaf.slots.append(row)

    def _prepare(self, gradients, states, leaves, extra):
        """For each rule the contexts of those in its place, and the new scalars."""
        contexts, scalars = [], []
        for n, (rule, state) in enumerate(zip(self.rules, states, strict=True)):
            old = [getattr(state, k) for k in rule.scalars]
            running = [leaf.rules[n] for leaf in leaves if n in leaf.on and rule.varied]
            running = dict.fromkeys(running or [rule])
            if rule.prepare is None:
                of_rules, new = running, list(map(increment, old))
            else:
                stat, read = self._stat(n, leaves, old), mistakes.declared(rule, extra)
                of_rules, new = _prepared(running, old, stat, read)
            # A rejected step must not advance the counts, either.
            if gradients.accepted is not None:
                choose = ft.partial(jnp.where, gradients.accepted)
                new = jax.tree.map(choose, new, old)
            contexts.append(of_rules)
            scalars.append(new)
        return contexts, scalars

    def _stat(self, n, leaves, scalars):
        """The statistic of all leaves for `prepare`."""
        rule = self.rules[n]
        if rule.global_stat is None and rule.leaf_stat is None:
            return None
        seen = [leaf for leaf in leaves if n in leaf.on]
        if rule.global_stat is not None:
            return rule.global_stat([leaf.u for leaf in seen])
        # One statistic per leaf, added up below: joining leaves would copy them, and
        # gather sharded ones.
        parts = []
        for leaf in seen:
            p = leaf.p if rule.needs_params else None
            one = self._program(measure, leaf.rules[n : n + 1], "_stat")
            axes = Static(leaf.axes[n : n + 1])
            parts.append(one(axes, scalars, leaf.u, p, leaf.slots[n]))
        return _add_up(parts) if parts else 0.0

    def _program(self, f, rules, suffix=""):
        """The program of a function of some rules."""
        if (f, *rules) not in self.programs:
            self.programs[f, *rules] = Shared(f, rules, self.name + suffix)
        return self.programs[f, *rules]

    def _step(self, gradients, states, leaves, contexts):
        """Run the rules that change each leaf."""
        kernels, leaf_order = {}, None
        params = gradients.params if self.readers else None
        is_traced = has_tracer((gradients.leaves, states, params))
        for leaf in leaves:
            if not leaf.on:
                continue
            key = leaf.on, leaf.rules, leaf.axes
            if key not in kernels:
                kernel = self._program(run_rules, [leaf.rules[n] for n in leaf.on])
                ctx = [contexts[n][leaf.rules[n]] for n in leaf.on]
                axes = Static(tuple(leaf.axes[n] for n in leaf.on))
                common = axes, gradients.accepted, ctx
                # Inside a trace only the trace can be shared.
                if is_traced or has_tracer(common):
                    kernels[key] = ft.partial(kernel.jitted, *common)
                else:
                    kernels[key] = kernel.given(*common)
            run = kernels[key]
            # In line, since most leaves are small and need no order.
            if is_traced and leaf.u.size >= order.WAITS:
                leaf_order = leaf_order or order.LeafOrder(
                    self.rules[-1] is APPLY, all(x.elementwise for x in self.rules)
                )
                run = ft.partial(leaf_order.run, run)
            row = [leaf.slots[n] for n in leaf.on]
            try:
                leaf.u, new = run(leaf.u, leaf.p, row)
            except Mistake as mistake:
                raise mistake.at(gradients.path(leaf.at)) from None
            for n, slots in zip(leaf.on, new, strict=True):
                leaf.slots[n] = list(slots)

    def _batch(self, gradients, leaves, contexts):
        """The whole-matrix stage of the last rule, on all of its arrays at once."""
        last = len(self.rules) - 1
        stage = cast(Batched, self.rules[-1].batched)
        touched = [leaf for leaf in leaves if last in leaf.on]
        groups: dict = {}
        for leaf in touched:
            if stage.wants(one_of(leaf.u, leaf.axes[last])):
                groups.setdefault(leaf.rules[-1], []).append(leaf)
        for rule, same in groups.items():
            self._stack(rule, gradients, same, contexts[rule])
        # The leaves came here unrounded, so that the stage rounds once.
        for leaf in touched:
            if precision.is_inexact(leaf.g):
                leaf.u = leaf.u.astype(leaf.g.dtype)

    def _stack(self, rule, gradients, leaves, ctx):
        """The whole-matrix stage, on all arrays that have the same rule."""
        stage, names = cast(Batched, rule.batched), list(rule.slots)
        at = [names.index(name) for name in stage.slots]
        rows = [(leaf.u, *[leaf.slots[-1][k] for k in at]) for leaf in leaves]
        ps = [leaf.p if stage.needs_params else None for leaf in leaves]
        homes, axes = self._homes(gradients, leaves), [x.axes[-1] for x in leaves]
        stage = self._program(run_stage, [rule], "_stage")
        try:
            made = stage(Static(tuple(axes)), rows, homes, ps, ctx)
        except Mistake as mistake:
            # They are traced in stacks, so the rule is one of these.
            paths = [gradients.path(leaf.at) for leaf in leaves]
            raise mistake.at(errors.list_some(paths)) from None
        for leaf, (u, *slots) in zip(leaves, made, strict=True):
            leaf.u = u
            for k, x in zip(at, slots, strict=True):
                leaf.slots[-1][k] = x

    def _homes(self, gradients, leaves):
        """For each matrix an array whose sharding its update gets, or `None`."""
        if not self.has_homes:
            return [None] * len(leaves)
        homes = [leaf.g if is_on_mesh(leaf.g) else None for leaf in leaves]
        if gradients.all_params is None or all(x is None for x in homes):
            return homes
        # With automatic axes XLA may shard that, too, and then what is added to it; but
        # it does not move the parameters.
        params = gradients.leaves_of(gradients.all_params, "params")
        pairs = [(params[leaf.at], leaf.g) for leaf in leaves]
        return [p if _is_placed_like(p, g) else g for p, g in pairs]


def _state(n, gradients, leaves, rule, old, scope, scalars):
    """The new state of the n-th rule."""
    if not scalars and not rule.slots:
        return old
    fields = dict(zip(rule.scalars, scalars, strict=True))
    for k, name in enumerate(rule.slots):
        column = [leaf.slots[n][k] for leaf in leaves]
        fields[name] = gradients.tree_of(column, getattr(old, name), scope)
    return rule.State(**fields)


def _prepared(rules, old, stat, read):
    """The context of each rule, which has its own `prepare`, and the new scalars."""
    contexts, new = {}, old
    for rule in rules:
        made = rule.prepare(tuple(old), stat, read)
        is_pair = type(made) is tuple and len(made) == 2
        is_pair = is_pair and isinstance(made[1], tuple | list)
        if not is_pair or len(made[1]) != len(old):
            raise mistakes.unprepared(rule, made)
        # The scalars do not depend on the label.
        contexts[rule], new = made
    # A state never changes its types.
    return contexts, jax.tree.map(
        lambda x, was: jax.lax.convert_element_type(x, jnp.asarray(was).dtype),
        list(new),
        old,
    )


def _is_placed_like(p: Any, g: jax.Array) -> bool:
    if not isinstance(p, jax.Array):
        return False
    return p.shape == g.shape and jax.typeof(p).sharding == jax.typeof(g).sharding


# Jitted for steps outside of `jit`: one program for all leaves.
@jax.jit
def _add_up(parts):
    """The sum over leaves, in their order."""
    return jax.tree.map(lambda *x: reduce_scalars(list(x), jnp.add, jnp.sum), *parts)
