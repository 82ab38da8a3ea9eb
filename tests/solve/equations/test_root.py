"""Roots, fixed points, and derivatives for other solvers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import systems

import stepax
from stepax.solve import Status, Tolerances


def curves(x, a):
    return {"u": x["u"] ** 2 + x["v"] - a, "v": jnp.sin(x["v"]) - 0.1 * x["u"]}


START = {"u": 1.0, "v": 0.5}
# Without a root: the published starts lead to a minimum of |f|².
HARD = {"Chebyquad 8"}


@pytest.mark.parametrize("system", systems.collect(), ids=lambda x: x.name)
@pytest.mark.few(1)
def test_what_hybr_solves_is_solved(system, x64):
    found = stepax.solve.root(system.fun, jnp.asarray(system.x0))
    if system.name in HARD:
        assert found.status == Status.STUCK
        return
    assert found.success, found
    assert np.max(np.abs(system.fun(found.params))) <= 1e-6


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ("newton", "krylov", "broyden"))
def test_each_method_solves_a_tree_and_has_derivatives(method, x64):
    run = jax.jit(
        lambda a: stepax.solve.root(curves, START, args=a, method=method, tol=1e-12)
    )
    found = run(2.0)
    assert found.success and found.value <= 1e-12
    assert found.residuals["u"].shape == ()
    h = 1e-5
    wanted = (run(2.0 + h).params["u"] - run(2.0 - h).params["u"]) / (2 * h)
    for derivative in (jax.jacfwd, jax.jacrev):
        slope = jax.jit(derivative(lambda a: run(a).params))(2.0)["u"]
        # Differences of order h².
        np.testing.assert_allclose(slope, wanted, rtol=1e-8)


@pytest.mark.slow("test_each_method_solves_a_tree_and_has_derivatives")
@pytest.mark.parametrize("method", ("newton", "krylov", "broyden"))
def test_each_method_has_second_derivatives(method, x64):
    run = lambda a: stepax.solve.root(curves, START, args=a, method=method, tol=1e-12)
    h = 1e-5
    second = jax.hessian(lambda a: run(a).params["u"])(2.0)
    ups, downs = (jax.grad(lambda a: run(a).params["u"])(2.0 + t) for t in (h, -h))
    np.testing.assert_allclose(second, (ups - downs) / (2 * h), rtol=1e-6)


def test_many_unknowns_need_no_matrix():
    n = 2000
    found = stepax.solve.root(systems.broyden_tridiagonal, -jnp.ones(n))
    assert found.success
    products = jax.make_jaxpr(
        lambda x: stepax.solve.root(systems.broyden_tridiagonal, x)
    )
    shapes = {
        v.aval.shape for e in products(-jnp.ones(n)).jaxpr.eqns for v in e.outvars
    }
    assert (n, n) not in shapes


cube = lambda x, a: x**3 - a


@pytest.mark.slow
def test_brackets_hold_their_roots(x64):
    a = jnp.linspace(0.0, 8.0, 5)
    found = stepax.solve.root(cube, bracket=(-1.0, jnp.full(5, 3.0)), args=a)
    assert found.success
    np.testing.assert_allclose(found.params, np.cbrt(a), atol=1e-14)
    slope = jax.grad(lambda a: stepax.solve.root(cube, bracket=(0, 3), args=a).params)
    np.testing.assert_allclose(jax.jit(slope)(8.0), 1 / 12, rtol=1e-12)


HOSTILE = {
    "flat": (lambda x: x**9, -1.0, 4.0, 0.0),
    "steep": (lambda x: jnp.sign(x - 0.3) * jnp.abs(x - 0.3) ** 0.1, 0.0, 1.0, 0.3),
    "a jump": (lambda x: jnp.where(x > 0.7, 1e30, -1e-30), -5.0, 9.0, 0.7),
    "a pole beside it": (lambda x: 1 / (x + 1.0001) - 5, -1.0, 60.0, -0.8001),
    "exponential": (lambda x: jnp.exp(x) - 2, -90.0, 90.0, np.log(2)),
    "far away": (lambda x: x - 1e7, 0.0, 1e12, 1e7),
    "at an end": (lambda x: x, 0.0, 1.0, 0.0),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.few(2)
def test_a_bracket_cannot_fail(name, x64):
    f, lower, upper, wanted = HOSTILE[name]
    found = stepax.solve.root(f, bracket=(lower, upper))
    width = upper - lower
    assert found.success
    # Bisection to 4 eps of the larger end, and eight steps more.
    assert int(found.steps) <= np.log2(1 / np.finfo(float).eps) + 9
    if name != "flat":  # whose values are 0 nearby
        np.testing.assert_allclose(found.params, wanted, atol=1e-15 * width)


def test_a_bracket_without_a_change_of_sign_is_named():
    found = stepax.solve.root(
        cube, bracket=(0.0, jnp.ones(2)), args=jnp.array([0.5, 8.0])
    )
    assert found.status == Status.NO_SIGN_CHANGE and not found.success
    assert "same sign" in found.status.message
    np.testing.assert_allclose(found.params[0], 0.5 ** (1 / 3), rtol=1e-5)


def test_why_it_stops():
    run = lambda f, x=1.0, **more: stepax.solve.root(f, x, **more).status
    assert run(lambda x: x - 3) == Status.CONVERGED_BY_RESIDUAL
    assert run(lambda x: x**2 + 1) == Status.STUCK
    assert run(lambda x: jnp.log(x - 5)) == Status.NOT_FINITE
    assert run(cube, args=5.0, max_steps=1) == Status.ITERATION_LIMIT
    assert run(cube, args=5.0, callback=lambda r: True) == Status.STOPPED_BY_CALLBACK
    # Rounding leaves a residual far above the tolerance.
    assert run(lambda x: 1e12 * (x**3 - 0.3)) == Status.CONVERGED_BY_STEP
    assert all(x.message.endswith(".") for x in Status)


def test_small_functions_do_not_look_like_roots():
    found = stepax.solve.root(lambda x: 1e-12 * (x**3 - 8), 1.0)
    np.testing.assert_allclose(found.params, 2, rtol=1e-4)


@pytest.mark.slow
def test_a_batch_of_roots_history_and_aux():
    f = lambda x, a: (cube(x, a), a)
    a = jnp.array([1.0, 8.0, 27.0])
    run = lambda a: stepax.solve.root(f, 1.0, args=a, has_aux=True, history=30)
    batch = jax.jit(jax.vmap(run))(a)
    np.testing.assert_allclose(batch.params, [1, 2, 3], rtol=1e-5)
    np.testing.assert_array_equal(batch.aux, a)
    assert len(set(batch.steps.tolist())) > 1
    for i, one in enumerate(map(run, a)):
        assert one.steps == batch.steps[i] and one.history and batch.history
        np.testing.assert_allclose(one.history.value, batch.history.value[i], atol=1e-4)


# --- fixed points --------------------------------------------------------------------


def cosines(x, a):
    return jax.tree.map(lambda y: jnp.cos(y) * a, x)


@pytest.mark.parametrize("memory", (0, 1, 5))
@pytest.mark.parametrize("damping", (1.0, 0.5))
@pytest.mark.few(1)
def test_fixed_points_are_found(memory, damping, x64):
    start = {"x": jnp.arange(3.0), "name": "cosine"}
    f = lambda p, a: {"x": jnp.cos(p["x"]) * a, "name": p["name"]}
    run = lambda a: stepax.solve.fixed_point(
        f, start, args=a, memory=memory, damping=damping, tol=1e-13
    )
    found = run(0.9)
    x = found.params["x"]
    assert found.success and found.params["name"] == "cosine"
    np.testing.assert_allclose(x, 0.9 * np.cos(x), atol=2e-13)
    slope = jax.jit(jax.jacrev(lambda a: run(a).params["x"]))(0.9)
    np.testing.assert_allclose(slope, np.cos(x) / (1 + 0.9 * np.sin(x)), rtol=1e-9)


def test_acceleration_saves_evaluations():
    def jacobi(x):
        wide = jnp.pad(x, 1)
        return (wide[:-2] + wide[2:] + 0.01) / 2

    plain, fast = (
        stepax.solve.fixed_point(jacobi, jnp.zeros(10), memory=m).evaluations
        for m in (0, 5)
    )
    assert int(fast) <= 0.3 * int(plain)


def test_a_memory_above_the_number_of_unknowns_and_an_exact_start():
    assert stepax.solve.fixed_point(jnp.cos, 0.1, memory=9).success
    assert stepax.solve.fixed_point(lambda x: x, jnp.ones(2)).steps == 0


def test_expansions_do_not_converge():
    found = stepax.solve.fixed_point(lambda x: 2 * x + 1, 1.0, memory=0)
    assert found.status == Status.NOT_FINITE
    # Acceleration finds it nevertheless, as the secant of a line is exact.
    np.testing.assert_allclose(
        stepax.solve.fixed_point(lambda x: 2 * x + 1, 1.0).params, -1
    )


def test_tolerances_by_step():
    tol = Tolerances(gradient=0.0, step=1e-2)
    for found in (
        stepax.solve.fixed_point(jnp.cos, 0.1, tol=tol),
        stepax.solve.root(lambda x: x - jnp.cos(x), 0.1, tol=tol, method="krylov"),
        stepax.solve.root(lambda x: x - jnp.cos(x), bracket=(0.0, 1.0), tol=tol),
    ):
        assert found.status == Status.CONVERGED_BY_STEP
        np.testing.assert_allclose(found.params, 0.739085, atol=1e-2)


# --- solvers of one's own ------------------------------------------------------------


def test_a_solver_of_ones_own_has_derivatives(x64):
    @stepax.solve.implicit(fixed_point=lambda x, a: jnp.cos(x) * a)
    def loop(x, a, count=60):
        return jax.lax.while_loop(
            lambda s: s[1] < count, lambda s: (jnp.cos(s[0]) * a, s[1] + 1), (x, 0)
        )[0]

    x = loop(1.0, 0.9)
    wanted = jnp.cos(x) / (1 + 0.9 * jnp.sin(x))
    for derivative in (jax.grad, jax.jacfwd):
        slope = jax.jit(derivative(loop, 1))(1.0, 0.9)
        np.testing.assert_allclose(slope, wanted, rtol=1e-8)
    assert jax.grad(loop)(1.0, 0.9) == 0
    jax.jit(jax.grad(lambda a: loop(1.0, a, count=70)))(0.9)


@pytest.mark.few(1)
@pytest.mark.parametrize("derivative", (jax.jacfwd, jax.jacrev))
def test_optimality_of_a_tree_with_aux_and_closed_values(derivative, x64):
    matrix = jnp.array([[3.0, 1.0], [1.0, 2.0]])

    def solution(weight, b):
        loss = lambda p, b: 0.5 * p["w"] @ matrix @ p["w"] * weight - p["w"] @ b

        @stepax.solve.implicit(jax.grad(loss), has_aux=True)
        def solver(start, b):
            return {"w": jnp.linalg.solve(matrix * weight, b)}, {"calls": 1}

        found, aux = solver(None, b)
        assert aux == {"calls": 1}
        return found["w"]

    exact = lambda weight, b: jnp.linalg.solve(matrix * weight, b)
    at = jnp.asarray(1.5), jnp.array([1.0, -1.0])
    found, wanted = (jax.jit(derivative(f, (0, 1)))(*at) for f in (solution, exact))
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9)


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ("newton", "krylov", "broyden"))
@pytest.mark.parametrize("unit", (1e-20, 1e-6, 1e12))
def test_the_unit_of_the_function_changes_no_status(method, unit, x64):
    cubes = lambda x: unit * (x**3 - jnp.array([2.0, 5.0]))
    found = stepax.solve.root(cubes, jnp.ones(2), method=method)
    assert found.success
    np.testing.assert_allclose(found.params, np.cbrt([2.0, 5.0]), rtol=1e-8)
    none = stepax.solve.root(lambda x: unit * (x**2 + 1), jnp.ones(2), method=method)
    assert none.status == Status.STUCK


@pytest.mark.few(1)
@pytest.mark.parametrize("derivative", (jax.jacfwd, jax.jacrev))
def test_the_derivative_of_a_singular_solution_is_no_number(derivative, x64):
    stay = lambda x, a: x - (x - a) ** 3
    fixed = lambda a: stepax.solve.fixed_point(stay, 1.5, args=(a,)).params
    root = lambda a: stepax.solve.root(lambda x, a: (x - a) ** 3, 1.5, args=a).params
    own = stepax.solve.implicit(fixed_point=stay)(lambda x0, a: a)
    for solve in (fixed, root, lambda a: own(1.0, a)):
        assert jnp.isnan(jax.jit(derivative(solve))(1.5))


# --- bad input -----------------------------------------------------------------------

ONE = jnp.ones(2)
wrongly: Any = stepax.solve  # called with arguments of wrong types
REFUSED = {
    "no function": (lambda: wrongly.root("f", ONE), TypeError, "`f` is a `str`"),
    "no start": (lambda: wrongly.root(jnp.sin), ValueError, "a `bracket`"),
    "integers": (lambda: wrongly.root(jnp.sin, 1), TypeError, "holds integers"),
    "another shape": (
        lambda: wrongly.root(lambda x: x[:1], ONE),
        ValueError,
        r"shape \(1,\).*`least_squares`",
    ),
    "another structure": (
        lambda: wrongly.fixed_point(lambda x: {"a": x}, {"b": ONE}),
        ValueError,
        "structure of its parameters",
    ),
    "an integer value": (
        lambda: wrongly.root(lambda x: jnp.arange(2), ONE),
        TypeError,
        "int32",
    ),
    "method": (
        lambda: wrongly.root(jnp.sin, ONE, method="hybr"),
        ValueError,
        r"'hybr', expected one of \['auto', 'newton'",
    ),
    "a tree for an array": (
        lambda: wrongly.root(lambda x: {"a": x}, ONE),
        ValueError,
        "`f` returns a dict of 1, expected a tree with the structure",
    ),
    "method and bracket": (
        lambda: wrongly.root(jnp.sin, bracket=(0.0, 1.0), method="newton"),
        ValueError,
        "omit one",
    ),
    "half a bracket": (
        lambda: wrongly.root(jnp.sin, bracket=(0.0, None)),
        ValueError,
        "expected a pair",
    ),
    "an infinite bracket": (
        lambda: wrongly.root(jnp.sin, bracket=(0.0, np.inf)),
        ValueError,
        "finite",
    ),
    "a bracket upside down": (
        lambda: wrongly.root(jnp.sin, bracket=(1.0, -1.0)),
        ValueError,
        "cross",
    ),
    "memory": (
        lambda: wrongly.fixed_point(jnp.cos, ONE, memory=-1),
        ValueError,
        "`memory`",
    ),
    "damping": (
        lambda: wrongly.fixed_point(jnp.cos, ONE, damping=1.5),
        ValueError,
        r"\(0, 1\]",
    ),
    "SciPy's word": (
        lambda: wrongly.root(jnp.sin, ONE, fprime=jnp.cos),
        TypeError,
        "JAX differentiates",
    ),
    "JAXopt's word": (
        lambda: wrongly.fixed_point(jnp.cos, ONE, history_size=3),
        TypeError,
        "`memory=3`",
    ),
    "both conditions": (
        lambda: wrongly.implicit(jnp.sin, fixed_point=jnp.cos),
        TypeError,
        "either `optimality` or `fixed_point`",
    ),
    "no condition": (lambda: wrongly.implicit("f"), TypeError, "above the solver"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_raise_errors(name):
    call, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        call()
