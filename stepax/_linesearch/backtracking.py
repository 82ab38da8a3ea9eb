"""A line search that shortens the step until the value decreases.

Nocedal and Wright, 2006, Numerical Optimization, 2nd edition, Algorithm 3.1; Vaswani et
al., 2019, Painless Stochastic Gradient (arXiv:1905.09997), for increasing the step
between searches.

Differences from Optax: if no value is finite, the state keeps the value at the start;
after a step of 0 the next search does not start at 0.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine import rules as rx
from .._engine.arrays.numerics import safe_increment
from .line import Line, Point, choose, decrease_error, first_state, hold, repeat


@rx.optax_compatible
class BacktrackingLinesearchInfo(NamedTuple):
    """Diagnostics of a search; both fields are scalars.

    num_linesearch_steps: number of evaluations of the function.
    decrease_error: amount by which the value misses the sufficient decrease; 0 if it
        does not, infinite if no value was finite.
    """

    num_linesearch_steps: jax.Array
    decrease_error: jax.Array


@rx.optax_compatible
class ScaleByBacktrackingLinesearchState(rx.optax.ScaleByBacktrackingLinesearchState):
    """State of `scale_by_backtracking_linesearch`.

    learning_rate: the last step size, a scalar.
    value: value of the function after that step, a scalar.
    grad: gradient there, shaped like the parameters; `None` if it is not stored.
    info: diagnostics of the search.
    """

    learning_rate: jax.Array
    value: jax.Array
    grad: Any
    info: BacktrackingLinesearchInfo


class _Settings(NamedTuple):
    slope_rtol: Any
    decrease_factor: Any
    atol: Any
    rtol: Any


class _Search(NamedTuple):
    """The state of a search: the next step, the last point, and its decrease error."""

    count: jax.Array
    step: jax.Array
    last: Point
    error: jax.Array


_RANGES = {
    "max_backtracking_steps": rx.AT_LEAST_0,
    "slope_rtol": rx.UP_TO_1,
    "decrease_factor": rx.Range(0, 1, excludes_least=True, excludes_most=True),
    # At infinity each search starts from scratch.
    "increase_factor": rx.Range(1, is_cap=True),
    "atol": rx.AT_LEAST_0,
    "rtol": rx.AT_LEAST_0,
}


@rx.public(paper="arXiv:1905.09997", ranges=_RANGES)
def scale_by_backtracking_linesearch(
    max_backtracking_steps: rx.Whole,
    slope_rtol: ArrayLike = 1e-4,
    decrease_factor: ArrayLike = 0.8,
    increase_factor: ArrayLike = 1.5,
    max_learning_rate: ArrayLike = 1.0,
    atol: ArrayLike = 0.0,
    rtol: ArrayLike = 0.0,
    store_grad: bool = False,
    verbose: bool = False,
) -> rx.GradientTransformationExtraArgs:
    """Multiply by a step size that decreases the value sufficiently (Armijo).

        f(step) <= (1 + rtol) f(0) + slope_rtol step f'(0) + atol
        f(step) = value_fn(p + step u)

    `update` takes the keywords `value` and `grad` at the parameters, and `value_fn`,
    which receives the other keywords and may return a pair (value, aux).

    max_backtracking_steps: maximum number of reductions of the step, at least 0.
    slope_rtol: required fraction of the decrease predicted by the slope, in [0, 1].
    decrease_factor: ratio of successive trial steps, in (0, 1).
    increase_factor: ratio of the first step of the next search to the last step of this
        one, at least 1.
    max_learning_rate: largest step size, above 0.
    atol, rtol: tolerated rise of the value, absolute and relative, at least 0.
    store_grad: whether to store the gradient for `value_and_grad_from_state`.
    verbose: whether to print why a search fails.

    Raises a `TypeError` for missing keywords and those that `value_fn` does not accept,
    and a `ValueError` for arguments out of range.
    """
    settings = _Settings(slope_rtol, decrease_factor, atol, rtol)

    def init(params):
        kinds = ScaleByBacktrackingLinesearchState, BacktrackingLinesearchInfo
        return first_state(*kinds, params, store_grad)

    def update(updates, state, params=None, **extra_args):
        name = "scale_by_backtracking_linesearch"
        rx.errors.require_state(name, ScaleByBacktrackingLinesearchState, state)
        line = Line(name, updates, state, params, extra_args)
        numbers = line.numbers(settings)
        evaluate = line.at if store_grad else line.value_at
        sizes = state.learning_rate, increase_factor, max_learning_rate
        last, growth, most = line.numbers(sizes)
        step = jnp.where(last > 0, jnp.minimum(growth * last, most), most)
        far = jnp.full([], jnp.inf, line.dtype)
        end = repeat(
            lambda s: (s.error > numbers.atol) & (s.count <= max_backtracking_steps),
            lambda s: _advance(s, evaluate(s.step), line.start, numbers),
            _Search(jnp.zeros([], jnp.int32), step, line.start, far),
        )
        if verbose:
            line.report(end.last, end.count, decrease=end.error)
        info: Any = BacktrackingLinesearchInfo(end.count, end.error)
        grad = line.gradient(end.last) if store_grad else None
        step, value = end.last.step, end.last.value
        new = ScaleByBacktrackingLinesearchState(step, value, grad, info)
        return line.updates(step), rx.keep_dtypes(new, state)

    return rx.transformation(init, update, reads_any=True)


@jax.jit
def _advance(s: _Search, t: Point, start: Point, settings: _Settings) -> _Search:
    error = decrease_error(t, start, settings.slope_rtol, settings.rtol)
    last = choose(hold(t.is_finite()), t, start)
    step = settings.decrease_factor * t.step
    return _Search(safe_increment(s.count), step, last, error)
