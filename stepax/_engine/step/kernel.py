"""Runs neighbouring rules over all leaves: one call per leaf, one trace per shape.

The function of a leaf is jitted inside the caller's program.  Leaves of equal shape
share one trace and one function of the lowered program, which keeps tracing fast for
models of many layers.  XLA inlines the calls, so what is compiled is the same as for a
plain loop over the leaves.
"""

import functools as ft
from collections.abc import Sequence
from typing import cast

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ..arrays import precision
from ..arrays.coding import Coded, as_found, decode, encode, opened
from ..arrays.numerics import increment, reduce_scalars
from ..arrays.placement import is_on_mesh, with_sharding_of
from ..trees import errors
from ..trees.labels import Scope
from . import mistakes
from .batched import Batched, Row, map_batched
from .gradients import Gradients, has_no_gradient
from .mistakes import UNDECLARED, Mistake, Undeclared
from .packed_gradients import PackedGradients
from .programs import Shared
from .rule import Rule
from .step_where import step_where


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
        self.kernels: dict[tuple[int, ...], Shared] = {}

    def __call__(
        self, gradients: Gradients, states: list, scopes: Sequence[Scope], extra: dict
    ) -> list:
        """The new states; the updates are written to `gradients`."""
        # In a rule everything has one precision, but real factors meet complex
        # gradients, which strict promotion would refuse.
        with jax.numpy_dtype_promotion("standard"), jax.named_scope(self.name):
            if not isinstance(gradients, PackedGradients):
                return self._run(gradients, states, scopes, extra)
            runs, reached = gradients.runs(scopes, self.joins)
            runs.accepted = gradients.accepted
            new = self._run(runs, states, reached, extra)
            gradients.close(runs)
            return new

    def _run(self, gradients, states, scopes, extra):
        active = self._active(gradients.leaves, scopes)
        columns = self._columns(gradients, states, active)
        params = self._params(gradients, active)
        # The leaves become updates below; a batched stage restores their dtypes.
        given = list(gradients.leaves)
        ctx, scalars = self._prepare(gradients, states, params, columns, active, extra)
        for i, on in enumerate(active):
            if on:
                self._leaf(i, on, gradients, params[i], ctx, columns)
        if self.rules[-1].batched:
            self._batch(gradients, given, params, active, ctx[-1], columns[-1])
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

    def _prepare(self, gradients, states, params, columns, active, extra):
        """The context that all leaves get, and the new scalars, for each rule."""
        contexts, scalars = [], []
        for n, (rule, state) in enumerate(zip(self.rules, states, strict=True)):
            old = [getattr(state, k) for k in rule.scalars]
            if rule.prepare is None:
                ctx, new = None, list(map(increment, old))
            else:
                stat = self._stat(n, gradients, params, columns[n], active, old)
                read = self.keywords[n]
                read = mistakes.declared(rule, extra) if rule.reads else read
                made = rule.prepare(tuple(old), stat, read)
                if type(made) is not tuple or len(made) != 2:
                    raise mistakes.unprepared(rule, made)
                ctx, new = made
                if not isinstance(new, tuple | list) or len(new) != len(old):
                    raise mistakes.unprepared(rule, made)
                new = jax.tree.map(_keep, list(new), old)
            # Of a rejected step the counts must not go on, either.
            if gradients.accepted is not None:
                choose = ft.partial(jnp.where, gradients.accepted)
                new = jax.tree.map(choose, new, old)
            contexts.append(ctx)
            scalars.append(new)
        return contexts, scalars

    def _stat(self, n, gradients, params, columns, active, scalars):
        """What `prepare` gets to know about all leaves."""
        rule = self.rules[n]
        if rule.global_stat is None and rule.leaf_stat is None:
            return None
        on_it = [i for i, on in enumerate(active) if n in on]
        if rule.global_stat is not None:
            return rule.global_stat([gradients.leaves[i] for i in on_it])
        # One statistic per leaf, added up below: to join leaves would copy them, and
        # gather those that are sharded.
        measure = self._measures[n]
        parts = [
            measure(
                gradients.leaves[i],
                params[i] if rule.needs_params else None,
                scalars,
                [column[i] for column in columns],
            )
            for i in on_it
        ]
        return _add_up(parts) if parts else 0.0

    def _leaf(self, i, on, gradients, p, contexts, columns):
        """Run the active rules on one leaf."""
        kernel = self.kernels.get(on) or self._kernel(on)
        g, row = gradients.leaves[i], [[c[i] for c in columns[n]] for n in on]
        args = gradients.accepted, g, p, [contexts[n] for n in on], row
        try:
            # Literals are lifted only out of programs that run by themselves; inside of
            # a trace there is nothing to share but the trace.
            u, new = (kernel.jitted if isinstance(g, Tracer) else kernel)(*args)
        except Mistake as mistake:
            raise mistake.at(gradients.path(i)) from None
        gradients.leaves[i] = u
        for n, slots in zip(on, new, strict=True):
            for column, x in zip(columns[n], slots, strict=True):
                column[i] = x

    def _kernel(self, on):
        rules = [self.rules[n] for n in on]
        f = ft.partial(_run_rules, rules)
        vars(f)["__name__"] = self.name
        kernel = Shared(f, "leaf", [rule.origin for rule in rules])
        self.kernels[on] = kernel
        return kernel

    def _batch(self, gradients, given, params, active, ctx, columns):
        """The whole-matrix stage of the last rule, on all of its arrays at once."""
        rule, last = self.rules[-1], len(self.rules) - 1
        stage = cast(Batched, rule.batched)
        names = list(rule.slots)
        touched = [i for i, on in enumerate(active) if last in on]
        wanted = [i for i in touched if stage.wants(gradients.leaves[i])]
        kept = [columns[names.index(name)] for name in stage.slots]
        us = [gradients.leaves[i] for i in wanted]
        homes = self._homes(gradients, given, wanted)
        if stage.needs_params:
            us = [_with_param(u, params[i]) for u, i in zip(us, wanted, strict=True)]
        rows = [(u, *[c[i] for c in kept]) for u, i in zip(us, wanted, strict=True)]
        try:
            made = self._stage(rows, homes, ctx)
        except Mistake as mistake:
            # They are traced in stacks, so that it is one of these.
            raise mistake.at(errors.list_some(map(gradients.path, wanted))) from None
        for i, (u, *slots) in zip(wanted, made, strict=True):
            gradients.leaves[i] = u
            for column, x in zip(kept, slots, strict=True):
                column[i] = x
        # The leaves came here unrounded, so that the stage rounds once.
        for i in touched:
            if precision.is_inexact(given[i]):
                gradients.leaves[i] = gradients.leaves[i].astype(given[i].dtype)

    def _homes(self, gradients, given, wanted):
        """For each matrix an array whose sharding its update takes, or `None`."""
        # Devices may share a slot of a replicated parameter, and then `leaf` returns
        # what is divided like it.  The update is to be as the gradient was.
        slots = self.rules[-1].slots.values()
        if not any(slot.in_leaf and slot.alike for slot in slots):
            return [None] * len(wanted)
        homes = [given[i] for i in wanted]
        if gradients.all_params is None or not any(map(is_on_mesh, homes)):
            return [x if is_on_mesh(x) else None for x in homes]
        # With automatic axes XLA may divide that, too, and then what is added to it;
        # but it leaves the parameters where they are.
        params = gradients.leaves_of(gradients.all_params, "params")
        place = lambda x: (x.shape, jax.typeof(x).sharding)
        fits = lambda p, g: isinstance(p, jax.Array) and place(p) == place(g)
        pairs = [(params[i], g) for i, g in zip(wanted, homes, strict=True)]
        return [p if fits(p, g) else g for p, g in pairs]

    @ft.cached_property
    def _measures(self) -> list[Shared]:
        return [
            Shared(ft.partial(_measure, rule), "stat", [rule.origin])
            for rule in self.rules
        ]

    @ft.cached_property
    def _stage(self) -> Shared:
        rule = self.rules[-1]
        return Shared(ft.partial(_run_stage, rule), "stage", [rule.origin])

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


