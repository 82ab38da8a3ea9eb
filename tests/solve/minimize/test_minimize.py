"""`minimize`: what it finds, why it stops, what it counts, and what it compiles."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import mlp
from runs import compilations
from scipy import optimize

import stepax
from stepax.solve import Status, Tolerances


def rosenbrock(p):
    return jnp.sum(100 * (p[1:] - p[:-1] ** 2) ** 2 + (1 - p[:-1]) ** 2)


START = (-1.2, 1.0, -0.5, 0.8)
# What compiles quickly, where the method does not matter.
SGD = stepax.sgd(0.3)


def parabola(p):
    return jnp.sum((p - 3) ** 2)


# --- what it finds -------------------------------------------------------------------


def test_the_minimum_of_scipy_is_found_in_as_few_evaluations(x64):
    # Told when to stop, as SciPy is: its default looks at what is left to gain.
    found = stepax.minimize(rosenbrock, jnp.array(START), tol=1.5e-8)
    value_and_grad = jax.jit(jax.value_and_grad(rosenbrock))
    wanted = optimize.minimize(
        lambda p: tuple(map(np.asarray, value_and_grad(p))),
        np.array(START),
        jac=True,
        method="L-BFGS-B",
        options={"gtol": 1.5e-8, "ftol": 0},
    )
    np.testing.assert_allclose(found.params, np.ones(4), atol=1e-7)
    assert found.status is Status.CONVERGED_BY_GRADIENT and found.success
    assert found.grad_norm <= 1.5e-8
    grad = jax.grad(rosenbrock)(found.params)
    np.testing.assert_allclose(found.grad_norm, jnp.max(jnp.abs(grad)), rtol=1e-6)
    np.testing.assert_allclose(found.value, rosenbrock(found.params), rtol=1e-6)
    assert int(found.evaluations) <= 1.5 * wanted.nfev


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "tx",
    [stepax.adam(0.1), stepax.sgd(0.1), optax.sgd(0.1), stepax.polyak_sgd()],
    ids=["adam", "sgd", "Optax's sgd", "polyak"],
)
@jax.numpy_dtype_promotion("standard")  # Optax is not written for the strict one
def test_any_transformation_is_a_method(tx):
    found = stepax.minimize(parabola, jnp.zeros(3), method=tx)
    assert found.status is Status.CONVERGED_BY_GRADIENT
    np.testing.assert_allclose(found.params, 3 * np.ones(3), atol=2e-4)
    assert found.evaluations == found.steps + 1


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")
def test_lbfgs_of_optax_is_driven_as_ours(x64):
    runs = [
        stepax.minimize(rosenbrock, jnp.array(START), method=tx)
        for tx in (stepax.lbfgs(), optax.lbfgs())
    ]
    for found in runs:
        assert found.status is Status.CONVERGED_BY_GRADIENT
        assert int(found.evaluations) < 1.5 * int(found.steps)
        np.testing.assert_allclose(found.params, np.ones(4), atol=1e-7)


def test_a_search_that_is_not_the_last_is_not_believed():
    tx = stepax.chain(stepax.lbfgs(), stepax.keep_params_nonnegative())
    found = stepax.minimize(lambda p: jnp.sum((p + 1) ** 2), jnp.ones(2), method=tx)
    np.testing.assert_array_equal(found.params, 0)  # the search has led to -1
    np.testing.assert_array_equal(found.value, 2)


@pytest.mark.slow
def test_a_whole_module_moves_what_is_trainable():
    x = jnp.linspace(-1, 1, 16).reshape(8, 2)
    loss = lambda model: jnp.mean((jax.vmap(model)(x) - jnp.sin(3 * x)) ** 2)
    found = stepax.minimize(loss, mlp(), max_steps=20)
    assert found.value < 0.75 * loss(mlp())  # a ReLU dies on the way
    assert found.params.activation is mlp().activation
    np.testing.assert_allclose(loss(found.params), found.value, rtol=1e-5)


def test_flags_keys_and_none_stay():
    x0 = {
        "w": jnp.ones(2),
        "flag": jnp.array([True, False]),
        "key": jax.random.key(0),
        "none": None,
        "name": "a",
        "number": 2.0,
    }
    fun = lambda p: jnp.sum((p["w"] - p["flag"]) ** 2) + p["number"] ** 2
    with jax.numpy_dtype_promotion("standard"):
        found = stepax.minimize(fun, x0, method=SGD)
    np.testing.assert_allclose(found.params["w"], [1, 0], atol=1e-3)
    assert found.params["key"] is not None and found.params["name"] == "a"
    assert found.params["none"] is None and abs(found.params["number"]) < 1e-3


def test_masks_by_path_see_the_names_of_the_start():
    x0 = {"weight": jnp.ones(2), "bias": jnp.ones(2)}
    tx = stepax.partition(
        {"move": stepax.sgd(0.1), "stay": stepax.set_to_zero()},
        {"bias": "stay", "**": "move"},
    )
    fun = lambda p: jnp.sum(p["weight"] ** 2) + jnp.sum(p["bias"] ** 2)
    found = stepax.minimize(fun, x0, method=tx, max_steps=50)
    np.testing.assert_array_equal(found.params["bias"], 1)
    assert jnp.max(found.params["weight"]) < 1e-3


@pytest.mark.slow
def test_complex_parameters_go_down(x64):
    scale = jnp.array([1.0, 10.0])
    fun = lambda z: jnp.sum(scale * jnp.abs(z - (1 + 2j)) ** 2)
    for method in ("lbfgs", stepax.sgd(0.05)):
        found = stepax.minimize(fun, jnp.array([3 + 0j, 1j]), method=method)
        np.testing.assert_allclose(found.params, [1 + 2j, 1 + 2j], atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_parameters_have_a_wide_value(dtype):
    fun = lambda p: jnp.sum((p.astype(jnp.float32) - 1) ** 2)
    found = stepax.minimize(fun, jnp.array([3.0, -2.0], dtype))
    assert found.success and found.params.dtype == dtype
    assert found.value.dtype == jnp.float32


def test_what_the_function_returns_besides_is_that_of_the_result():
    fun = lambda p, c: (jnp.sum((p - c) ** 2), {"double": 2 * p})
    more = {"method": SGD, "has_aux": True}
    found = stepax.minimize(fun, jnp.zeros(2), args=(3.0,), **more)
    np.testing.assert_array_equal(found.aux["double"], 2 * found.params)
    without = stepax.minimize(parabola, jnp.zeros(2), method=SGD)
    assert found.evaluations == without.evaluations + 1 and without.aux is None


# --- why it stops --------------------------------------------------------------------


def test_the_start_may_be_the_end():
    at_minimum = stepax.minimize(parabola, 3 * jnp.ones(2))
    assert at_minimum.status is Status.CONVERGED_BY_GRADIENT
    assert at_minimum.steps == 0 and at_minimum.evaluations == 1
    none = stepax.minimize(parabola, jnp.zeros(2), max_steps=0)
    assert none.status is Status.ITERATION_LIMIT and none.steps == 0
    nan = stepax.minimize(lambda p: jnp.sum(jnp.log(p)), -jnp.ones(2), method=SGD)
    assert nan.status is Status.NOT_FINITE and nan.steps == 0
    assert "not finite, at the start" in nan.status.message
    np.testing.assert_array_equal(nan.params, -1)


def test_the_last_finite_parameters_are_kept():
    # It ends where the root is of a negative number.
    found = stepax.minimize(
        lambda p: jnp.sum(jnp.sqrt(p + 5)), jnp.ones(2), method=stepax.sgd(9.0)
    )
    assert found.status is Status.NOT_FINITE and found.steps > 1
    assert np.isfinite(found.params).all() and np.isfinite(found.value)


def test_a_wrong_gradient_fails_after_one_more_search_without_memory():
    @jax.custom_vjp
    def fun(p):
        return jnp.sum(p)

    fun.defvjp(lambda p: (fun(p), p), lambda p, ct: (-ct * jnp.ones_like(p),))
    found = stepax.minimize(fun, jnp.ones(2))
    assert found.status is Status.LINE_SEARCH_FAILED
    # Each search takes a rise of 1e-6 for rounding; together they stay below 1e-5.
    np.testing.assert_allclose(found.params, 1, rtol=2e-5)
    assert found.steps < 30


def test_rounding_ends_a_search_by_value():
    random = np.random.RandomState(0)
    a, b = random.randn(20, 5).astype("float32"), random.randn(20).astype("float32")
    found = stepax.minimize(lambda p: jnp.sum((a @ p - b) ** 2), jnp.zeros(5), tol=0.0)
    assert found.status is Status.CONVERGED_BY_VALUE and found.steps < 30
    best = np.linalg.lstsq(a, b, rcond=None)[0]
    np.testing.assert_allclose(found.params, best, atol=1e-6)


def meyer(p):
    """Number 10 of Moré, Garbow and Hillstrom, 1981, whose numbers span ten decades."""
    x, y, z = p
    t = 45 + 5 * jnp.arange(1.0, 17.0)
    return jnp.sum((x * jnp.exp(y / (t + z)) - 34780 * jnp.exp(-(t - 50) / 15)) ** 2)


def rank_one(p):
    """Number 33 of the same, of one equation as many times as there are variables."""
    k = jnp.arange(1.0, 11.0)
    return jnp.sum((k * jnp.sum(k * p) - 1) ** 2)


# Where rounding is larger than what is left to gain, searches lead to and fro, or are
# refused every other time.
LIMITS = {"meyer": (meyer, (0.02, 4000.0, 250.0)), "rank one": (rank_one, (1.0,) * 10)}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
def test_the_limit_of_precision_is_an_end(name):
    fun, start = LIMITS[name]
    found = stepax.minimize(fun, jnp.array(start), tol=0.0)
    assert found.status in (Status.CONVERGED_BY_VALUE, Status.LINE_SEARCH_FAILED)
    assert found.evaluations < 200


@pytest.mark.slow
def test_one_short_step_is_no_end():
    flat = stepax.sgd(lambda t: jnp.where(jnp.asarray(t) % 3 == 0, 0.3, 1e-6))
    tol = Tolerances(gradient=0.1, value=1e-4, step=1e-4)
    found = stepax.minimize(parabola, jnp.zeros(2), method=flat, tol=tol)
    assert found.status is Status.CONVERGED_BY_GRADIENT
    still = stepax.minimize(parabola, jnp.zeros(2), method=stepax.sgd(1e-7), tol=tol)
    assert still.status is Status.CONVERGED_BY_VALUE and still.steps == 5
    tol = tol._replace(value=0)
    still = stepax.minimize(parabola, jnp.ones(2), method=stepax.sgd(1e-7), tol=tol)
    assert still.status is Status.CONVERGED_BY_STEP and still.steps == 5
    # A method without a search is not believed to have converged where it rests, nor
    # is one with a tolerance of 0, which is off.
    rests = stepax.minimize(parabola, jnp.zeros(2), method=stepax.sgd(0.0), max_steps=9)
    assert rests.status is Status.ITERATION_LIMIT
    off = Tolerances(value=0, step=0)
    rests = stepax.minimize(
        parabola, jnp.zeros(2), method=stepax.sgd(0.0), max_steps=9, tol=off
    )
    assert rests.status is Status.ITERATION_LIMIT


def test_the_limit_is_that_of_scipy():
    found = stepax.minimize(parabola, jnp.zeros(1), method=stepax.sgd(1e-9))
    assert found.status is Status.ITERATION_LIMIT and found.steps == 15_000


@pytest.mark.slow
def test_history_is_that_of_each_step():
    x0 = jnp.array(START)
    found = stepax.minimize(rosenbrock, x0, history=True, max_steps=100)
    n = int(found.steps)
    assert found.history is not None and found.history.value.shape == (101,)
    assert np.isfinite(found.history.value[: n + 1]).all()
    assert np.isnan(found.history.value[n + 1 :]).all()
    np.testing.assert_array_equal(found.history.value[0], rosenbrock(x0))
    np.testing.assert_array_equal(found.history.grad_norm[n], found.grad_norm)
    assert np.all(np.diff(found.history.value[: n + 1]) <= 1e-6)
    few = stepax.minimize(parabola, x0, method=SGD, history=2)
    assert few.history is not None and few.history.value.shape == (3,)
    assert few.steps > 2 and np.isfinite(few.history.value).all()


# --- what it counts and compiles -----------------------------------------------------


@pytest.mark.parametrize("method", ["lbfgs", stepax.adam(0.1)], ids=["lbfgs", "adam"])
@pytest.mark.parametrize("has_aux", [False, True])
def test_the_function_is_twice_in_the_program(method, has_aux):
    calls = []

    def fun(p):
        calls.append(None)
        value = jnp.sum(jnp.cosh(p))
        return (value, p) if has_aux else value

    run = lambda x: stepax.minimize(fun, x, method=method, has_aux=has_aux).params
    program = str(jax.make_jaxpr(run)(jnp.ones(3)))
    assert program.count(" cosh ") == 2 + has_aux
    assert len(calls) <= 2  # to look for tracers, and to compile


@pytest.mark.slow
def test_evaluations_are_those_that_are_made():
    seen = []

    def fun(p):
        jax.debug.callback(lambda: seen.append(None))
        return rosenbrock(p)

    for method in ("lbfgs", stepax.sgd(1e-3)):
        seen.clear()
        found = stepax.minimize(fun, jnp.array(START), method=method, max_steps=15)
        jax.effects_barrier()
        assert len(seen) == found.evaluations


@pytest.mark.slow
def test_a_second_call_compiles_nothing():
    starts = np.random.RandomState(0).randn(4, 4).astype("float32")
    c = [jnp.float32(1), jnp.float32(2)]
    fun = lambda p, c: rosenbrock(p) + c * jnp.sum(p**2)
    run = lambda i, **more: stepax.minimize(fun, starts[i], args=(c[i % 2],), **more)
    first = run(0, tol=1e-3)
    run(3, method=stepax.sgd(1e-3), tol=1e-3)
    with compilations() as found:
        run(1, tol=1e-2, max_steps=7)
        again = run(0, tol=1e-3)
        run(2, method=stepax.sgd(1e-3), tol=Tolerances(gradient=1e-2))
    assert not found
    np.testing.assert_array_equal(first.params, again.params)
    one = lambda p: stepax.minimize(fun, p, args=(c[0],), method=SGD).params
    batch = jax.vmap(one)
    batch(starts)
    with compilations() as found:
        batch(starts[::-1].copy())
    assert not found


@pytest.mark.slow
def test_a_program_dies_with_its_function():
    data = jnp.ones(7)
    fun = lambda p: jnp.sum((p - data) ** 2)
    alive = weakref.ref(fun)
    stepax.minimize(fun, jnp.zeros(7), method=SGD)
    del fun
    gc.collect()
    assert alive() is None


@pytest.mark.slow
def test_what_a_function_closes_over_is_kept_once_and_as_long_as_it():
    size = 54_321
    held = lambda: sum(x.size == size for x in jax.live_arrays())
    for method in ("lbfgs", SGD, stepax.lbfgs()):
        data = jnp.ones(size)
        fun = lambda p, data=data: jnp.sum((p - jnp.mean(data)) ** 2)
        also = lambda p, f=fun: f(p)
        del data
        for f in (fun, also):
            found = stepax.minimize(f, jnp.zeros(2), method=method)
            np.testing.assert_allclose(found.params, 1, atol=1e-3)
        gc.collect()
        assert held() == 1
        del fun, also, f
        gc.collect()
        assert held() == 0


class Distance:
    __slots__ = ("center",)  # nothing can refer to it weakly

    def __init__(self, center):
        self.center = center

    def __call__(self, p):
        return jnp.sum((p - self.center) ** 2)


class Weighted(Distance):
    __hash__: None  # type: ignore[assignment]  # as of a module that holds arrays

    def __eq__(self, other):
        raise ValueError("the truth of an array")

    def doubled(self, p):
        return 2 * self(p)


def test_objects_and_their_methods_are_functions():
    fun = Weighted(1.0)
    for f in (Distance(1.0), fun, fun.doubled):
        found = stepax.minimize(f, jnp.zeros(2), method=SGD)
        np.testing.assert_allclose(found.params, 1, atol=1e-3)
    with compilations() as made:
        stepax.minimize(fun, jnp.zeros(2), method=SGD)
        stepax.minimize(fun.doubled, jnp.zeros(2), method=SGD)
    assert not made
