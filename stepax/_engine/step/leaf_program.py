"""The computation of a pass for one leaf: decode, widen, run rules, round once.

And the computation on whole matrices, after its leaves.
"""

import functools as ft

import jax
import jax.numpy as jnp

from ..arrays import precision
from ..arrays.coding import Coded, as_found, decode, encode, opened
from ..xla import by_platform, order, step_where
from . import coded_slots, mistakes
from .batched import Row, map_batched
from .mistakes import UNDECLARED, Mistake, Undeclared
from .rule import APPLY
from .stacked_rule import for_stack
from .stacked_stage import map_stacks


# The only dtypes in most steps, which need not be widened.
_FLOAT32 = jnp.dtype("float32")
_PLAIN = {jnp.dtype(x) for x in ("float32", "int32", "bool")}


def run_rules(rules, axes, accepted, contexts, g, p, row):
    """The active rules on one leaf, of a step that may be rejected."""
    rules = list(map(for_stack, rules, axes.axes))
    step = ft.partial(_step, rules, contexts)
    if accepted is not None:
        return step_where(accepted, lambda: step(g, p, row), row)
    cpu = gpu = None
    # The size is checked inline: small arrays are traced without a call.
    if g.size >= coded_slots.LARGE and coded_slots.takes_two_passes(g, row):
        gpu = ft.partial(coded_slots.in_two_passes, step)
    if rules[-1] is APPLY and order.has_order(g, row):
        cpu = ft.partial(order.in_order, step)
    if cpu is gpu is None:
        return step(g, p, row)
    return by_platform(step, g, p, row, cpu=cpu, gpu=gpu)


def _step(rules, contexts, g, p, row):
    """The active rules on one leaf, widened at the start and rounded at the end."""
    arrays = jax.tree.leaves((g, p, contexts, row))
    wide = _FLOAT32
    kind = None if p is None else jnp.result_type(p)
    is_plain = all(x.dtype in _PLAIN for x in arrays if hasattr(x, "dtype"))
    u, is_whole = g, not jnp.issubdtype(g.dtype, jnp.inexact)
    if not is_plain or g.dtype != wide:
        wide = precision.compute_dtype(g, *jax.tree.leaves((p, row)))
        u, p, contexts = g.astype(wide), *precision.widen((p, contexts), wide)
    out = []
    for rule, ctx, stored in zip(rules, contexts, row, strict=True):
        slots = rule.slots.values()
        was = decoded(slots, stored, None if is_plain else wide) if stored else []
        u, new = _run_leaf(rule, u, p, ctx, was, stored, is_whole)
        out.append(new)
        # A rule may return another dtype, as a real update for a complex gradient.
        u = u if u.dtype == wide else u.astype(wide)
    if rules[-1] is APPLY:
        return u.astype(kind), out
    # A batched stage is still to come, and an integer cannot hold an update.
    if u.dtype != g.dtype and not rules[-1].batched and precision.is_inexact(g):
        u = u.astype(g.dtype)
    return u, out


def decoded(slots, stored, wide):
    """The values of stored slots, in the form for the functions of a rule."""
    # Inline, as a call for each slot of each trace would take longer.
    stored = [decode(x) if isinstance(x, Coded) else x for x in stored]
    pairs = zip(slots, stored, strict=True)
    was = [x if slot.decode is None else slot.decode(x) for slot, x in pairs]
    return was if wide is None else precision.widen(was, wide)