# The only dtypes in most steps; with these nothing has to be widened.
_FLOAT32 = jnp.dtype("float32")
_PLAIN = {jnp.dtype(x) for x in ("float32", "int32", "bool")}


def _run_rules(rules, accepted, g, p, contexts, row):
    """The active rules on one leaf, of a step that may be rejected."""
    step = ft.partial(_step, rules, g, p, contexts, row)
    return step() if accepted is None else step_where(accepted, step, row)


def _step(rules, g, p, contexts, row):
    """The active rules on one leaf, widened at the start and rounded at the end."""
    arrays = jax.tree.leaves((g, p, contexts, row))
    wide = _FLOAT32
    is_plain = all(x.dtype in _PLAIN for x in arrays if hasattr(x, "dtype"))
    u, is_whole = g, not jnp.issubdtype(g.dtype, jnp.inexact)
    if not is_plain or g.dtype != wide:
        wide = precision.compute_dtype(g, *jax.tree.leaves((p, row)))
        u, p, contexts = g.astype(wide), *precision.widen((p, contexts), wide)
    out = []
    for rule, ctx, stored in zip(rules, contexts, row, strict=True):
        slots = rule.slots.values()
        was = _decoded(slots, stored, None if is_plain else wide) if stored else []
        u, now = _run_leaf(rule, u, p, ctx, was)
        out.append(_stored(rule, now, was, stored, is_whole) if stored else [])
        # A rule may return another dtype, as a real update for a complex gradient.
        u = u if u.dtype == wide else u.astype(wide)
    # A batched stage is still to come, and an integer cannot hold an update.
    if u.dtype != g.dtype and not rules[-1].batched and precision.is_inexact(g):
        u = u.astype(g.dtype)
    return u, out


