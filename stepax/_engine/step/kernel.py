"""Runs neighbouring rules over all leaves: one call for each, one trace for each shape.

The leaf function is jitted inside the caller's program.  Leaves of equal shape share
one trace and one function of the lowered program; XLA inlines the calls, so what is
compiled is the same as for a plain loop over the leaves.
"""

import functools as ft
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..arrays import precision
from ..arrays.numerics import reduce_scalars
from ..base.protocol import is_array
from ..trees import errors
from .batched import map_batched
from .gradients import Gradients, Scope, has_no_gradient
from .packed_gradients import PackedGradients
from .programs import Shared
from .rule import Rule
from .step_where import step_where


class Pass:
    """Consecutive rules, run together."""

    def __init__(self, rules: Sequence[Rule]):
        self.rules = tuple(rules)
        self.size = len(self.rules)

    @ft.cached_property
    def name(self) -> str:
        """How profiles and traces name what it does."""
        return "_then_".join(rule.name for rule in self.rules)

    # At the first step, because a rule is given its recipe after this pass was made.
    @ft.cached_property
    def sources(self) -> tuple:
        return tuple(map(_source, self.rules))

    @ft.cached_property
    def kernels(self) -> "Kernels":
        is_shared = not any(isinstance(x, Rule) for x in self.sources)
        return (_shared_kernels if is_shared else _kernels)(self.sources)

    @ft.cached_property
    def arrays(self) -> list[dict]:
        return [
            {} if isinstance(source, Rule) else rule.recipe.arrays
            for source, rule in zip(self.sources, self.rules, strict=True)
        ]

    def __call__(
        self, flow: Gradients, states: list, scopes: Sequence[Scope], extra: dict
    ) -> list:
        # The precision of all that meets in a rule is the same, but real factors meet
        # complex gradients, which strict promotion would not allow.
        with jax.numpy_dtype_promotion("standard"), jax.named_scope(self.name):
            if not isinstance(flow, PackedGradients):
                return self._run(flow, states, scopes, extra)
            runs, reached = flow.runs(
                scopes, [not rule.elementwise for rule in self.rules]
            )
            runs.accepted = flow.accepted
            new = self._run(runs, states, reached, extra)
            flow.close(runs)
            return new

    def _run(self, flow, states, scopes, extra):
        active = self._active(flow, scopes)
        columns = []  # columns[n][m]: slot m of rule n, a list over leaves
        for rule, state in zip(self.rules, states, strict=True):
            rule.check(state)
            columns.append([flow.align(getattr(state, k), k) for k in rule.slots])
        rows = self._rows(flow, columns, active)
        ps = self._params(flow, active)
        cs, shared = self._once(flow, states, ps, rows, active, extra)
        given = list(flow.leaves)
        for i, on in enumerate(active):
            if on:
                self._leaf(i, on, flow, ps[i], cs, rows, columns)
        if self.rules[-1].batched:
            self._batch(flow, given, active, cs[-1])
        new = []
        for n, rule in enumerate(self.rules):
            if not shared[n] and not columns[n]:
                new.append(states[n])
                continue
            pairs = zip(rule.slots, columns[n], strict=True)
            slots = {
                k: flow.fold(x, getattr(states[n], k), scopes[n]) for k, x in pairs
            }
            new.append(rule.State(**shared[n], **slots))
        return new

    def _active(self, flow, scopes):
        """For each leaf, the numbers of the rules that change it."""
        at_work = [n for n, rule in enumerate(self.rules) if rule.leaf is not None]
        if all(scopes[n] is None for n in at_work):
            whole = tuple(at_work)
            return [() if has_no_gradient(g) else whole for g in flow.leaves]
        each = enumerate(flow.leaves)
        return [() if has_no_gradient(g) else _on(at_work, scopes, i) for i, g in each]

    def _rows(self, flow, columns, active):
        """For each leaf, the slots of each rule that is active on it."""
        rows = []
        for i, on in enumerate(active):
            row = tuple(tuple(column[i] for column in columns[n]) for n in on)
            for n, slots in zip(on, row, strict=True):
                self._check_slots(flow, i, self.rules[n], slots)
            g = flow.leaves[i]
            if on and not precision.is_inexact(g) and not jax.typeof(g).weak_type:
                self._check_trained(flow, i, on, row)
            rows.append(row)
        return rows

    def _check_slots(self, flow, i, rule, slots):
        for (name, slot), x in zip(rule.slots.items(), slots, strict=True):
            if hasattr(x, "shape"):
                if slot.alike:
                    flow.check_shape(i, x.shape, f"`{name}` in its state")
            elif not jax.tree.leaves(x):
                raise ValueError(
                    f"`{rule.name}` has nothing in `{name}` for the gradient at "
                    f"{flow.path(i)}: there was no parameter when `init` was called, "
                    "or a mask left it out then"
                )
            elif slot.is_array and not is_array(x):
                raise ValueError(
                    f"`{rule.name}` has {errors.describe(x)} in `{name}` for the "
                    f"gradient at {flow.path(i)}: was this state made by another "
                    "optimizer, or for other parameters?"
                )

    def _check_trained(self, flow, i, on, row):
        """Raise for an integer that would be trained, and rounded at each step.

        The gradient of a floating-point parameter may be an integer, and Python's
        integers are numbers like any.
        """
        rules = [self.rules[n] for n in on]
        names = [x.trains or x.name for x in rules if x.trains or x.keeps_gradients]
        known = [x for x in jax.tree.leaves(row) if hasattr(x, "dtype")]
        if flow.whole_params is not None:
            known += [jnp.asarray(p) for p in flow.params[i : i + 1] if is_array(p)]
        if names and not any(map(precision.is_inexact, known)):
            raise errors.not_floating(names[0], flow.path(i), flow.leaves[i].dtype)

    def _params(self, flow, active):
        readers = {n for n, rule in enumerate(self.rules) if rule.needs_params}
        if not readers:
            return [None] * len(active)
        pairs = zip(flow.params, active, strict=True)
        return [p if readers.intersection(on) else None for p, on in pairs]

    def _once(self, flow, states, ps, rows, active, extra):
        """What all leaves share, computed once a step."""
        cs, shared = [], []
        for n, (rule, state) in enumerate(zip(self.rules, states, strict=True)):
            old = tuple(getattr(state, k) for k in rule.scalars)
            for name in rule.reads:
                if name not in extra:
                    raise TypeError(
                        f"`{rule.name}` reads the keyword `{name}`: "
                        f"call `update(updates, state, params, {name}=...)`"
                    )
            total = None
            if rule.global_stat is not None:
                on_it = [
                    g for g, on in zip(flow.leaves, active, strict=True) if n in on
                ]
                total = rule.global_stat(on_it)
            elif rule.leaf_stat is not None:
                touched = [
                    (flow.leaves[i], ps[i], rows[i][on.index(n)])
                    for i, on in enumerate(active)
                    if n in on
                ]
                total = _sum(self.kernels.totals[n], touched, old, self.arrays[n])
            c, new = rule.prepare(old, total, extra)
            cs.append(c)
            new = [_keep(x, was) for x, was in zip(new, old, strict=True)]
            if flow.accepted is not None:
                chosen = ft.partial(jnp.where, flow.accepted)
                new = jax.tree.map(chosen, new, list(old))
            shared.append(dict(zip(rule.scalars, new, strict=True)))
        return cs, shared

    def _leaf(self, i, on, flow, p, cs, rows, columns):
        c = tuple(cs[n] for n in on)
        arrays = tuple(self.arrays[n] for n in on)
        given = flow.leaves[i], p, c, rows[i], arrays
        u, out = self.kernels.leaf(on, flow.accepted, *given)
        if u.shape != flow.leaves[i].shape:
            raise self._grown(i, on, flow, f"an update of shape {u.shape}")
        flow.leaves[i] = u
        for n, slots in zip(on, out, strict=True):
            for name, column, x in zip(
                self.rules[n].slots, columns[n], slots, strict=True
            ):
                if jax.tree.map(jnp.shape, x) != jax.tree.map(jnp.shape, column[i]):
                    raise self._grown(i, (n,), flow, f"`{name}` of another shape")
                column[i] = x

    def _batch(self, flow, given, active, c):
        """The work of the last rule on whole arrays, all of its arrays at once."""
        last, wants = self.size - 1, self.rules[-1].batched.wants
        touched = [i for i, on in enumerate(active) if last in on]
        found = [i for i in touched if wants(flow.leaves[i])]
        us = [flow.leaves[i] for i in found]
        made = self.kernels.batch(us, c, self.arrays[-1])
        for i, u in zip(found, made, strict=True):
            flow.leaves[i] = u
        for i in filter(lambda i: precision.is_inexact(given[i]), touched):
            flow.leaves[i] = flow.leaves[i].astype(given[i].dtype)

    def _grown(self, i, on, flow, made):
        """The error for arrays that broadcast, which slots may that are not `alike`."""
        names = " and ".join(f"`{self.rules[n].name}`" for n in on)
        return ValueError(
            f"{names} made {made} of the gradient at {flow.path(i)}, which has shape "
            f"{flow.leaves[i].shape}: was this state made for other parameters?"
        )


