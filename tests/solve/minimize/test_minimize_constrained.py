"""Constraints of `minimize`: minima, multipliers, derivatives, statuses and errors."""

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from inside import implicit
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from problems.constrained import measured, ours
from problems.hock_schittkowski import PROBLEMS

import stepax
from stepax.solve import Status, Tolerances
from stepax.solve.constraints import equality, inequality


pytestmark = pytest.mark.slow  # but for those that say how many cases are few


# The fields of its result may be `None`, so that types would be in the way.
minimize: Any = stepax.minimize
linear: Any = scipy.optimize.LinearConstraint
ZEROS = jnp.zeros(2)
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: f"HS{p[0]}")


def bowl(x, center: Any = 2.0):
    return jnp.sum((x - center) ** 2)


def total(x):
    return jnp.sum(x)


@pytest.mark.slow
@each_problem
def test_minima_of_the_collection_are_found_in_float64(x64, problem):
    found = ours(problem)
    error, violation, _ = measured(problem, found.params, found.evaluations)
    assert found.success and error <= 1e-6 and violation <= 1e-6


@each_problem
def test_minima_of_the_collection_are_found_in_float32(problem):
    """By default a limit of 40 is kept up to 1.4e-2, and most are of 0."""
    found = ours(problem)
    error, violation, _ = measured(problem, found.params, found.evaluations)
    assert found.success and error <= 1e-3 and violation <= 1e-3


