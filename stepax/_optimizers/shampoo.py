"""Shampoo: inverse roots of a statistic of the gradient for each axis.

Gupta, Koren and Singer, 2018, Shampoo: Preconditioned Stochastic Tensor Optimization
(arXiv:1802.09568), as in Shi et al., 2023, A Distributed Data-Parallel PyTorch
Implementation of the Distributed Shampoo Optimizer (arXiv:2309.06497), with its blocks,
grafting and order of operations; Lin et al., 2025 (arXiv:2509.03378) for
`statistics="kl"`.

State of a square float32 matrix of at most `block_size` rows: 20 bytes for each
element, 4 for the mean and 16 for two factors and two roots; 4 more with grafting other
than "sgd", and 4 more with momentum.

Differences from that code: a gradient whose squares overflow is clipped to the largest
one whose squares do not, so that statistics and roots stay finite; where an eigenvalue
and `eps` are 0, so is the root.

Arrays are cut into blocks; blocks of the same shape are stacked.
"""

import functools as ft
import itertools as it
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays import moments
from .._engine.arrays.moments import bias_correction as correction, bounded_square, ema
from .._engine.arrays.numerics import every_finite, in_units, norm2, quotient, safe_sqrt
from .._transforms.decay import add_decayed_weights
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain
from .factors import factor_slot, factored_rule, gram, not_0, on_axes
from .sgd import trace


PAPER = "arXiv:1802.09568"
_RANGES = {
    "start_preconditioning_step": rx.Range(-1),
    "block_size": rx.AT_LEAST_1,
    "grafting_b2": rx.UP_TO_1,
    "grafting_eps": rx.AT_LEAST_0,
}

_NOTHING = rx.Slot(lambda p: (), alike=False, in_leaf=False)
_SQUARES = rx.Slot(is_wide=True, decode=jnp.real, in_leaf=False)

Grafting: TypeAlias = Literal["sgd", "adagrad", "rmsprop", "adam"] | None
Statistics: TypeAlias = Literal["classic", "kl"]
_GRAFTINGS = (None, "sgd", "adagrad", "rmsprop", "adam")
_STATISTICS = ("classic", "kl")


class ShampooState(NamedTuple):
    """count: steps taken, a scalar.

    mu: EMA of g, shaped like the parameters; empty without it.
    nu: sum or EMA of |g|² for grafting, of the same shape; empty without it.
    statistics: for each parameter a tuple of sums or EMAs of G_(k) G_(k)ᵀ, one for
        each axis, (blocks, n, n); for each shape of its blocks, if there are several.
    roots: their inverse roots, of the same shapes.
    """

    count: jax.Array
    mu: rx.ArrayTree
    nu: rx.ArrayTree
    statistics: rx.ArrayTree
    roots: rx.ArrayTree