def _on(rules: list[int], scopes: Sequence[Scope], i: int) -> tuple[int, ...]:
    reached = []
    for n in rules:
        scope = scopes[n]
        if scope is None or scope[i]:
            reached.append(n)
    return tuple(reached)


def _keep(new: Any, old: Any) -> Any:
    """`new` in the dtype of `old`: a state never changes its type."""
    return jax.tree.map(
        lambda x, was: jax.lax.convert_element_type(x, jnp.asarray(was).dtype), new, old
    )


def _sum(total: Callable, touched: list, shared: tuple, arrays: dict) -> Any:
    """The sum over leaves, added in their order."""
    parts = [total(g, p, shared, slots, arrays) for g, p, slots in touched]
    return _add_up(parts) if parts else 0.0


@jax.jit
def _add_up(parts):
    return jax.tree.map(lambda *x: reduce_scalars(list(x), jnp.add, jnp.sum), *parts)


def _source(rule: Rule) -> Any:
    """Where a kernel gets the rule from: a mould that equal rules share, or itself."""
    mould = rule.recipe.mould if rule.recipe else None
    return mould or rule


class Kernels(NamedTuple):
    """The jitted functions of a pass.

    leaf: all rules on one leaf.
    totals: the statistic of each rule.
    batch: the work of the last rule on whole arrays.
    """

    leaf: Callable
    totals: list[Callable]
    batch: Callable


