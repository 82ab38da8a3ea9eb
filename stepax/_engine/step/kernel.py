"""Runs neighbouring rules over all leaves: one call per leaf, one trace per shape.

The function of a leaf is jitted inside the caller's program.  Leaves of equal shape
share one trace and one function of the lowered program, which keeps tracing fast for
models of many layers.  XLA inlines the calls, so what is compiled is the same as for a
plain loop over the leaves.
"""

import functools as ft
from collections.abc import Callable, Sequence
from typing import cast

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ..arrays import precision
from ..arrays.numerics import increment, reduce_scalars
from ..trees import errors
from ..trees.labels import Scope
from . import in_place, mistakes
from .batched import Batched
from .gradients import Gradients, has_no_gradient
from .leaf_program import measure, run_rules
from .mistakes import Mistake
from .packed_gradients import PackedGradients
from .programs import Shared
from .rule import Rule
from .stage import run_stage
from .varied import ByLeaf


# The dtype of an integer's gradient, compared in line: a call of `is_float0` for each
# leaf takes longer.
_FLOAT0 = jax.dtypes.float0


# A state never changes its types.
_keep = lambda x, was: jax.lax.convert_element_type(x, jnp.asarray(was).dtype)


class Pass:
    """Consecutive rules, run together.

    trains: for each rule the optimizer that it is part of, which refuses integers; ""
        for one that stands alone.
    """

    def __init__(self, rules: Sequence[Rule], trains: Sequence[str]):
        self.rules = tuple(rules)
        self.trains = tuple(trains)
        # By this name profiles and traces show it.
        self.name = "_then_".join(rule.name or rule.State.__name__ for rule in rules)
        self.at_work = tuple(n for n, rule in enumerate(rules) if rule.leaf is not None)
        self.joins = [rule.takes_joined for rule in rules]
        self.keywords = [mistakes.Keywords(rule) for rule in rules]
        self.by_leaf = ByLeaf(self.rules)
        self.kernels: dict[tuple, Shared] = {}
        self.measures: dict[Rule, Shared] = {}
        self.stages: dict[Rule, Shared] = {}

    def __call__(
        self, gradients: Gradients, states: list, scopes: Sequence[Scope], extra: dict
    ) -> list:
        """The new states; the updates are written to `gradients`."""
        # In a rule everything has one precision, but real factors meet complex
        # gradients, which strict promotion would refuse.
        with jax.numpy_dtype_promotion("standard"), jax.named_scope(self.name):
            by_leaf = self.by_leaf
            labels = by_leaf.labels(gradients, scopes) if by_leaf.at else None
            if not isinstance(gradients, PackedGradients):
                return self._run(gradients, states, scopes, extra, labels)
            runs, reached = gradients.runs(scopes, self.joins, labels)
            runs.accepted = gradients.accepted
            labels = runs.labels if by_leaf.at else None
            new = self._run(runs, states, reached, extra, labels)
            gradients.close(runs)
            return new

    def _run(self, gradients, states, scopes, extra, labels):
        labels = labels or [None] * len(gradients.leaves)
        active = self._active(gradients.leaves, scopes)
        columns = self._columns(gradients, states, active)
        params = self._params(gradients, active)
        # The leaves become updates below; a batched stage restores their dtypes.
        given = list(gradients.leaves)
        ctx, scalars = self._prepare(
            gradients, states, params, columns, active, extra, labels
        )
        self._leaves(gradients, params, active, ctx, columns, labels)
        if self.rules[-1].batched:
            self._batch(gradients, given, params, active, ctx[-1], columns[-1], labels)
        return [
            self._state(n, gradients, states[n], scopes[n], scalars[n], columns[n])
            for n in range(len(self.rules))
        ]

    def _active(self, leaves, scopes):
        """For each leaf, the indices of the rules that change it."""
        # Tuples, because they are the keys of `kernels`.
        at_work = self.at_work
        if all(scopes[n] is None for n in at_work):
            return [() if g is None or g.dtype == _FLOAT0 else at_work for g in leaves]
        return [
            ()
            if has_no_gradient(g)
            else tuple(n for n in at_work if scopes[n] is None or scopes[n][i])
            for i, g in enumerate(leaves)
        ]

    def _columns(self, gradients, states, active):
        """For each rule and each of its slots, what is stored for each leaf."""
        columns = []
        for n, (rule, state) in enumerate(zip(self.rules, states, strict=True)):
            if type(state) is not rule.State:
                rule.check_state(state)
            columns.append([])
            for name, slot in rule.slots.items():
                column = gradients.leaves_of(getattr(state, name), name)
                for i, x in enumerate(column):
                    # In line for an array of the right shape, which it nearly always
                    # is; the check converts anything else, or raises.
                    if n in active[i] and not (
                        isinstance(x, jax.Array)
                        and (x.shape == gradients.leaves[i].shape or not slot.alike)
                    ):
                        column[i] = mistakes.check_stored(gradients, i, rule, name, x)
                columns[n].append(column)
        kinds = {g.dtype for g, on in zip(gradients.leaves, active, strict=True) if on}
        if not all(jnp.issubdtype(kind, jnp.inexact) for kind in kinds):
            mistakes.check_trained(gradients, self.rules, self.trains, active, columns)
        return columns

    def _params(self, gradients, active):
        # `gradients.params` raises if there are none, so it is read only if needed.
        readers = {n for n, rule in enumerate(self.rules) if rule.needs_params}
        if not readers:
            return [None] * len(active)
        pairs = zip(gradients.params, active, strict=True)
        return [None if readers.isdisjoint(on) else p for p, on in pairs]

    def _prepare(self, gradients, states, params, columns, active, extra, labels):
        """The contexts that the leaves get, and the new scalars, for each rule.

        Contexts are a dictionary, from the labels of a varied rule or from `None`.
        """
        contexts, scalars = [], []
        for n, (rule, state) in enumerate(zip(self.rules, states, strict=True)):
            old = [getattr(state, k) for k in rule.scalars]
            met = self.by_leaf.met(n, active, labels) if rule.varied else [None]
            if rule.prepare is None:
                new = list(map(increment, old))
                found = dict.fromkeys(met)
            else:
                stat = self._stat(n, gradients, params, columns[n], active, old, labels)
                read = self.keywords[n]
                read = mistakes.declared(rule, extra) if rule.reads else read
                found, new = {}, old
                # The scalars are those of any, as they do not depend on the label.
                for label in met:
                    one = rule if label is None else self.by_leaf.of(n, label)
                    made = cast(Callable, one.prepare)(tuple(old), stat, read)
                    is_pair = type(made) is tuple and len(made) == 2
                    is_pair = is_pair and isinstance(made[1], tuple | list)
                    if not is_pair or len(made[1]) != len(old):
                        raise mistakes.unprepared(one, made)
                    found[label], new = made
                new = jax.tree.map(_keep, list(new), old)
            # Of a rejected step the counts must not go on, either.
            if gradients.accepted is not None:
                choose = ft.partial(jnp.where, gradients.accepted)
                new = jax.tree.map(choose, new, old)
            contexts.append(found)
            scalars.append(new)
        return contexts, scalars

    def _stat(self, n, gradients, params, columns, active, scalars, labels):
        """What `prepare` gets to know about all leaves."""
        rule = self.rules[n]
        if rule.global_stat is None and rule.leaf_stat is None:
            return None
        on_it = [i for i, on in enumerate(active) if n in on]
        if rule.global_stat is not None:
            return rule.global_stat([gradients.leaves[i] for i in on_it])
        # One statistic per leaf, added up below: to join leaves would copy them, and
        # gather those that are sharded.
        parts = []
        for i in on_it:
            p = params[i] if rule.needs_params else None
            slots = [column[i] for column in columns]
            one = self._measure(n, labels[i])
            parts.append(one(scalars, gradients.leaves[i], p, slots))
        return _add_up(parts) if parts else 0.0

    def _leaves(self, gradients, params, active, contexts, columns, labels):
        """Run on each leaf the rules that change it."""
        kernels, queue = {}, None
        for i, on in enumerate(active):
            if not on:
                continue
            key = on, labels[i]
            if key not in kernels:
                kernels[key] = self._kernel(*key, contexts)
            kernel, ctx = kernels[key]
            g, row = gradients.leaves[i], [[c[i] for c in columns[n]] for n in on]
            is_traced = isinstance(g, Tracer)
            # Inside of a trace there is nothing to share but the trace.
            run = kernel.jitted if is_traced else kernel
            run = ft.partial(run, gradients.accepted, ctx)
            # In line, since most leaves are small and need no queue.
            if is_traced and g.size >= in_place.WAITS:
                queue = queue or in_place.Queue(self.rules)
                run = ft.partial(queue.run, run)
            try:
                gradients.leaves[i], new = run(g, params[i], row)
            except Mistake as mistake:
                raise mistake.at(gradients.path(i)) from None
            for n, slots in zip(on, new, strict=True):
                for column, x in zip(columns[n], slots, strict=True):
                    column[i] = x

    def _kernel(self, on, labels, contexts):
        """The kernel of some rules, and their contexts."""
        # No call for each leaf if no rule is varied.
        at = [None] * len(on) if labels is None else self.by_leaf.at_leaf(on, labels)
        ctx = [contexts[n][label] for n, label in zip(on, at, strict=True)]
        if (on, labels) not in self.kernels:
            rules = [self.rules[n] for n in on]
            if labels is not None:
                rules = [self.by_leaf.rule(n, labels) for n in on]
            self.kernels[on, labels] = Shared(run_rules, rules, self.name)
        return self.kernels[on, labels], ctx

    def _batch(self, gradients, given, params, active, contexts, columns, labels):
        """The whole-matrix stage of the last rule, on all of its arrays at once."""
        last = len(self.rules) - 1
        stage = cast(Batched, self.rules[-1].batched)
        touched = [i for i, on in enumerate(active) if last in on]
        wanted = [i for i in touched if stage.wants(gradients.leaves[i])]
        groups = {None: wanted}
        if last in self.by_leaf.at:
            groups = self.by_leaf.groups(last, wanted, labels)
        for label, same in groups.items():
            rule = self.rules[-1] if label is None else self.by_leaf.of(last, label)
            self._stack(rule, gradients, given, params, same, contexts[label], columns)
        # The leaves came here unrounded, so that the stage rounds once.
        for i in touched:
            if precision.is_inexact(given[i]):
                gradients.leaves[i] = gradients.leaves[i].astype(given[i].dtype)

    def _stack(self, rule, gradients, given, params, wanted, ctx, columns):
        """The whole-matrix stage, on all arrays that have the same rule."""
        stage = cast(Batched, rule.batched)
        names = list(rule.slots)
        kept = [columns[names.index(name)] for name in stage.slots]
        us = [gradients.leaves[i] for i in wanted]
        homes = self._homes(gradients, given, wanted)
        ps = [params[i] if stage.needs_params else None for i in wanted]
        rows = [(u, *[c[i] for c in kept]) for u, i in zip(us, wanted, strict=True)]
        try:
            made = self._stage(rule)(rows, homes, ps, ctx)
        except Mistake as mistake:
            # They are traced in stacks, so that it is one of these.
            raise mistake.at(errors.list_some(map(gradients.path, wanted))) from None
        for i, (u, *slots) in zip(wanted, made, strict=True):
            gradients.leaves[i] = u
            for column, x in zip(kept, slots, strict=True):
                column[i] = x

    def _homes(self, gradients, given, wanted):
        """For each matrix an array whose sharding its update takes, or `None`."""
        # Devices may share a slot of a replicated parameter, and then `leaf` returns
        # what is divided like it.  The update is to be as the gradient was.
        slots = self.rules[-1].slots.values()
        if not any(slot.in_leaf and slot.alike for slot in slots):
            return [None] * len(wanted)
        homes = [given[i] for i in wanted]
        off_mesh = [jax.typeof(x).sharding.mesh.empty for x in homes]
        if gradients.all_params is None or all(off_mesh):
            return [None if off else x for x, off in zip(homes, off_mesh, strict=True)]
        # With automatic axes XLA may divide that, too, and then what is added to it;
        # but it leaves the parameters where they are.
        params = gradients.leaves_of(gradients.all_params, "params")
        place = lambda x: (x.shape, jax.typeof(x).sharding)
        fits = lambda p, g: isinstance(p, jax.Array) and place(p) == place(g)
        pairs = [(params[i], g) for i, g in zip(wanted, homes, strict=True)]
        return [p if fits(p, g) else g for p, g in pairs]

    def _measure(self, n, labels):
        rule = self.rules[n] if labels is None else self.by_leaf.rule(n, labels)
        if rule not in self.measures:
            self.measures[rule] = Shared(measure, [rule], f"{self.name}_stat")
        return self.measures[rule]

    def _stage(self, rule):
        if rule not in self.stages:
            self.stages[rule] = Shared(run_stage, [rule], f"{self.name}_stage")
        return self.stages[rule]

    def _state(self, n, gradients, old, scope, scalars, columns):
        rule = self.rules[n]
        if not scalars and not columns:
            return old
        fields = dict(zip(rule.scalars, scalars, strict=True))
        for name, column in zip(rule.slots, columns, strict=True):
            fields[name] = gradients.tree_of(column, getattr(old, name), scope)
        return rule.State(**fields)


# Jitted for steps outside of `jit`: one program for all leaves.
@jax.jit
def _add_up(parts):
    """The sum over leaves, in their order."""
    return jax.tree.map(lambda *x: reduce_scalars(list(x), jnp.add, jnp.sum), *parts)