@rx.public(paper=PAPER, ranges=_RANGES)
def scale_by_shampoo(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 1.0,
    b3: rx.ArrayLike | None = None,
    eps: rx.ArrayLike = 1e-12,
    *,
    precondition_frequency: rx.ArrayLike = 1,
    start_preconditioning_step: rx.ArrayLike = -1,
    block_size: int = 1024,
    grafting: Grafting = None,
    grafting_b2: rx.ArrayLike = 0.999,
    grafting_eps: rx.ArrayLike = 1e-8,
    bias_correction: bool = True,
    inverse_exponents: Mapping[int, float] | None = None,
    statistics: Statistics = "classic",
    mu_dtype: rx.DTypeLike | None = None,
    factor_dtype: rx.DTypeLike | None = None,
    stagger: bool = False,
    axis_name: rx.AxisName = None,
) -> rx.Rule:
    """Multiply the EMA of g by an inverse root of a statistic, on every axis.

        L_k = L_k + G_(k) G_(k)ᵀ,   or their EMA if b2 < 1
        R_k = (L_k / (1 - b2^t) + eps)^(-1 / (2 axes))
        f = (b3 mu + (1 - b3) g) / (1 - b3 b1^(t-1)),   mu = b1 mu + (1 - b1) g
        u = R f on every axis,   u = u ‖f / (sqrt(nu) + grafting_eps)‖ / ‖u‖

    b1, b3: decay rates of the EMA of g, in [0, 1], as kept and as used; b3 is `b1` if
        `None`.
    b2: decay rate of the statistics, in [0, 1]; 1 adds them up.
    eps: added to their eigenvalues, at least 0.
    precondition_frequency: steps between updates of the roots, at least 1.
    start_preconditioning_step: the first of these steps; -1 for
        `precondition_frequency`.
    block_size: longer axes are divided into blocks, each with its own factors.
    grafting: the optimizer whose length u has: "sgd", "adagrad", "rmsprop" or "adam".
    grafting_b2, grafting_eps: decay rate of `nu`, in [0, 1]; added to its root.
    bias_correction: whether to correct the means.
    inverse_exponents: a function from the number of axes to the power that replaces 1 /
        (2 axes).
    statistics: "kl" multiplies G by the roots of all other axes first.
    mu_dtype, factor_dtype: storage dtypes of the EMA, and of statistics and roots.
    stagger: whether matrices take turns, so that no step renews the roots of all.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `scale_by_muon`.
    """
    rx.require_one_of("grafting", grafting, _GRAFTINGS)
    rx.require_one_of("statistics", statistics, _STATISTICS)
    b3 = b1 if b3 is None else b3
    has_mean = not (moments.is_number(b1) and b1 == 0)
    keeps_squares = grafting not in (None, "sgd")
    when = precondition_frequency, start_preconditioning_step
    renewal = rx.Renewal(_due, when, stagger)
    options = b2, inverse_exponents, statistics == "kl", grafting is not None

    def prepare(t):
        scale = of_statistics = of_squares = jnp.ones([], float)
        if bias_correction:
            # 1 - b3 b1^(t-1), without the cancellation where both are near 1.
            scale = (1 - b3) + b3 * correction(b1, t - 1)
            of_statistics = correction(b2, t)
        of_squares = correction(grafting_b2, t) if grafting == "adam" else of_squares
        return renewal.context(t), of_statistics, scale, of_squares

    def apply(g, ctx, mu, nu, *stored):
        due, of_statistics, scale, of_squares = ctx
        f = g
        if has_mean:
            f, mu = ema(mu, g, b3) / not_0(scale), ema(mu, g, b1)
            f = f if moments.is_number(b1) else jnp.where(b1 == 0, g, f)
        like = f
        if keeps_squares:
            nu = _squares(nu, g, None if grafting == "adagrad" else grafting_b2)
            like = f / not_0(safe_sqrt(nu / not_0(of_squares)) + grafting_eps)

        arrays = [x.reshape(g.shape or (1,)) for x in (g, f, like)]
        # Not in the branch, where a number would become a literal of the program.
        shift = jnp.asarray(eps, scale.dtype)
        one = ft.partial(_step, options, (of_statistics, shift, *due))
        u, *stored = map_blocks(one, block_size, arrays, stored)
        return u.reshape(g.shape), mu, nu, *stored

    sides = _Sides(block_size)
    slots = {
        "mu": rx.Slot(dtype=mu_dtype, in_leaf=False) if has_mean else _NOTHING,
        "nu": _SQUARES if keeps_squares else _NOTHING,
        "statistics": factor_slot(_zeros, sides, factor_dtype),
        "roots": factor_slot(_eyes, sides, factor_dtype),
    }
    return factored_rule(
        apply, ShampooState, slots, prepare, renewal, sides.lengths, axis_name
    )


class _Sides(NamedTuple):
    """The number and the length of the sides of blocks, for each of their axes."""

    block_size: int

    def __call__(self, shape):
        groups = blocks(shape or (1,), self.block_size)
        return [(math.prod(x.counts), n) for x in groups for n in x.shape]

    def lengths(self, shape):
        return [n for number, n in self(shape) for _ in range(number)]


def _due(t, frequency, start):
    """Whether roots are renewed at step t, and whether there are no roots yet."""
    start = jnp.where(jnp.asarray(start) < 0, frequency, start)
    is_due = (t % frequency == 0) & (t > start)
    return is_due | (t == start), t < start


