"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner.

Vyas et al., 2024, SOAP: Improving and Stabilizing Shampoo using Adam
(arXiv:2409.11321), Algorithm 3, with the defaults and the order of operations of the
authors' code: the first step only fills the statistics, and `nu` follows the order of
the eigenvectors but is not rotated when the basis is renewed.

A square float32 matrix needs 24 bytes for each element: `mu`, `nu`, and two matrices
for each of its sides; 16 with `factor_dtype="bfloat16"`.

Difference from that code: `mu` is stored in the eigenbasis, which saves two products at
every step; it is rotated when the basis is renewed.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction as correction, bounded_square, ema
from .._engine.arrays.numerics import over_root, safe_root_mean_squares, safe_sqrt
from .._transforms.decay import descend_and_decay
from . import factors


PAPER = "arXiv:2409.11321"


class SoapState(NamedTuple):
    """State of `scale_by_soap`.

    count: steps taken, a scalar.
    mu, nu: EMAs of g and |g|² in the eigenbases, shaped like the parameters.
    statistics: for each parameter a tuple of EMAs of G_(k) G_(k)ᵀ, (n_k, n_k), one for
        each axis that has a factor.
    bases: their eigenvectors as columns, of the same shapes.
    """

    count: jax.Array
    mu: rx.ArrayTree
    nu: rx.ArrayTree
    statistics: rx.ArrayTree
    bases: rx.ArrayTree


class _Sides(NamedTuple):
    """Which axes have a factor; called, the lengths of these."""

    most: float
    merges: bool
    takes_vectors: bool

    def view(self, shape: factors.Shape) -> factors.Shape:
        return factors.merged(shape, self.most) if self.merges else shape

    def axes(self, shape: factors.Shape) -> tuple[int, ...]:
        """The axes of the view that are preconditioned."""
        if len(shape) < 2 and not self.takes_vectors:
            return ()
        view = enumerate(self.view(shape))
        return tuple(i for i, n in view if 1 < n <= self.most)

    def __call__(self, shape: factors.Shape) -> list[int]:
        return [self.view(shape)[i] for i in self.axes(shape)]


