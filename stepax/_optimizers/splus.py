"""SPlus: the sign of the momentum in Shampoo's eigenbasis, and averaged parameters.

Frans, Levine and Abbeel, 2025, A Stable Whitening Optimizer for Efficient Neural
Network Training (arXiv:2506.07254), Algorithm 1, with the defaults and the order of
operations of the authors' code: the average is taken before the weights decay.

A square float32 matrix needs 24 bytes for each element: `mu`, the average, and two
matrices for each of its sides; 16 with `factor_dtype="bfloat16"`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import ema
from .._transforms.decay import decayed_after
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain
from .._wrappers.readers import evaluates
from . import factors


PAPER = "arXiv:2506.07254"


class ScaleBySPlusState(NamedTuple):
    """State of `scale_by_splus`.

    count: steps taken, a scalar.
    mu: EMA of g, shaped like the parameters.
    statistics: for each parameter a tuple of EMAs of G_(k) G_(k)ᵀ, (n_k, n_k), one for
        each side that has a factor; empty for arrays that are not matrices.
    bases: their eigenvectors as columns, of the same shapes.
    """

    count: jax.Array
    mu: rx.ArrayTree
    statistics: rx.ArrayTree
    bases: rx.ArrayTree


class SPlusAverageState(NamedTuple):
    """The averages of `splus`.

    weight: 1 - ema_rate^t, the sum of the weights in the average, a scalar.
    average: EMA of the parameters from zero, shaped like them.
    """

    weight: jax.Array
    average: rx.Params


def _size(shape: factors.Shape, max_dim: int, otherwise: rx.ArrayLike) -> rx.ArrayLike:
    """The factor of the learning rate that depends on the shape."""
    if len(shape) == 2 and max(shape) <= max_dim:
        return 2 / max(sum(shape), 1)
    return otherwise


@rx.public(paper=PAPER)
def scale_by_splus(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    *,
    inverse_every: rx.ArrayLike = 100,
    eps: rx.ArrayLike = 1e-30,
    max_dim: int = 10000,
    nonstandard_constant: rx.ArrayLike = 0.001,
    mu_dtype: rx.DTypeLike | None = None,
    factor_dtype: rx.DTypeLike | None = None,
    stagger: bool = False,
    axis_name: rx.AxisName = None,
) -> rx.Rule:
    """Take the sign of the EMA of g in the eigenbases of Shampoo's statistics.

        mu = b1 mu + (1 - b1) g
        u = f Q_1 sign(Q_1ᵀ mu Q_2) Q_2ᵀ,   f = 2 / (rows + columns), for matrices
        u = nonstandard_constant sign(mu)   otherwise
        L_k = b2 L_k + (1 - b2) G_(k) G_(k)ᵀ
        Q_k = eigenvectors of L_k + eps I at the first and every `inverse_every`-th step

    b1, b2: decay rates of the EMAs of g and of the statistics, in [0, 1].
    inverse_every: steps between updates of the bases, at least 1.
    eps: added to the eigenvalues, at least 0.
    max_dim: sides of this length or longer have no factor; matrices with longer sides
        are also scaled by `nonstandard_constant`.
    nonstandard_constant: factor of u for other arrays, at least 0.
    mu_dtype: dtype of `mu`; defaults to the parameter's.
    factor_dtype: storage dtype of statistics and bases; float32 or wider if `None`.
    stagger: whether matrices take turns, so that no step renews the bases of all.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `scale_by_muon`.
    """
    renewal = rx.Renewal(rx.once_in, [inverse_every], stagger)

    def axes(shape):
        sides = enumerate(shape) if len(shape) == 2 else ()
        return tuple(i for i, n in sides if 0 < n < max_dim)

    def apply(g, ctx, mu, statistics, bases):
        renew, is_first = ctx
        at = axes(g.shape)
        mu = ema(mu, g, b1)
        u = factors.on_axes(jnp.sign(factors.to_bases(mu, bases, at)), bases, at)
        pairs = zip(at, statistics, strict=True)
        statistics = tuple(ema(old, factors.gram(g, i), b2) for i, old in pairs)
        if at:
            shifted = [x + eps * jnp.eye(len(x), dtype=x.dtype) for x in statistics]

            def new():
                return tuple(map(factors.eigenbasis, shifted))

            bases = rx.kept_or(renew | is_first, new, bases, [u])
        size = _size(g.shape, max_dim, nonstandard_constant)
        return size * u, mu, statistics, bases

    def sides(shape):
        return [shape[i] for i in axes(shape)]

    slots = {
        "mu": rx.Slot(dtype=mu_dtype, in_leaf=False),
        "statistics": factors.factor_slot(factors.zero_square, sides, factor_dtype),
        "bases": factors.factor_slot(jnp.eye, sides, factor_dtype),
    }

    def prepare(t):
        return (renewal.context(t), t == 1)

    return factors.factored_rule(
        apply, ScaleBySPlusState, slots, prepare, renewal, sides, axis_name
    )


@rx.recorded
def _average(ema_rate: rx.ArrayLike) -> rx.Rule:
    """Average the new parameters, and pass the updates on unchanged."""

    def prepare(scalars, stat, extra):
        (weight,) = scalars
        return None, (ema(weight, jnp.ones_like(weight), ema_rate),)

    def leaf(u, p, ctx, average):
        return u, ema(average, p + u, ema_rate)

    def zeros(p):
        return jnp.zeros_like(p, factors.wide_dtype(p))

    slots = {"average": rx.Slot(zeros, is_slow=True, kind="copy")}
    scalars = {"weight": rx.real_scalar()}
    return rx.Rule(
        leaf,
        SPlusAverageState,
        slots,
        scalars,
        prepare,
        needs_params=True,
        elementwise=True,
    )


@rx.public("optimizer", paper=PAPER)
def splus(
    learning_rate: rx.ScalarOrSchedule = 0.1,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    *,
    ema_rate: rx.ArrayLike = 0.999,
    inverse_every: rx.ArrayLike = 100,
    eps: rx.ArrayLike = 1e-30,
    weight_decay: rx.ScalarOrSchedule = 0.01,
    max_dim: int = 10000,
    nonstandard_constant: rx.ArrayLike = 0.001,
    weight_decay_mask: rx.MaskOrFn = None,
    mu_dtype: rx.DTypeLike | None = None,
    factor_dtype: rx.DTypeLike | None = None,
    stagger: bool = False,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """SPlus, with an average of the parameters, and weight decay after the step
    (Frans et al., 2025, arXiv:2506.07254).

        x = p - learning_rate u,   u = f times a sign, see `scale_by_splus`
        average = ema_rate average + (1 - ema_rate) x
        p = x (1 - learning_rate f weight_decay)

    Evaluate at the average, see `eval_params`.

    learning_rate, weight_decay: scalars or schedules.
    ema_rate: decay rate of the average of the parameters, in [0, 1].
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_splus`.
    """
    direction = rx.pass_on(scale_by_splus, locals())
    average: Any = _average(ema_rate)
    return chain(
        direction,
        scale_by_learning_rate(learning_rate),
        average,
        decayed_after(
            learning_rate,
            weight_decay,
            weight_decay_mask,
            of_shape=_size,
            sizes=(max_dim, nonstandard_constant),
            axis_name=axis_name,
        ),
    )


@rx.computed_wide
def _debiased(p, average, weight):
    return jnp.where(weight == 0, p, average / jnp.where(weight == 0, 1, weight))


evaluates(SPlusAverageState, _debiased, ("average", "weight"))
