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

from typing import Any, NamedTuple

import jax

from .._engine import rules as rx
from .._transforms.decay import descend_and_decay
from .kl_factors import KLOptions, kl_rule


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
    mu: Any
    statistics: Any
    bases: Any
    roots: Any


class KLSoapState(NamedTuple):
    """State of `scale_by_kl_soap`: the fields of `KLShampooState`, and

    nu: EMA of |g|² in the eigenbases, shaped like the parameters.
    """

    count: jax.Array
    mu: Any
    nu: Any
    statistics: Any
    bases: Any
    roots: Any


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
    mu_dtype: storage dtype of `mu`; the parameter's if `None`.
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
    shampoo_beta: decay rate of the statistics, `b2` if `None`.
    eps: added to the square root, at least 0.
    precondition_frequency, init_factor, max_inverse_root, damped_statistics: options of
        the bases; see `scale_by_kl_shampoo`.
    normalize_grads: whether to divide u by its root mean square.
    max_precond_dim: longest axis that has a basis; Adam's step along longer ones.
    mu_dtype: storage dtype of `mu`; the parameter's if `None`, as always for `nu`.
    factor_dtype: storage dtype of S and Q; float32 or wider if `None`.
    stagger: whether matrices take turns, so that no step renews the bases of all.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `scale_by_muon`.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
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
    """KL-Shampoo, with weight decay after the step; the first step changes nothing.

        p = (p - learning_rate u) (1 - learning_rate weight_decay)

    with u of `scale_by_kl_shampoo`.

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of g and of the statistics, in [0, 1].
    shampoo_beta: decay rate of the statistics, `b2` if `None`.
    eps: bounds the product of inverse roots, at least 0.
    precondition_frequency: steps between updates of the bases, at least 1.
    init_factor, max_inverse_root, damped_statistics: options of the eigenvalues; see
        `scale_by_kl_shampoo`.
    normalize_grads: whether to divide u by its root mean square.
    max_precond_dim: longest axis that has a basis.
    weight_decay_mask: which parameters decay; see `masked`.
    mu_dtype: storage dtype of `mu`; the parameter's if `None`.
    factor_dtype: storage dtype of statistics and bases; float32 or wider if `None`.
    stagger: whether matrices take turns, so that no step renews the bases of all.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `scale_by_muon`.
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
    """KL-SOAP, with weight decay after the step; the first step changes nothing.

        p = (p - learning_rate u) (1 - learning_rate weight_decay)

    with u of `scale_by_kl_soap`.

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of g and of the statistics, in [0, 1].
    shampoo_beta: decay rate of the statistics, `b2` if `None`.
    eps: added to the square root, at least 0.
    precondition_frequency: steps between updates of the bases, at least 1.
    init_factor, max_inverse_root, damped_statistics: options of the eigenvalues; see
        `scale_by_kl_shampoo`.
    normalize_grads: whether to divide u by its root mean square.
    max_precond_dim: longest axis that has a basis.
    weight_decay_mask: which parameters decay; see `masked`.
    mu_dtype: storage dtype of `mu`; the parameter's if `None`.
    factor_dtype: storage dtype of statistics and bases; float32 or wider if `None`.
    stagger: whether matrices take turns, so that no step renews the bases of all.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `scale_by_muon`.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    direction = rx.pass_on(scale_by_kl_soap, locals())
    return descend_and_decay(
        direction, learning_rate, weight_decay, weight_decay_mask, skip=1
    )
