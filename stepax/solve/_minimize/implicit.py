"""Derivatives of a solution with respect to the data of its functions.

A root F(x, data) = 0 moves with the data by the implicit function theorem:

    J dx = - d(F) / d(data) ddata,   J = dF / dx

A minimum is a root of the gradient, and with multipliers m of constraints, of which the
set A is at a limit b and stays there,

    [ H  J' ] [dx]     [ d(df + J' m) / d(data) ]            H = d²f + sum m d²c
    [ J  0  ] [dm] = - [ d(c - b) / d(data)     ] ddata,     J = dc of those in A

where active constraints are those with a multiplier, and equalities.  Parameters at a
bound stay there, too, so that H is restricted to the others.  Complex parameters are
treated as pairs of real ones, for which H is symmetric.

Without constraints H is never formed: conjugate gradients (Hestenes and Stiefel, 1952)
only need its products with vectors.  Other systems of up to 1,024 unknowns are solved
by least squares, so that redundant equations do no harm; larger ones by GMRES.

Blondel et al., 2022, Efficient and Modular Implicit Differentiation (arXiv:2105.15183);
Nocedal and Wright, 2006, section 12.8.
"""

import functools as ft
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.flatten_util import ravel_pytree

from ..._engine import rules as rx
from . import frame as frames
from .call import bind
from .loop import Inputs, Setup
from .pack import rejoin, split
from .pairs import each
from .result import Result


# The largest number of unknowns of a system whose matrix is formed.
MOST = 1024
NO_ROWS = None, None, None


def attach(both: Callable, inputs: Inputs, found: Result) -> Result:
    """The result with its derivatives, where they can exist.

    both: maps lists of arrays, moving and other, to the value and the aux output; with
        constraints, that is a pair with the outputs of `Opened.values`.
    """
    data, multipliers = (inputs.data, inputs.box), found.multipliers
    if not is_traced(data):
        return found
    at, solve = both, solve_linear
    if multipliers is None:
        at, solve = lambda *at: (both(*at)[0], (None, NO_ROWS)), solve_definite
    xs, multipliers = minimum_at(at, found.params, data, solve, multipliers)
    value = value_at(lambda *at: both(*at)[0], found.value, xs, inputs.data)
    return found._replace(params=xs, value=value, multipliers=multipliers)


def is_traced(data):
    return any(isinstance(x, Tracer) for x in jax.tree.leaves(data))


def solution_at(motion, point, data):
    """`point`, as a function of the data; motion: (point, data, tangent) -> tangent."""

    @jax.custom_jvp
    def solution(point, data):
        return point

    @solution.defjvp
    def rule(primals, tangents):
        point = solution(*primals)  # so that second derivatives go through it, too
        return point, motion(point, primals[1], tangents[1])

    return solution(point, data)


def output_at(fun, out, xs, data):
    """`out`, as the value of a function of `xs` and the data."""
    return solution_at(lambda _, *at: jax.jvp(fun, *at)[1], out, (xs, data))


def value_at(fun, value, xs, data):
    """`value`, likewise, for a function of which it may have another dtype."""
    return output_at(lambda *at: fun(*at).astype(value.dtype), value, xs, data)


def root_at(fun, xs, data, solve):
    """`xs`, as a function of the data by fun(xs, data) = 0, a list like `xs`."""
    return solution_at(ft.partial(root_motion, fun, solve), xs, data)


def root_motion(fun, solve, xs, data, data_dot):
    """The tangent of a root; solve: (product with a matrix, right side) -> solution."""
    rs = split(xs)
    parts = lambda rs, data: split(fun(rejoin(rs, xs), data))
    _, b = jax.jvp(lambda data: parts(rs, data), (data,), (data_dot,))

    def product(vs):
        _, ys = jax.jvp(lambda rs: parts(rs, data), (rs,), (vs,))
        # JAX cannot transpose a system whose matrix does not depend on the point, as
        # that of a linear function.
        return each(lambda y, v, r: y + (0 * v * r).astype(y.dtype), ys, vs, rs)

    return rejoin(solve(product, each(lambda x, r: -x.astype(r.dtype), b, rs)), xs)