def _decoded(slots, stored, wide):
    """What is stored in some slots, as the functions of a rule take it."""
    # In line, as a call for each slot of each trace would take longer.
    stored = [decode(x) if isinstance(x, Coded) else x for x in stored]
    pairs = zip(slots, stored, strict=True)
    was = [x if slot.decode is None else slot.decode(x) for slot, x in pairs]
    return was if wide is None else precision.widen(was, wide)


def _run_leaf(rule, u, p, ctx, slots):
    """The new update, and an iterator over the new slots that `leaf` returned."""
    taken = [
        x for x, slot in zip(slots, rule.slots.values(), strict=True) if slot.in_leaf
    ]
    try:
        out = rule.leaf(u, p if rule.needs_params else UNDECLARED, ctx, *taken)
    except Undeclared as error:
        raise Mistake(rule, f"{error}") from None
    if not isinstance(out, tuple | list) or len(out) != 1 + len(taken):
        raise mistakes.wrong_number(rule, out, 1 + len(taken))
    new = out[0]
    if not (isinstance(new, jax.Array) and new.shape == u.shape):
        raise mistakes.misfit(rule, "an update", new, u)
    if new.dtype != u.dtype:
        mistakes.check_dtype(rule, "an update", new, u)
    return new, iter(out[1:])


def _stored(rule, now, was, stored, is_whole):
    """The new slots as they are stored; a state never changes its types.

    is_whole: whether the gradient is an integer, as that of a Python integer.
    """
    new = []
    for (name, slot), x, old in zip(rule.slots.items(), was, stored, strict=True):
        if not slot.in_leaf:
            new.append(old)
            continue
        y = next(now)
        if not (isinstance(y, jax.Array) and y.shape == x.shape):
            raise mistakes.misfit(rule, f"`{name}`", y, x)
        if y.dtype != x.dtype:
            rounds = is_whole or slot.follows_parameter
            mistakes.check_dtype(rule, f"`{name}`", y, x, rounds)
        new.append(_encoded(rule, name, slot, y, old))
    return new