def _run_leaf(rule, u, p, ctx, was, stored, is_whole):
    """The new update, and the new slots as they are stored.

    was: the values of the slots.
    is_whole: whether the gradient is an integer, as for a Python integer.
    """
    rows = list(zip(rule.slots.items(), was, stored, strict=True))
    taken = [x for (_, slot), x, _ in rows if slot.in_leaf]
    p = p if rule.needs_params else UNDECLARED
    try:
        out = rule.leaf(u, p, ctx, *taken)
    except Undeclared as error:
        raise Mistake(rule, f"{error}") from None
    except (TypeError, AttributeError) as error:
        if rule.prepare or "NoneType" not in f"{error}":
            raise
        # It is `None` rather than another placeholder, as a rule may ask whether it is.
        text = "uses `ctx`, which is `None`: pass `prepare`, which makes it, to its"
        raise Mistake(rule, f"{text} `Rule`,") from error
    if not isinstance(out, tuple | list) or len(out) != 1 + len(taken):
        raise mistakes.wrong_number(rule, out, 1 + len(taken))
    new = out[0]
    if not (isinstance(new, jax.Array) and new.shape == u.shape):
        raise mistakes.misfit(rule, "an update", new, u)
    if new.dtype != u.dtype:
        mistakes.check_dtype(rule, "an update", new, u)
    made, slots = iter(out[1:]), []
    for (name, slot), x, old in rows:
        if not slot.in_leaf:
            slots.append(old)
            continue
        y = next(made)
        if not (isinstance(y, jax.Array) and y.shape == x.shape):
            raise mistakes.misfit(rule, f"`{name}`", y, x)
        if y.dtype != x.dtype:
            rounds = is_whole or _follows(slot)
            mistakes.check_dtype(rule, f"`{name}`", y, x, rounds)
        # A state never changes its types.
        slots.append(encoded(rule, name, slot, y, old))
    return new, slots


def _follows(slot):
    """Whether a slot has the dtype of its parameter, whatever that is."""
    return slot.dtype is None and slot.copies


def encoded(rule, name, slot, x, old):
    """A new slot as it is stored, whatever it is encoded to."""
    # Coded like the old array, not by the slot: the creator of the state chose the
    # codes.
    if isinstance(old, Coded):
        return encode(x, old.form)
    # Most are arrays, whose shape `_run_leaf` has checked.
    if slot.encode is None and slot.alike:
        return jax.lax.convert_element_type(x, old.dtype)
    if slot.encode and slot.decode:
        # In the dtype in which the old one is read, as it was encoded once.
        x = x.astype(jax.eval_shape(slot.decode, old).dtype)
    made = slot.encode(x) if slot.encode else x
    mistakes.check_encoded(rule, name, made, old)
    return jax.tree.map(
        lambda x, was: jax.lax.convert_element_type(x, was.dtype), made, old
    )


def measure(rules, axes, scalars, g, p, stored):
    """The statistic of one leaf that its rule asks for."""
    (rule,) = map(for_stack, rules, axes.axes)
    wide = precision.compute_dtype(g, *jax.tree.leaves((p, stored)))
    was = decoded(rule.slots.values(), stored, wide)
    g, p, scalars = precision.widen((g, p, scalars), wide)
    return rule.leaf_stat(g, p, tuple(scalars), *was)


def run_stage(rules, axes, rows, homes, params, ctx):
    """The whole-matrix stage, in the precision of the matrices."""
    (rule,) = rules
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
        was, ctx = decoded(slots, stored, wide), precision.widen(ctx, wide)
        beside = [row.param.astype(wide)] if stage.needs_params else []
        out = stage.apply(u.astype(wide), *beside, ctx, *was)
        if not isinstance(out, tuple | list) or len(out) != 1 + len(slots):
            raise mistakes.wrong_number(rule, out, 1 + len(slots))
        rest = list(zip(stage.slots, slots, out[1:], stored, strict=True))
        for (name, slot, new, _), x in zip(rest, was, strict=True):
            if isinstance(x, jax.Array) and new.dtype != x.dtype:
                mistakes.check_dtype(rule, f"`{name}`", new, x, _follows(slot))
        parts: list = [encoded(rule, *rest[i]) for i in alike]
        wholes = [encoded(rule, *rest[i]) for i in others]
        return Row((out[0].astype(u.dtype), *parts), tuple(wholes))

    given = [
        Row(
            (u, *[xs[i] for i in alike]),
            tuple([xs[i] for i in others]),
            home,
            None if p is None else jnp.asarray(p).astype(u.dtype),
        )
        for (u, *xs), home, p in zip(rows, homes, params, strict=True)
    ]
    if any(axes.axes):
        made = map_stacks(one, ctx, given, stage, axes.axes)
    else:
        made = map_batched(one, ctx, given, stage)
    flat = [[*row.parts, *row.wholes] for row in made]
    new = [(u, *[x[order.index(i)] for i in range(len(order))]) for u, *x in flat]
    return [tuple(map(as_found, *pair)) for pair in zip(new, found, strict=True)]