def minimum_at(both, xs, data, solve, multipliers=None):
    """A minimum and its multipliers, as functions of the data, and of bounds.

    both: as for `attach`, with constraints.
    solve: as above, for a symmetric matrix.
    """
    return solution_at(ft.partial(_motion, both, solve), (xs, multipliers), data)


def _motion(both, solve, point, data, data_dot):
    """The tangents of a minimum and its multipliers for a tangent of the data."""
    (xs, fixed), (arrays, box), (arrays_dot, box_dot) = point, data, data_dot
    rs = split(xs)
    is_free, held = _held_by(rs, box, box_dot)
    is_active = lambda m, low, high: (m != 0) | (low == high)
    is_on = jax.tree.map(is_active, fixed, *both(xs, arrays)[1][1][1:])

    def lagrangian(rs, multipliers, arrays):
        value, (_, rows) = both(rejoin(rs, xs), arrays)
        only = lambda on, m, c: jnp.sum(jnp.where(on, m * c, 0))
        costs = jax.tree.leaves(jax.tree.map(only, is_on, multipliers, rows[0]))
        beyond = jax.tree.map(_beyond, is_on, fixed, *rows)
        return value + sum(x.astype(value.dtype) for x in costs), beyond

    # The gradient, and how far active constraints are from their limits.
    conditions = jax.grad(lagrangian, has_aux=True)
    along = (rs, arrays), (held, arrays_dot)
    _, (b, c) = jax.jvp(lambda rs, arrays: conditions(rs, fixed, arrays), *along)

    def free(vs):
        pairs = zip(is_free, vs, strict=True)
        return [v if is_in is None else jnp.where(is_in, v, 0) for is_in, v in pairs]

    def product(pair):  # the identity for everything that is fixed
        vs, ws = pair
        along = (rs, fixed), (free(vs), ws)
        _, (x, y) = jax.jvp(lambda rs, ms: conditions(rs, ms, arrays), *along)
        x = each(lambda u, v, w: u + (v - w), free(x), vs, free(vs))
        return x, jax.tree.map(lambda on, y, w: jnp.where(on, y, w), is_on, y, ws)

    right = free([-x for x in b]), jax.tree.map(jnp.negative, c)
    move, change = solve(product, right)
    return rejoin(each(jnp.add, held, move), xs), change


def _beyond(is_on, m, c, low, high):
    """How far an active constraint is from its limit."""
    limit = jnp.where(m < 0, low, high)
    return jnp.where(is_on, c - jnp.where(jnp.isfinite(limit), limit, 0), 0)


def _held_by(rs, box, box_dot):
    """Which parameters are inside their bounds; the tangents of those at a bound."""
    if box is None:
        return [None] * len(rs), [jnp.zeros_like(r) for r in rs]
    is_free, held = [], []
    for r, l, u, l_dot, u_dot in zip(rs, *box, *box_dot, strict=True):
        is_free.append((r > l) & (r < u))
        moved = jnp.where(r <= l, l_dot, u_dot)
        held.append(jnp.where(is_free[-1], jnp.zeros_like(r), moved))
    return is_free, held


# --- linear systems ------------------------------------------------------------------


def solve_definite(product, b):
    """Conjugate gradients, to rounding error."""
    leaves = jax.tree.leaves(b)
    tol = max(float(jnp.finfo(x.dtype).eps) for x in leaves) ** 0.75
    # The transpose requires all parts of `b` to depend on a tangent, and one vector
    # would gather those that are sharded.
    sums = (jnp.sum(0 * x).astype(jnp.float32) for x in leaves)
    zero = sum(sums, jnp.zeros([], jnp.float32))
    b = jax.tree.map(lambda x: x + zero.astype(x.dtype), b)
    cg = lambda product, b: jax.scipy.sparse.linalg.cg(product, b, tol=tol)[0]
    # `cg` alone has no reverse-mode derivative.
    return jax.lax.custom_linear_solve(product, b, cg, symmetric=True)


