"""A trial step, and what it shows that cannot be read: updates that have no effect.

Its results are thrown away; nothing that it is given is changed.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._engine.base.protocol import as_array, is_array, is_none
from .._engine.trees.apply import apply_updates
from .findings import Problem
from .stages import Track, View, accumulated, name_of, sampled
from .traits import ESTIMATING, factor, is_frozen


# The fewest and the most calls of `update`, while they return zeros: warm-ups and
# accumulations begin so.
_LEAST, _MOST = 8, 64
# The part of entries that may keep their bits.
_KEPT = 0.9
_KEEPING = ("master_weights", "stochastic_rounding")


class Row(NamedTuple):
    """A parameter in a trial step: its path, value, gradient and update."""

    path: str
    p: Any
    g: Any
    u: Any


class Trial(NamedTuple):
    """A trial step: its rows, and how many times `update` was called."""

    rows: list[Row]
    calls: int

    @property
    def still(self) -> list[str]:
        """The parameters whose update is 0, though their gradient is not."""
        return [
            x.path for x in self.rows if bool(jnp.any(x.g)) and not bool(jnp.any(x.u))
        ]


def not_finite(view: View, gradients: Any) -> Iterator[Problem]:
    """Gradients with NaN or infinities."""
    leaves = jax.tree.leaves(gradients, is_leaf=is_none)
    pairs = [(x.path, g) for x, g in zip(view.leaves, leaves, strict=True) if x]
    floats = [(at, as_array(g)) for at, g in pairs if is_array(g)]
    real = [
        (at, g) for at, g in floats if jnp.issubdtype(jnp.result_type(g), jnp.inexact)
    ]
    if paths := tuple(at for at, g in real if not bool(jnp.isfinite(g).all())):
        what = "contain NaN or infinities, so that no step was tried"
        yield Problem(f"the gradients {what}", paths)


def trial(view: View, tx: Any, params: Any, gradients: Any, state: Any) -> Trial:
    """Take a step, or several while updates are 0."""
    state = tx.init(params) if state is None else state
    most = 2 * int(np.prod([accumulated(part) or 1 for part in view.parts]))
    trees = (params, gradients)
    calls = 0
    while True:
        updates, state = tx.update(gradients, state, params)
        calls += 1
        columns = (jax.tree.leaves(x, is_leaf=is_none) for x in (*trees, updates))
        rows = [
            Row(leaf.path, *map(as_array, row))
            for leaf, *row in zip(view.leaves, *columns, strict=True)
            if leaf and leaf.is_float and all(map(is_array, row))
        ]
        taken = Trial(rows, calls)
        if not taken.still or calls == min(max(most, _LEAST), _MOST):
            return taken


def never_moved(view: View, taken: Trial) -> Iterator[Problem]:
    """Parameters whose update is 0, though their gradient is not."""
    frozen = {
        path
        for track in view.tracks
        for path in track.paths
        if any(map(is_frozen, track.stages))
    }
    if paths := tuple(path for path in taken.still if path not in frozen):
        what = f"the update is exactly 0 after {taken.calls} calls with a gradient"
        yield Problem(f"{what} that is not", paths)


def rounds_away(view: View, taken: Trial) -> Iterator[Problem]:
    """Parameters in 16 bits that are too coarse for their updates."""
    if any(name_of(part) in _KEEPING for part in view.parts):
        return
    factors = {path: _peak(track) for track in view.tracks for path in track.paths}
    narrow = [x for x in taken.rows if x.p.dtype.itemsize <= 2 and factors[x.path]]
    shares = {x.path: _kept(x, factors[x.path]) for x in narrow}
    if paths := tuple(path for path, share in shares.items() if share >= _KEPT):
        share = min(shares[path] for path in paths)
        what = f"{share:.0%} of the entries keep their bits in a step"
        yield Problem(f"updates are too small for the dtype: {what}", paths)


def _kept(row: Row, scale: float | None) -> float:
    """The share of entries with an update that it does not change."""
    u = row.u * jnp.asarray(scale, row.u.dtype)
    moves = u != 0
    same = moves & (apply_updates(row.p, u) == row.p)
    return float(jnp.sum(same) / jnp.maximum(jnp.sum(moves), 1))


def _peak(track: Track) -> float | None:
    """The largest learning rate over that of the first step; `None` if not known."""
    ratio = 1.0
    for stage in track.stages:
        if stage.name in ESTIMATING:
            return None
        if callable(schedule := factor(stage)):
            values = sampled(schedule, [0, *(2**n for n in range(31))])
            if values is None or values[0] == 0:
                return None
            ratio *= float(np.abs(values).max() / np.abs(values[0]))
    return ratio
