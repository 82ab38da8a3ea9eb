"""Derivatives of solutions with respect to the data of a function.

A solution of F(x, data) = 0 moves with the data by the implicit function theorem:

    J dx = - d(F) / d(data) ddata,   J = d(F) / d(x)

For least squares F is the gradient of the value.  Blondel et al., 2022, Efficient and
Modular Implicit Differentiation (arXiv:2105.15183).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._minimize.implicit import (
    MOST,
    is_traced,
    minimum_at,
    output_at,
    rejoin,
    solve_definite,
    solve_linear,
    value_at,
)
from .._minimize.loop import Inputs
from .._minimize.pack import split
from .loop import Solved
from .losses import value_of


def attach_least(both: Callable, inputs: Inputs, found: Solved, loss: str) -> Solved:
    """The result of `least_squares` with its derivatives, where they can exist.

    both: maps lists of arrays, moving and other, to the residuals and the aux output.
    """
    data = (inputs.data, inputs.tol[1]), inputs.box
    if not is_traced(data):
        return found

    def value(xs, given):
        arrays, scale = given
        rs, aux = both(xs, arrays)
        # By leaves, and not as one vector, which may have another dtype.
        parts = [x.reshape(-1) for x in split(jax.tree.leaves(rs))]
        dtype = found.value.dtype
        values = [value_of(loss, scale, x.astype(dtype)) for x in parts]
        return sum(values, jnp.zeros([], dtype)), aux

    def solve(product, b):
        size = sum(x.size for x in b)
        if size > MOST:
            return solve_definite(product, b)
        return solve_linear(product, b, is_symmetric=True)

    xs = minimum_at(value, found.params, data, solve)
    at = lambda xs, arrays: both(xs, arrays)[0]
    return found._replace(
        params=xs,
        value=value_at(value, found.value, xs, data),
        residuals=output_at(at, found.residuals, xs, inputs.data),
    )


def attach_root(
    fun: Callable, inputs: Inputs, found: Solved, is_diagonal: bool
) -> Solved:
    """The solution of a system with its derivatives, where they can exist.

    fun: maps lists of arrays, moving and other, to a list like the former.
    is_diagonal: whether each element is an equation of its own.
    """
    if not is_traced(inputs.data):
        return found
    xs = root_at(fun, found.params, inputs.data, is_diagonal)
    return found._replace(
        params=xs, residuals=output_at(fun, found.residuals, xs, inputs.data)
    )


def root_at(fun: Callable, xs: list, data: Any, is_diagonal: bool = False) -> list:
    """`xs`, as a function of the data by fun(xs, data) = 0, a list like `xs`."""
    solve = _solve_diagonal if is_diagonal else _solve_general

    @jax.custom_jvp
    def root(xs, data):
        return xs

    @root.defjvp
    def rule(primals, tangents):
        xs = root(*primals)  # so that second derivatives go through it, too
        arrays, arrays_dot = primals[1], tangents[1]
        like = lambda rs, arrays: split(fun(rejoin(rs, xs), arrays))
        rs = split(xs)
        _, b = jax.jvp(lambda arrays: like(rs, arrays), (arrays,), (arrays_dot,))
        product = lambda vs: jax.jvp(lambda rs: like(rs, arrays), (rs,), (vs,))[1]
        move = solve(product, [-x.astype(r.dtype) for x, r in zip(b, rs, strict=True)])
        return xs, rejoin(move, xs)

    return root(xs, data)


def _solve_general(product: Callable, b: list) -> list:
    return solve_linear(product, b, is_symmetric=False)


def _solve_diagonal(product: Callable, b: list) -> list:
    diagonal = product([jnp.ones_like(x) for x in b])
    return [x / d for x, d in zip(b, diagonal, strict=True)]