def _encoded(rule, name, slot, x, old):
    """A new slot as it is stored, whatever it is encoded to."""
    # Codes by the old array and not by the slot: whoever made the state chose them.
    if isinstance(old, Coded):
        return encode(x, old.form)
    # Most are arrays, whose shape `_stored` has checked.
    if slot.encode is None and slot.alike:
        return jax.lax.convert_element_type(x, old.dtype)
    made = x if slot.encode is None else slot.encode(_as_read(slot, x, old))
    mistakes.check_encoded(rule, name, made, old)
    keep = lambda x, was: jax.lax.convert_element_type(x, was.dtype)
    return jax.tree.map(keep, made, old)


def _as_read(slot, x, old):
    """A new slot in the dtype in which the old one is read, as it was encoded once."""
    if slot.decode is None:
        return x
    return x.astype(jax.eval_shape(slot.decode, old).dtype)


def _measure(rule, g, p, scalars, stored):
    """The statistic of one leaf."""
    wide = precision.compute_dtype(g, *jax.tree.leaves((p, stored)))
    was = _decoded(rule.slots.values(), stored, wide)
    g, p, scalars = precision.widen((g, p, scalars), wide)
    return rule.leaf_stat(g, p, tuple(scalars), *was)


def _run_stage(rule, rows, homes, ctx):
    """The whole-matrix stage, in the precision in which the matrices come."""
    stage, found = rule.batched, rows
    rows = [[opened(x) for x in row] for row in rows]
    slots = [rule.slots[name] for name in stage.slots]
    alike = [i for i, slot in enumerate(slots) if slot.alike and slot.is_array]
    others = [i for i in range(len(slots)) if i not in alike]

    order = [*alike, *others]

    # Jitted, so that matrices of one shape share a trace if they are not stacked.
    @jax.jit
    def one(ctx, row):
        u, *stored = [*row.parts, *row.wholes]
        stored = [stored[order.index(i)] for i in range(len(order))]
        wide = precision.compute_dtype(u, *jax.tree.leaves(stored))
        was, ctx = _decoded(slots, stored, wide), precision.widen(ctx, wide)
        matrices = u.astype(wide) if stage.needs_params else [u.astype(wide)]
        out = stage.apply(*matrices, ctx, *was)
        if not isinstance(out, tuple | list) or len(out) != 1 + len(slots):
            raise mistakes.wrong_number(rule, out, 1 + len(slots))
        rest = list(zip(stage.slots, slots, out[1:], stored, strict=True))
        parts: list = [_encoded(rule, *rest[i]) for i in alike]
        wholes = [_encoded(rule, *rest[i]) for i in others]
        new = out[0].astype(u.dtype)
        new = u.at[0].set(new) if stage.needs_params else new
        return Row((new, *parts), tuple(wholes))

    given = [
        Row((u, *[xs[i] for i in alike]), tuple([xs[i] for i in others]), home)
        for (u, *xs), home in zip(rows, homes, strict=True)
    ]
    made = map_batched(one, ctx, given, stage)
    flat = [[*row.parts, *row.wholes] for row in made]
    first = lambda u: u[0] if stage.needs_params else u
    new = [
        (first(u), *[x[order.index(i)] for i in range(len(order))]) for u, *x in flat
    ]
    return [tuple(map(as_found, *pair)) for pair in zip(new, found, strict=True)]


def _with_param(u, p):
    """What is moved as the matrix, for a stage that reads its parameter."""
    return jnp.stack([u, with_sharding_of(u, jnp.asarray(p).astype(u.dtype))])
