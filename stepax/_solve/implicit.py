"""`implicit`: derivatives for a solver of one's own."""

import functools as ft
from collections.abc import Callable
from typing import Any

import jax

from .._engine.functions.calls import explain_misuse
from .._engine.trees import errors
from .._minimize.closure import open_closure
from .._minimize.frame import open_arguments, split
from .derivatives import root_at
from .loop import Setup, bind


@explain_misuse
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
        raise TypeError(
            f"`{name}` is {errors.describe(given)}, expected a function; write "
            f"`@stepax.implicit({'' if kind == 'root' else 'fixed_point='}function)` "
            "above the solver"
        )

    def decorate(solver):
        @ft.wraps(solver)
        def solved(x0: Any, *args: Any, **keywords: Any) -> Any:
            hold = lambda tree: jax.tree.map(_constant, tree)
            found = hold(solver(hold(x0), *hold(args), **hold(keywords)))
            found, aux = found if has_aux else (found, None)
            frame, moving, staying = split(found)
            args_frame, arrays = open_arguments(args)
            setup = Setup(frame, args_frame, None, False, None, name, kind)
            both = bind(setup, lambda: given)
            opened, more = open_closure(both, moving, (staying, arrays))
            fun = lambda xs, data: opened(xs, *data)[0]
            xs = root_at(fun, moving, ((staying, arrays), more))
            whole = frame.whole(xs, staying)
            return (whole, aux) if has_aux else whole

        return solved

    return decorate


def _constant(x: Any) -> Any:
    """An array without derivatives; other leaves as they are."""
    return jax.lax.stop_gradient(x) if isinstance(x, jax.Array) else x
