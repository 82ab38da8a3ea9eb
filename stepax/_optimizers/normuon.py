"""NorMuon and MuOwn: Muon with a size of its own for each output.

Li et al., 2025, NorMuon: Making Muon more efficient and scalable (arXiv:2510.05491),
Algorithm 1, with the shape factor and the decay of the authors' program: steps of equal
size for all outputs.

MuOwn is a record of modded-nanogpt (KellerJordan/modded-nanogpt, track 3, 2026-05-08,
"muown"): Muon for the directions of all outputs, Adam for their lengths, with the
parametrization of Salimans and Kingma, 2016, Weight Normalization (arXiv:1602.07868),
which it computes from the parameters in each step.

State, in bytes for each element of a square float32 matrix: 4 for the momentum; the
few numbers for each output are negligible.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction, ema, square
from .._engine.arrays.numerics import eps_for, increment, quotient, safe_sqrt, upcast
from .._transforms.decay import STORED, descend
from .._transforms.scale import value_at
from . import matrices, orthogonal
from .matrices import DimensionNumbersOrFn


PAPER = "arXiv:2510.05491"


class NorMuonState(NamedTuple):
    """count: steps taken, a scalar.

    mu: EMA of g, shaped like the parameters.
    nu: EMA of the mean of o² over the inputs, one number for each output, (outputs,).
    """

    count: jax.Array
    mu: rx.ArrayTree
    nu: rx.ArrayTree


def _first_nu(p):
    # Sharded over all devices, it would have XLA shard the momentum so, too, which
    # `leaf` computes and `init` places like the parameter.
    zeros = rx.zeros_for(p, lambda p: jnp.sum(p.real, -2))
    return zeros.real.astype(matrices.per_output(p).dtype)


@rx.traits("orthogonalizes")
@rx.public(paper=PAPER, matrices_only=True)
def scale_by_normuon(
    b1: rx.ArrayLike = 0.95,
    b2: rx.ArrayLike = 0.95,
    ns_coeffs: orthogonal.Coefficients = (3.4445, -4.775, 2.0315),
    ns_steps: int = 5,
    eps: rx.ArrayLike = 1e-7,
    norm_eps: rx.ArrayLike = 1e-10,
    mu_dtype: rx.DTypeLike | None = None,
    *,
    nesterov: bool = True,
    shape_factor: orthogonal.ShapeFactor = "jordan",
    weight_dimension_numbers: DimensionNumbersOrFn = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """Orthogonalize the EMA of g, and divide by the root mean square of each output.

        mu = b1 mu + (1 - b1) g,   m = b1 mu + (1 - b1) g if `nesterov`, else mu
        o = orthogonalize(m),   nu = b2 nu + (1 - b2) (mean of o² over the inputs)
        u = o / (sqrt(nu) + norm_eps),   u = f ‖o‖ u / (‖u‖ + norm_eps)

    b1, b2: decay rates of the EMAs of g and of the squares of each output, in [0, 1].
    ns_coeffs, ns_steps: coefficients and steps of the iteration; see `scale_by_muon`.
    eps: added to the norm by which the mean is divided first; at least 0.
    norm_eps: added to the divisors after the iteration; at least 0.
    mu_dtype: dtype of the EMA of g; defaults to the parameter's.
    nesterov: whether to use Nesterov momentum.
    shape_factor: f; see `muon`.
    weight_dimension_numbers: which axes are inputs and outputs; see `scale_by_muon`.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `scale_by_muon`.

    Raises a `ValueError` for arrays that are not matrices, and unknown names.
    """
    orthogonal.check_shape_factor(shape_factor)
    iterate = orthogonal.newton_schulz(ns_coeffs, ns_steps, eps)

    def leaf(g, p, ctx, mu):
        mu = ema(mu, g, b1)
        return ema(mu, g, b1) if nesterov else mu, mu

    def normalized(m, ctx, nu):
        o = iterate(m)
        nu = ema(nu, jnp.sum(square(o), -2) / max(m.shape[-2], 1), b2)
        u = quotient(o, (safe_sqrt(nu) + norm_eps)[..., None, :])
        size = quotient(orthogonal.norm_of(o), orthogonal.norm_of(u) + norm_eps)
        return orthogonal.shape_factor(m.shape[-2:], shape_factor) * size * u, nu

    slots = {
        "mu": rx.Slot(dtype=mu_dtype),
        "nu": rx.Slot(_first_nu, alike=False, in_leaf=False, is_spread=False),
    }
    stage = rx.Batched(
        normalized,
        lambda m: m.ndim > 1,
        ("nu",),
        split=rx.ArraySplit(axis_name),
        is_product=True,
    )
    rule = rx.Rule(leaf, NorMuonState, slots, rx.COUNT, batched=stage)
    return matrices.only_matrices(rule, weight_dimension_numbers, "normuon")


@rx.public("optimizer", paper=PAPER, matrices_only=True)
def normuon(
    learning_rate: rx.ScalarOrSchedule,
    b1: rx.ArrayLike = 0.95,
    b2: rx.ArrayLike = 0.95,
    ns_coeffs: orthogonal.Coefficients = (3.4445, -4.775, 2.0315),
    ns_steps: int = 5,
    eps: rx.ArrayLike = 1e-7,
    norm_eps: rx.ArrayLike = 1e-10,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
    mu_dtype: rx.DTypeLike | None = None,
    *,
    nesterov: bool = True,
    shape_factor: orthogonal.ShapeFactor = "jordan",
    weight_dimension_numbers: DimensionNumbersOrFn = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """NorMuon, for matrices: give other arrays to another optimizer by `partition`
    (Li et al., 2025, arXiv:2510.05491).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_normuon`

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask: which matrices decay; see `masked`.
    shape_factor: "jordan", "spectral", "rms" or `None`; see `muon`.
    Other arguments: those of `scale_by_normuon`.

    Raises a `ValueError` for arrays that are not matrices, and unknown names.
    """
    direction = rx.pass_on(scale_by_normuon, locals())
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


class MuownState(NamedTuple):
    """count: steps taken, a scalar.

    momentum: sum of gradients of the directions, shaped like the parameters.
    length, start: current and initial length of each output, with its sign, (outputs,).
    mu: EMA of the gradient of the lengths, (outputs,).
    root: square root of the EMA of its square, (outputs,).
    """

    count: jax.Array
    momentum: rx.ArrayTree
    length: rx.ArrayTree
    start: Any
    mu: rx.ArrayTree
    root: rx.ArrayTree


def _lengths(x):
    """The norm of each output over the inputs, (..., 1, outputs)."""
    return safe_sqrt(jnp.sum(square(x), -2, keepdims=True))


def _first_lengths(p):
    lengths = _lengths(upcast(rx.copy_of(p)))[..., 0, :]
    return lengths.astype(matrices.per_output(p).dtype)


_NUMBERS = ("direction_scale", "norm_schedule_steps", "norm_target", "ns_eps")
_RANGES = {name: rx.AT_LEAST_0 for name in _NUMBERS}
_PER_OUTPUT = rx.Slot(matrices.per_output, alike=False, in_leaf=False)
_LENGTH = rx.Slot(_first_lengths, alike=False, in_leaf=False)
_SLOTS = {
    "momentum": rx.Slot(in_leaf=False),
    "length": _LENGTH,
    "start": _LENGTH,
    "mu": _PER_OUTPUT,
    "root": _PER_OUTPUT,
}


_ONE = {
    "learning_rate": "matrices of one shape step together, with one learning rate",
    **STORED,
}


@rx.traits("orthogonalizes")
@rx.public(
    "optimizer",
    paper="arXiv:1602.07868",
    matrices_only=True,
    ranges=_RANGES,
    shared=_ONE,
)
def muown(
    learning_rate: rx.ScalarOrSchedule = 3e-4,
    beta: rx.ArrayLike = 0.95,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.95,
    eps: rx.ArrayLike = 1e-8,
    *,
    ns_steps: int = 12,
    direction_scale: rx.ArrayLike = 0.2,
    norm_schedule_steps: rx.ArrayLike = 0,
    norm_target: rx.ArrayLike = 1.0,
    ns_eps: rx.ArrayLike = 1e-7,
    weight_dimension_numbers: DimensionNumbersOrFn = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """MuOwn, for matrices p = γ v / ‖v‖, of norms of each output over the inputs
    (a record of modded-nanogpt, 2026; Salimans and Kingma, 2016, arXiv:1602.07868).

        w = p / γ,   g_γ = Σ g w,   g_v = (γ / l) (g - w g_γ),   M = beta M + g_v
        v = l w - learning_rate s O(g_v + beta M),   p = γ v / ‖v‖
        γ = γ - learning_rate adam(g_γ),   s = direction_scale sqrt(longer side)
        l = ‖p‖ at first, later between that and `norm_target`, smoothly

    Outputs whose norm is 0 at first remain 0; give them to another optimizer.

    learning_rate: a scalar or a schedule.
    beta: decay rate of the momentum, in [0, 1].
    b1, b2, eps: hyperparameters of Adam for the lengths γ.
    ns_steps: steps of the iteration O, "polar_express_long" in `scale_by_muon`.
    direction_scale: size of a step of v, at least 0.
    norm_schedule_steps: number of steps until l is `norm_target`; 0 for the second
        step.
    norm_target: the final l, at least 0.
    ns_eps: added to the norm by which O divides first, at least 0.
    weight_dimension_numbers: which axes are inputs and outputs; see `scale_by_muon`.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `scale_by_muon`.

    Raises a `ValueError` for arrays that are not matrices.
    """
    iterate = orthogonal.newton_schulz("polar_express_long", ns_steps, ns_eps)

    def prepare(scalars, stat, extra):
        (count,) = scalars
        t = increment(count)
        # The progress of l after the preceding step.
        last = jnp.asarray(norm_schedule_steps) - 1
        x = upcast(count - 1) / jnp.where(last > 0, last, 1)
        way = jnp.where(last > 0, jnp.minimum(x, 1), 1)
        way = jnp.where(count == 0, 0, way**2 * (3 - 2 * way))
        rate = jnp.asarray(value_at(learning_rate, count))
        return (rate, way, bias_correction(b1, t), bias_correction(b2, t)), (t,)

    def step(g, p, ctx, momentum, *slots):
        rate, way, c1, c2 = ctx
        length, start, mu, root = (x[..., None, :] for x in slots)
        w = quotient(p, length)
        aim = start + way * (norm_target - start)
        along = jnp.sum((jnp.conj(g) * w).real, -2, keepdims=True)
        across = quotient(length, aim) * (g - w * along)
        momentum = beta * momentum + across
        size = rate * direction_scale * max(g.shape[-2:]) ** 0.5
        v = aim * w - size * iterate(across + beta * momentum)
        mu = ema(mu, along, b1)
        # The square of a large or small gradient is out of range.
        root = jnp.hypot(jnp.sqrt(b2) * root, jnp.sqrt(1 - b2) * along)
        divisor = root / safe_sqrt(c2)
        divisor = divisor + eps_for(divisor, eps)
        length = length - rate * quotient(mu / c1, divisor)
        new = length * quotient(v, _lengths(v))
        slots = (x[..., 0, :] for x in (length, start, mu, root))
        return new - p, momentum, *slots

    is_matrix, parts = lambda g: g.ndim > 1, rx.ArraySplit(axis_name)
    stage = rx.Batched(step, is_matrix, tuple(_SLOTS), needs_params=True, split=parts)
    rule = rx.Rule(
        rx.unchanged,
        MuownState,
        _SLOTS,
        rx.COUNT,
        prepare,
        batched=stage,
        needs_params=True,
    )
    return matrices.only_matrices(rule, weight_dimension_numbers, "muown")
