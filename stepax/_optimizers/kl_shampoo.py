"""KL-Shampoo and KL-SOAP: Kronecker factors that minimize a KL divergence.

Lin et al., 2025, Understanding and Improving Shampoo and SOAP via Kullback-Leibler
Minimization (arXiv:2509.03378), in the order of operations of the authors' code: the
statistics of an axis use the gradient whitened along the others, and the eigenvalues
are separate means in the current bases, which a power iteration renews.

A square float32 matrix needs 20 bytes for each element with KL-Shampoo: `mu`, and two
matrices for each of its sides; 24 with KL-SOAP, which also has `nu`.  With
`factor_dtype="bfloat16"` these are 12 and 16.

Differences from that code, which takes arrays of two and three axes: with more, the
first axes are merged; vectors, and axes longer than `max_precond_dim`, keep their
basis.  Means are stored in the eigenbasis, which saves two products at every step.
"""

import functools as ft
import math
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import bounded_square, ema
from .._engine.arrays.numerics import over_root, safe_root_mean_squares
from .._transforms.decay import descend_and_decay
from . import factors


PAPER = "arXiv:2509.03378"
_RANGES = {"init_factor": rx.POSITIVE, "max_inverse_root": rx.CAP}


class KLShampooState(NamedTuple):
    """State of `scale_by_kl_shampoo`.

    count: steps taken, a scalar.
    mu: EMA of g in the eigenbases, shaped like the parameters.
    statistics: for each parameter a tuple of S_k, (n_k, n_k), one for each axis that
        has a factor.
    bases: their eigenvectors as columns, of the same shapes.
    roots: the inverse roots of the eigenvalues, (n_k,), for each axis; ones at first.
    """

    count: jax.Array
    mu: rx.ArrayTree
    statistics: rx.ArrayTree
    bases: rx.ArrayTree
    roots: rx.ArrayTree


class KLSoapState(NamedTuple):
    """State of `scale_by_kl_soap`: the fields of `KLShampooState`, and

    nu: EMA of |g|² in the eigenbases, shaped like the parameters.
    """

    count: jax.Array
    mu: rx.ArrayTree
    nu: rx.ArrayTree
    statistics: rx.ArrayTree
    bases: rx.ArrayTree
    roots: rx.ArrayTree


@rx.public(paper=PAPER, ranges=_RANGES)
def scale_by_kl_shampoo(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.98,
    shampoo_beta: rx.ArrayLike | None = None,
    eps: rx.ArrayLike = 1e-8,
    precondition_frequency: rx.ArrayLike = 10,
    *,
    init_factor: rx.ArrayLike = 0.1,
    max_inverse_root: rx.ArrayLike = 4000,
    damped_statistics: bool = False,
    normalize_grads: bool = False,
    max_precond_dim: int = 10000,
    mu_dtype: rx.DTypeLike | None = None,
    factor_dtype: rx.DTypeLike | None = None,
    stagger: bool = False,
    axis_name: rx.AxisName = None,
) -> rx.Rule:
    """Divide the EMA of g by Kronecker factors that approximate its covariance best.

        mu = b1 mu + (1 - b1) Qᵀ g on each axis,   R = the product of all r_k
        u = Q (mu R / (1 + eps R))
        S_k = b2 S_k + (1 - b2) n_k / n W_(k) W_(k)ᵀ,   W: g whitened along other axes
        r_k^-2 = b2 r_k^-2 + (1 - b2) mean (Qᵀ g, times the other r)²
        Q_k = QR(S_k Q_k) every `precondition_frequency` steps

    At the first step u = 0 and Q_k = eigenvectors of S_k.

    b1, b2: decay rates of the EMAs of g and of the statistics, in [0, 1].
    shampoo_beta: decay rate of the statistics, `b2` if `None`.
    eps: bounds the product of all r, at least 0.
    precondition_frequency: steps between updates of the bases, at least 1.
    init_factor: the first eigenvalues, r_k^-2, above 0.
    max_inverse_root: bound of r_k, which is also at most max(10, n_k).
    damped_statistics: whether eps times the mean of the other eigenvalues is added to
        each eigenvalue.
    normalize_grads: whether to divide u by its root mean square.
    max_precond_dim: longest axis that has a basis; longer ones only have roots.
    mu_dtype: dtype of `mu`; defaults to the parameter's.
    factor_dtype: storage dtype of S and Q; float32 or wider if `None`.
    stagger: whether matrices take turns, so that no step renews the bases of all.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `scale_by_muon`.
    """
    return kl_rule(KLShampooState, rx.pass_on(KLOptions, locals()))


