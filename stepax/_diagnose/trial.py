"""A trial step, and what it shows that cannot be read: updates that have no effect.

Its results are thrown away; nothing that it is given is changed.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.functions.calls import call_with
from .findings import Found, Problem
from .stages import Track, accumulated, sampled
from .view import View


# The fewest and the most calls of `update`, while they return zeros: warm-ups and
# accumulations begin so.
_LEAST, _MOST = 8, 64
# The part of the elements that may keep their bits.
_KEPT = 0.9
# A parameter, and gradients for its first steps: some elements become 0, then all.
_P = np.asarray([[0.3, -1.2], [0.7, 0.9]], "float32")
_GRADIENTS = [_P[::-1], _P, np.maximum(_P, 0), 0 * _P] * 3


class Row(NamedTuple):
    """A parameter in a trial step, with gradient and update after so many `calls`."""

    path: str
    track: Track
    calls: int
    p: jax.Array
    g: jax.Array
    u: jax.Array

    @property
    def paths(self) -> tuple[str]:
        return (self.path,)

    @property
    def is_still(self) -> bool:
        """Whether the update is 0, though the gradient is not."""
        return bool(jnp.any(self.g)) and not bool(jnp.any(self.u))

    @property
    def is_narrow(self) -> bool:
        return self.p.dtype.itemsize <= 2


def trial(view: View, tx: Any, params: rx.Params, state: rx.OptState) -> list[Row]:
    """Take a step, or several while updates are 0.

    Returns the parameters, without those in 16 bits that are kept elsewhere.
    """
    state = tx.init(params) if state is None else state
    most = 2 * math.prod(accumulated(part) or 1 for part in view.parts)
    is_kept = any("keeps small steps" in part.traits for part in view.parts)
    tracks = {path: track for track in view.tracks for path in track.paths}
    found: list[Row] = []
    for calls in range(1, min(max(most, _LEAST), _MOST) + 1):
        updates, state = tx.update(view.given, state, params)
        trees = params, view.given, updates
        columns = [jax.tree.leaves(x, is_leaf=rx.is_none) for x in trees]
        rows = [
            Row(path, tracks[path], calls, *map(rx.as_array, row))
            for path, *row in zip(view.paths, *columns, strict=True)
            if path in tracks and all(map(rx.is_array, row))
        ]
        found = [row for row in rows if not (is_kept and row.is_narrow)]
        if not any(row.is_still for row in found):
            break
    return found


def first_steps(call: rx.Call, others: Mapping[str, Any]) -> list[float]:
    """The largest element of each of the first updates of what a call makes.

    An empty list if it cannot run on a matrix and gradients alone.

    others: arguments in place of its own.
    """
    given = {**call.bound.arguments, **others}
    found = []
    try:
        tx = call_with(call.factory, call.bound.signature, given)
        state = tx.init(_P)
        for g in _GRADIENTS:
            u, state = tx.update(g, state, _P, value=1.0)
            found.append(float(jnp.abs(u).max()))
    except Exception:  # whatever it needs
        return []
    return found


def not_finite(view: View) -> Found:
    """Gradients with NaN or infinities."""
    leaves = jax.tree.leaves(view.given, is_leaf=rx.is_none)
    rows = [(k, g) for k, g in zip(view.paths, leaves, strict=True) if rx.is_array(g)]
    real = [
        (k, rx.as_array(g)) for k, g in rows if jnp.issubdtype(g.dtype, jnp.inexact)
    ]
    if paths := tuple(k for k, g in real if not bool(jnp.isfinite(g).all())):
        what = "contain NaN or infinities, so that no step was tried"
        yield Problem(f"the gradients {what}", paths)


def never_moved(row: Row) -> Found:
    """Parameters whose update is 0, though their gradient is not."""
    if row.is_still and not row.track.is_frozen:
        what = f"the update is exactly 0 after {row.calls} calls with a gradient"
        yield f"{what} that is not"


def rounds_away(row: Row) -> Found:
    """Parameters in 16 bits that are too coarse for their updates."""
    if row.is_narrow and _kept(row) >= _KEPT:
        what = f"at least {_KEPT:.0%} of the elements keep their bits in a step"
        yield f"updates are too small for the dtype: {what}"


def _kept(row: Row) -> float:
    """The share of elements with an update that it does not change; 0 if not known."""
    u = row.u * jnp.asarray(_peak(row.track), row.u.dtype)
    moves = u != 0
    same = moves & (rx.apply_updates(row.p, u) == row.p)
    return float(jnp.sum(same) / jnp.maximum(jnp.sum(moves), 1))


def _peak(track: Track) -> float:
    """The largest learning rate over that of the first step; 0 if not known."""
    ratio = 1.0
    for stage in track.stages:
        if "estimates its rate" in stage.traits:
            return 0.0
        if callable(stage.factor):
            values = sampled(stage.factor, [0, *(2**n for n in range(31))])
            if values is None or values[0] == 0:
                return 0.0
            ratio *= float(np.abs(values).max() / np.abs(values[0]))
    return ratio
