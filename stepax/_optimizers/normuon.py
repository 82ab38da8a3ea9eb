"""NorMuon: orthogonalized momentum, with steps of equal size for all outputs.

Li et al., 2025, NorMuon: Making Muon more efficient and scalable (arXiv:2510.05491),
Algorithm 1, with the shape factor and the decay of the authors' program.

State, in bytes for each element of a square float32 matrix: 4 for the momentum; the
mean squares, one for each output, are negligible.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import ema, square
from .._engine.arrays.numerics import quotient, safe_sqrt
from .._transforms.decay import descend
from . import matrices
from .muon import DimensionNumbersOrFn, MuonDimensionNumbers
from .orthogonal import (
    Coefficients,
    ShapeFactor,
    check_shape_factor,
    newton_schulz,
    norm_of,
    shape_factor as factor_of_shape,
)


PAPER = "arXiv:2510.05491"


class NorMuonState(NamedTuple):
    """count: steps taken, a scalar.

    mu: EMA of g, shaped like the parameters.
    nu: EMA of the mean of o² over the inputs, one number for each output, (outputs,).
    """

    count: jax.Array
    mu: Any
    nu: Any


@rx.public(paper=PAPER, matrices_only=True)
def scale_by_normuon(
    b1: rx.ArrayLike = 0.95,
    b2: rx.ArrayLike = 0.95,
    ns_coeffs: Coefficients = (3.4445, -4.775, 2.0315),
    ns_steps: int = 5,
    eps: rx.ArrayLike = 1e-7,
    norm_eps: rx.ArrayLike = 1e-10,
    mu_dtype: rx.DTypeLike | None = None,
    *,
    nesterov: bool = True,
    shape_factor: ShapeFactor = "jordan",
    weight_dimension_numbers: DimensionNumbersOrFn = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """Orthogonalize the EMA of g, and divide by the root mean square of each output.

        mu = b1 mu + (1 - b1) g,   m = b1 mu + (1 - b1) g if `nesterov`, else mu
        o = orthogonalize(m),   nu = b2 nu + (1 - b2) (mean of o² over the inputs)
        u = o / (sqrt(nu) + norm_eps),   u = f ‖o‖ u / (‖u‖ + norm_eps)

    b1, b2: decay rates of the EMAs, in [0, 1].
    ns_coeffs, ns_steps: coefficients and steps of the iteration; see `scale_by_muon`.
    eps: added to the norm by which m is divided first; at least 0.
    norm_eps: added to the divisors of o and u; at least 0.
    mu_dtype: storage dtype of `mu`; the parameter's if `None`.
    nesterov: whether to use Nesterov momentum.
    shape_factor: f; see `muon`.
    weight_dimension_numbers: which axes are inputs and outputs; see `scale_by_muon`.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `scale_by_muon`.

    Raises a `ValueError` for arrays that are not matrices, and unknown names.
    """
    check_shape_factor(shape_factor)
    orthogonal = newton_schulz(ns_coeffs, ns_steps, eps)

    def leaf(g, p, ctx, mu):
        mu = ema(mu, g, b1)
        return ema(mu, g, b1) if nesterov else mu, mu

    def normalized(m, ctx, nu):
        o = orthogonal(m)
        nu = ema(nu, jnp.sum(square(o), -2) / max(m.shape[-2], 1), b2)
        u = quotient(o, (safe_sqrt(nu) + norm_eps)[..., None, :])
        size = quotient(norm_of(o), norm_of(u) + norm_eps)
        return factor_of_shape(m.shape[-2:], shape_factor) * size * u, nu

    slots = {
        "mu": rx.Slot(dtype=mu_dtype),
        "nu": rx.Slot(matrices.per_output, alike=False, in_leaf=False),
    }
    stage = rx.Batched(
        normalized, lambda m: m.ndim > 1, ("nu",), split=rx.ArraySplit(axis_name)
    )
    rule = rx.Rule(leaf, NorMuonState, slots, rx.COUNT, batched=stage)
    return matrices.only_matrices(
        rule, weight_dimension_numbers, MuonDimensionNumbers, "normuon"
    )


@rx.public("optimizer", paper=PAPER, matrices_only=True)
def normuon(
    learning_rate: rx.ScalarOrSchedule,
    b1: rx.ArrayLike = 0.95,
    b2: rx.ArrayLike = 0.95,
    ns_coeffs: Coefficients = (3.4445, -4.775, 2.0315),
    ns_steps: int = 5,
    eps: rx.ArrayLike = 1e-7,
    norm_eps: rx.ArrayLike = 1e-10,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
    mu_dtype: rx.DTypeLike | None = None,
    *,
    nesterov: bool = True,
    shape_factor: ShapeFactor = "jordan",
    weight_dimension_numbers: DimensionNumbersOrFn = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """NorMuon, for matrices: give other arrays to another optimizer by `partition`.

        p = p - learning_rate (u + weight_decay p),   u of `scale_by_normuon`

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of g and of the squares of each output, in [0, 1].
    ns_coeffs, ns_steps: coefficients and steps of the iteration; see `scale_by_muon`.
    eps: added to the norm by which the mean is divided first; at least 0.
    norm_eps: added to the divisors after the iteration; at least 0.
    weight_decay_mask: which matrices decay; see `masked`.
    mu_dtype: storage dtype of the EMA of g; the parameter's if `None`.
    nesterov: whether to use Nesterov momentum.
    shape_factor: "jordan", "spectral", "rms" or `None`; see `muon`.
    weight_dimension_numbers: which axes are inputs and outputs; see `scale_by_muon`.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `scale_by_muon`.

    Raises a `ValueError` for arrays that are not matrices, and unknown names.
    """
    direction = scale_by_normuon(
        b1,
        b2,
        ns_coeffs,
        ns_steps,
        eps,
        norm_eps,
        mu_dtype,
        nesterov=nesterov,
        shape_factor=shape_factor,
        weight_dimension_numbers=weight_dimension_numbers,
        axis_name=axis_name,
    )
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)
