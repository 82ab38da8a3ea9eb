"""The computation of a pass on whole matrices, after its leaves."""

import jax
import jax.numpy as jnp

from ..arrays import precision
from ..arrays.coding import as_found, opened
from . import mistakes
from .batched import Row, map_batched
from .leaf_program import decoded, encoded


def run_stage(rules, rows, homes, params, ctx):
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
        parts: list = [encoded(rule, *rest[i]) for i in alike]
        wholes = [encoded(rule, *rest[i]) for i in others]
        return Row((out[0].astype(u.dtype), *parts), tuple(wholes))

    like = lambda u, p: None if p is None else jnp.asarray(p).astype(u.dtype)
    given = [
        Row(
            (u, *[xs[i] for i in alike]),
            tuple([xs[i] for i in others]),
            home,
            like(u, p),
        )
        for (u, *xs), home, p in zip(rows, homes, params, strict=True)
    ]
    made = map_batched(one, ctx, given, stage)
    flat = [[*row.parts, *row.wholes] for row in made]
    new = [(u, *[x[order.index(i)] for i in range(len(order))]) for u, *x in flat]
    return [tuple(map(as_found, *pair)) for pair in zip(new, found, strict=True)]