@rx.public(paper=PAPER)
def scale_by_soap(
    b1: rx.ArrayLike = 0.95,
    b2: rx.ArrayLike = 0.95,
    shampoo_beta: rx.ArrayLike | None = None,
    eps: rx.ArrayLike = 1e-8,
    precondition_frequency: rx.ArrayLike = 10,
    max_precond_dim: int = 10000,
    *,
    merge_dims: bool = False,
    precondition_1d: bool = False,
    normalize_grads: bool = False,
    bias_correction: bool = True,
    mu_dtype: rx.DTypeLike | None = None,
    factor_dtype: rx.DTypeLike | None = None,
    stagger: bool = False,
    axis_name: rx.AxisName = None,
) -> rx.Rule:
    """Run Adam in the eigenbases of Shampoo's statistics.

        x = Qᵀ g on each axis,   mu = b1 mu + (1 - b1) x,   nu = b2 nu + (1 - b2) |x|²
        u = Q (mu / (sqrt(nu) + eps)) sqrt(1 - b2^(t-1)) / (1 - b1^(t-1))
        L_k = shampoo_beta L_k + (1 - shampoo_beta) G_(k) G_(k)ᵀ
        Q_k = QR(L_k Q_k) every `precondition_frequency` steps

    At the first step u = 0 and Q_k = eigenvectors of L_k.

    b1, b2: decay rates of the EMAs of g and |g|² in the eigenbases, in [0, 1].
    shampoo_beta: decay rate of the statistics, in [0, 1]; `b2` if `None`.
    eps: added to the square root, at least 0.
    precondition_frequency: steps between updates of the bases, at least 1.
    max_precond_dim: longest axis that has a factor; Adam's step along longer ones.
    merge_dims: whether to merge neighbouring axes up to that length.
    precondition_1d: whether vectors have a factor, too.
    normalize_grads: whether to divide u by its root mean square.
    bias_correction: whether to correct the means.
    mu_dtype: dtype of `mu`; defaults to the parameter's, as always for `nu`.
        In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    factor_dtype: storage dtype of statistics and bases; float32 or wider if `None`.
    stagger: whether matrices take turns, so that no step renews the bases of all.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `scale_by_muon`.
    """
    b3 = b2 if shampoo_beta is None else shampoo_beta
    sides = _Sides(max_precond_dim, merge_dims, precondition_1d)
    renewal = rx.Renewal(rx.once_in, [precondition_frequency], stagger)

    def prepare(t):
        k, scale = t - 1, 1.0
        if bias_correction:
            c1, c2 = (correction(b, jnp.maximum(k, 1)) for b in (b1, b2))
            scale = safe_sqrt(c2) / c1
        return renewal.context(k), k == 0, scale

    def apply(g, ctx, *slots):
        renew, is_first, scale = ctx
        shape, at = g.shape, sides.axes(g.shape)
        g, mu, nu = (x.reshape(sides.view(shape)) for x in (g, *slots[:2]))
        statistics, bases = slots[2:]
        x = factors.to_bases(g, bases, at)
        mu = jnp.where(is_first, mu, ema(mu, x, b1))
        nu = jnp.where(is_first, nu, ema(nu, bounded_square(x), b2))
        u = factors.on_axes(over_root(mu, nu, eps), bases, at)
        if normalize_grads:
            u = u / safe_root_mean_squares(u, 1e-30)
        u = jnp.where(is_first, 0, scale * u)
        grams = [factors.gram(g, i) for i in at]
        pairs = zip(statistics, grams, strict=True)
        statistics = tuple(ema(old, new, b3) for old, new in pairs)
        if at:
            kept = mu, nu, bases

            def new():
                return _renewed(is_first, kept, statistics, grams, at)

            mu, nu, bases = rx.kept_or(renew | is_first, new, kept, [u])
        u, mu, nu = (x.reshape(shape) for x in (u, mu, nu))
        return u, mu, nu, statistics, bases

    slots = {
        "mu": rx.Slot(dtype=mu_dtype, in_leaf=False),
        "nu": replace(rx.REAL, in_leaf=False),
        "statistics": factors.factor_slot(factors.zero_square, sides, factor_dtype),
        "bases": factors.factor_slot(jnp.eye, sides, factor_dtype),
    }
    return factors.factored_rule(
        apply, SoapState, slots, prepare, renewal, sides, axis_name
    )


def _renewed(is_first, kept, statistics, grams, axes):
    """The means in new bases, and the new bases; at first the eigenvectors of `grams`.

    kept: the means in the old bases, and the old bases.
    """
    mu, nu, bases = kept

    def first():
        return (mu, nu, tuple(map(factors.eigenbasis, grams)))

    return rx.branch(is_first, first, lambda: _turned(mu, nu, bases, statistics, axes))


def _turned(mu, nu, bases, statistics, axes):
    mu, new = factors.on_axes(mu, bases, axes), []
    for axis, matrix, basis in zip(axes, statistics, bases, strict=True):
        order, basis = factors.ordered_power_step(matrix, basis)
        nu = jnp.take(nu, order, axis)
        new.append(basis)
    return factors.to_bases(mu, new, axes), nu, tuple(new)


@rx.public("optimizer", paper=PAPER)
def soap(
    learning_rate: rx.ScalarOrSchedule = 3e-3,
    b1: rx.ArrayLike = 0.95,
    b2: rx.ArrayLike = 0.95,
    shampoo_beta: rx.ArrayLike | None = None,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 0.01,
    precondition_frequency: rx.ArrayLike = 10,
    max_precond_dim: int = 10000,
    *,
    merge_dims: bool = False,
    precondition_1d: bool = False,
    normalize_grads: bool = False,
    bias_correction: bool = True,
    weight_decay_mask: rx.MaskOrFn = None,
    mu_dtype: rx.DTypeLike | None = None,
    factor_dtype: rx.DTypeLike | None = None,
    stagger: bool = False,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """SOAP, with weight decay after the step; the first step changes nothing
    (Vyas et al., 2024, arXiv:2409.11321).

        p = (p - learning_rate u) (1 - learning_rate weight_decay)

    with u the output of `scale_by_soap`.

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_soap`.

    >>> tx = stepax.contrib.soap(3e-3)
    """
    direction = rx.pass_on(scale_by_soap, locals())
    return descend_and_decay(
        direction, learning_rate, weight_decay, weight_decay_mask, skip=1
    )
