"""What `minimize` refuses, and what is shown and called while it runs."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import progress
from scipy import optimize

import stepax
from stepax.solve import Status, Tolerances


def parabola(p):
    return sum(jnp.sum((x - 3) ** 2) for x in jax.tree.leaves(p))


ONES = {"w": jnp.ones(2), "b": jnp.ones(3)}

# What is wrong: the arguments, the error, and what it says.
REFUSED = {
    "no function": (("mse", ONES), {}, TypeError, "`fun` is a `str`"),
    "integers": (
        (parabola, {**ONES, "k": jnp.arange(2)}),
        {},
        TypeError,
        r"\['k'\] holds integers \(int32\)",
    ),
    "an integer": ((parabola, [1.0, 2]), {}, TypeError, r"\[1\] holds integers"),
    "nothing moves": (
        (parabola, {"f": "a"}),
        {},
        ValueError,
        "nothing can be optimized",
    ),
    "a vector": ((lambda p: p["b"], ONES), {}, ValueError, r"shape \(3,\)"),
    "an integer value": ((lambda p: jnp.int32(1), ONES), {}, ValueError, "dtype int32"),
    "a tuple": (
        (lambda p: (parabola(p), 1), ONES),
        {},
        TypeError,
        "a tuple of 2.*`has_aux=True`",
    ),
    "no tuple": ((parabola, ONES), {"has_aux": True}, TypeError, "expected a pair"),
    "no method": (
        (parabola, ONES),
        {"method": "bfgs"},
        ValueError,
        "'bfgs', expected 'auto', 'lbfgs', 'lbfgsb'",
    ),
    "a factory": (
        (parabola, ONES),
        {"method": stepax.adam},
        TypeError,
        r"`method`.*did you mean `adam\(...\)`",
    ),
    "missing keyword": (
        (parabola, ONES),
        {
            "method": stepax.GradientTransformationExtraArgs(
                lambda params: (), lambda g, s, p=None, *, hessian, **more: (g, s)
            )
        },
        TypeError,
        "hessian",
    ),
    "negative steps": ((parabola, ONES), {"max_steps": -1}, ValueError, "`max_steps`"),
    "half a step": ((parabola, ONES), {"max_steps": 0.5}, ValueError, "`max_steps`"),
    "negative tolerance": ((parabola, ONES), {"tol": -1.0}, ValueError, "`gradient`"),
    "NaN tolerance": (
        (parabola, ONES),
        {"tol": Tolerances(value=jnp.nan)},
        ValueError,
        "`value` in `tol` is nan",
    ),
    "a string tolerance": ((parabola, ONES), {"tol": "low"}, ValueError, "'low'"),
    "a float history": ((parabola, ONES), {"history": 2.5}, ValueError, "`history`"),
    "bounds of no pair": ((parabola, ONES), {"bounds": 1.0}, ValueError, "a pair"),
    "SciPy's limit": (
        (parabola, ONES),
        {"maxiter": 100},
        TypeError,
        "no argument `maxiter`; write `max_steps=100`",
    ),
    "SciPy's derivative": (
        (parabola, ONES),
        {"jac": True},
        TypeError,
        "no argument `jac`; write nothing: JAX differentiates `fun`",
    ),
    "SciPy's options": (
        (parabola, ONES),
        {"options": {"maxiter": 9, "ftol": 1e-9, "iprint": 1}},
        TypeError,
        "write `max_steps=9` for `maxiter`, "
        r"`tol=stepax.solve.Tolerances\(value=1e-09\)` for `ftol`, nothing, "
        "since there is no counterpart for `iprint`",
    ),
    "SciPy's method": (
        (parabola, ONES),
        {"method": "L-BFGS-B"},
        ValueError,
        "'lbfgs' and 'lbfgsb' correspond to SciPy's 'BFGS' and 'L-BFGS-B'",
    ),
    "a misspelt argument": (
        (parabola, ONES),
        {"max_step": 3},
        TypeError,
        "unexpected keyword argument 'max_step'; did you mean `max_steps`",
    ),
    "pairs for a tree": (
        (parabola, ONES),
        {"bounds": [(0, 1)] * 5},
        ValueError,
        "a list of pairs.*`bounds=\\(lower, upper\\)`",
    ),
    "too few pairs": (
        (parabola, jnp.ones(4)),
        {"bounds": [(0, 2)] * 3},
        ValueError,
        "3 pairs, but `x0` has 4 numbers",
    ),
    "SciPy's bounds for a tree": (
        (parabola, ONES),
        {"bounds": optimize.Bounds(0, 1)},
        ValueError,
        "SciPy's `Bounds`.*`bounds=\\(lower, upper\\)`",
    ),
    "bounds that cross": (
        (parabola, ONES),
        {"bounds": ({"w": 2.0, "b": 0.0}, 1.0)},
        ValueError,
        r"\['w'\] cross",
    ),
    "bounds of another tree": (
        (parabola, ONES),
        {"bounds": (None, {"v": 1.0, "b": 2.0})},
        ValueError,
        "'v'|`v`",
    ),
    "a start outside": (
        (parabola, ONES),
        {"bounds": (None, {"w": 2.0, "b": 0.5})},
        ValueError,
        r"at \['b'\] starts outside of its bounds.*`project=True`",
    ),
    "bounds for adam": (
        (parabola, ONES),
        {"bounds": (0.0, 2.0), "method": stepax.adam(0.1)},
        ValueError,
        "`bounds` need the method 'lbfgsb'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_named(case):
    args, more, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        stepax.minimize(*args, **more)


def test_an_error_of_a_method_says_what_it_is_given():
    _, more, kind, _ = REFUSED["missing keyword"]
    with pytest.raises(kind) as error:
        stepax.minimize(parabola, ONES, **more)
    assert "`value`, `grad` and `value_fn`" in "".join(error.value.__notes__)


def test_what_needs_python_is_refused_in_a_traced_program():
    for name in ("callback", "progress"):
        more: Any = {name: print}
        run = lambda x, more=more: stepax.minimize(parabola, x, **more).params
        with pytest.raises(ValueError, match=f"`{name}` runs in Python"):
            jax.jit(run)(jnp.ones(2))
    found = []
    with pytest.raises(TypeError, match="`status` is not known while"):
        jax.jit(lambda x: found.append(stepax.minimize(parabola, x).status))(1.0)


def test_all_statuses_have_a_sentence():
    for status in Status:
        assert status.message.endswith(".") and status.message[0].isupper()


# --- bounds --------------------------------------------------------------------------


def rosenbrock(p):
    return jnp.sum(100 * (p[1:] - p[:-1] ** 2) ** 2 + (1 - p[:-1]) ** 2)


@pytest.mark.slow
def test_bounds_hold_and_the_minimum_is_that_of_scipy(x64):
    value_and_grad = jax.jit(jax.value_and_grad(rosenbrock))
    wanted = optimize.minimize(
        lambda p: tuple(map(np.asarray, value_and_grad(p))),
        np.full(4, -0.5),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-1, 0.6)] * 4,
        options={"gtol": 1e-9, "ftol": 0},
    )
    found = stepax.minimize(rosenbrock, jnp.full(4, -0.5), bounds=(-1.0, 0.6))
    assert found.status is Status.CONVERGED_BY_GRADIENT
    np.testing.assert_allclose(found.params, wanted.x, atol=1e-6)
    assert jnp.max(found.params) <= 0.6
    # The gradient itself is not small where a bound holds the parameters back.
    assert jnp.max(jnp.abs(jax.grad(rosenbrock)(found.params))) > 0.1
    outside = stepax.minimize(
        rosenbrock, jnp.full(4, 2.0), bounds=(-1.0, 0.6), project=True
    )
    np.testing.assert_allclose(outside.params, wanted.x, atol=1e-6)


@pytest.mark.slow
def test_bounds_are_taken_as_scipy_has_them():
    start, fun = jnp.zeros(2), lambda p: jnp.sum((p - jnp.array([3.0, -2.0])) ** 2)
    wanted = stepax.minimize(fun, start, bounds=(jnp.array([0.0, -jnp.inf]), 1.0))
    pairs = [(0, 1), (None, 1)]
    scipys: Any = optimize.Bounds  # its type says that bounds are scalars
    for given in (pairs, tuple(pairs), scipys([0, -np.inf], 1)):
        found = stepax.minimize(fun, start, bounds=given)
        np.testing.assert_array_equal(found.params, wanted.params)
        np.testing.assert_allclose(found.params, [1, -2], atol=1e-5)


@pytest.mark.slow
def test_one_argument_needs_no_tuple():
    fun = lambda p, center: jnp.sum((p - center) ** 2)
    for center in (2.0, jnp.array([1.0, 2.0])):
        found = stepax.minimize(fun, jnp.zeros(2), args=center)
        wanted = stepax.minimize(fun, jnp.zeros(2), args=(center,))
        np.testing.assert_array_equal(found.params, wanted.params)
        np.testing.assert_allclose(found.params, center * np.ones(2), atol=1e-5)


@pytest.mark.slow
def test_a_constant_is_at_its_minimum():
    for value in (3, 3.0, np.float32(3), jnp.float32(3)):
        for method in ("lbfgs", stepax.sgd(0.1)):
            found = stepax.minimize(lambda p, v=value: v, jnp.ones(2), method=method)
            assert found.status is Status.CONVERGED_BY_GRADIENT and found.steps == 0
            assert found.value == 3 and "Converged" in found.status.message


# --- while it runs -------------------------------------------------------------------

START = jnp.array([-1.2, 1.0])


@pytest.mark.slow
def test_callback_sees_each_step_and_stops():
    whole = stepax.minimize(rosenbrock, START, history=True, tol=1e-3)
    seen = []
    found = stepax.minimize(rosenbrock, START, tol=1e-3, callback=seen.append)
    assert found.status is Status.CONVERGED_BY_GRADIENT
    assert [int(r.steps) for r in seen] == [*range(1, int(found.steps) + 1)]
    assert [r.status for r in seen[:-1]] == [Status.RUNNING] * (len(seen) - 1)
    assert whole.history is not None
    values = whole.history.value[1 : len(seen) + 1]
    np.testing.assert_allclose([r.value for r in seen], values, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(found.params, whole.params, rtol=1e-4)
    stopped = stepax.minimize(
        rosenbrock, START, tol=1e-3, callback=lambda r: int(r.steps) == 3
    )
    assert stopped.status is Status.STOPPED_BY_CALLBACK and stopped.steps == 3
    np.testing.assert_array_equal(stopped.params, seen[2].params)


@pytest.mark.slow
def test_progress_changes_nothing_but_what_is_shown(capsys, monkeypatch):
    without = stepax.minimize(rosenbrock, START, tol=1e-3)
    found = stepax.minimize(rosenbrock, START, tol=1e-3, progress=True)
    np.testing.assert_allclose(found.params, without.params, rtol=1e-4)
    # A loop in pieces is another program, in which JAX 0.12 rounds otherwise.
    assert abs(found.steps - without.steps) <= 2 and found.status is without.status
    out, lines = capsys.readouterr()
    assert not out and f"step {found.steps}/15000   value" in lines.splitlines()[-1]

    monkeypatch.setattr(progress, "is_live", lambda: True)
    stepax.minimize(rosenbrock, START, tol=1e-3, progress=True)
    assert f"step {found.steps}/15000" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "rich.live", None)
    with pytest.raises(ImportError, match="`pip install rich`"):
        stepax.minimize(rosenbrock, START, tol=1e-3, progress=True)


def test_pieces_grow_until_they_last_a_tenth_of_a_second():
    assert progress.next_length(1, 3.0) == 1  # it was compiled meanwhile
    assert progress.next_length(1, 1e-4) == 10
    assert progress.next_length(100, 0.05) == 200
    assert progress.next_length(100, 0.2) == 50
    assert progress.next_length(2**20, 0.0) == 2**20
