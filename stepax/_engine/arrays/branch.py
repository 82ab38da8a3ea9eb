"""Branches that cost only the side that is taken."""

from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer


def branch(pred: Any, on_true: Callable[[], Any], on_false: Callable[[], Any]) -> Any:
    """What the chosen function returns; the other one is not run.

    Outside of `jit` the condition is known and Python decides: `lax.cond` would
    recompile both sides on every call.  Under `vmap` it becomes a select, and so it
    does on a GPU, where XLA computes both sides of a small one.
    """
    if not isinstance(pred, Tracer):
        return on_true() if pred else on_false()
    if jax.sharding.get_abstract_mesh().manual_axes:
        on_true, on_false = _equally_varying(on_true, on_false)
    return jax.lax.cond(pred, on_true, on_false)


def _equally_varying(*sides: Callable[[], Any]) -> list[Callable[[], Any]]:
    """The sides, made to vary over the same axes inside `shard_map`, as `cond` asks."""
    shapes = [jax.eval_shape(side) for side in sides]
    axes = jax.tree.map(lambda x, y: varying(x) | varying(y), *shapes)

    def vary(x, wanted):
        missing = tuple(wanted - varying(jax.typeof(x)))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return [lambda side=side: jax.tree.map(vary, side(), axes) for side in sides]


def varying(x: Any) -> frozenset:
    """The mesh axes along which a value differs inside `shard_map`."""
    kind = x.manual_axis_type  # none in shapes under `pmap`, where nobody checks
    return kind.varying if kind else frozenset()
