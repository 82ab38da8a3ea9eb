"""PSGD Kron: whitening gradients with a triangular factor for each axis.

Li, 2018, Preconditioned Stochastic Gradient Descent (arXiv:1512.04202), and Li, 2022,
Black Box Lie Group Preconditioners for SGD (arXiv:2211.04422), for the Kronecker
product of triangular matrices, fitted on the group by the gradient of
E[xᵀ P x + vᵀ P⁻¹ v], at whose minimum P = (E[x xᵀ])^(-1/2).

State of a square float32 matrix: 12 bytes for each element, 4 for the mean and 8 for
the factors; 8 with `memory_save_mode="one_diag"`, 4 with "all_diag".

Differences from the authors' ports: random numbers are the same for all arrays of one
shape; factors are balanced at exactly every hundredth update, where the ports do so
with a probability of 0.01; and factors are kept below the size at which a step would
overflow, which those of an array without any gradient would reach.
"""

import functools as ft
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction, ema, square
from .._engine.arrays.numerics import (
    in_units,
    power_of_two,
    safe_increment,
    safe_sqrt,
    upcast,
    zero_count,
)
from .._transforms.decay import add_decayed_weights
from .._transforms.noise import typed_key
from .._transforms.scale import scale_by_learning_rate, value_at
from .._wrappers.chain import chain
from .._wrappers.partition import masked
from .factors import along, factor_slot, gram, not_0, on_axis


PAPER = "arXiv:2211.04422"
# Updates of the factors between two balancings.
_BALANCED_EVERY = 100
_RANGES = {
    "preconditioner_update_probability": rx.Range(
        0,
        1,
        excludes_least=True,
        hint="; 1 updates the factors at every step, 0.1 at every tenth",
    ),
    "max_size_triangular": rx.CAP,
    "min_ndim_triangular": rx.AT_LEAST_0,
    "precond_lr": rx.UP_TO_1,
    "precond_init_scale": rx.POSITIVE,
}

MemorySaveMode: TypeAlias = Literal["one_diag", "smart_one_diag", "all_diag"] | None
_MODES = (None, "one_diag", "smart_one_diag", "all_diag")


class PsgdKronState(NamedTuple):
    """count: steps taken.  since: steps since the last update of the factors.

    renewals: updates of the factors.  All three are scalars.
    rng_key: key from which the random numbers of each step are derived, a scalar.
    mu: EMA of g, shaped like the parameters.
    factors: for each parameter a tuple with a factor for each axis of its matrix, (n,
        n) and upper triangular, or (n,) if it is diagonal.
    """

    count: jax.Array
    since: jax.Array
    renewals: jax.Array
    rng_key: jax.Array
    mu: rx.ArrayTree
    factors: rx.ArrayTree


def _usual_probability(count: jax.Array) -> jax.Array:
    """1 for 500 steps, then decaying to 0.03."""
    decayed = jnp.exp(-0.001 * (jnp.asarray(count, float) - 500))
    return jnp.clip(decayed, 0.03, 1)


