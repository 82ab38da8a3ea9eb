"""The statistics of KL-Shampoo and KL-SOAP, which `kl_shampoo.py` describes."""

import functools as ft
import math
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import bounded_square, ema
from .._engine.arrays.numerics import over_root, safe_root_mean_squares
from . import factors


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


def _ones(n, dtype):
    return jnp.ones(n, dtype).real


def _slots(options):
    slot = ft.partial(
        factors.factor_slot, sides=options.sides, dtype=options.factor_dtype
    )
    return {
        "mu": rx.Slot(dtype=options.mu_dtype, in_leaf=False),
        "nu": replace(rx.REAL, in_leaf=False),
        "statistics": slot(factors.zero_square),
        "bases": slot(jnp.eye),
        "roots": factors.factor_slot(_ones, _view),
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
    """An array times the roots of all axes but one."""
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