def _kernels(sources: tuple) -> Kernels:
    one: Any = ft.partial(_one, sources)
    one.__name__ = "_then_".join(source.name for source in sources)  # in profiles
    totals: list = [Shared(ft.partial(_total, source)) for source in sources]
    batch = Shared(ft.partial(_batch, sources[-1]))
    return Kernels(Shared(one, static=1), totals, batch)


# Equal rules share what was traced, so that making an optimizer again, as
# `inject_hyperparams` does each step, traces nothing.  What was compiled is shared by
# all that differ in numbers alone, and kept in `programs`.
_shared_kernels = ft.lru_cache(maxsize=64)(_kernels)


def _one(sources, on, accepted, g, p, c, row, arrays):
    """The active rules on one leaf, of a step that may be refused."""
    step = ft.partial(_step, sources, on, g, p, c, row, arrays)
    return step() if accepted is None else step_where(accepted, step, row)


def _step(sources, on, g, p, c, row, arrays):
    """The active rules on one leaf.  Widens at the start, rounds once, at the end."""
    wide = precision.compute_dtype(g, *jax.tree.leaves((p, row)))
    u = g.astype(wide)
    p, c, arrays = precision.widen((p, c, arrays), wide)
    rules = [sources[n].pour(x) for n, x in zip(on, arrays, strict=True)]
    out = []
    for rule, c_n, stored in zip(rules, c, row, strict=True):
        slots = rule.slots.values()
        was = [s.decode(x) for s, x in zip(slots, stored, strict=True)]
        u, *now = rule.leaf(u, p, c_n, *precision.widen(was, wide))
        u = u.astype(wide)
        now = [x.astype(y.dtype) for x, y in zip(now, was, strict=True)]
        now = [s.encode(x) for s, x in zip(slots, now, strict=True)]
        out.append(tuple(_keep(now, list(stored))))
    if not rules[-1].batched and precision.is_inexact(g):
        u = u.astype(g.dtype)
    return u, tuple(out)


def _batch(source, us, c, arrays):
    """The work on whole arrays, in the precision in which they come."""

    @jax.jit
    def one(u, c, arrays):
        c, arrays = precision.widen((c, arrays), u.dtype)
        return source.pour(arrays).batched.apply(u, c).astype(u.dtype)

    how = source.pour(arrays).batched
    return map_batched(lambda u: one(u, c, arrays), us, how.sharding, how.parts)


def _total(source, g, p, shared, slots, arrays):
    wide = precision.compute_dtype(g, *jax.tree.leaves((p, slots)))
    rule = source.pour(precision.widen(arrays, wide))
    was = [s.decode(x) for s, x in zip(rule.slots.values(), slots, strict=True)]
    g, p, shared, was = precision.widen((g, p, shared, was), wide)
    return rule.leaf_stat(g, p, shared, *was)
