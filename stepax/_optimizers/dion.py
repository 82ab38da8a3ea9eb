"""Dion and Dion2: orthonormal updates from part of the momentum; the rest is kept.

Ahn et al., 2025, Dion: Distributed Orthonormalized Updates (arXiv:2504.05295), in the
form of Algorithm 1 for one device; Ahn et al., 2025, Dion2 (arXiv:2512.16928),
Algorithm 1.  The part that a step does not apply stays in the momentum, as error
feedback.

State, in bytes for each element of a square float32 matrix: 4 for the momentum; with
Dion, 4 rank / side more.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import square
from .._engine.arrays.numerics import eps_for, in_units, quotient, safe_sqrt
from .._transforms.decay import descend
from .._transforms.noise import typed_key
from . import matrices, orthogonal
from .matrices import DimensionNumbersOrFn


DION, DION2 = "arXiv:2504.05295", "arXiv:2512.16928"
_SOME = rx.Range(0, 1, excludes_least=True)


class DionState(NamedTuple):
    """count: steps taken, a scalar.

    momentum: sum of g and of the part that was not applied, shaped like the parameters.
    basis: the directions of the inputs, of length 1 from the first step on, (inputs, r)
        with r = min(rank, inputs, outputs), for each matrix.
    """

    count: jax.Array
    momentum: rx.ArrayTree
    basis: rx.ArrayTree


@rx.traits("orthogonalizes")
@rx.public(paper=DION, matrices_only=True, ranges={"rank": rx.AT_LEAST_1})
def scale_by_dion(
    rank: int = 768,
    beta: rx.ArrayLike = 0.95,
    eps: rx.ArrayLike = 1e-8,
    *,
    key: jax.Array | int | None = None,
    sampler: Callable[..., jax.Array] = jax.random.normal,
    weight_dimension_numbers: DimensionNumbersOrFn = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """Take an orthonormal factor of rank r of the momentum, by power iteration.

        B = B + g,   L = the orthonormal factor of Bᵀ Q,   R = B L
        B = B - (1 - beta) R Lᵀ,   Q = R / (norms of its columns + eps)
        u = sqrt(outputs / inputs) Q Lᵀ

    rank: largest rank of an update, at least 1; limited by the shorter side.
    beta: how much of what is applied stays in the momentum B, in [0, 1].
    eps: added to the norms, at least 0.
    key: a random key or a seed for the first Q; `jax.random.key(0)` if `None`.
    sampler: draws it from the key, a shape (inputs, r) and a dtype.
    weight_dimension_numbers: which axes are inputs and outputs; see `scale_by_muon`.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `scale_by_muon`.

    Raises a `ValueError` for arrays that are not matrices.
    """

    def start(p):
        rows, columns = p.shape[-2:]
        shape = rows, min(rank, rows, columns)
        if not rx.is_inexact(p):  # the first step raises for integers
            return jnp.zeros((*p.shape[:-2], *shape), p.dtype)
        # The same for all matrices of a shape, so that stacked layers are trained like
        # separate ones.
        drawn = sampler(typed_key(0 if key is None else key), shape, p.dtype)
        return jnp.broadcast_to(drawn, (*p.shape[:-2], *shape))

    def factored(g, ctx, momentum, basis):
        # In units: the squares of a large or small momentum are out of range.
        momentum, unit = in_units(momentum + g, (-2, -1))
        product = orthogonal.adjoint(momentum) @ basis
        # Zeros are replaced, at which the factors have no derivative.
        is_zero = jnp.all(product == 0, (-2, -1), keepdims=True)
        one = jnp.eye(*product.shape[-2:], dtype=product.dtype)
        left = jnp.linalg.qr(jnp.where(is_zero, one, product))[0]
        right = momentum @ left
        momentum = unit * (momentum - (1 - beta) * (right @ orthogonal.adjoint(left)))
        norms = safe_sqrt(jnp.sum(square(right), -2, keepdims=True))
        basis = quotient(right, norms + eps_for(unit, eps) / unit)
        factor = orthogonal.shape_factor(g.shape[-2:], "spectral")
        return factor * (basis @ orthogonal.adjoint(left)), momentum, basis

    slots = {
        "momentum": rx.Slot(in_leaf=False),
        "basis": rx.Slot(start, alike=False, in_leaf=False),
    }
    stage = rx.Batched(
        factored,
        lambda g: g.ndim > 1 and g.size > 0,
        tuple(slots),
        split=rx.ArraySplit(axis_name),
    )
    rule = rx.Rule(rx.unchanged, DionState, slots, rx.COUNT, batched=stage)
    return matrices.only_matrices(rule, weight_dimension_numbers, "dion")


@rx.public("optimizer", paper=DION, matrices_only=True, ranges={"rank": rx.AT_LEAST_1})
def dion(
    learning_rate: rx.ScalarOrSchedule,
    rank: int = 768,
    beta: rx.ArrayLike = 0.95,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 0.01,
    weight_decay_mask: rx.MaskOrFn = None,
    *,
    key: jax.Array | int | None = None,
    sampler: Callable[..., jax.Array] = jax.random.normal,
    weight_dimension_numbers: DimensionNumbersOrFn = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """Dion, for matrices: give other arrays to another optimizer by `partition`
    (Ahn et al., 2025, arXiv:2504.05295).

        p = p - learning_rate (u + weight_decay p), with u the output of `scale_by_dion`

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask: which matrices decay; see `masked`.
    Other arguments: those of `scale_by_dion`.

    Raises a `ValueError` for arrays that are not matrices.
    """
    direction = rx.pass_on(scale_by_dion, locals())
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


class Dion2State(NamedTuple):
    """count: steps taken, a scalar.

    momentum: sum of g and of the part that was not applied, shaped like the parameters.
    """

    count: jax.Array
    momentum: rx.ArrayTree


_DION2_RANGES = {"fraction": _SOME, "ef_decay": rx.UP_TO_1}


@rx.traits("orthogonalizes")
@rx.public(paper=DION2, matrices_only=True, ranges=_DION2_RANGES)
def scale_by_dion2(
    fraction: rx.ArrayLike = 0.25,
    ef_decay: rx.ArrayLike = 0.95,
    eps: rx.ArrayLike = 1e-8,
    *,
    ns_coeffs: orthogonal.Coefficients = "polar_express",
    ns_steps: int = 5,
    shape_factor: orthogonal.ShapeFactor = "spectral",
    weight_dimension_numbers: DimensionNumbersOrFn = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """Orthogonalize the rows, or columns, of the momentum that are largest.

        M = M + g,   S = the fraction of the shorter side with the largest Σ |M|
        u = f orthogonalize(M[S]) in S, 0 elsewhere,   M[S] = ef_decay M[S]

    fraction: the fraction of the outputs, or of the inputs if they are fewer, rounded
        up; in (0, 1].
    ef_decay: how much of what is applied stays in the momentum, in [0, 1].
    eps: added to the norm by which M[S] is divided first; at least 0.
    ns_coeffs, ns_steps: coefficients and steps of the iteration; see `scale_by_muon`.
    shape_factor: f, for the whole shape; see `muon`.
    weight_dimension_numbers: which axes are inputs and outputs; see `scale_by_muon`.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `scale_by_muon`.

    Raises a `ValueError` for arrays that are not matrices, and unknown names.
    """
    orthogonal.check_shape_factor(shape_factor)
    iterate = orthogonal.newton_schulz(ns_coeffs, ns_steps, eps)

    def part(g, ctx, momentum):
        # Slices are columns here: the sides are swapped if there are fewer rows.
        inputs, outputs = g.shape[-2:]
        is_wide = outputs > inputs
        factor = orthogonal.shape_factor((inputs, outputs), shape_factor)
        m = (momentum + g).mT if is_wide else momentum + g
        pair = _largest(m, fraction, ef_decay, lambda m: factor * iterate(m))
        return tuple(x.mT if is_wide else x for x in pair)

    slots = {"momentum": rx.Slot(in_leaf=False)}
    stage = rx.Batched(
        part,
        lambda g: g.ndim > 1 and g.size > 0,
        tuple(slots),
        split=rx.ArraySplit(axis_name),
    )
    rule = rx.Rule(rx.unchanged, Dion2State, slots, rx.COUNT, batched=stage)
    return matrices.only_matrices(rule, weight_dimension_numbers, "dion2")


def _largest(m, fraction, ef_decay, iterate):
    """`iterate` of the largest columns, in their place, and the rest of `m`."""
    n, sizes = m.shape[-1], jnp.sum(jnp.abs(m), -2, keepdims=True)
    order = jnp.argsort(-sizes, -1)
    rank = jnp.argsort(order, -1)
    if isinstance(fraction, jax.Array):
        # Their number may be traced.  Columns of zeros do not affect the others.
        is_chosen = rank < jnp.ceil(fraction * n)
        u = iterate(jnp.where(is_chosen, m, 0))
    else:
        k = math.ceil(fraction * n)
        is_chosen = rank < k
        o = iterate(_columns(m, order[..., :k]))
        # All others take the column of zeros after them.
        o = jnp.concatenate([o, jnp.zeros_like(o[..., :1])], -1)
        u = _columns(o, jnp.minimum(rank, k))
    return u, jnp.where(is_chosen, ef_decay * m, m)


def _columns(x, indices):
    """Some columns of matrices; indices: (..., 1, number)."""
    at = jnp.broadcast_to(indices, (*x.shape[:-1], indices.shape[-1]))
    return jnp.take_along_axis(x, at, -1, mode="promise_in_bounds")


@rx.public("optimizer", paper=DION2, matrices_only=True, ranges=_DION2_RANGES)
def dion2(
    learning_rate: rx.ScalarOrSchedule,
    fraction: rx.ArrayLike = 0.25,
    ef_decay: rx.ArrayLike = 0.95,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 0.01,
    weight_decay_mask: rx.MaskOrFn = None,
    *,
    ns_coeffs: orthogonal.Coefficients = "polar_express",
    ns_steps: int = 5,
    shape_factor: orthogonal.ShapeFactor = "spectral",
    weight_dimension_numbers: DimensionNumbersOrFn = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """Dion2, for matrices: give other arrays to another optimizer by `partition`
    (Ahn et al., 2025, arXiv:2512.16928).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_dion2`

    All of p decays, even where u is 0.

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask: which matrices decay; see `masked`.
    shape_factor: "jordan", "spectral", "rms" or `None`; see `muon`.
    Other arguments: those of `scale_by_dion2`.

    Raises a `ValueError` for arrays that are not matrices, and unknown names.
    """
    direction = rx.pass_on(scale_by_dion2, locals())
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)
