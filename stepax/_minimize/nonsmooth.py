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
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.flatten_util import ravel_pytree

from .._linesearch.line import largest, search_dtype
from ..tree import conj
from .implicit import rejoin
from .loop import Inputs, Setup
from .pack import split
from .proximal import Nonsmooth
from .result import MinimizeResult


# The largest number of unknowns of a system whose matrix is formed.
_MOST = 1024


def attach_nonsmooth(
    setup: Setup, both: Callable, inputs: Inputs, found: MinimizeResult
) -> MinimizeResult:
    """The result with its derivatives, where they can exist.

    both: maps lists of arrays, moving and other, to the value and the aux output.
    """
    data = inputs.data, inputs.weights
    if not any(isinstance(x, Tracer) for x in jax.tree.leaves(data)):
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

    @jax.custom_jvp
    def least(value, xs, data):
        return value

    @least.defjvp
    def rule(primals, tangents):
        return least(*primals), jax.jvp(at, primals[1:], tangents[1:])[1]

    return least(value, xs, data)


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
    flat, untie = ravel_pytree(b)

    def times(v):
        tangent = untie(v)
        _, moved = jax.jvp(lambda rs: image(rs, data), (rs,), (tangent,))
        return v - ravel_pytree(moved)[0]

    move = jax.lax.custom_linear_solve(times, flat, _solve, _solve)
    return rejoin(untie(move), xs)


def _step(slope: Callable, xs: list) -> jax.Array:
    """1 / the curvature along a vector of signs, a step of the right size."""
    dtype = search_dtype(xs)
    signs = [jax.random.rademacher(jax.random.key(0), x.shape, x.dtype) for x in xs]
    _, bent = jax.jvp(slope, (xs,), (signs,))
    curvature = jax.lax.stop_gradient(largest(bent, dtype))
    is_known = jnp.isfinite(curvature) & (curvature > 0)
    return jnp.where(is_known, 1 / jnp.where(is_known, curvature, 1), 1)


def _solve(times: Callable, b: Any) -> Any:
    if b.size > _MOST:
        tol = float(jnp.finfo(b.dtype).eps) ** 0.75
        return jax.scipy.sparse.linalg.gmres(times, b, tol=tol, restart=100)[0]
    matrix = jax.vmap(times, out_axes=1)(jnp.eye(b.size, dtype=b.dtype))
    return jnp.linalg.lstsq(matrix, b)[0]
