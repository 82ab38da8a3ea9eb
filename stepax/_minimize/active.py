"""Derivatives of a constrained minimum with respect to the data of its functions.

At a minimum with multipliers m, the constraints A that are at a limit b stay there:

    [ H  J' ] [dx]     [ d(df + J' m) / d(data) ]            H = d²f + sum m d²c
    [ J  0  ] [dm] = - [ d(c - b) / d(data)     ] ddata,     J = dc of those in A

where active constraints are those with a multiplier, and equalities.  Parameters at a
bound stay there, too.  A system of up to 1,024 unknowns is solved by least squares, so
that redundant constraints do no harm; a larger one by GMRES, from products only.
Nocedal and Wright, 2006, section 12.8; Blondel et al., 2022 (arXiv:2105.15183), section
2.2.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from .implicit import held_by, is_traced, rejoin, solve_linear, value_at
from .loop import Inputs
from .pack import split
from .result import MinimizeResult


def attach_active(
    both: Callable, inputs: Inputs, found: MinimizeResult
) -> MinimizeResult:
    """The result with its derivatives, where they can exist.

    both: maps lists of arrays, moving and other, to the value and a pair of the aux
        output and the outputs of `Opened.values`.
    """
    data = inputs.data, inputs.box
    if not is_traced(data):
        return found
    xs, multipliers = _minimum(both, found.params, found.multipliers, data)
    value = value_at(both, found.value, xs, data)
    return found._replace(params=xs, value=value, multipliers=multipliers)


def _minimum(both, xs, multipliers, data):
    """Both as functions of the data."""

    @jax.custom_jvp
    def minimum(xs, multipliers, data):
        return xs, multipliers

    @minimum.defjvp
    def rule(primals, tangents):
        found = minimum(*primals)  # so that second derivatives go through it, too
        return found, _motion(both, *found, primals[2], tangents[2])

    return minimum(xs, multipliers, data)


def _motion(both, xs, multipliers, data, data_dot):
    """The tangents of the minimum and its multipliers for a tangent of the data."""
    (arrays, box), (arrays_dot, box_dot) = data, data_dot
    rs = split(xs)
    is_free, held = held_by(rs, box, box_dot)
    at = lambda rs, arrays: both(rejoin(rs, xs), arrays)
    is_on = jax.tree.map(_is_active, multipliers, *at(rs, arrays)[1][1][1:])

    def lagrangian(rs, multipliers, arrays):
        value, (_, (values, *_)) = at(rs, arrays)
        only = lambda on, m, c: jnp.sum(jnp.where(on, m * c, 0))
        return value + sum(
            x.astype(value.dtype)
            for x in jax.tree.leaves(jax.tree.map(only, is_on, multipliers, values))
        )

    def beyond(rs, arrays):
        return jax.tree.map(_beyond, is_on, multipliers, *at(rs, arrays)[1][1])

    slope = jax.grad(lagrangian)
    on_path = lambda rs, arrays: (slope(rs, multipliers, arrays), beyond(rs, arrays))
    _, (b, c) = jax.jvp(on_path, (rs, arrays), (held, arrays_dot))

    def free(vs):
        pairs = zip(is_free, vs, strict=True)
        return [v if is_in is None else jnp.where(is_in, v, 0) for is_in, v in pairs]

    def product(pair):  # the identity for everything that is fixed
        vs, ws = pair
        both_at = lambda rs, m: (slope(rs, m, arrays), beyond(rs, arrays))
        _, (x, y) = jax.jvp(both_at, (rs, multipliers), (free(vs), ws))
        rest = [v - w for v, w in zip(vs, free(vs), strict=True)]
        x = [u + v for u, v in zip(free(x), rest, strict=True)]
        return x, jax.tree.map(lambda on, y, w: jnp.where(on, y, w), is_on, y, ws)

    right = free([-x for x in b]), jax.tree.map(jnp.negative, c)
    move, change = solve_linear(product, right, is_symmetric=True)
    return rejoin([x + y for x, y in zip(held, move, strict=True)], xs), change


def _is_active(m, low, high):
    return (m != 0) | (low == high)


def _beyond(is_on, m, c, low, high):
    """How far an active constraint is from its limit."""
    limit = jnp.where(m < 0, low, high)
    return jnp.where(is_on, c - jnp.where(jnp.isfinite(limit), limit, 0), 0)