@rx.public(paper=PAPER, ranges=_RANGES)
def scale_by_kl_soap(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.98,
    shampoo_beta: rx.ArrayLike | None = None,
    eps: rx.ArrayLike = 1e-8,
    precondition_frequency: rx.ArrayLike = 10,
    *,
    init_factor: rx.ArrayLike = 0.1,
    max_inverse_root: rx.ArrayLike = 4000,
    damped_statistics: bool = False,
    normalize_grads: bool = False,
    max_precond_dim: int = 10000,
    mu_dtype: rx.DTypeLike | None = None,
    factor_dtype: rx.DTypeLike | None = None,
    stagger: bool = False,
    axis_name: rx.AxisName = None,
) -> rx.Rule:
    """Run Adam in the eigenbases of `scale_by_kl_shampoo`, without bias correction.

        x = Qᵀ g on each axis,   mu = b1 mu + (1 - b1) x,   nu = b2 nu + (1 - b2) |x|²
        u = Q (mu / (sqrt(nu) + eps))

    b1, b2: decay rates of the EMAs of x, and of |x|² and the statistics, in [0, 1].
    eps: added to the square root, at least 0.
    precondition_frequency, init_factor, max_inverse_root, damped_statistics: options of
        the bases; see `scale_by_kl_shampoo`.
    max_precond_dim: longest axis that has a basis; Adam's step along longer ones.
    mu_dtype: dtype of `mu`; defaults to the parameter's, as always for `nu`.
        In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    Other arguments: those of `scale_by_kl_shampoo`.
    """
    return kl_rule(KLSoapState, rx.pass_on(KLOptions, locals()))