@rx.public(paper=PAPER, ranges=_RANGES)
def scale_by_psgd_kron(
    b1: rx.ArrayLike = 0.9,
    *,
    preconditioner_update_probability: rx.ScalarOrSchedule | None = None,
    max_size_triangular: int = 8192,
    min_ndim_triangular: int = 2,
    memory_save_mode: MemorySaveMode = None,
    momentum_into_precond_update: bool = True,
    precond_lr: rx.ArrayLike = 0.1,
    precond_init_scale: rx.ArrayLike = 1.0,
    merge_dims: bool = True,
    key: jax.Array | int | None = None,
    sampler: Callable[..., jax.Array] = jax.random.normal,
    mu_dtype: rx.DTypeLike | None = None,
    factor_dtype: rx.DTypeLike | None = None,
    axis_name: rx.AxisName = None,
) -> rx.Rule:
    """Whiten the EMA of g with a Kronecker product of triangular factors Q.

        mu = b1 mu + (1 - b1) g,   x = m = mu / (1 - b1^t)
        v is random,   x = x + 2^-11.5 mean|x| v
        a = Q x,   b = Q^-T v,   on every axis
        Q = Q - precond_lr triu(a aᵀ - b bᵀ) Q / ‖a aᵀ + b bᵀ‖,   axis by axis
        u = Qᵀ Q m,   u = u min(1, 1.1 / rms(u))

    b1: decay rate of the EMA, in [0, 1].
    preconditioner_update_probability: inverse of the number of steps between updates of
        Q; in (0, 1], or a schedule.  By default 1 for 500 steps, then decaying to 0.03.
    max_size_triangular: longer axes have diagonal factors.
    min_ndim_triangular: arrays with fewer axes have diagonal factors.
    memory_save_mode: "one_diag" makes the factor of the longest axis diagonal,
        "smart_one_diag" does so if no other is as long, "all_diag" makes all diagonal.
    momentum_into_precond_update: whether x is m, or g.
    precond_lr: step size of Q, in [0, 1].
    precond_init_scale: the first Q is this multiple of the identity; above 0.
    merge_dims: whether arrays with more than two axes are reshaped to matrices.
    key: a random key, or an integer seed for one; `jax.random.key(0)` if `None`.
    sampler: maps a key, a shape and a dtype to v, of variance 1.
    mu_dtype, factor_dtype: dtypes of `mu`, by default the parameter's, and of Q.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `scale_by_muon`.
    """
    rx.require_one_of("memory_save_mode", memory_save_mode, _MODES)
    shape_of = _matrix_shape if merge_dims else lambda shape: shape or (1,)
    limits = max_size_triangular, min_ndim_triangular, memory_save_mode

    def kinds(shape):
        return _kinds(shape_of(shape), precond_init_scale, limits)

    given = preconditioner_update_probability
    probability: Any = _usual_probability if given is None else given

    def prepare(scalars, stat, extra):
        now = jax.random.fold_in(scalars[3], scalars[0])
        is_due, is_hundredth, scalars = _due(scalars, probability)
        # Not in the branch, where a number would become a literal of the program.
        rate = jnp.asarray(precond_lr, float)
        correction = bias_correction(b1, scalars[0])
        return (correction, is_due, is_hundredth, now, rate), scalars

    def apply(g, ctx, mu, factors):
        correction, is_due, is_hundredth, now, rate = ctx
        mu = ema(mu, g, b1)
        shape = shape_of(g.shape)
        m, unit = in_units((mu / correction).reshape(shape))

        def renewed():
            x, scale = m, unit
            if not momentum_into_precond_update:
                x, scale = in_units(g.reshape(shape))
            v = sampler(now, shape, x.dtype)
            x = x + 2**-11.5 * jnp.mean(jnp.abs(x)) * v
            new = _fitted(factors, x, scale, v, rate)
            return x if momentum_into_precond_update else m, _bounded(new, is_hundredth)

        m, factors = rx.branch(is_due, renewed, lambda: (m, tuple(factors)))
        u = _clipped(_preconditioned(m, factors), unit)
        return u.reshape(g.shape), mu, factors

    is_any, split = lambda u: u.size > 0, rx.ArraySplit(axis_name)
    stage = rx.Batched(apply, is_any, ("mu", "factors"), split=split)
    slots = {
        "mu": rx.Slot(dtype=mu_dtype, in_leaf=False),
        "factors": factor_slot(_first_factor, kinds, factor_dtype),
    }
    scalars = {
        **dict.fromkeys(("count", "since", "renewals"), zero_count),
        "rng_key": lambda params: typed_key(0 if key is None else key),
    }
    return rx.Rule(rx.unchanged, PsgdKronState, slots, scalars, prepare, batched=stage)


def _kinds(shape, scale, limits):
    """For each axis its length, whether its factor is triangular, and its scale."""
    scale = upcast(scale) if isinstance(scale, jax.Array) else scale
    size = scale ** (1 / len(shape))
    pairs = zip(shape, _triangular(shape, *limits), strict=True)
    return [(n, is_full, size) for n, is_full in pairs]


def _due(scalars, probability):
    """Whether factors are updated, and balanced; and the scalars after this step."""
    count, since, renewals, rng_key = scalars
    since = safe_increment(since)
    is_due = since >= 1 / value_at(probability, count)
    renewals = renewals + is_due
    after = safe_increment(count), jnp.where(is_due, 0, since), renewals, rng_key
    return is_due, renewals % _BALANCED_EVERY == 0, after


