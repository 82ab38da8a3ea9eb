"""KL-Shampoo and KL-SOAP: Kronecker factors that minimize a KL divergence.

Lin et al., 2025, Understanding and Improving Shampoo and SOAP via Kullback-Leibler
Minimization (arXiv:2509.03378), in the order of operations of the authors' code: the
statistics of an axis see the gradient whitened along the others, and the eigenvalues
are means of their own in the present bases, which a power iteration renews.

A square matrix keeps 20 bytes for each element in float32 with KL-Shampoo: `mu`, and
two matrices for each of its sides; 24 with KL-SOAP, which has `nu` besides.  With
`factor_dtype="bfloat16"` it is 12 and 16.

Differences from that code, which takes arrays of two and three axes: of more, the first
ones are merged; vectors, and axes longer than `max_precond_dim`, keep their basis.
Means are stored in the eigenbasis, which saves two products at every step.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from .._engine.arrays.branch import branch
from .._engine.arrays.moments import bounded_square, ema
from .._engine.arrays.numerics import safe_root_mean_squares
from .._engine.base.protocol import (
    GradientTransformationExtraArgs,
    MaskOrFn,
    ScalarOrSchedule,
)
from .._engine.factories.ranges import AT_LEAST_0, POSITIVE
from .._engine.factories.registry import public
from .._engine.step.batched import Batched
from .._engine.step.rule import COUNT, REAL, Rule, Slot, from_step
from .._transforms.decay import decayed_after
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain
from . import factors
from .soap import adam_direction


PAPER = "arXiv:2509.03378"
_RANGES = {"init_factor": POSITIVE, "max_inverse_root": AT_LEAST_0}


class KLShampooState(NamedTuple):
    """State of `scale_by_kl_shampoo`.

    count: steps taken, a scalar.
    mu: EMA of g in the eigenbases, shaped like the parameters.
    statistics: for each parameter a tuple of S_k, (n_k, n_k), one for each axis that
        has a factor.
    bases: their eigenvectors as columns, alike.
    roots: the inverse roots of the eigenvalues, (n_k,), for each axis; ones at first.
    """

    count: jax.Array
    mu: Any
    statistics: Any
    bases: Any
    roots: Any


class KLSoapState(NamedTuple):
    """State of `scale_by_kl_soap`: as of `KLShampooState`, and

    nu: EMA of |g|² in the eigenbases, shaped like the parameters.
    """

    count: jax.Array
    mu: Any
    nu: Any
    statistics: Any
    bases: Any
    roots: Any


class _Options(NamedTuple):
    """What both optimizers take."""

    b1: ArrayLike
    b2: ArrayLike
    shampoo_beta: ArrayLike | None
    eps: ArrayLike
    precondition_frequency: ArrayLike
    init_factor: ArrayLike
    max_inverse_root: ArrayLike
    damped_statistics: bool
    normalize_grads: bool
    max_precond_dim: int
    mu_dtype: DTypeLike | None
    factor_dtype: DTypeLike | None

    @property
    def b3(self) -> ArrayLike:
        return self.b2 if self.shampoo_beta is None else self.shampoo_beta

    def axes(self, shape: factors.Shape) -> tuple[int, ...]:
        """The axes that have a factor."""
        if len(shape) == 1:
            return ()
        fits = lambda n: 0 < n <= self.max_precond_dim
        return tuple(i for i, n in enumerate(shape) if fits(n))


def _view(shape: factors.Shape) -> factors.Shape:
    """The shape with at most three axes, and at least one."""
    return (math.prod(shape[:-2]), *shape[-2:]) if len(shape) > 3 else shape or (1,)


def _ones(n, dtype):
    return jnp.ones(n, dtype).real


def _rule(State: type, options: _Options) -> Rule:
    """The rule of both: Shampoo's, or that of SOAP if the state has `nu`."""
    views = lambda shape: [_view(shape)[i] for i in options.axes(_view(shape))]
    slot = lambda start, sides=views: factors.factor_slot(
        start, sides, options.factor_dtype
    )
    slots = {
        "mu": Slot(dtype=options.mu_dtype, in_leaf=False),
        "nu": replace(REAL, in_leaf=False),
        "statistics": slot(factors.zero_square),
        "bases": slot(jnp.eye),
        "roots": factors.factor_slot(_ones, _view),
    }
    slots = {k: x for k, x in slots.items() if k in State._fields}

    def apply(g, ctx, *slots):
        is_first, _, first = ctx
        shape, view = g.shape, _view(g.shape)
        at = options.axes(view)
        *means, statistics, bases, roots = slots
        g, *means = (x.reshape(view) for x in (g, *means))
        y = factors.to_bases(g, bases, at)
        news = (y, options.b1), (bounded_square(y), options.b2)
        means = [
            jnp.where(is_first, mean, ema(mean, x, b))
            for mean, (x, b) in zip(means, news, strict=False)
        ]
        u = _direction(means, roots, options.eps)
        u = jnp.where(is_first, 0, factors.on_axes(u, bases, at))
        if options.normalize_grads:
            u = u / safe_root_mean_squares(u, 1e-30)
        grams, seen = _observed(g, y, bases, roots, at, is_first, options)
        roots = tuple(jnp.where(is_first, first, r) for r in seen)
        pairs = zip(statistics, grams, strict=True)
        statistics = tuple(ema(old, new, options.b3) for old, new in pairs)
        mu, bases = _renewed(ctx, means[0], bases, statistics, grams, at)
        means = [x.reshape(shape) for x in (mu, *means[1:])]
        return u.reshape(shape), *means, statistics, bases, roots

    def prepare(t):
        first = jnp.asarray(options.init_factor) ** -0.5
        return t == 1, (t - 1) % options.precondition_frequency == 0, first

    stage = Batched(apply, lambda g: True, tuple(slots))
    leaf = lambda g, p, ctx: (g,)
    return Rule(leaf, State, slots, COUNT, from_step(prepare), batched=stage)