def solve_linear(product, b, is_symmetric=True, is_unique=False):
    """The solution of a linear system for a tree, from products with its matrix.

    With up to 1,024 unknowns it is of least length, so that redundant equations do no
    harm; is_unique: whether it is NaN instead if the matrix is singular.
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
        return _least(matrix, flat, is_unique)

    times = lambda v: ravel_pytree(product(untie(v)))[0]
    back = None if is_symmetric else solve
    return untie(
        jax.lax.custom_linear_solve(times, flat, solve, back, symmetric=is_symmetric)
    )


solve_general = ft.partial(solve_linear, is_symmetric=False)
solve_unique = ft.partial(solve_general, is_unique=True)


def solve_diagonal(product, b):
    """The solution of a system whose equations are independent."""
    return each(jnp.divide, b, product([jnp.ones_like(x) for x in b]))


def _least(matrix, b, is_unique):
    """The solution, of least length if there are many, with rows and columns scaled."""
    unit = lambda x: jnp.where(x > 0, x, 1)
    rows = unit(jnp.max(jnp.abs(matrix), axis=1))
    matrix = matrix / rows[:, None]
    columns = unit(jnp.max(jnp.abs(matrix), axis=0))
    found, _, rank, _ = jnp.linalg.lstsq(matrix / columns[None], b / rows)
    found = jnp.where(is_unique & (rank < len(b)), jnp.nan * found, found)
    return found / columns


# --- for a solver of one's own --------------------------------------------------------


@rx.explain_misuse
def implicit(
    optimality: Callable[..., Any] | None = None,
    *,
    fixed_point: Callable[..., Any] | None = None,
    has_aux: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that makes a solver differentiable, whatever it does inside.

        optimality(x, *args) = 0  or  x = fixed_point(x, *args)  at the solution x

    optimality: a function of a solution and the arguments of the solver after `x0`,
        which returns a tree like the solution; for a minimum, the gradient:
        `jax.grad(fun)`.
    fixed_point: such a function that returns the solution itself, instead.
    has_aux: whether the solver returns a pair of the solution and auxiliary output,
        which has no derivative.

    The decorated `solver(x0, *args)` has derivatives with respect to floating-point
    arrays in `args`, and to arrays that `optimality` closes over, by the implicit
    function theorem, in forward and reverse mode.  There is none with respect to `x0`;
    keyword arguments are passed to the solver alone.

    Raises a `TypeError` unless exactly one function is given.

    Blondel et al., 2022, Efficient and Modular Implicit Differentiation
    (arXiv:2105.15183).
    """
    if (optimality is None) == (fixed_point is None):
        raise TypeError("`implicit` takes either `optimality` or `fixed_point`")
    kind = "root" if fixed_point is None else "fixed_point"
    name = "optimality" if fixed_point is None else "fixed_point"
    given = optimality if fixed_point is None else fixed_point
    if not callable(given):
        word = "" if kind == "root" else "fixed_point="
        raise TypeError(
            f"`{name}` is {rx.errors.describe(given)}, expected a function; write "
            f"`@stepax.solve.implicit({word}function)` above the solver"
        )

    def decorate(solver):
        @ft.wraps(solver)
        def solved(x0: Any, *args: Any, **keywords: Any) -> Any:
            is_array = lambda x: isinstance(x, jax.Array)
            constant = lambda x: jax.lax.stop_gradient(x) if is_array(x) else x
            hold = lambda tree: jax.tree.map(constant, tree)
            found = hold(solver(hold(x0), *hold(args), **hold(keywords)))
            found, aux = found if has_aux else (found, None)
            frame, moving, staying = frames.split(found)
            args_frame, arrays = frames.open_arguments(args)
            setup = Setup(frame, args_frame, None, False, None, name, kind)
            both = bind(setup, lambda: given)
            opened, more = frames.open_closure(both, moving, (staying, arrays))
            fun = lambda xs, data: opened(xs, *data)[0]
            xs = root_at(fun, moving, ((staying, arrays), more), solve_unique)
            whole = frame.whole(xs, staying)
            return (whole, aux) if has_aux else whole

        return solved

    return decorate
