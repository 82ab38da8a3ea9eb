"""Branches that cost only the side that is taken."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.core import Tracer
from jax.typing import ArrayLike


T = TypeVar("T")


def branch(pred: ArrayLike, on_true: Callable[[], T], on_false: Callable[[], T]) -> T:
    """What the chosen function returns; the other one is not run.

    Under `vmap` both sides run, because `lax.cond` becomes a select; on a GPU XLA does
    the same with small ones.
    """
    # Outside of `jit` Python decides: `lax.cond` recompiles both sides on each call,
    # because its branches are new functions each time.
    if not isinstance(pred, Tracer):
        return on_true() if pred else on_false()
    # Only inside `shard_map` do types say along which mesh axes a value varies.
    if jax.sharding.get_abstract_mesh().manual_axes:
        on_true, on_false = _equally_varying(on_true, on_false)
    return jax.lax.cond(pred, on_true, on_false)


def _equally_varying(*sides: Callable[[], T]) -> list[Callable[[], T]]:
    """The sides, made to vary over the same axes inside `shard_map`, as `cond` asks."""
    # Traced for their types alone: a side that keeps the old state often varies over
    # fewer axes than one that has seen gradients.
    shapes = [jax.eval_shape(side) for side in sides]
    axes = jax.tree.map(lambda x, y: varying(x) | varying(y), *shapes)

    def vary(x, wanted):
        missing = tuple(wanted - varying(jax.typeof(x)))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return [lambda side=side: jax.tree.map(vary, side(), axes) for side in sides]


def varying(x: Any) -> frozenset:
    """The mesh axes along which a value differs inside `shard_map`."""
    kind = x.manual_axis_type  # `None` in shapes under `pmap`, which does not check
    return kind.varying if kind else frozenset()
