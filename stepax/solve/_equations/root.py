"""`root` and `fixed_point`: solve f(x) = 0 and f(x) = x.

With a bracket, roots of independent scalars are found by ITP, each between two points
of opposite signs.  The next point of each is where the secant meets 0, moved towards
the middle, and only so far from the middle that there are at most eight steps more than
bisection takes.

Oliveira and Takahashi, 2020, An enhancement of the bisection method average performance
preserving minmax optimality (DOI 10.1145/3423597), with k1 = 0.2 / (b - a), k2 = 2 and
n0 = 8.  All elements take their steps together; one that is done does not change.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from ..._engine.base import is_array
from ..._engine.trees import errors
from .._minimize import implicit
from .._minimize.call import Call, Options, is_number, whole_number
from .._minimize.result import Code, History, Result
from .._minimize.watch import Tolerances
from .._minimize.words import FIXED_POINT, ROOT, answering
from .loop import Iteration, Place, Step, Stepper
from .newton import Anderson, Broyden, NewtonKrylov
from .trust_region import TrustRegion


# The steps beyond those of bisection, which a curved function may take at the start.
_K1, _SLACK = 0.2, 8


class _State(NamedTuple):
    """The ends of the intervals, with the values there; all of shape (n,).

    half: half the width at which an interval is done.
    room: half the width that an interval may have now, as n0 halvings are spare.
    k1: the strength of the move towards the middle.
    is_open: whether an element is not done.
    """

    a: jax.Array
    b: jax.Array
    fa: jax.Array
    fb: jax.Array
    half: jax.Array
    room: jax.Array
    k1: jax.Array
    is_open: jax.Array


class Bracket(Stepper):
    def begin(self, x: jax.Array) -> _State:
        """The state with the upper ends evaluated; the first step does the others."""
        a, b = self._problem.box
        size = jnp.maximum(jnp.abs(a), jnp.abs(b))
        short = self._problem.short
        precision = 2 * self._problem.eps if short is None else short
        half = jnp.maximum(precision * size, jnp.finfo(a.dtype).tiny)
        width = b - a
        halvings = jnp.ceil(jnp.log2(jnp.maximum(width / (2 * half), 1)))
        # Twice that, as the first step does not halve it.
        room = half * 2 ** (halvings + _SLACK + 1)
        k1 = _K1 / jnp.where(width > 0, width, 1)
        f = self._problem.fun(b)
        return _State(a, b, f, f, half, room, k1, jnp.ones_like(x, bool))

    def step(self, at: Place, state: _State, steps: jax.Array) -> Step:
        is_start = steps < 0
        x = jnp.where(is_start, state.a, self._next(state))
        f = self._problem.fun(x)
        is_left = is_start | state.is_open & (jnp.sign(f) == jnp.sign(state.fa))
        is_right = state.is_open & ~is_left
        is_left |= is_right & (f == 0)
        new = state._replace(
            a=jnp.where(is_left, x, state.a),
            fa=jnp.where(is_left, f, state.fa),
            b=jnp.where(is_right, x, state.b),
            fb=jnp.where(is_right, f, state.fb),
            room=state.room / 2,
        )
        is_finite = jnp.isfinite(f) & jnp.isfinite(new.fb)
        place, state, code = self._end(new, is_finite)
        return place, state, jnp.where(is_start, 2, 1), code

    def _next(self, state: _State) -> jax.Array:
        """The next point of each interval: interpolate, truncate, project."""
        a, b, fa, fb = state.a, state.b, state.fa, state.fb
        middle, width = 0.5 * (a + b), b - a
        # Of values divided by the larger, whose difference cannot overflow.
        top = jnp.maximum(jnp.abs(fa), jnp.abs(fb))
        top = jnp.where(top > 0, top, 1)
        share = (fa / top) / jnp.where(fa == fb, 1, fa / top - fb / top)
        secant = a + share * width
        side = jnp.sign(middle - secant)
        move = state.k1 * width**2
        near = jnp.abs(middle - secant) <= move
        moved = jnp.where(near, middle, secant + side * move)
        most = jnp.maximum(state.room - 0.5 * width, 0)
        inner = jnp.where(jnp.abs(moved - middle) <= most, moved, middle - side * most)
        # Not so near to an end that the other one would never move.
        inner = jnp.clip(inner, a + state.half, b - state.half)
        return jnp.where(state.is_open, inner, a)

    def _end(self, state: _State, is_finite: Any) -> tuple[Place, _State, jax.Array]:
        """The better ends, the state with what is done, and the code."""
        is_lower = jnp.abs(state.fa) <= jnp.abs(state.fb)
        x = jnp.where(is_lower, state.a, state.b)
        r = jnp.where(is_lower, state.fa, state.fb)
        is_short = state.b - state.a <= 2 * state.half
        limit = self._problem.tol.gradient
        is_small = jnp.abs(r) <= (0 if limit is None else limit)
        has_none = jnp.sign(state.fa) * jnp.sign(state.fb) > 0
        is_open = state.is_open & ~is_short & ~is_small & ~has_none
        code = jnp.where(jnp.all(is_small), Code.RESIDUAL, Code.STEP)
        code = jnp.where(jnp.any(has_none), Code.NO_SIGN_CHANGE, code)
        code = jnp.where(jnp.any(is_open), Code.RUNNING, code)
        code = jnp.where(jnp.all(is_finite), code, Code.NOT_FINITE)
        return self._problem.place(x, r), state._replace(is_open=is_open), code


# The largest number of unknowns for which "auto" forms the Jacobian.
_MOST = 1_000
_METHODS: dict[str, tuple] = {
    "newton": (TrustRegion, "linear", "forward", "qr", True),
    "krylov": (NewtonKrylov,),
    "broyden": (Broyden,),
}


@answering(ROOT)
def root(
    f: Callable[..., Any],
    x0: Any = None,
    *,
    args: Any = (),
    method: Literal["auto", "newton", "krylov", "broyden"] = "auto",
    bracket: Any = None,
    tol: ArrayLike | Tolerances | None = None,
    max_steps: ArrayLike = 1_000,
    has_aux: bool = False,
    history: bool | int = False,
    callback: Callable[[Result], Any] | None = None,
    progress: bool = False,
) -> Result:
    """Find a root of a function of any tree, in one compiled loop: f(x, *args) = 0.

    f: a function of the unknowns and `args` that returns a tree like the unknowns.
    x0: the first unknowns; floating-point leaves change, others are fixed.  With a
        bracket it may be left out.
    args: further arguments of `f`, a tuple, or a single one; other values of the same
        shapes do not recompile.
    method: "newton", with the Jacobian, in a trust region of |f|²; "krylov", with
        products of the Jacobian; "broyden", with few Jacobians; "auto" is "newton" for
        up to 1,000 unknowns, otherwise "krylov".
    bracket: a pair (lower, upper), numbers or trees like `x0`, between which each
        element of f changes its sign; it depends on the same element of x alone.
    tol: the largest |f| element at which to stop, >= 0; or `Tolerances`, whose
        `gradient` is that, by default 9.5e-7 in float32 and 1.5e-8 in float64,
        relative to the start where that is below 1; with a bracket 0.
    max_steps: maximum number of steps, >= 0.
    has_aux: whether `f` returns a pair of its value and auxiliary arrays.
    history: whether to record the largest |f| of each step, or for how many.
    callback: called with the intermediate result after each step; `True` stops.
    progress: whether to show a live progress line.

    The result is differentiable in `args` and values that `f` closes over.  Lack of
    convergence, and a bracket without a change of sign, are a `status`.
    """
    errors.require_one_of("method", method, ("auto", *_METHODS))
    options = Options(args, tol, max_steps, has_aux, history, callback, progress)
    if bracket is None:
        if x0 is None:
            raise ValueError("`x0` is `None`, expected a start, or a `bracket`")
        many = sum(map(jnp.size, jax.tree.leaves(x0))) > _MOST
        auto = "krylov" if many else "newton"
        chosen = _METHODS[auto if method == "auto" else method]
        return _solve("root", f, x0, chosen, options)
    if method != "auto":
        raise ValueError(
            f"`bracket` has a method of its own, but `method` is {method!r}; omit one"
        )
    x0 = _middle(bracket) if x0 is None else x0
    return _solve("root", f, x0, (Bracket,), options, bracket=_ends(bracket))


def _middle(bracket: Any) -> Any:
    """A tree like the unknowns, from the ends of their intervals."""
    lower, upper = _ends(bracket)

    def half(x):
        is_real = jnp.issubdtype(jnp.result_type(x), jnp.inexact)
        return 0.5 * jnp.asarray(x, None if is_real else float)

    try:
        return jax.tree.map(lambda x, y: half(x) + half(y), lower, upper)
    except (TypeError, ValueError):
        raise ValueError(
            f"`bracket` is a pair of {errors.describe(lower)} and "
            f"{errors.describe(upper)}, expected numbers, arrays, or trees of them of "
            "the same structure, or `x0`, whose structure it then takes"
        ) from None


def _ends(bracket: Any) -> tuple[Any, Any]:
    is_pair = isinstance(bracket, tuple | list) and len(bracket) == 2
    if not is_pair or bracket[0] is None or bracket[1] is None:
        raise ValueError(
            f"`bracket` is {errors.describe(bracket)}, expected a pair of numbers or "
            "trees like `x0`: `bracket=(lower, upper)`"
        )
    for x in jax.tree.leaves(bracket):
        if is_array(x) and not isinstance(x, Tracer) and not np.isfinite(x).all():
            raise ValueError(f"`bracket` holds {x}, expected finite numbers")
    return bracket[0], bracket[1]


@answering(FIXED_POINT)
def fixed_point(
    f: Callable[..., Any],
    x0: Any,
    *,
    args: Any = (),
    memory: int = 5,
    damping: ArrayLike = 1.0,
    tol: ArrayLike | Tolerances | None = None,
    max_steps: ArrayLike = 1_000,
    has_aux: bool = False,
    history: bool | int = False,
    callback: Callable[[Result], Any] | None = None,
    progress: bool = False,
) -> Result:
    """Find a fixed point of a function of any tree, in one compiled loop.

        r = f(x, *args) - x,   c = argmin |r - dR c|²
        x = x + damping r - (dX + damping dR) c

    f: a function of the parameters and `args` that returns a tree of their structure.
    x0: the first parameters; floating-point leaves change, others are fixed.
    memory: number of last differences in dX and dR, >= 0; 0 is plain iteration.
    damping: in (0, 1]; below 1 where the plain iteration oscillates.
    tol: the largest element of |f(x) - x| at which to stop, >= 0; or `Tolerances`,
        whose `gradient` is that, by default 9.5e-7 in float32 and 1.5e-8 in float64,
        relative to the largest parameter so far.
    max_steps: maximum number of steps, >= 0, each with an evaluation.
    history: whether to record the largest |f(x) - x| of each step, or for how many.
    Other arguments: those of `root`.

    The result is differentiable in `args` and values that `f` closes over.  Lack of
    convergence is a `status`.
    """
    number = whole_number(memory)
    if number is None or number < 0:
        raise ValueError(f"`memory` is {memory!r}, expected an integer >= 0")
    if not is_number(damping, lambda x: 0 < x <= 1):
        raise ValueError(f"`damping` is {damping!r}, expected a number in (0, 1]")
    options = Options(args, tol, max_steps, has_aux, history, callback, progress)
    strength = jnp.asarray(damping, float)
    return _solve("fixed_point", f, x0, (Anderson, number), options, strength)


def _solve(kind, f, x0, method, options, number=None, bracket=None) -> Result:
    """The result of a method; `number` is one that it takes."""
    call = Call("f", kind, f, x0, options, bracket, True)
    call.inputs = call.inputs._replace(tol=(call.inputs.tol, number))
    call.compile(Iteration, method=method)
    found = call.run(_of_residuals, "largest residual {norm:.2e}")
    fun = lambda xs, data: call.both(xs, data)[0]
    params, residuals, data = found.params, found.residuals, call.inputs.data
    if implicit.is_traced(data):
        one = implicit.solve_unique if bracket is None else implicit.solve_diagonal
        params = implicit.root_at(fun, params, data, one)
        residuals = implicit.output_at(fun, residuals, params, data)
    residuals = call.setup.frame.params(residuals)
    return found._replace(params=call.params(params), residuals=residuals)


def _of_residuals(found: Result) -> Result:
    """The result with the largest residual as value, and without a gradient."""
    history = found.history and History(found.history.grad_norm, None)
    return found._replace(value=found.grad_norm, grad_norm=None, history=history)
