"""Derivatives of the minimum of f + g, of which only f is smooth.

At the minimum x = T(x) with T(x) = P(x - s df(x)), P the proximal operator of s g, for
any s > 0.  So by the implicit function theorem

    (I - dT / dx) dx = dT / d(data) d(data)

where the data include the weights of g.  A system of up to 1,024 unknowns is solved
with its matrix, by least squares, since a minimum need not be the only one; a larger
one by GMRES.  Bertrand et al., 2022, Implicit differentiation for fast hyperparameter
selection in non-smooth convex learning (JMLR 23).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from .._linesearch.line import largest, search_dtype
from ..tree import conj
from .implicit import is_traced, output_at, rejoin, solve_linear
from .loop import Inputs, Setup
from .pack import split
from .proximal import Nonsmooth
from .result import MinimizeResult


def attach_nonsmooth(
    setup: Setup, both: Callable, inputs: Inputs, found: MinimizeResult
) -> MinimizeResult:
    """The result with its derivatives, where they can exist.

    both: maps lists of arrays, moving and other, to the value and the aux output.
    """
    data = inputs.data, inputs.weights
    if not is_traced(data):
        return found
    xs = _minimum(setup, both, found.params, data)
    return found._replace(params=xs, value=_value(setup, both, found.value, xs, data))


def _minimum(setup, both, xs, data):
    @jax.custom_jvp
    def minimum(xs, data):
        return xs

    @minimum.defjvp
    def rule(primals, tangents):
        xs = minimum(*primals)  # so that second derivatives go through it, too
        return xs, _motion(setup, both, xs, primals[1], tangents[1])

    return minimum(xs, data)


def _value(setup, both, value, xs, data):
    """`value`, as a function of the data and of the minimum."""

    def at(xs, data):
        smooth = both(xs, data[0])[0].astype(value.dtype)
        return smooth + Nonsmooth(setup, data[1]).value(xs, value.dtype)

    return output_at(at, value, xs, data)


def _motion(setup, both, xs, data, data_dot):
    """The tangent of the minimum for a tangent of the data."""
    slope = jax.grad(lambda xs, arrays: both(xs, arrays)[0])
    step = _step(lambda xs: conj(slope(xs, data[0])), xs)

    def image(rs, data):
        zs = rejoin(rs, xs)
        grads = conj(slope(zs, data[0]))
        return split(Nonsmooth(setup, data[1]).step(zs, grads, step))

    rs = split(xs)
    _, b = jax.jvp(lambda data: image(rs, data), (data,), (data_dot,))

    def times(vs):
        _, moved = jax.jvp(lambda rs: image(rs, data), (rs,), (vs,))
        return [v - u for v, u in zip(vs, moved, strict=True)]

    return rejoin(solve_linear(times, b, is_symmetric=False), xs)


def _step(slope: Callable, xs: list) -> jax.Array:
    """1 / the curvature along a vector of signs, a step of the right size."""
    dtype = search_dtype(xs)
    signs = [jax.random.rademacher(jax.random.key(0), x.shape, x.dtype) for x in xs]
    _, bent = jax.jvp(slope, (xs,), (signs,))
    curvature = jax.lax.stop_gradient(largest(bent, dtype))
    is_known = jnp.isfinite(curvature) & (curvature > 0)
    return jnp.where(is_known, 1 / jnp.where(is_known, curvature, 1), 1)
