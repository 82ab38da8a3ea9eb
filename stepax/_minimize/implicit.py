"""Derivatives of a minimum with respect to the data of the function.

The solvers of other problems take their parts of the theorem from here, too.

At a minimum the gradient is 0 for any data, so by the implicit function theorem

    H dx = - d(g) / d(data) ddata,   H the Hessian at the minimum
    df   =   d(f) / d(data) ddata  + g dx

H is never formed: conjugate gradients (Hestenes and Stiefel, 1952) only need its
products with vectors.  Blondel et al., 2022, Efficient and Modular Implicit
Differentiation (arXiv:2105.15183), for the method.

Parameters at a bound stay there, so that H is restricted to the others.  Complex
parameters are treated as pairs of real ones, for which H is symmetric.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.flatten_util import ravel_pytree

from .loop import Inputs
from .pack import join, split
from .result import MinimizeResult


# The largest number of unknowns of a system whose matrix is formed.
MOST = 1024


def attach(both: Callable, inputs: Inputs, found: MinimizeResult) -> MinimizeResult:
    """The result with its derivatives, where they can exist.

    both: maps lists of arrays, moving and other, to the value and the aux output.
    """
    data = inputs.data, inputs.box
    if not is_traced(data):
        return found
    xs = minimum_at(both, found.params, data, solve_definite)
    return found._replace(params=xs, value=value_at(both, found.value, xs, data))


def minimum_at(both, xs, data, solve):
    """`xs`, as a function of the data.

    solve: maps a product with a symmetric matrix and a right side to the solution.
    """

    @jax.custom_jvp
    def minimum(xs, data):
        return xs

    @minimum.defjvp
    def rule(primals, tangents):
        xs = minimum(*primals)  # so that second derivatives go through it, too
        return xs, _motion(both, xs, primals[1], tangents[1], solve)

    return minimum(xs, data)


def value_at(both, value, xs, data):
    """`value`, as a function of the data and of the minimum."""
    at = lambda xs, arrays: both(xs, arrays)[0].astype(value.dtype)
    return output_at(at, value, xs, data[0])


def output_at(fun, out, xs, data):
    """`out`, as the value of a function of `xs` and the data."""

    @jax.custom_jvp
    def value(out, xs, data):
        return out

    @value.defjvp
    def rule(primals, tangents):
        return value(*primals), jax.jvp(fun, primals[1:], tangents[1:])[1]

    return value(out, xs, data)


def is_traced(data):
    """Whether derivatives may be asked for."""
    return any(isinstance(x, Tracer) for x in jax.tree.leaves(data))


def _motion(both, xs, data, data_dot, solve):
    """The tangent of the minimum for a tangent of the data."""
    (arrays, box), (arrays_dot, box_dot) = data, data_dot
    value = lambda rs, arrays: both(rejoin(rs, xs), arrays)[0]
    gradient, rs = jax.grad(value), split(xs)
    is_free, held = held_by(rs, box, box_dot)
    _, b = jax.jvp(gradient, (rs, arrays), (held, arrays_dot))
    at = lambda rs: gradient(rs, arrays)
    times_hessian = lambda vs: jax.jvp(at, (rs,), (vs,))[1]

    def free(vs):
        pairs = zip(is_free, vs, strict=True)
        return [v if is_on is None else jnp.where(is_on, v, 0) for is_on, v in pairs]

    def product(vs):  # the identity for parameters at a bound
        inner, outer = free(times_hessian(free(vs))), free(vs)
        return [x + (v - w) for x, v, w in zip(inner, vs, outer, strict=True)]

    move = solve(product, free([-x for x in b]))
    return rejoin([x + y for x, y in zip(held, move, strict=True)], xs)


def solve_definite(product, b):
    """Conjugate gradients, to rounding error."""
    tol = max(float(jnp.finfo(x.dtype).eps) for x in b) ** 0.75
    cg = lambda product, b: jax.scipy.sparse.linalg.cg(product, b, tol=tol)[0]
    # `cg` alone has no reverse-mode derivative.
    return jax.lax.custom_linear_solve(product, b, cg, symmetric=True)


def solve_linear(product, b, is_symmetric):
    """The solution of a linear system for a tree, from products with its matrix.

    With up to 1,024 unknowns it is of least length, so that redundant equations do no
    harm.
    """
    # As one vector, because the transpose requires all parts of `b` to depend on a
    # tangent.
    flat, untie = ravel_pytree(b)

    def solve(times, flat):
        if flat.size > MOST:
            tol = float(jnp.finfo(flat.dtype).eps) ** 0.75
            gmres = jax.scipy.sparse.linalg.gmres
            return gmres(times, flat, tol=tol, restart=100)[0]
        matrix = jax.vmap(times, out_axes=1)(jnp.eye(flat.size, dtype=flat.dtype))
        return _least(matrix, flat)

    times = lambda v: ravel_pytree(product(untie(v)))[0]
    back = None if is_symmetric else solve
    return untie(
        jax.lax.custom_linear_solve(times, flat, solve, back, symmetric=is_symmetric)
    )


def _least(matrix, b):
    """The solution, of least length if there are many, with rows and columns scaled."""
    unit = lambda x: jnp.where(x > 0, x, 1)
    rows = unit(jnp.max(jnp.abs(matrix), axis=1))
    matrix = matrix / rows[:, None]
    columns = unit(jnp.max(jnp.abs(matrix), axis=0))
    return jnp.linalg.lstsq(matrix / columns[None], b / rows)[0] / columns


def held_by(rs, box, box_dot):
    """Which parameters are inside their bounds; the tangents of those at a bound."""
    if box is None:
        return [None] * len(rs), [jnp.zeros_like(r) for r in rs]
    is_free, held = [], []
    for r, l, u, l_dot, u_dot in zip(rs, *box, *box_dot, strict=True):
        is_free.append((r > l) & (r < u))
        moved = jnp.where(r <= l, l_dot, u_dot)
        held.append(jnp.where(is_free[-1], jnp.zeros_like(r), moved))
    return is_free, held


def rejoin(rs, like):
    return join(rs, [jnp.iscomplexobj(x) for x in like])