@rx.public("optimizer", paper=PAPER, ranges=_RANGES)
def psgd_kron(
    learning_rate: rx.ScalarOrSchedule = 3e-4,
    b1: rx.ArrayLike = 0.9,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
    *,
    preconditioner_update_probability: rx.ScalarOrSchedule | None = None,
    max_size_triangular: int = 8192,
    min_ndim_triangular: int = 2,
    memory_save_mode: MemorySaveMode = None,
    momentum_into_precond_update: bool = True,
    precond_lr: rx.ArrayLike = 0.1,
    precond_init_scale: rx.ArrayLike = 1.0,
    merge_dims: bool = True,
    key: jax.Array | int | None = None,
    sampler: Callable[..., jax.Array] = jax.random.normal,
    mu_dtype: rx.DTypeLike | None = None,
    factor_dtype: rx.DTypeLike | None = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """PSGD with Kronecker products of triangular factors Q, and weight decay
    (Li, 2022, arXiv:2211.04422).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_psgd_kron`

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask: which of the parameters with two or more axes decay; see
        `masked`.  Others never do.
    Other arguments: those of `scale_by_psgd_kron`.
    """
    whiten = rx.pass_on(scale_by_psgd_kron, locals())
    decay = add_decayed_weights(weight_decay, weight_decay_mask)
    return chain(
        whiten, masked(decay, _matrices), scale_by_learning_rate(learning_rate)
    )


def _matrices(params):
    return jax.tree.map(lambda p: rx.is_trainable(p) and jnp.ndim(p) > 1, params)


def _matrix_shape(shape):
    """The shape of an array as a matrix, or as a vector; the squarer one of two."""
    if len(shape) < 3:
        return shape or (1,)
    tall = math.prod(shape[:-1]), shape[-1]
    wide = shape[0], math.prod(shape[1:])
    return min(tall, wide, key=lambda sides: sides[1] - sides[0])


def _first_factor(kind, dtype):
    n, is_full, size = kind
    one = jnp.eye(n, dtype=dtype) if is_full else jnp.ones(n, dtype)
    return jnp.asarray(size, dtype) * one


def _triangular(shape, largest, least_ndim, mode):
    """Whether the factor of each axis is triangular; diagonal otherwise."""
    kinds = [1 < n <= largest and len(shape) >= least_ndim for n in shape]
    order = sorted(range(len(shape)), key=lambda i: shape[i])
    *_, longest = order
    is_longer = len(shape) < 2 or shape[longest] > shape[order[-2]]
    if mode == "one_diag" or (mode == "smart_one_diag" and is_longer):
        kinds[longest] = False
    return [False] * len(shape) if mode == "all_diag" else kinds


def _times(q, x, axis):
    """A factor applied to an axis of an array."""
    return x * along(q, axis, x.ndim) if q.ndim == 1 else on_axis(x, q, axis)


def _solved(q, x, axis):
    """q^-H applied to an axis of an array."""
    if q.ndim == 1:
        return x / along(q, axis, x.ndim)
    rows = jnp.moveaxis(x, axis, 0)
    solve = ft.partial(jax.scipy.linalg.solve_triangular, q, trans="C")
    return jnp.moveaxis(solve(rows.reshape(len(q), -1)).reshape(rows.shape), 0, axis)


def _preconditioned(x, factors):
    for k, q in enumerate(factors):
        x = _times(jnp.conj(q.T), _times(q, x, k), k)
    return x


def _clipped(x, unit):
    """unit x with a root mean square of at most 1.1; unit x may be out of range."""
    x, more = in_units(x)
    unit = unit * more
    rms = safe_sqrt(jnp.mean(square(x)))
    return x * jnp.minimum(unit, 1.1 / (rms + 1e-12 / unit))


def _fitted(factors, x, scale, v, step_size):
    """Factors that make Q x and Q^-H v more similar; scale: the unit of x."""
    a, b = x, v
    for k, q in enumerate(factors):
        a, b = _times(q, a, k), _solved(q, b, k)
    # A common factor of both cancels; with it, squares stay in range.
    unit = power_of_two(jnp.maximum(scale * jnp.max(jnp.abs(a)), jnp.max(jnp.abs(b))))
    a, b = a * (scale / unit), b * (1 / unit)
    return [_stepped(q, a, b, k, step_size) for k, q in enumerate(factors)]


def _stepped(q, a, b, axis, step_size):
    if q.ndim == 1:
        others = tuple(i for i in range(a.ndim) if i != axis)
        a2, b2 = jnp.sum(square(a), others), jnp.sum(square(b), others)
        return q - step_size * (a2 - b2) / not_0(jnp.max(a2 + b2)) * q
    a2, b2 = gram(a, axis), gram(b, axis)
    return q - step_size * jnp.triu(a2 - b2) @ q / not_0(_lower_bound(a2 + b2))


def _lower_bound(s):
    """A lower bound of the spectral norm of a positive semi-definite matrix."""
    top = jnp.max(jnp.abs(s))
    s = s / not_0(top)
    x = s @ s[:, jnp.argmax(jnp.sum(square(s), 0))]
    x = x / not_0(jnp.sqrt(jnp.sum(square(x))))
    return jnp.sqrt(jnp.sum(square(s @ x))) * top


def _bounded(factors, is_balanced):
    sizes = jnp.stack([jnp.max(jnp.abs(q)) for q in factors])
    middle = jnp.exp(jnp.mean(jnp.log(sizes)))
    # The squared size over all axes is then finite, and so is the step.
    limits = jnp.finfo(rx.real_dtype(sizes.dtype))
    most = float(limits.max) ** (0.45 / len(factors))
    wanted = jnp.where(is_balanced & (len(factors) > 1), middle, sizes)
    scales = jnp.minimum(wanted, most) / sizes
    return tuple(q * scale for q, scale in zip(factors, scales, strict=True))
