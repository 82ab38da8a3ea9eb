"""A trial step, and what it shows that cannot be read: updates that have no effect.

Its results are thrown away; nothing that it is given is changed.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._engine.base import as_array, is_array, is_none
from .._engine.trees.apply import apply_updates
from .findings import Found, Problem
from .stages import Track, accumulated, name_of, sampled
from .view import View


# The fewest and the most calls of `update`, while they return zeros: warm-ups and
# accumulations begin so.
_LEAST, _MOST = 8, 64
# The part of entries that may keep their bits.
_KEPT = 0.9
# Parameters in 16 bits stand still under them until a change is large enough.
_KEEPING = ("master_weights", "stochastic_rounding")
# Their learning rate is a factor of one that they estimate.
_ESTIMATING = (
    *("prodigy", "dadapt_adamw", "dadapt_sgd", "_scale_by_dog", "_scale_by_dowg"),
    *("scale_by_distance_over_gradients", "scale_by_cocob", "momo", "momo_adam"),
)


class Row(NamedTuple):
    """A parameter in a trial step: its path, track, value, gradient and update."""

    path: str
    track: Track
    p: Any
    g: Any
    u: Any

    @property
    def is_still(self) -> bool:
        """Whether the update is 0, though the gradient is not."""
        return bool(jnp.any(self.g)) and not bool(jnp.any(self.u))

    @property
    def is_narrow(self) -> bool:
        """Whether it is stored in 16 bits or fewer."""
        return self.p.dtype.itemsize <= 2


class Trial(NamedTuple):
    """A trial step.

    rows: its parameters; without those in 16 bits that are kept elsewhere.
    calls: how many times `update` was called.
    """

    rows: list[Row]
    calls: int


def not_finite(view: View) -> Found:
    """Gradients with NaN or infinities."""
    leaves = jax.tree.leaves(view.gradients, is_leaf=is_none)
    pairs = zip(view.leaves, leaves, strict=True)
    rows = [(x, as_array(g)) for x, g in pairs if x and is_array(g)]
    real = [(x.path, g) for x, g in rows if jnp.issubdtype(x.dtype, jnp.inexact)]
    if paths := tuple(path for path, g in real if not bool(jnp.isfinite(g).all())):
        what = "contain NaN or infinities, so that no step was tried"
        yield Problem(f"the gradients {what}", paths)


def trial(view: View, tx: Any, params: Any, state: Any) -> Trial:
    """Take a step, or several while updates are 0."""
    state = tx.init(params) if state is None else state
    most = 2 * int(np.prod([accumulated(part) or 1 for part in view.parts]))
    is_kept = any(name_of(part) in _KEEPING for part in view.parts)
    tracks = {path: track for track in view.tracks for path in track.paths}
    calls = 0
    while True:
        updates, state = tx.update(view.gradients, state, params)
        calls += 1
        trees = params, view.gradients, updates
        columns = [jax.tree.leaves(x, is_leaf=is_none) for x in trees]
        rows = [
            Row(leaf.path, tracks[leaf.path], *map(as_array, row))
            for leaf, *row in zip(view.leaves, *columns, strict=True)
            if leaf and leaf.path in tracks and all(map(is_array, row))
        ]
        seen = [row for row in rows if not (is_kept and row.is_narrow)]
        is_last = calls == min(max(most, _LEAST), _MOST)
        if is_last or not any(row.is_still for row in seen):
            return Trial(seen, calls)


def never_moved(taken: Trial) -> Found:
    """Parameters whose update is 0, though their gradient is not."""
    still = [x for x in taken.rows if x.is_still and not x.track.is_frozen]
    if still:
        what = f"the update is exactly 0 after {taken.calls} calls with a gradient"
        yield Problem(f"{what} that is not", tuple(x.path for x in still))


def rounds_away(taken: Trial) -> Found:
    """Parameters in 16 bits that are too coarse for their updates."""
    shares = {x.path: _kept(x) for x in taken.rows if x.is_narrow}
    if paths := tuple(path for path, share in shares.items() if share >= _KEPT):
        share = min(shares[path] for path in paths)
        what = f"{share:.0%} of the entries keep their bits in a step"
        yield Problem(f"updates are too small for the dtype: {what}", paths)


def _kept(row: Row) -> float:
    """The share of entries with an update that it does not change; 0 if not known."""
    u = row.u * jnp.asarray(_peak(row.track), row.u.dtype)
    moves = u != 0
    same = moves & (apply_updates(row.p, u) == row.p)
    return float(jnp.sum(same) / jnp.maximum(jnp.sum(moves), 1))


def _peak(track: Track) -> float:
    """The largest learning rate over that of the first step; 0 if not known."""
    ratio = 1.0
    for stage in track.stages:
        if stage.name in _ESTIMATING:
            return 0.0
        if callable(stage.factor):
            values = sampled(stage.factor, [0, *(2**n for n in range(31))])
            if values is None or values[0] == 0:
                return 0.0
            ratio *= float(np.abs(values).max() / np.abs(values[0]))
    return ratio
