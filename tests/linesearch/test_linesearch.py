"""Line searches: the conditions they meet, their trials, and what they refuse."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from runs import compilations

import stepax
from stepax._linesearch.line import Point
from stepax.solve._minimize.quasi_newton import _TRIALS, _search


ZOOM = stepax.scale_by_zoom_linesearch(15)
BACK = stepax.scale_by_backtracking_linesearch(15, store_grad=True)
BOTH = pytest.mark.parametrize("tx", [ZOOM, BACK], ids=["zoom", "backtracking"])

# Functions of the step, for a direction of one number from 0.
LINES = {
    "parabola": lambda x: 0.5 * (x - 1) ** 2,
    "far": lambda x: 0.5 * (x - 30.0) ** 2,
    "near": lambda x: 0.5 * (x / 0.01 - 1.0) ** 2,
    "waves": lambda x: jnp.sin(3 * x) - 0.3 * x + jnp.cos(x) * 0.5,
    "steep waves": lambda x: -jnp.sin(7 * x) - 0.1 * x + 0.3 * x**2,
    "wall": lambda x: -jnp.log(1 - 3 * x) - 10 * x,  # NaN beyond 1 / 3
    "jump": lambda x: jnp.where(x > 0.2, jnp.inf, (x - 0.1) ** 2),
    "flat": lambda x: 1e-9 * (x - 1) ** 2 + 1.0,
    "kink": lambda x: jnp.abs(x - 0.3),
    "line": lambda x: -x,
    "ascent": lambda x: x + x**2,
    "slight ascent": lambda x: 1 + 0.01 * x + x**2,
    "Moré and Thuente 1": lambda x: -x / (x**2 + 2.0),
    "Moré and Thuente 2": lambda x: (x + 0.004) ** 5 - 2 * (x + 0.004) ** 4,
}


def along(f, tx, jit=jax.jit):
    """The step that a search takes along a line, and its state."""
    p, d = jnp.zeros(1), jnp.ones(1)
    value, slope = jax.value_and_grad(f)(0.0)
    kwargs = {"value": value, "grad": slope[None], "value_fn": lambda p: f(p[0])}
    u, state = jit(lambda s: tx.update(d, s, p, **kwargs))(tx.init(p))
    return u[0], state


def reference(f, most=15, c1=1e-4, c2=0.9, rise=1e-6):
    """Algorithms 3.5 and 3.6, in plain Python, with both slopes; returns the trials."""
    g = jax.grad(f)
    f0, g0 = float(f(0.0)), float(g(0.0))
    trials = []

    def at(x):
        trials.append(x)
        value, slope = float(f(x)), float(g(x))
        armijo = value <= f0 + c1 * x * g0
        hager = slope <= (2 * c1 - 1) * g0 and value <= f0 + rise * abs(f0)
        decreases = np.isfinite(value) and np.isfinite(slope) and (armijo or hager)
        return (x, value, slope), decreases, abs(slope) <= c2 * abs(g0)

    low, x = (0.0, f0, g0), 1.0
    while len(trials) < most:
        t, decreases, is_flat = at(x)
        if not decreases or (t[1] >= low[1] and low[0] > 0):
            return zoom(at, low, t, trials, most)
        if is_flat:
            return trials
        if t[2] >= 0:
            return zoom(at, t, low, trials, most)
        cubic = minimum_of_cubic(low, t)
        x = min(max(cubic, 2 * x), 5 * x) if cubic > x else 5 * x
        low = t
    return trials


def zoom(at, low, high, trials, most):
    safe = low[0] > 0
    while len(trials) < most:
        left, right = sorted((low[0], high[0]))
        x, width = minimum_of_cubic(low, high), right - left
        x = x if left < x < right else (left + right) / 2
        t, decreases, is_flat = at(min(max(x, left + width / 10), right - width / 10))
        if not decreases or t[1] >= low[1]:
            high = t
        else:
            safe = True
            if is_flat:
                return trials
            if t[2] * (high[0] - low[0]) >= 0:
                high = low
            low = t
        if width <= 1e-5 and safe:
            return trials
    return trials


def minimum_of_cubic(low, high):
    """That of the polynomial with these values and slopes, by its coefficients."""
    (a, fa, ga), (b, fb, gb) = low, high
    h = b - a
    rows = np.array([[h**3, h**2], [3 * h**2, 2 * h]])
    right = np.array([fb - fa - ga * h, gb - ga])
    if not np.all(np.isfinite(right)):
        return np.nan
    p, q = np.linalg.solve(rows, right)
    with np.errstate(invalid="ignore", divide="ignore"):
        # The root at which the second derivative is positive, also for p = 0.
        return a - ga / (q + np.sqrt(q * q - 3 * p * ga))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["far", "near", "steep waves", "Moré and Thuente 1"])
def test_trials_of_minimize_are_those_of_the_book(name, x64):
    f, seen = LINES[name], []

    def at(x):
        seen.append(float(x))
        value, slope = jax.value_and_grad(f)(x)
        return Point(x, value, slope, [slope[None]])

    start = at(jnp.zeros([]))
    with jax.disable_jit():
        _search(at, start, jnp.ones([]), _TRIALS)
    np.testing.assert_allclose(seen[1:], reference(f), rtol=1e-6)


def any_line(p, k):
    return jax.lax.switch(k, list(LINES.values()), p[0])


def searches(kind, factor=1.0):
    """What ours and Optax's find for each line: step, value, and information.

    factor: of the gradient, which may be that of another batch.
    """

    def search(library):
        tx = getattr(library, f"scale_by_{kind}_linesearch")(15)

        @jax.jit  # one program for all lines
        def run(k):
            p = jnp.zeros(1)
            value, grad = jax.value_and_grad(any_line)(p, k)
            more = {"value": value, "grad": factor * grad, "value_fn": any_line, "k": k}
            u, state = tx.update(jnp.ones(1), tx.init(p), p, **more)
            return u[0], state.value, *state.info

        return run

    ours, theirs = search(stepax), search(optax)
    for k, name in enumerate(LINES):
        found = ours(k)
        with jax.numpy_dtype_promotion("standard"):
            yield name, found, theirs(k)


def test_backtracking_steps_are_those_of_optax(x64):
    for name, found, wanted in searches("backtracking"):
        close = {"rtol": 1e-9, "atol": 1e-15, "err_msg": name}
        np.testing.assert_allclose(found, wanted, **close)


@pytest.mark.parametrize("factor", [1.0, -100.0])
def test_zoom_steps_are_those_of_optax(factor, x64):
    """Where a step meets both conditions; otherwise ours is at least as low."""
    for name, found, wanted in searches("zoom", factor):
        if wanted[3] == wanted[4] == 0:
            close = {"rtol": 1e-9, "atol": 1e-15, "err_msg": name}
            np.testing.assert_allclose(found, wanted, **close)
        else:
            assert not found[1] > wanted[1] + 1e-12, name


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["parabola", "waves", "wall", "Moré and Thuente 1"])
def test_zoom_meets_both_wolfe_conditions(name, x64):
    f, c2 = LINES[name], 0.1
    tx = stepax.scale_by_zoom_linesearch(30, curv_rtol=c2)
    step, state = along(f, tx)
    g0 = jax.grad(f)(0.0)
    assert f(step) <= f(0.0) + 1e-4 * step * g0
    assert abs(jax.grad(f)(step)) <= c2 * abs(g0)
    found = state.value, state.grad[0]
    np.testing.assert_allclose(found, jax.value_and_grad(f)(step), rtol=1e-9)
    assert state.info.decrease_error == 0 and state.info.curvature_error == 0


@pytest.mark.few(1)
@BOTH
def test_walls_are_backed_away_from(tx):
    wall = stepax.scale_by_zoom_linesearch(3) if tx is ZOOM else BACK
    more = {"value": 0.0, "grad": -jnp.ones(1), "value_fn": lambda p: -jnp.sum(p)}
    again = jax.jit(lambda s: wall.update(jnp.ones(1), s, jnp.zeros(1), **more))
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        step, state = along(lambda x, bad=bad: jnp.where(x > 0.05, bad, -x), tx)
        assert 0 < step <= 0.05 and jnp.isfinite(state.value)
        everywhere = lambda x, bad=bad: jnp.where(x > 1e-9, bad, -x)
        step, state = along(everywhere, wall)
        assert step == 0 and state.value == 0 and state.grad[0] == -1
        assert state.info.decrease_error == jnp.inf
        # The next search does not stay at 0.
        assert again(state)[0][0] >= 1


@pytest.mark.slow
def test_a_failed_search_takes_a_step_that_decreases(x64):
    trials: list[float] = []
    line = lambda x: (x - 2) ** 4 - 3 * x + jnp.sin(9 * x)

    def f(x):
        jax.debug.callback(lambda x: trials.append(float(x)), x)
        return line(x)

    tx = stepax.scale_by_zoom_linesearch(3, curv_rtol=1e-3)
    step, state = along(f, tx)
    jax.effects_barrier()
    assert step == trials[-2] == 2 and line(trials[-1]) > line(step)
    np.testing.assert_allclose(state.value, line(step), rtol=1e-9)
    assert state.info.decrease_error == 0 and state.info.curvature_error > 0


@BOTH
def test_gradients_of_complex_numbers_descend(tx):
    f = lambda z: jnp.sum(jnp.abs(z - (1 + 2j)) ** 2)
    z = jnp.array([3 + 0j, 1j])
    value, grad = jax.value_and_grad(f)(z)
    d = -jnp.conj(grad)
    step = jax.jit(lambda s: tx.update(d, s, z, value=value, grad=grad, value_fn=f))
    u, state = step(tx.init(z))
    assert state.value < value
    np.testing.assert_allclose(state.value, f(z + u), rtol=1e-6)
    assert state.grad.dtype == z.dtype and state.value.dtype == jnp.float32


@BOTH
def test_arguments_of_the_function_are_handed_on(tx):
    def f(p, x, *, y=0.0):
        return jnp.sum((p * x - y) ** 2)

    p, more = jnp.ones(2), {"x": jnp.array([1.0, 2.0]), "y": jnp.float32(3.0)}
    value, grad = jax.value_and_grad(f)(p, **more)
    kwargs = {"value": value, "grad": grad, "value_fn": f}
    u, state = tx.update(-grad, tx.init(p), p, **kwargs, **more)
    np.testing.assert_allclose(state.value, f(p + u, **more), rtol=1e-6)
    with pytest.raises(TypeError, match="`value_fn`, .* does not accept `z`"):
        tx.update(-grad, tx.init(p), p, **kwargs, **more, z=1)


@BOTH
def test_missing_and_wrong_keywords_are_named(tx):
    p = jnp.ones(2)
    kwargs = {"value": 1.0, "grad": p, "value_fn": jnp.sum}
    for key in kwargs:
        rest = {k: x for k, x in kwargs.items() if k != key}
        with pytest.raises(TypeError, match=f"`{key}` is missing: call `update"):
            tx.update(p, tx.init(p), p, **rest)
    wrong = kwargs | {"value_fn": 3}
    with pytest.raises(TypeError, match="`value_fn` is a `int`, not a function"):
        tx.update(p, tx.init(p), p, **wrong)
    for vector in ({"value": p}, {"value_fn": lambda p: p}):
        with pytest.raises(ValueError, match=r"shape \(2,\), expected a scalar"):
            tx.update(p, tx.init(p), p, **(kwargs | vector))
    with pytest.raises(ValueError, match="the keyword `grad` has shape"):
        tx.update(p, tx.init(p), p, **(kwargs | {"grad": jnp.ones(3)}))
    with pytest.raises(ValueError, match="`params` is missing"):
        tx.update(p, tx.init(p), **kwargs)


WRONG = {
    "scale_by_zoom_linesearch": {
        "max_linesearch_steps": 0,
        "slope_rtol": 2.0,
        "curv_rtol": -1.0,
        "increase_factor": 1.0,
        "initial_guess_strategy": "two",
        "tol": -1.0,
        "stepsize_precision": -1.0,
        "approx_dec_rtol": -1.0,
    },
    "scale_by_backtracking_linesearch": {
        "max_backtracking_steps": -1,
        "slope_rtol": -1.0,
        "decrease_factor": 1.0,
        "increase_factor": 0.5,
        "atol": -1.0,
        "rtol": -1.0,
    },
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments_out_of_range_are_refused(name):
    for key, x in WRONG[name].items():
        arguments = {next(iter(WRONG[name])): 5} | {key: x}
        with pytest.raises(ValueError, match=f"`{key}`"):
            getattr(stepax, name)(**arguments)


@BOTH
def test_the_program_contains_the_function_once(tx):
    p = {"w": jnp.ones(3)}
    f = lambda p: jnp.sum(jnp.sinh(p["w"]))  # a name that nothing else has
    step = lambda s: tx.update(p, s, p, value=1.0, grad=p, value_fn=f)
    program = jax.jit(step).lower(tx.init(p)).as_text()
    assert program.count("chlo.sinh") == 1


@BOTH
def test_nothing_is_compiled_anew_outside_of_jit(tx):
    p = jnp.ones(2)

    def step(scale):
        f = lambda p: jnp.sum(p * p) * scale  # another function at each step
        more = {"value": f(p), "grad": 2 * p * scale, "value_fn": f}
        return tx.update(-p, tx.init(p), p, **more)

    step(jnp.float32(1.0))
    names = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration_secs, **_: names.append(event)
    )
    try:
        step(jnp.float32(1.1))
    finally:
        jax.monitoring.clear_event_listeners()
    assert not [name for name in names if "backend_compile" in name]


@pytest.mark.slow
def test_a_failure_is_told_only_if_asked(capfd):
    for verbose in (False, True):
        zoom = stepax.scale_by_zoom_linesearch(3, verbose=verbose)
        back = stepax.scale_by_backtracking_linesearch(3, verbose=verbose)
        for tx in (zoom, back):
            along(LINES["parabola"], tx)
            jax.effects_barrier()
            assert not capfd.readouterr().out
            along(LINES["ascent"], tx)
            jax.effects_barrier()
            assert ("these updates do not descend" in capfd.readouterr().out) == verbose


# --- value and gradient from the state -----------------------------------------------


def sum_of_squares(p, a=1.0):
    return sum(jnp.sum(a * x * x) for x in jax.tree.leaves(eqx.filter(p, eqx.is_array)))


@BOTH
def test_value_and_gradient_are_found_in_the_state(tx):
    p = {"w": jnp.arange(3.0), "none": None}
    calls = []

    def f(p, a):
        calls.append(None)
        return sum_of_squares(p, a)

    value_and_grad = stepax.value_and_grad_from_state(f)
    state = tx.init(p)
    value, grad = value_and_grad(p, 2.0, state=state)
    assert value == 10 and len(calls) == 1
    np.testing.assert_allclose(grad["w"], 4 * p["w"])
    down = jax.tree.map(jnp.negative, grad)
    u, state = tx.update(down, state, p, value=value, grad=grad, value_fn=f, a=2.0)
    p, number = stepax.apply_updates(p, u), len(calls)
    found = value_and_grad(p, a=2.0, state=(state, stepax.EmptyState()))
    assert len(calls) == number
    wanted = jax.value_and_grad(sum_of_squares)(p, 2.0)
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, found, wanted)


def test_a_state_without_value_or_gradient_is_refused():
    value_and_grad = stepax.value_and_grad_from_state(sum_of_squares)
    p = jnp.ones(2)
    with pytest.raises(ValueError, match="`state` has no `value`"):
        value_and_grad(p, state=stepax.sgd(0.1).init(p))
    state = stepax.scale_by_backtracking_linesearch(3).init(p)
    with pytest.raises(ValueError, match="`grad` in `state` is `None`; .*store_grad"):
        value_and_grad(p, state=state)
    with pytest.raises(KeyError, match="names 2 values"):
        value_and_grad(p, state=(ZOOM.init(p), ZOOM.init(p)))


@BOTH
@pytest.mark.parametrize("argnums", [1, -1, (1, 0)])
def test_other_arguments_are_parameters_beside_an_aux(tx, argnums):
    calls = []

    def f(scale, p):
        calls.append(None)
        return jnp.sum(scale * (p["w"] - 1) ** 2), {"p": p, "none": None}

    is_one = isinstance(argnums, int)
    value_and_grad = stepax.value_and_grad_from_state(f, argnums=argnums, has_aux=True)
    args = jnp.float32(2.0), {"w": jnp.arange(3.0)}
    take = lambda args: args[argnums] if is_one else tuple(args[i] for i in argnums)
    fill = lambda p: (args[0], p) if is_one else tuple(p[i] for i in argnums)
    p = take(args)
    state = tx.init(p)
    (value, aux), grad = value_and_grad(*args, state=state)
    wanted = jax.value_and_grad(f, argnums, has_aux=True)
    jax.tree.map(np.testing.assert_allclose, ((value, aux), grad), wanted(*args))
    down = jax.tree.map(jnp.negative, grad)
    fn = lambda p: f(*fill(p))
    u, state = tx.update(down, state, p, value=value, grad=grad, value_fn=fn)
    assert state.value < value
    args, number = fill(stepax.apply_updates(p, u)), len(calls)
    found = value_and_grad(*args, state=state)
    assert len(calls) == number + 1  # for `aux`
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, found, wanted(*args))
    with pytest.raises(ValueError, match=r"`argnums` has -?1, but the call has 0"):
        value_and_grad(state=state)


@BOTH
def test_outside_of_jit_the_function_is_called_once_for_each_trial(tx):
    """A jitted one is traced once for all steps, and nothing is recompiled."""
    calls, traces = [], []

    def f(p):
        calls.append(None)
        return traced(p)

    @jax.jit
    def traced(p):
        traces.append(None)
        return jnp.sum(jnp.cosh(p - 1))

    value_and_grad = stepax.value_and_grad_from_state(f)
    p = jnp.array([3.0, -1.0, 0.5])
    state, trials = tx.init(p), 1

    def step(p, state):
        value, grad = value_and_grad(p, state=state)
        u, state = tx.update(-grad, state, p, value=value, grad=grad, value_fn=f)
        return stepax.apply_updates(p, u), state

    for i in range(4):
        with compilations() as found:
            p, state = step(p, state)
        trials += int(state.info.num_linesearch_steps)
        assert len(calls) == trials and (i == 0 or not found)
    assert len(traces) == 1
