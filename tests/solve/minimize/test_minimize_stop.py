"""When `minimize` stops: the cap of evaluations, and the rules that know the scale."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from inside import bundle, quasi_newton, watch as watching

import stepax
from stepax.solve import Status
from stepax.solve._minimize.watch import ENOUGH, WINDOW, watch


def problem(name):
    return next(p for p in problems.collect() if p.name == name)


def solve(p, **more):
    # A function of its own: a program is kept as long as its function.
    return stepax.minimize(lambda x: p.fun(x), jnp.asarray(p.x0, float), **more)


# --- a search that does as it is told ------------------------------------------------


class Info(NamedTuple):
    num_linesearch_steps: Any
    decrease_error: Any


class Told(NamedTuple):
    value: Any
    grad: Any
    info: Info


def told(move, trials=1):
    """Goes where `move` says, and claims to have made so many trials."""

    def init(params):
        value = jnp.zeros([], params.dtype)
        return Told(value, params, Info(jnp.int32(trials), value))

    def update(updates, state, params, *, value_fn, **_):
        step = move(params)
        value, grad = jax.value_and_grad(value_fn)(params + step)
        return step, Told(value, grad, state.info)

    return stepax.GradientTransformationExtraArgs(init, update)


# --- the cap of evaluations ----------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("most, steps", [(5, 5), (100, 16), (2000, 17)])
def test_a_run_has_15000_evaluations_more_than_steps(most, steps):
    # 1,000 in each step: the first number of them above 15,000 + `most` is the last.
    method = told(jnp.ones_like, trials=1000)
    found = stepax.minimize(
        lambda x: -jnp.sum(x), jnp.ones(1), method=method, max_steps=most
    )
    assert found.status is Status.ITERATION_LIMIT and found.steps == steps
    assert found.evaluations == 1 + 1000 * steps


@pytest.mark.slow
def test_the_cap_is_that_of_the_built_in_method_too(monkeypatch):
    valley = problem("rosenbrock")
    free = solve(valley, max_steps=20)
    assert free.steps == 20 and free.evaluations > 23  # and so the cap is felt
    monkeypatch.setattr(bundle, "SPARE", 0)
    found = solve(valley, max_steps=20)
    assert found.status is Status.ITERATION_LIMIT and found.steps < 20
    # The last search may go beyond the cap, by its 20 trials at most.
    assert 20 <= found.evaluations < 20 + quasi_newton._TRIALS


# --- the window: a value that no longer falls noticeably -----------------------------


class At(NamedTuple):
    value: Any
    norm: Any
    size: Any = np.float32(1)


def slow_at(values, norms, tol):
    """The steps after which the value is said to have been slow."""
    places = [At(*map(np.float32, at)) for at in zip(values, norms, strict=True)]
    seen, found = watch(places[0]), []
    for k, (old, new) in enumerate(zip(places, places[1:], strict=False), start=1):
        seen = seen.after(old, new)
        if seen.is_slow(new, tol):
            found.append(k)
    return found


# Over 20 steps the value falls by 20 times this; both sides of the limit in float32.
TOL = 1e-3


def falling(start, first, share):
    """A large fall in the first step, and then `share` of what the window asks for."""
    scale = min(first, 1)
    falls = np.arange(3 * WINDOW) * share * TOL * scale / WINDOW
    return [start, *(start - first - falls)]


@pytest.mark.parametrize("start, first", [(2, 1), (1000, 900), (1e-4, 0.5e-4)])
def test_a_window_in_which_the_value_hardly_falls_is_slow(start, first):
    """Relative to 1 or to the whole fall; of a large value, an offset may be most."""
    flat = [1e6] + [0] * 3 * WINDOW
    # The first window holds the large fall.
    assert slow_at(falling(start, first, 0.9), flat, TOL) == [2 * WINDOW, 3 * WINDOW]
    assert slow_at(falling(start, first, 1.2), flat, TOL) == []


@pytest.mark.parametrize(
    "steepest, start, limit",
    [(1e6, 2, 0.01), (1e6, 1000, 0.01), (1e-3, 2, 1e-5)],
    ids=["of 1", "of 1, whatever the value", "of the steepest slope"],
)
def test_where_it_is_steep_a_slow_window_is_no_end(steepest, start, limit):
    values = falling(start, start * 0.9 if start > 100 else 1, 0.5)
    for share, found in ((0.95, [2 * WINDOW, 3 * WINDOW]), (1.05, [])):
        norms = [steepest] + [share * limit] * 3 * WINDOW
        assert slow_at(values, norms, TOL) == found


@pytest.mark.few(1)
@pytest.mark.parametrize("slope, is_flat", [(1e-3, True), (0.1, False)])
def test_a_run_ends_by_the_window_unless_it_is_steep(slope, is_flat, x64):
    # From a slope of 1 to a gentle one, along which each step gains 1e-10.
    fun = lambda x: jnp.sum(jnp.where(x < 0, -x, -slope * x))
    move = lambda x: jnp.where(x < 0, 2.0, 1e-10 / slope)
    found = stepax.minimize(fun, -jnp.ones(1), method=told(move), max_steps=90)
    if is_flat:
        assert found.status is Status.CONVERGED_BY_VALUE and found.steps == 2 * WINDOW
    else:
        assert found.status is Status.ITERATION_LIMIT


# --- what is left to gain ------------------------------------------------------------


@pytest.mark.slow
def test_a_run_ends_where_bfgs_promises_nothing_more(x64):
    # What is left of this valley is 3e-7, for which there were 116 evaluations more.
    found = solve(problem("penalty 2 10"))
    assert found.status is Status.CONVERGED_BY_VALUE and found.evaluations <= 30
    assert found.value - problem("penalty 2 10").minimum < 1e-6
    told_when = solve(problem("penalty 2 10"), tol=1e-7)
    assert told_when.grad_norm <= 1e-7 < found.grad_norm


@pytest.mark.slow
def test_a_step_that_is_not_made_is_not_counted(x64):
    seen = []
    more = {"callback": lambda found: seen.append(int(found.steps))}
    found = solve(problem("penalty 2 10"), history=True, max_steps=100, **more)
    assert seen == list(range(1, int(found.steps) + 1))
    again = solve(problem("penalty 2 10"), max_steps=int(found.steps))
    assert found.history is not None
    # A last trial, which is no step, confirms what the other does not come to.
    assert (found.steps, found.evaluations) == (again.steps, again.evaluations + 1)
    # A program that keeps a history may be fused otherwise.
    for name in ("params", "value"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(again, name), rtol=1e-13
        )
    values = np.asarray(found.history.value)
    assert np.isfinite(values).sum() == int(found.steps) + 1
    assert values[int(found.steps)] < values[int(found.steps) - 1]


@pytest.mark.slow
def test_few_pairs_promise_too_little(x64, monkeypatch):
    """After four steps all that is known is how steep the walls of the valley are."""
    valley = problem("nondia 5000")
    found = solve(valley)
    assert found.success and found.value < 1e-10
    monkeypatch.setattr(watching, "ENOUGH", 0)
    monkeypatch.setattr(watching, "_STEEP", 1e30)  # which guards, too
    assert solve(valley).value < 1e-10  # a trial along the gradient sees the valley
    monkeypatch.setattr(quasi_newton, "_gains", lambda *_: jnp.zeros([], bool))
    early = solve(valley)
    assert early.success and early.steps < ENOUGH and early.value > 1e-4


@pytest.mark.slow
def test_a_corner_reached_in_one_step_from_zero_is_a_minimum(x64):
    # From 0 any step seems to grow; where nothing can move, that does not matter.
    found = stepax.minimize(
        lambda x: jnp.sum((x - 1) ** 2), jnp.zeros(3), bounds=(0.0, 0.5)
    )
    assert found.status is Status.CONVERGED_BY_GRADIENT and found.steps == 1
    np.testing.assert_array_equal(found.params, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("is_double", [False, True], ids=["float32", "float64"])
def test_the_plateau_around_a_saddle_is_no_end(is_double):
    """Wood's function has one at 7.877, from which it falls in one direction alone."""
    with jax.enable_x64(is_double):
        found = solve(problem("wood"))
        assert found.success and found.value < 1e-9


@pytest.mark.slow
def test_the_flattest_curvature_limits_what_is_believed(x64, monkeypatch):
    """On a plateau of 1e-5 BFGS forgets for some steps how flat the valley is."""
    found = solve(problem("watson 9"))
    assert found.value - problem("watson 9").minimum < 1e-8
    near = lambda known, at, little: -at.slope <= little
    monkeypatch.setattr(quasi_newton, "_is_near", near)
    early = solve(problem("watson 9"))
    assert early.success and early.value - problem("watson 9").minimum > 1e-6
