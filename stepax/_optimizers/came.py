"""CAME: Adafactor with momentum, divided by how far updates stray from their mean.

Luo et al., 2023, CAME: Confidence-guided Adaptive Memory Efficient Optimization
(arXiv:2307.02047), Algorithm 2.

The state holds the momentum and four vectors for each matrix: 4 bytes for each element
of a large float32 matrix, where Adam needs 8.
"""

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.moments import ema, square
from .._engine.arrays.numerics import quotient, safe_rsqrt, safe_sqrt
from .._transforms.decay import descend


PAPER = "arXiv:2307.02047"
_RANGES = {"clipping_threshold": rx.POSITIVE_CAP}


class CAMEState(NamedTuple):
    """mu: EMA of the clipped updates, shaped like the parameters.

    nu_row, nu_col: EMAs of |g|², averaged over the columns and over the rows.
    nu: EMA of |g|², where an array has fewer than two axes.
    residual_row, residual_col: EMAs of |u - mu|², averaged in the same way.
    Fields that a parameter does not need have shape (0,).
    """

    mu: rx.ArrayTree
    nu_row: rx.ArrayTree
    nu_col: rx.ArrayTree
    nu: rx.ArrayTree
    residual_row: rx.ArrayTree
    residual_col: rx.ArrayTree


@rx.public(paper=PAPER, ranges=_RANGES)
def scale_by_came(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    b3: rx.ArrayLike = 0.9999,
    eps: tuple[rx.ArrayLike, rx.ArrayLike] = (1e-30, 1e-16),
    clipping_threshold: rx.ArrayLike = 1.0,
) -> rx.Rule:
    """Average Adafactor's updates, and divide where they differ from the average.

        nu = b2 nu + (1 - b2) (|g|² + eps[0]),   u = g / sqrt(nu)
        u = u / max(1, rms(u) / clipping_threshold),   mu = b1 mu + (1 - b1) u
        s = b3 s + (1 - b3) (|u - mu|² + eps[1])
        the result is mu / sqrt(s),   and mu for arrays with fewer than two axes

    For nu and s only means over rows and columns of the last two axes are stored; they
    represent row column / mean(row).  The means are not bias-corrected.

    b1, b2, b3: decay rates of the EMAs of the updates, of |g|² and of the distance of
        updates from their EMA, in [0, 1].
    eps: added to |g|² and to the squared distance, at least 0.
    clipping_threshold: largest root mean square of an update of Adafactor, above 0.

    In bfloat16 `nu_row`, `nu_col`, `nu`, `residual_row` and `residual_col` stall:
    keep them in float32 with `with_state_dtypes`.
    """

    def leaf(g, p, ctx, mu, row, col, nu, far_row, far_col):
        squares = square(g) + eps[0]
        if g.ndim < 2:
            nu = ema(nu, squares, b2)
            u = g * _inverse_root(nu)
        else:
            row, col = _means(row, col, squares, b2)
            u = g * _inverse_root_of(row, col)
        u = u / jnp.maximum(1, safe_sqrt(jnp.mean(square(u))) / clipping_threshold)
        mu = ema(mu, u, b1)
        if g.ndim < 2:
            return mu, mu, row, col, nu, far_row, far_col
        far_row, far_col = _means(far_row, far_col, square(u - mu) + eps[1], b3)
        new = mu * _inverse_root_of(far_row, far_col)
        return new, mu, row, col, nu, far_row, far_col

    return rx.Rule(leaf, CAMEState, {"mu": rx.Slot(), **_MEANS})


def _mean(make, of_matrices):
    """The slot of a mean for arrays of two axes or more, or for all others."""

    def start(p):
        is_empty = (np.ndim(p) > 1) != of_matrices
        return jnp.zeros(0, jnp.result_type(p)) if is_empty else make(p)

    return replace(rx.REDUCED, make=start)


_ROW, _COL = (
    _mean(lambda p, axis=axis: rx.zeros_for(p, lambda p: jnp.sum(p, axis)), True)
    for axis in (-1, -2)
)
_MEANS = {"nu_row": _ROW, "nu_col": _COL, "nu": _mean(jnp.zeros_like, False)}
_MEANS |= {"residual_row": _ROW, "residual_col": _COL}


def _means(row, col, x, decay):
    # Not `jnp.mean`, which is NaN over an axis without elements.
    def over(axis):
        return jnp.sum(x, axis) / max(x.shape[axis], 1)

    return ema(row, over(-1), decay), ema(col, over(-2), decay)


def _inverse_root_of(row, col):
    """1 / sqrt(row col / mean(row)), for each element of a matrix."""
    share = quotient(row, jnp.mean(row, -1, keepdims=True))
    return _inverse_root(share)[..., :, None] * _inverse_root(col)[..., None, :]


def _inverse_root(x):
    """1 / sqrt(x), and 0 where x is 0."""
    is_zero = x == 0
    return jnp.where(is_zero, 0, safe_rsqrt(jnp.where(is_zero, 1, x)))


@rx.public("optimizer", paper=PAPER, ranges=_RANGES)
def came(
    learning_rate: rx.ScalarOrSchedule,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    b3: rx.ArrayLike = 0.9999,
    eps: tuple[rx.ArrayLike, rx.ArrayLike] = (1e-30, 1e-16),
    clipping_threshold: rx.ArrayLike = 1.0,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """CAME, with decoupled weight decay (Luo et al., 2023, arXiv:2307.02047).

        p = p - learning_rate (u + weight_decay p), with u the output of `scale_by_came`

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_came`.
    """
    direction = scale_by_came(b1, b2, b3, eps, clipping_threshold)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)