def _direction(means, roots, eps):
    mu, *rest = means
    if rest:
        return adam_direction(mu, rest[0], eps)
    all_roots = _scaled(1, roots, None)
    return mu * (all_roots / (1 + eps * all_roots))


def _scaled(x, roots, left_out):
    """An array times the roots of all axes but one."""
    for axis, root in enumerate(roots):
        if axis != left_out:
            x = x * factors.along(root, axis, len(roots))
    return x


# Of three axes the last is renewed first, and then others see its new root, or that of
# their neighbour; matrices see old ones.  From an axis to whose root is new in its
# statistics, and in its eigenvalues.
_NEW_IN_STATISTICS = {0: 1}
_NEW_IN_VALUES = {0: 1, 1: 2}


def _observed(g, y, bases, roots, axes, is_first, options):
    """New statistics of the axes that have a factor, before averaging; and all roots.

    y: g in the bases.
    """
    n, new, grams = len(roots), list(roots), {}
    seen = lambda at: [new[j] if n == 3 and j == at else roots[j] for j in range(n)]
    for k in reversed(range(n)):
        if k in axes:
            others = [i for i in axes if i != k]
            w = factors.to_bases(g, [bases[axes.index(i)] for i in others], others)
            gram = factors.gram(_scaled(w, seen(_NEW_IN_STATISTICS.get(k)), k), k)
            grams[k] = g.shape[k] / max(g.size, 1) * gram
        x = bounded_square(_scaled(y, seen(_NEW_IN_VALUES.get(k)), k))
        values = jnp.sum(x, [i for i in range(n) if i != k])
        values = values / max(g.size // max(g.shape[k], 1), 1)
        if options.damped_statistics:
            means = [jnp.mean(r**2) for i, r in enumerate(roots) if i != k]
            values = values + options.eps * math.prod(means)
        most = jnp.clip(options.max_inverse_root, max=g.shape[k])
        root = _root(roots[k], values, jnp.maximum(10, most), options.b3)
        # Roots are ones until the second step, so that the first one sees g itself.
        new[k] = jnp.where(is_first, roots[k], root)
    return [grams[k] for k in axes], new


def _root(old, values, most, b3):
    """The inverse root of the renewed eigenvalues, at most `most`."""
    # So that its inverse square is finite, too.
    largest = jnp.finfo(values.dtype).max / 16
    most = jnp.asarray(most, values.dtype)
    return jnp.clip(ema(old**-2.0, values, b3), most**-2.0, largest) ** -0.5


def _renewed(ctx, mu, bases, statistics, grams, axes):
    """`mu` in the new bases, and these."""
    if not axes:
        return mu, bases
    is_first, renew, _ = ctx

    def turned():
        pairs = zip(statistics, bases, strict=True)
        new = tuple(factors.power_step(s, q) for s, q in pairs)
        there = factors.on_axes(mu, bases, axes)
        return factors.to_bases(there, new, axes), new

    first = lambda: (mu, tuple(map(factors.eigenbasis, grams)))
    return branch(renew, lambda: branch(is_first, first, turned), lambda: (mu, bases))


@public(paper=PAPER, ranges=_RANGES)
def scale_by_kl_shampoo(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.98,
    shampoo_beta: ArrayLike | None = None,
    eps: ArrayLike = 1e-8,
    precondition_frequency: ArrayLike = 10,
    *,
    init_factor: ArrayLike = 0.1,
    max_inverse_root: ArrayLike = 4000,
    damped_statistics: bool = False,
    normalize_grads: bool = False,
    max_precond_dim: int = 10000,
    mu_dtype: DTypeLike | None = None,
    factor_dtype: DTypeLike | None = None,
) -> Rule:
    """Divide the EMA of g by Kronecker factors that approximate its covariance best.

        mu = b1 mu + (1 - b1) Qᵀ g on each axis,   R = the product of all r_k
        u = Q (mu R / (1 + eps R))
        S_k = b2 S_k + (1 - b2) n_k / n W_(k) W_(k)ᵀ,   W: g whitened along other axes
        r_k^-2 = b2 r_k^-2 + (1 - b2) mean (Qᵀ g, times the other r)²
        Q_k = QR(S_k Q_k) every `precondition_frequency` steps

    At the first step u = 0 and Q_k = eigenvectors of S_k.

    b1, b2: decay rates of the EMAs of g and of the statistics, in [0, 1].
    shampoo_beta: decay rate of the statistics in place of `b2`.
    eps: bounds the product of all r, at least 0.
    precondition_frequency: steps between updates of the bases, at least 1.
    init_factor: the first eigenvalues, r_k^-2, above 0.
    max_inverse_root: bound of r_k, which is not above max(10, n_k) either.
    damped_statistics: whether eigenvalues have eps times the mean of the others added.
    normalize_grads: whether to divide u by its root mean square.
    max_precond_dim: longest axis that has a basis; longer ones only have roots.
    mu_dtype: storage dtype of `mu`; the parameter's if `None`.
    factor_dtype: storage dtype of S and Q; float32 or wider if `None`.
    """
    return _rule(
        KLShampooState,
        _Options(
            b1,
            b2,
            shampoo_beta,
            eps,
            precondition_frequency,
            init_factor,
            max_inverse_root,
            damped_statistics,
            normalize_grads,
            max_precond_dim,
            mu_dtype,
            factor_dtype,
        ),
    )


@public(paper=PAPER, ranges=_RANGES)
def scale_by_kl_soap(
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.98,
    shampoo_beta: ArrayLike | None = None,
    eps: ArrayLike = 1e-8,
    precondition_frequency: ArrayLike = 10,
    *,
    init_factor: ArrayLike = 0.1,
    max_inverse_root: ArrayLike = 4000,
    damped_statistics: bool = False,
    normalize_grads: bool = False,
    max_precond_dim: int = 10000,
    mu_dtype: DTypeLike | None = None,
    factor_dtype: DTypeLike | None = None,
) -> Rule:
    """Run Adam in the eigenbases of `scale_by_kl_shampoo`, without bias correction.

        x = Qᵀ g on each axis,   mu = b1 mu + (1 - b1) x,   nu = b2 nu + (1 - b2) |x|²
        u = Q (mu / (sqrt(nu) + eps))

    b1, b2: decay rates of the EMAs of x, and of |x|² and the statistics, in [0, 1].
    shampoo_beta: decay rate of the statistics in place of `b2`.
    eps: added to the square root, at least 0.
    precondition_frequency, init_factor, max_inverse_root, damped_statistics: of the
        bases; see `scale_by_kl_shampoo`.
    normalize_grads: whether to divide u by its root mean square.
    max_precond_dim: longest axis that has a basis; Adam's step along longer ones.
    mu_dtype: storage dtype of `mu`; the parameter's if `None`, as always for `nu`.
    factor_dtype: storage dtype of S and Q; float32 or wider if `None`.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    return _rule(
        KLSoapState,
        _Options(
            b1,
            b2,
            shampoo_beta,
            eps,
            precondition_frequency,
            init_factor,
            max_inverse_root,
            damped_statistics,
            normalize_grads,
            max_precond_dim,
            mu_dtype,
            factor_dtype,
        ),
    )


@public("optimizer", paper=PAPER, ranges=_RANGES)
def kl_shampoo(
    learning_rate: ScalarOrSchedule = 1e-4,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.98,
    shampoo_beta: ArrayLike | None = None,
    eps: ArrayLike = 1e-8,
    weight_decay: ScalarOrSchedule = 0.01,
    precondition_frequency: ArrayLike = 10,
    *,
    init_factor: ArrayLike = 0.1,
    max_inverse_root: ArrayLike = 4000,
    damped_statistics: bool = False,
    normalize_grads: bool = False,
    max_precond_dim: int = 10000,
    weight_decay_mask: MaskOrFn = None,
    mu_dtype: DTypeLike | None = None,
    factor_dtype: DTypeLike | None = None,
) -> GradientTransformationExtraArgs:
    """KL-Shampoo, with weight decay after the step; the first step changes nothing.

        p = (p - learning_rate u) (1 - learning_rate weight_decay)

    with u of `scale_by_kl_shampoo`.

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of g and of the statistics, in [0, 1].
    shampoo_beta: decay rate of the statistics in place of `b2`.
    eps: bounds the product of inverse roots, at least 0.
    precondition_frequency: steps between updates of the bases, at least 1.
    init_factor, max_inverse_root, damped_statistics: of the eigenvalues; see
        `scale_by_kl_shampoo`.
    normalize_grads: whether to divide u by its root mean square.
    max_precond_dim: longest axis that has a basis.
    weight_decay_mask: which parameters decay; see `masked`.
    mu_dtype: storage dtype of `mu`; the parameter's if `None`.
    factor_dtype: storage dtype of statistics and bases; float32 or wider if `None`.
    """
    direction = scale_by_kl_shampoo(
        b1,
        b2,
        shampoo_beta,
        eps,
        precondition_frequency,
        init_factor=init_factor,
        max_inverse_root=max_inverse_root,
        damped_statistics=damped_statistics,
        normalize_grads=normalize_grads,
        max_precond_dim=max_precond_dim,
        mu_dtype=mu_dtype,
        factor_dtype=factor_dtype,
    )
    return chain(
        direction,
        scale_by_learning_rate(learning_rate),
        decayed_after(learning_rate, weight_decay, weight_decay_mask, skip=1),
    )


@public("optimizer", paper=PAPER, ranges=_RANGES)
def kl_soap(
    learning_rate: ScalarOrSchedule = 1e-4,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.98,
    shampoo_beta: ArrayLike | None = None,
    eps: ArrayLike = 1e-8,
    weight_decay: ScalarOrSchedule = 0.01,
    precondition_frequency: ArrayLike = 10,
    *,
    init_factor: ArrayLike = 0.1,
    max_inverse_root: ArrayLike = 4000,
    damped_statistics: bool = False,
    normalize_grads: bool = False,
    max_precond_dim: int = 10000,
    weight_decay_mask: MaskOrFn = None,
    mu_dtype: DTypeLike | None = None,
    factor_dtype: DTypeLike | None = None,
) -> GradientTransformationExtraArgs:
    """KL-SOAP, with weight decay after the step; the first step changes nothing.

        p = (p - learning_rate u) (1 - learning_rate weight_decay)

    with u of `scale_by_kl_soap`.

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of g and of the statistics, in [0, 1].
    shampoo_beta: decay rate of the statistics in place of `b2`.
    eps: added to the square root, at least 0.
    precondition_frequency: steps between updates of the bases, at least 1.
    init_factor, max_inverse_root, damped_statistics: of the eigenvalues; see
        `scale_by_kl_shampoo`.
    normalize_grads: whether to divide u by its root mean square.
    max_precond_dim: longest axis that has a basis.
    weight_decay_mask: which parameters decay; see `masked`.
    mu_dtype: storage dtype of `mu`; the parameter's if `None`.
    factor_dtype: storage dtype of statistics and bases; float32 or wider if `None`.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    direction = scale_by_kl_soap(
        b1,
        b2,
        shampoo_beta,
        eps,
        precondition_frequency,
        init_factor=init_factor,
        max_inverse_root=max_inverse_root,
        damped_statistics=damped_statistics,
        normalize_grads=normalize_grads,
        max_precond_dim=max_precond_dim,
        mu_dtype=mu_dtype,
        factor_dtype=factor_dtype,
    )
    return chain(
        direction,
        scale_by_learning_rate(learning_rate),
        decayed_after(learning_rate, weight_decay, weight_decay_mask, skip=1),
    )