def _step(options, ctx, g, f, like, sums, roots):
    """The direction f of one block, preconditioned and as long as `like`; its state.

    options: b2, the inverse exponents, and whether for "kl" and with grafting.
    """
    b2, powers, is_kl, is_grafted = options
    of_statistics, eps, renew, is_early = ctx
    axes = range(g.ndim)
    others = [[i for i in axes if i != k and is_kl] for k in axes]
    seen = (on_axes(g, [roots[i] for i in at], at) for at in others)
    rows = zip(axes, sums, seen, strict=True)
    sums = tuple(_added(L, gram(x, k), b2) for k, L, x in rows)
    power = (powers or {}).get(g.ndim, 1 / (2 * g.ndim))

    def renewed():
        return tuple(_inverse_root(L, of_statistics, eps, power) for L in sums)

    roots = rx.kept_or(renew, renewed, roots)
    u = on_axes(f, roots, axes)
    if is_grafted:
        u = jnp.where(is_early, like, u * (norm2(like) / (norm2(u) + 1e-16)))
    return u, sums, roots


@rx.public("optimizer", paper=PAPER, ranges=_RANGES)
def shampoo(
    learning_rate: rx.ScalarOrSchedule = 1e-2,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 1.0,
    b3: rx.ArrayLike | None = None,
    eps: rx.ArrayLike = 1e-12,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
    *,
    precondition_frequency: rx.ArrayLike = 1,
    start_preconditioning_step: rx.ArrayLike = -1,
    block_size: int = 1024,
    grafting: Grafting = None,
    grafting_b2: rx.ArrayLike = 0.999,
    grafting_eps: rx.ArrayLike = 1e-8,
    bias_correction: bool = True,
    momentum: rx.ArrayLike = 0.0,
    nesterov: bool = False,
    inverse_exponents: Mapping[int, float] | None = None,
    statistics: Statistics = "classic",
    mu_dtype: rx.DTypeLike | None = None,
    factor_dtype: rx.DTypeLike | None = None,
    stagger: bool = False,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """Shampoo, with weight decay and momentum (Gupta et al., 2018, arXiv:1802.09568).

        s = u + weight_decay p,   M = momentum M + s
        with u the output of `scale_by_shampoo`
        p = p - learning_rate M,   or learning_rate (s + momentum M) if `nesterov`

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask: parameters to decay; see `masked`.
    momentum, nesterov: decay rate of M, as in `trace`; whether to look ahead.
    Other arguments: those of `scale_by_shampoo`.
    """
    direction = rx.pass_on(scale_by_shampoo, locals())
    is_plain = moments.is_number(momentum) and momentum == 0
    return chain(
        direction,
        add_decayed_weights(weight_decay, weight_decay_mask),
        *([] if is_plain else [trace(momentum, nesterov)]),
        scale_by_learning_rate(learning_rate),
    )


def _zeros(side, dtype):
    n, length = side
    return jnp.zeros((n, length, length), dtype)


def _eyes(side, dtype):
    n, length = side
    return jnp.broadcast_to(jnp.eye(length, dtype=dtype), (n, length, length))


def _squares(nu, g, decay):
    """The EMA of |g|², or the sum without a decay, which stays finite."""
    if decay is None:
        return jnp.minimum(nu + bounded_square(g), jnp.finfo(nu.dtype).max)
    return ema(nu, bounded_square(g), decay)


def _added(old, new, decay):
    """The EMA, or the sum for a decay of 1; the old matrix if that would overflow."""
    if moments.is_number(decay):
        made = old + new if decay == 1 else ema(old, new, decay)
    else:
        made = decay * old + jnp.where(decay == 1, 1, 1 - decay) * new
    return jnp.where(every_finite(made), made, old)


def _inverse_root(matrix, scale, eps, exponent):
    """(matrix / scale + shift)^-exponent, whose smallest eigenvalue is eps or more."""
    y, unit = in_units(matrix)
    values, vectors = _eigh(y)
    # Divided by the larger of both, so that all quotients are in range.
    top = jnp.maximum(unit, scale * eps)
    least = len(values) * jnp.finfo(values.dtype).eps * values[-1]
    values = (values - jnp.minimum(values[0], 0)) * (unit / top) + scale * eps / top
    # Smaller eigenvalues are rounding errors, whose roots would be noise of any size.
    values = jnp.maximum(values, least * (unit / top))
    roots = jnp.where(values > 0, not_0(values) ** -exponent, 0)
    roots = roots * (scale**exponent * top**-exponent)
    return (vectors * roots[None]) @ jnp.conj(vectors.T)


@jax.custom_jvp
def _eigh(matrix):
    """Eigenvalues and eigenvectors; equal ones do not turn into each other."""
    return tuple(jnp.linalg.eigh(matrix))


@_eigh.defjvp
def _eigh_and_slope(primals, tangents):
    values, vectors = _eigh(*primals)
    inside = jnp.conj(vectors.T) @ tangents[0] @ vectors
    # JAX's own derivative divides by all differences, also those that are 0.
    gaps = (values[None] - values[:, None]).astype(inside.dtype)
    turned = vectors @ quotient(inside, gaps)
    return (values, vectors), (jnp.diag(inside).real, turned)


class Blocks(NamedTuple):
    """Neighbouring blocks of an array that have the same shape.

    starts: the start of the first block, on each axis.
    counts: the number of blocks along each axis.
    shape: the shape of each block.
    """

    starts: tuple[int, ...]
    counts: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def where(self) -> tuple[slice, ...]:
        """The part of the array that the blocks cover."""
        sizes = map(lambda count, n: count * n, self.counts, self.shape)
        return tuple(slice(i, i + n) for i, n in zip(self.starts, sizes, strict=True))

    def cut(self, x: jax.Array) -> jax.Array:
        """The blocks of an array as a stack, (blocks, *shape)."""
        pairs = zip(self.counts, self.shape, strict=True)
        x = x[self.where].reshape(list(it.chain(*pairs)))
        counts, sides = range(0, x.ndim, 2), range(1, x.ndim, 2)
        return x.transpose(*counts, *sides).reshape(-1, *self.shape)

    def joined(self, stack: jax.Array) -> jax.Array:
        """The inverse of `cut`: the part of the array."""
        n = len(self.shape)
        x = stack.reshape(*self.counts, *self.shape)
        x = x.transpose(*it.chain(*((i, n + i) for i in range(n))))
        pairs = zip(self.counts, self.shape, strict=True)
        return x.reshape([count * side for count, side in pairs])


def blocks(shape: tuple[int, ...], size: int) -> list[Blocks]:
    """The blocks of an array, with no axis longer than `size`.

    The last block along an axis may be shorter than the others: then there are two
    kinds of them, and up to 2^axes in all.
    """

    def along(n):
        whole = n // size if n > size else 1
        length = min(n, size)
        rest = n - whole * length
        return [(0, whole, length), *([(whole * length, 1, rest)] if rest else [])]

    found = it.product(*map(along, shape))
    return [Blocks(*map(tuple, zip(*parts, strict=True))) for parts in found]


def map_blocks(
    f: Callable, size: int, arrays: Sequence[jax.Array], stored: Sequence[Sequence]
) -> tuple:
    """`f` of each block of some arrays, and of the arrays stored for its axes.

    f: maps a block of each array, and a tuple with an array for each axis for each of
        `stored`, to a new block and such tuples.
    stored: columns of stacks, (blocks, ...), for each axis of each kind of block.
    """
    shape = arrays[0].shape
    u, new, n = jnp.zeros_like(arrays[0]), [[] for _ in stored], len(shape)
    for i, group in enumerate(blocks(shape, size)):
        kept = [tuple(column[i * n : (i + 1) * n]) for column in stored]
        made, *columns = jax.vmap(f)(*map(group.cut, arrays), *kept)
        u = u.at[group.where].set(group.joined(made))
        for column, xs in zip(new, columns, strict=True):
            column.extend(xs)
    return u, *map(tuple, new)