@rx.public("optimizer", paper=PAPER, ranges=_RANGES)
def kl_shampoo(
    learning_rate: rx.ScalarOrSchedule = 1e-4,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.98,
    shampoo_beta: rx.ArrayLike | None = None,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 0.01,
    precondition_frequency: rx.ArrayLike = 10,
    *,
    init_factor: rx.ArrayLike = 0.1,
    max_inverse_root: rx.ArrayLike = 4000,
    damped_statistics: bool = False,
    normalize_grads: bool = False,
    max_precond_dim: int = 10000,
    weight_decay_mask: rx.MaskOrFn = None,
    mu_dtype: rx.DTypeLike | None = None,
    factor_dtype: rx.DTypeLike | None = None,
    stagger: bool = False,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """KL-Shampoo, with weight decay after the step; the first step changes nothing
    (Lin et al., 2025, arXiv:2509.03378).

        p = (p - learning_rate u) (1 - learning_rate weight_decay)

    with u the output of `scale_by_kl_shampoo`.

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_kl_shampoo`.
    """
    direction = rx.pass_on(scale_by_kl_shampoo, locals())
    return descend_and_decay(
        direction, learning_rate, weight_decay, weight_decay_mask, skip=1
    )


@rx.public("optimizer", paper=PAPER, ranges=_RANGES)
def kl_soap(
    learning_rate: rx.ScalarOrSchedule = 1e-4,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.98,
    shampoo_beta: rx.ArrayLike | None = None,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 0.01,
    precondition_frequency: rx.ArrayLike = 10,
    *,
    init_factor: rx.ArrayLike = 0.1,
    max_inverse_root: rx.ArrayLike = 4000,
    damped_statistics: bool = False,
    normalize_grads: bool = False,
    max_precond_dim: int = 10000,
    weight_decay_mask: rx.MaskOrFn = None,
    mu_dtype: rx.DTypeLike | None = None,
    factor_dtype: rx.DTypeLike | None = None,
    stagger: bool = False,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """KL-SOAP, with weight decay after the step; the first step changes nothing
    (Lin et al., 2025, arXiv:2509.03378).

        p = (p - learning_rate u) (1 - learning_rate weight_decay)

    with u the output of `scale_by_kl_soap`.

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_kl_soap`.
    """
    direction = rx.pass_on(scale_by_kl_soap, locals())
    return descend_and_decay(
        direction, learning_rate, weight_decay, weight_decay_mask, skip=1
    )


class KLOptions(NamedTuple):
    """The arguments of both optimizers."""

    b1: rx.ArrayLike
    b2: rx.ArrayLike
    shampoo_beta: rx.ArrayLike | None
    eps: rx.ArrayLike
    precondition_frequency: rx.ArrayLike
    init_factor: rx.ArrayLike
    max_inverse_root: rx.ArrayLike
    damped_statistics: bool
    normalize_grads: bool
    max_precond_dim: int
    mu_dtype: rx.DTypeLike | None
    factor_dtype: rx.DTypeLike | None
    stagger: bool
    axis_name: rx.AxisName

    @property
    def b3(self) -> rx.ArrayLike:
        return self.b2 if self.shampoo_beta is None else self.shampoo_beta

    def axes(self, shape: factors.Shape) -> tuple[int, ...]:
        """The axes that have a factor."""
        if len(shape) == 1:
            return ()
        return tuple(i for i, n in enumerate(shape) if 0 < n <= self.max_precond_dim)

    def sides(self, shape: factors.Shape) -> list[int]:
        """The lengths of these axes in the view of an array."""
        view = _view(shape)
        return [view[i] for i in self.axes(view)]


def _view(shape: factors.Shape) -> factors.Shape:
    """The shape with at most three axes, and at least one."""
    return (math.prod(shape[:-2]), *shape[-2:]) if len(shape) > 3 else shape or (1,)


def _slots(options):
    slot = ft.partial(
        factors.factor_slot, sides=options.sides, dtype=options.factor_dtype
    )
    return {
        "mu": rx.Slot(dtype=options.mu_dtype, in_leaf=False),
        "nu": replace(rx.REAL, in_leaf=False),
        "statistics": slot(factors.zero_square),
        "bases": slot(jnp.eye),
        "roots": factors.factor_slot(lambda n, dtype: jnp.ones(n, dtype).real, _view),
    }


def kl_rule(State: type, options: KLOptions) -> rx.Rule:
    """The rule of both: Shampoo's, or SOAP's if the state has `nu`."""
    renewal = rx.Renewal(rx.once_in, [options.precondition_frequency], options.stagger)
    slots = {k: x for k, x in _slots(options).items() if k in State._fields}

    def apply(g, ctx, *slots):
        _, is_first, first = ctx
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
        kept = means[0], bases
        mu, bases = _renewed(ctx, kept, statistics, grams, at, [u, *roots])
        means = [x.reshape(shape) for x in (mu, *means[1:])]
        return u.reshape(shape), *means, statistics, bases, roots

    def prepare(t):
        first = jnp.asarray(options.init_factor) ** -0.5
        return renewal.context(t - 1), t == 1, first

    return factors.factored_rule(
        apply, State, slots, prepare, renewal, options.sides, options.axis_name
    )


def _direction(means, roots, eps):
    mu, *rest = means
    if rest:
        return over_root(mu, rest[0], eps)
    all_roots = _scaled(1, roots, None)
    return mu * (all_roots / (1 + eps * all_roots))


def _scaled(x, roots, left_out):
    for axis, root in enumerate(roots):
        if axis != left_out:
            x = x * factors.along(root, axis, len(roots))
    return x


# With three axes the last one is renewed first, and the others then use its new root,
# or that of their neighbour; matrices use old roots.  Maps an axis to the axes whose
# root is new in its statistics, and in its eigenvalues.
_NEW_IN_STATISTICS = {0: 1}
_NEW_IN_VALUES = {0: 1, 1: 2}


def _observed(g, y, bases, roots, axes, is_first, options):
    """New statistics of the axes that have a factor, before averaging, and all roots.

    y: g in the bases.
    """
    n, new, grams = len(roots), list(roots), {}

    def seen(at):
        return [new[j] if n == 3 and j == at else roots[j] for j in range(n)]

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
    # A bound, so that its inverse square is finite, too.
    largest = jnp.finfo(values.dtype).max / 16
    most = jnp.asarray(most, values.dtype)
    return jnp.clip(ema(old**-2.0, values, b3), most**-2.0, largest) ** -0.5


def _renewed(ctx, kept, statistics, grams, axes, readers):
    """`mu` in the new bases, and the new bases.

    kept: the current `mu` and bases.
    readers: arrays that have been computed from them.
    """
    mu, bases = kept
    if not axes:
        return kept
    renew, is_first, _ = ctx

    def turned():
        pairs = zip(statistics, bases, strict=True)
        new = tuple(factors.power_step(s, q) for s, q in pairs)
        there = factors.on_axes(mu, bases, axes)
        return factors.to_bases(there, new, axes), new

    def new():
        return rx.branch(
            is_first, lambda: (mu, tuple(map(factors.eigenbasis, grams))), turned
        )

    return rx.kept_or(renew | is_first, new, kept, readers)