# One minimum, (1/2, 1/2) with x + y = 1, in every way to say so.
DICT = {"type": "eq", "fun": lambda x: jnp.sum(x) - 1}
FORMS: dict[str, Any] = {
    "function": lambda x: jnp.sum(x) - 1,
    "equality": equality(total, 1.0),
    "integer limit": equality(total, 1),
    "both limits": inequality(total, 1.0, 1.0),
    "upper": inequality(total, upper=1.0),
    "lower 0": inequality(lambda x: 1 - jnp.sum(x)),
    "between": inequality(total, -1.0, 1.0),
    "list": [equality(total, 1.0), inequality(lambda x: x[0], upper=9.0)],
    "tuple": (inequality(lambda x: x, None, 5.0), inequality(total, upper=1.0)),
    "array": equality(lambda x: jnp.sum(x, keepdims=True), np.ones(1)),
    "tree": inequality(lambda x: {"a": [total(x)], "b": x}, None, {"a": 1.0, "b": 3}),
    "redundant": [equality(total, 1.0), equality(lambda x: 2 * total(x), 2.0)],
    "SciPy's dict": DICT,
    "SciPy's dicts": [DICT, {"type": "ineq", "fun": lambda x: x[0], "args": ()}],
    "SciPy's arguments": {
        "type": "eq", "fun": lambda x, a: total(x) - a, "args": (1.0,)
    },
    "SciPy's constraint": scipy.optimize.NonlinearConstraint(total, -np.inf, 1.0),
    "SciPy's matrix": linear(np.ones((1, 2)), -1, [1.0]),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_constraints_may_be_written_in_many_ways(form):
    found = minimize(bowl, ZEROS, constraints=FORMS[form])
    assert found.success and found.violation <= 3.5e-4
    # Kept up to the tolerance of 3.5e-4, half of which each parameter takes.
    np.testing.assert_allclose(found.params, 0.5, atol=5e-4)
    sizes = [float(jnp.abs(m).max()) for m in jax.tree.leaves(found.multipliers)]
    assert 1 < max(sizes) < 4  # df = -3 = -m dc; shared by redundant ones


@pytest.mark.parametrize("none", [None, [], ()], ids=str)
def test_no_constraints_are_none(none):
    found = minimize(bowl, ZEROS, constraints=none)
    assert found.multipliers is None and found.violation is None
    np.testing.assert_allclose(found.params, 2.0, rtol=1e-5)


METHODS = {
    "lbfgs": "lbfgs",
    "sqp": "sqp",
    "lbfgs of a transformation": stepax.lbfgs(),
    "adam": stepax.adam(0.05),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("method", METHODS)
def test_any_method_keeps_constraints_of_any_tree(method):
    start = {"a": jnp.zeros((2, 2)), "b": jnp.float32(0), "c": None, "name": "x"}
    fun = lambda p: bowl(p["a"]) + (p["b"] - 1) ** 2
    corner = inequality(lambda p: {"a": p["a"], "b": p["b"]}, upper={"a": 1.0, "b": 9})
    found = minimize(fun, start, constraints=[corner], method=METHODS[method])
    assert found.success and found.params["name"] == "x"
    np.testing.assert_allclose(found.params["a"], 1.0, atol=1e-3)
    np.testing.assert_allclose(found.params["b"], 1.0, atol=1e-3)
    (multipliers,) = found.multipliers
    np.testing.assert_allclose(multipliers["a"], np.full((2, 2), 2.0), rtol=1e-2)
    assert multipliers["b"] == 0


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_narrow_parameters_are_kept_within_their_precision(dtype):
    limit = inequality(total, upper=1.0)
    found = minimize(bowl, jnp.zeros(2, dtype), constraints=limit)
    assert found.params.dtype == dtype and found.value.dtype == jnp.float32
    # Half of the digits of the dtype, as the tolerance is.
    atol = 2 * float(jnp.finfo(dtype).eps) ** 0.5
    np.testing.assert_allclose(np.asarray(found.params, float), 0.5, atol=atol)


def test_bounds_and_constraints_hold_together(x64):
    bounds, limit = (None, jnp.array([0.2, 9.0])), inequality(total, upper=1.0)
    found = minimize(bowl, jnp.zeros(2), bounds=bounds, constraints=limit)
    assert found.success
    np.testing.assert_allclose(found.params, [0.2, 0.8], atol=1e-7)
    np.testing.assert_allclose(found.multipliers, 2.4, atol=1e-6)


def test_units_do_not_matter(x64):
    for cost, unit in (1.0, 1e6), (1e-6, 1e6), (1e8, 1e-4), (1e6, 1.0):
        limit = inequality(lambda x, unit=unit: unit * total(x), upper=unit)
        found = minimize(lambda x, c=cost: c * bowl(x), jnp.zeros(2), constraints=limit)
        assert found.success
        np.testing.assert_allclose(found.params, 0.5, rtol=1e-6)
        np.testing.assert_allclose(found.multipliers, 3 * cost / unit, rtol=1e-5)


# --- where it ends -------------------------------------------------------------------

far = lambda x: -jnp.sum(x)
ENDS: dict[str, Any] = {
    "contradiction": (bowl, [equality(total, 1.0), equality(total, 2.0)], "INFEASIBLE"),
    "nothing": (far, inequality(lambda x: bowl(x, 0.0), upper=-1.0), "INFEASIBLE"),
    "a constant": (bowl, equality(lambda x: jnp.float32(1)), "INFEASIBLE"),
    "no minimum": (far, equality(lambda x: x[0] - 3), "UNBOUNDED"),
    "NaN": (bowl, inequality(lambda x: jnp.log(x - 1)), "NOT_FINITE"),
    "a function of NaN": (lambda x: far(x) * jnp.nan, equality(total), "NOT_FINITE"),
}


@pytest.mark.parametrize("method", ["lbfgs", "sqp"])
@pytest.mark.parametrize("end", ENDS)
def test_a_status_says_why_there_is_no_minimum(end, method):
    fun, constraints, status = ENDS[end]
    found = minimize(fun, ZEROS + 0.1, constraints=constraints, method=method)
    assert found.status == Status[status] and not found.success
    assert found.status.message.startswith("Not converged: the ")
    assert np.isfinite(found.params).all()
    if status == "INFEASIBLE":
        assert found.violation > 0.4


def test_a_constraint_out_of_the_box_is_infeasible():
    limit = inequality(total, lower=3.0)
    found = minimize(bowl, ZEROS, bounds=(0.0, 1.0), constraints=limit)
    assert found.status is Status.INFEASIBLE
    assert "violation" in found.status.message
    np.testing.assert_allclose(found.params, 1.0)
    np.testing.assert_allclose(found.violation, 1.0)


def test_a_constraint_that_is_nan_beyond_a_wall_is_kept(x64):
    wall = inequality(lambda x: jnp.log(x) + jnp.sqrt(x))
    found = minimize(total, jnp.full(2, 4.0), constraints=wall)
    assert found.success
    root: Any = scipy.optimize.brentq(lambda x: np.log(x) + np.sqrt(x), 0.1, 1.0)
    np.testing.assert_allclose(found.params, root, rtol=1e-7)


def test_a_value_of_infinity_is_within_no_limit():
    limits = [inequality(lambda x: x[0] * jnp.inf, lower=-1.0), equality(total, 1.0)]
    found = minimize(bowl, ZEROS + 1, constraints=limits[1:])
    assert found.success
    start = minimize(bowl, ZEROS + 1, constraints=limits, max_steps=0, method="lbfgs")
    assert start.violation == 1.0 and start.status is Status.ITERATION_LIMIT


@pytest.mark.parametrize("method", ["lbfgs", "sqp"])
def test_steps_are_limited_over_all_rounds(method):
    fun = lambda x: jnp.sum((x - jnp.array([2.0, 5.0])) ** 4)
    more = {"constraints": equality(total), "method": method}
    run = lambda n: minimize(fun, ZEROS, max_steps=n, **more)
    for n in 0, 1, 3:
        assert run(n).steps == n and run(n).status is Status.ITERATION_LIMIT


def test_tolerances_are_those_that_are_given(x64):
    more = {"constraints": FORMS["upper"], "method": "lbfgs"}
    run = lambda tol: minimize(bowl, jnp.zeros(2), tol=tol, **more)
    loose = run(Tolerances(gradient=1e-2, violation=1e-2))
    # Rounding of the value hides slopes below the root of eps times the penalty, 2e-7.
    tight = run(Tolerances(gradient=1e-6, violation=1e-9))
    assert loose.success and tight.success
    assert loose.evaluations < tight.evaluations
    assert tight.violation <= 1e-9 and tight.grad_norm <= 1e-6
    beyond = run(Tolerances(gradient=1e-14, violation=1e-17))
    assert not beyond.success and beyond.violation < 1e-8
    with pytest.raises(ValueError, match="the tolerance `violation` in `tol` is -1"):
        run(Tolerances(violation=-1))


# --- programs ------------------------------------------------------------------------


def test_a_second_call_with_other_values_traces_nothing():
    traces = []

    def fun(x, center):
        traces.append("fun")
        return bowl(x, center)

    def limit(x, center):
        traces.append("limit")
        return total(x) - center + 2

    def run(center, upper):
        limits = inequality(limit, upper=upper)
        return minimize(fun, ZEROS, args=center, constraints=limits).params[0]

    first, n = run(2.0, 1.0), len(traces)
    assert n > 0 and run(3.0, 2.0) != first and len(traces) == n
    jitted = jax.jit(run)
    np.testing.assert_allclose(jitted(2.0, 1.0), first, rtol=1e-5)
    n = len(traces)
    jitted(3.0, 2.0)
    assert len(traces) == n


def test_programs_do_not_outlive_the_functions_of_constraints():
    fun = lambda x: bowl(x)

    def limit(x):
        return total(x) - 1

    minimize(fun, ZEROS, constraints=limit)
    seen = weakref.ref(limit)
    del limit
    gc.collect()
    assert seen() is None


def test_evaluations_are_those_of_the_function(x64):
    calls = []

    def fun(x):
        jax.debug.callback(lambda _: calls.append(1), x[0])
        return bowl(x)

    found = minimize(fun, jnp.zeros(2), constraints=FORMS["upper"])
    jax.effects_barrier()
    # One more derivative at the start is of the constraints.
    assert abs(len(calls) - found.evaluations) <= 1


def test_many_starts_are_one_program():
    starts = jax.random.normal(jax.random.key(0), (4, 2))
    limit = inequality(lambda x: x[0] + x[1] ** 3, upper=1.0)
    run = lambda x: minimize(lambda x: jnp.sum((x - 2) ** 2), x, constraints=limit)
    found = jax.jit(jax.vmap(run))(starts)
    assert found.success.all() and found.multipliers.shape == (4,)
    for row in zip(found.params, found.violation, strict=True):
        np.testing.assert_allclose(row[0], run(starts[0]).params, atol=2e-3)
        assert row[1] <= 3.5e-4


def test_what_is_recorded_and_called_back():
    seen = []
    both = lambda x: (bowl(x), {"first": x[0]})
    run = lambda **more: minimize(
        both, ZEROS, constraints=FORMS["upper"], has_aux=True, **more
    )
    found = run(history=50)
    assert found.aux["first"] == found.params[0]
    n = int(found.steps)
    assert np.isfinite(found.history.value[: n + 1]).all()
    assert np.isnan(found.history.value[n + 1 :]).all()
    called = run(callback=lambda result: seen.append(int(result.steps)))
    assert seen and seen == sorted(set(seen)) and seen[-1] == called.steps
    np.testing.assert_allclose(called.params, found.params)
    stopped = run(callback=lambda result: True)
    assert stopped.status is Status.STOPPED_BY_CALLBACK


@pytest.mark.parametrize("limited", [True, False], ids=["constrained", "free"])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_parameters_stay_sharded(kind, limited):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(kind,))
    x = jax.device_put(jnp.zeros(16), NamedSharding(mesh, PartitionSpec("d")))
    limit = inequality(total, upper=16.0) if limited else None
    found = minimize(bowl, x, constraints=limit)
    assert found.success and found.params.sharding.spec == PartitionSpec("d")
    wanted = 1.0 if limited else 2.0
    np.testing.assert_allclose(np.asarray(found.params), wanted, atol=1e-3)


# --- derivatives ---------------------------------------------------------------------


def curved(x, a):
    return (x[0] - a[0]) ** 2 + jnp.exp(x[1]) + x[0] * x[1] * a[1] + total(x**2)


def solved(a, form):
    """The minimum as a function of what the constraints, in some form, depend on."""
    sphere = inequality(lambda x, a: jnp.sum(x**2), upper=a[2])
    plane = equality(lambda x, a: x[0] + a[1] * x[1] + x[2], a[0])
    inactive = inequality(lambda x, a: x[0] * a[2], upper=50.0)
    forms = {
        "sphere": [sphere, inactive],
        "plane": [plane],
        "both": [sphere, plane, inactive],
        "redundant": [plane, equality(lambda x, a: 2 * plane.fun(x, a), 2 * a[0])],
    }
    # Only the limits of the box depend on `a`; the second parameter is at its own.
    bounds = (None, jnp.stack([9.0, -0.1 * a[2], 9.0])) if form == "box" else None
    constraints = forms.get(form, [plane])
    x0 = jnp.array([0.2, -0.3, 0.1])
    return minimize(curved, x0, args=(a,), constraints=constraints, bounds=bounds)


@pytest.mark.parametrize("form", ["sphere", "plane", "both", "redundant", "box"])
def test_derivatives_are_those_of_finite_differences(x64, form):
    a = jnp.array([1.5, 0.4, 1.2])

    def outputs(a):
        found = solved(a, form)
        value = {"params": found.params, "value": found.value}
        return value if form == "redundant" else value | {"m": found.multipliers}

    forward, backward = jax.jacfwd(outputs)(a), jax.jacrev(outputs)(a)
    h = 1e-4  # the error of the minimum, 1e-8, over this
    for i in range(3):
        step = h * jnp.eye(3)[i]
        sides = jax.jit(outputs)(a + step), jax.jit(outputs)(a - step)
        slope = jax.tree.map(lambda x, y: (x - y) / (2 * h), *sides)
        for found in forward, backward:
            column = jax.tree.map(lambda x, i=i: x[..., i], found)
            close = lambda x, y: np.testing.assert_allclose(x, y, atol=2e-3, rtol=2e-3)
            jax.tree.map(close, column, slope)


def test_multipliers_are_slopes_of_the_minimum(x64):
    def value(b):
        found = minimize(bowl, jnp.zeros(2), constraints=inequality(total, upper=b))
        return found.value

    # (2 - b)^2 / 2 * ... : each parameter is b / 2, the value 2 (b / 2 - 2)^2.
    np.testing.assert_allclose(jax.grad(value)(1.0), -3.0, atol=1e-6)
    np.testing.assert_allclose(jax.grad(jax.grad(value))(1.0), 1.0, atol=1e-6)
    assert jax.grad(value)(5.0) == 0  # beyond the minimum


def test_a_large_system_is_solved_without_its_matrix(x64, monkeypatch):
    sizes = jnp.linspace(1, 3, 8)

    def first(b, form):
        fun = lambda x: jnp.sum((x - b) ** 2 * sizes) + jnp.sum(x**4) * form
        limit = equality(total, b**2)
        return minimize(fun, jnp.zeros(8), constraints=limit).params[0]

    wanted = [jax.grad(first)(1.3, form) for form in (0.0, 1.0)]
    monkeypatch.setattr(implicit, "MOST", 4)
    found = [jax.grad(first)(1.3, form) for form in (0.0, 1.0)]
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


# --- bad input -----------------------------------------------------------------------

WRONG: dict[str, Any] = {
    "a number": (3.0, TypeError, "`constraints` is a `float`, expected `equality("),
    "a string in a list": ([DICT, "x"], TypeError, "`constraints[1]` is a `str`"),
    "a dict": ({"type": "equal", "fun": total}, ValueError, "{'type': 'eq' or 'ineq'"),
    "a dict without": ([{"type": "eq"}], ValueError, "`constraints[0]` is a dict of"),
    "order": (inequality(total, 2.0, 1.0), ValueError, "is above `upper`: 2.0 and 1.0"),
    "NaN limit": (
        equality(total, np.nan),
        ValueError,
        "a limit of `constraints` is Na",
    ),
    "text limit": (equality(total, "1"), TypeError, "`lower` of `constraints` holds"),
    "shape": (
        inequality(lambda x: x, upper=jnp.ones(3)),
        ValueError,
        "`upper` of `constraints` has shape (3,), but the function returns shape (2,)",
    ),
    "tree": (
        [inequality(lambda x: {"a": x}, upper={"b": 1.0})],
        ValueError,
        "`upper` of `constraints[0]` is a dict",
    ),
    "None": (
        lambda x: None,
        TypeError,
        "`constraints` returns `None`, expected real",
    ),
    "boolean": (lambda x: x > 1, TypeError, "an array of bool, expected floating-poi"),
    "a leaf": (
        lambda x: {"a": x, "b": "x"},
        TypeError,
        "`constraints` returns at ['b'] a `str`, expected real arrays",
    ),
    "complex": (
        lambda x: jax.lax.complex(x, x),
        TypeError,
        "an array of complex64, expected floatin",
    ),
}


@pytest.mark.thinned
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_constraint_is_an_error(wrong):
    constraints, error, message = WRONG[wrong]
    with pytest.raises(error) as caught:
        minimize(bowl, ZEROS, constraints=constraints)
    assert message in str(caught.value)


@pytest.mark.thinned
@pytest.mark.parametrize("make", [equality, inequality])
def test_a_constraint_needs_a_function(make):
    with pytest.raises(TypeError, match=f"`fun` of `{make.__name__}` is a `float`"):
        make(1.0)


@pytest.mark.few(1)
def test_a_matrix_says_nothing_of_a_tree():
    matrix = scipy.optimize.LinearConstraint(np.ones((1, 2)), 0, 1)
    with pytest.raises(ValueError, match="says nothing of a tree"):
        minimize(lambda p: bowl(p["a"]), {"a": ZEROS}, constraints=[matrix])
