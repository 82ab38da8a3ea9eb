"""Least squares: what is found, for which trees, losses, bounds and solvers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import more_garbow_hillstrom as few, strd
from problems.systems import stacked
from scipy import optimize

import stepax
from benchmarks.honest import starts
from stepax.solve import Status, Tolerances


_X = np.linspace(0, 4, 30)
_Y = 2.5 * np.exp(-1.3 * _X) + 0.5 + 0.05 * np.random.RandomState(0).randn(30)


def decay(p, y=_Y):
    return (
        p[0] * jnp.exp(-p[1] * jnp.asarray(_X, p.dtype))
        + p[2]
        - jnp.asarray(y, p.dtype)
    )


START = np.array([1.0, 1.0, 0.0])


def scipys(**options):
    fun = lambda p: p[0] * np.exp(-p[1] * _X) + p[2] - _Y
    return optimize.least_squares(fun, START, xtol=1e-12, ftol=1e-12, **options)


@pytest.mark.parametrize("row", few.TABLE, ids=lambda x: f"{x[0]}-{len(x[2])}")
@pytest.mark.few(1)
def test_standard_problems_are_solved(row, x64):
    _, fun, start, minimum = row
    found = stepax.solve.least_squares(stacked(fun), jnp.asarray(start, float))
    # Two of these have a minimum besides the published one.
    others = {"freudenstein_roth": [0.0], "biggs_exp6": [0.0]}
    wanted = [minimum, *others.get(fun.__name__, [])]
    best = min(abs(2 * float(found.value) - x) / max(1, x) for x in wanted)
    assert found.success and best <= 1e-6, found


@pytest.mark.parametrize("name", ("Chwirut2", "Kirby2", "Hahn1", "Rat43"))
@pytest.mark.few(1)
def test_float32_has_more_digits_than_the_value_shows(name):
    (fit,) = (x for x in strd.collect() if x.name == name)
    start = jnp.asarray(fit.starts[1], jnp.float32)
    found = stepax.solve.least_squares(fit.residuals, start)
    # Parameters that are wrong by 1e-4 change these values by less than rounding does.
    np.testing.assert_allclose(found.params, fit.certified, rtol=1e-4)
    assert found.success and found.evaluations < 30


@pytest.mark.parametrize("fit", strd.collect(), ids=lambda x: x.name)
@pytest.mark.parametrize("i", (0, 1))
@pytest.mark.few(1)
def test_certified_values_are_found(fit, i, x64):
    found = stepax.solve.least_squares(
        fit.residuals, jnp.asarray(fit.starts[i]), max_steps=5000
    )
    # Four digits: the value is flat there, to which the default tolerance applies.
    np.testing.assert_allclose(found.params, fit.certified, rtol=1e-4)
    deviations = jnp.sqrt(jnp.diag(found.covariance()))
    np.testing.assert_allclose(deviations, fit.deviations, rtol=1e-2)


def test_a_plateau_is_left(x64):
    (fit,) = [x for x in strd.collect() if x.name == "BoxBOD"]
    found = stepax.solve.least_squares(fit.residuals, jnp.asarray(fit.starts[0]))
    np.testing.assert_allclose(found.params, fit.certified, rtol=1e-5)


@pytest.mark.parametrize("loss", ("huber", "soft_l1", "cauchy"))
@pytest.mark.few(1)
def test_robust_losses_are_those_of_scipy(loss, x64):
    y = _Y.copy()
    y[[3, 17]] += 3
    found = stepax.solve.least_squares(decay, START, args=(y,), loss=loss, scale=0.1)
    fun = lambda p: p[0] * np.exp(-p[1] * _X) + p[2] - y
    wanted = optimize.least_squares(
        fun, START, loss=loss, f_scale=0.1, xtol=1e-12, ftol=1e-12
    )
    np.testing.assert_allclose(found.params, wanted.x, rtol=1e-5)
    np.testing.assert_allclose(found.value, wanted.cost, rtol=1e-9)


BOUNDS = {
    "none active": ([0, 0, -1], [9, 9, 9]),
    "one active": ([0, 1.5, -1], [9, 9, 9]),
    "two active": ([0, 1.5, -1], [9, 9, 0.3]),
    "one fixed": ([0, 0, 0.2], [9, 9, 0.2]),
}


@pytest.mark.parametrize("solver", ("qr", "cg"))
@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.few(1)
def test_bounded_minima_are_those_of_scipy(name, solver, x64):
    lower, upper = (np.array(x, float) for x in BOUNDS[name])
    found = stepax.solve.least_squares(
        decay, START, bounds=(lower, upper), solver=solver, project=True
    )
    # SciPy takes no parameter whose bounds are equal.
    wide = upper + 1e-9 * (lower == upper)
    start = np.clip(START, lower, wide)
    fun = lambda p: p[0] * np.exp(-p[1] * _X) + p[2] - _Y
    wanted = optimize.least_squares(
        fun, start, bounds=(lower, wide), xtol=1e-12, ftol=1e-12
    )
    assert found.success
    np.testing.assert_allclose(found.params, wanted.x, rtol=1e-5, atol=1e-7)
    assert np.all(found.params >= lower) and np.all(found.params <= upper)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options", ({"solver": "cg"}, {"jacobian": "reverse"}), ids=str
)
def test_every_way_to_the_jacobian_finds_the_minimum(options, x64):
    found = stepax.solve.least_squares(decay, START, **options)
    np.testing.assert_allclose(found.params, scipys().x, rtol=1e-5)
    assert (found.factor is None) == ("solver" in options)


class Line(eqx.Module):
    weights: dict
    name: str

    def __call__(self, x):
        return self.weights["a"] * x + self.weights["b"]


def test_modules_and_trees_of_residuals():
    line = Line({"a": jnp.zeros([]), "b": jnp.zeros(1)}, "line")
    x = jnp.arange(4.0)

    def residuals(line):
        error = line(x) - (2 * x + 1)
        return {"left": error[:2], "right": [error[2:]], "none": ()}

    found = stepax.solve.least_squares(residuals, line)
    assert found.params.name == "line"
    np.testing.assert_allclose(found.params.weights["a"], 2, rtol=1e-5)
    np.testing.assert_allclose(found.params.weights["b"], [1], rtol=1e-5)
    assert found.residuals["right"][0].shape == (2,)
    blocks = found.covariance(1.0).weights
    assert blocks["a"].weights["a"].shape == ()
    assert blocks["a"].weights["b"].shape == blocks["b"].weights["a"].shape == (1,)
    assert blocks["b"].weights["b"].shape == (1, 1)
    design = np.stack([x, np.ones(4)], 1)
    wanted = np.linalg.inv(design.T @ design)
    np.testing.assert_allclose(found.covariance(1.0, matrix=True), wanted, rtol=1e-4)
    np.testing.assert_allclose(blocks["a"].weights["b"][0], wanted[0, 1], rtol=1e-4)


def test_complex_parameters_and_residuals():
    target = jnp.array([1 + 2j, -0.5j])
    found = stepax.solve.least_squares(
        lambda z: 3 * (z - target) * (1 + 1j), 0 * target
    )
    np.testing.assert_allclose(found.params, target, atol=1e-6)
    assert jnp.iscomplexobj(found.residuals)


def test_covariance_is_that_of_curve_fit(x64):
    found = stepax.solve.least_squares(decay, START)
    model = lambda x, a, b, c: a * np.exp(-b * x) + c
    _, wanted = optimize.curve_fit(model, _X, _Y, START)
    np.testing.assert_allclose(found.covariance(), wanted, rtol=1e-4)
    with pytest.raises(ValueError, match="solver='qr'"):
        stepax.solve.least_squares(decay, START, solver="cg").covariance()
    singular = stepax.solve.least_squares(
        lambda p: p[0] + p[1] - jnp.arange(3.0), jnp.zeros(2)
    )
    assert singular.success and np.all(np.isinf(singular.covariance()))


@pytest.mark.slow("test_covariance_is_that_of_curve_fit")
def test_covariances_of_a_batch_are_those_of_each(x64):
    wanted = stepax.solve.least_squares(decay, START).covariance()
    batch = jax.vmap(lambda y: stepax.solve.least_squares(decay, START, args=(y,)))(
        jnp.stack([_Y, _Y])
    )
    each = jax.vmap(lambda r: r.covariance())(batch)
    np.testing.assert_allclose(each[1], wanted, rtol=1e-4)
    with pytest.raises(ValueError, match="map over it"):
        batch.covariance()


def test_more_parameters_than_residuals():
    found = stepax.solve.least_squares(lambda p: jnp.sum(p) - 3.0, jnp.zeros(4))
    # The solution of least length.
    np.testing.assert_allclose(found.params, np.full(4, 0.75), rtol=1e-5)
    assert found.success


@pytest.mark.slow("test_a_batch_of_roots_history_and_aux")
def test_members_of_a_batch_are_as_alone(x64):
    starts = jnp.array([[-1.2, 1.0], [0.9, 0.9], [-3.0, -4.0]])
    fun = stacked(few.rosenbrock)
    alone = [stepax.solve.least_squares(fun, x) for x in starts]
    batch = jax.vmap(lambda x: stepax.solve.least_squares(fun, x))(starts)
    assert len({int(x.steps) for x in alone}) > 1
    for i, one in enumerate(alone):
        # One that is done does not change while the others go on.
        assert (batch.steps[i], batch.code[i]) == (one.steps, one.code)
        np.testing.assert_allclose(batch.params[i], one.params, rtol=1e-10)


def test_other_values_do_not_compile_again():
    traced = []

    def residuals(p, y):
        traced.append(1)
        return p - y

    counts = []
    for y in (1.0, 2.0):
        args = (jnp.full(2, y),)
        found = stepax.solve.least_squares(residuals, jnp.zeros(2), args=args, scale=y)
        np.testing.assert_allclose(found.params, [y, y], rtol=1e-6)
        counts.append(len(traced))
    assert counts[0] == counts[1]


@pytest.mark.slow
def test_history_callback_and_aux(capsys):
    seen = []
    fun = lambda p: (stacked(few.rosenbrock)(p), {"twice": 2 * p})
    start = jnp.array([-1.2, 1.0])
    found = stepax.solve.least_squares(
        fun,
        start,
        has_aux=True,
        history=50,
        callback=lambda r: seen.append(r),
        progress=True,
    )
    n = int(found.steps)
    assert len(seen) == n and "value" in capsys.readouterr().err
    np.testing.assert_array_equal(found.aux["twice"], 2 * found.params)
    assert found.history
    values = found.history.value
    assert np.isnan(values[n + 1 :]).all() and np.all(np.diff(values[: n + 1]) <= 0)
    np.testing.assert_array_equal([r.value for r in seen], values[1 : n + 1])
    stop = stepax.solve.least_squares(fun, start, has_aux=True, callback=lambda r: True)
    assert stop.status == Status.STOPPED_BY_CALLBACK and stop.steps == 1


@pytest.mark.slow
def test_why_it_stops():
    rosenbrock, start = stacked(few.rosenbrock), jnp.array([-1.2, 1.0])
    run = lambda fun=rosenbrock, x=start, **kw: stepax.solve.least_squares(fun, x, **kw)
    assert run().status == Status.CONVERGED_BY_GRADIENT
    assert run(max_steps=3).status == Status.ITERATION_LIMIT
    assert run(max_steps=0).evaluations == 1
    assert run(tol=1e6).steps == 0
    rough = Tolerances(gradient=0.0, value=0.5)
    assert run(stacked(few.freudenstein_roth), start, tol=rough).success
    assert run(lambda p: jnp.log(p), -jnp.ones(1)).status == Status.NOT_FINITE
    wrong = jax.custom_jvp(lambda p: p + 3.0)
    wrong.defjvp(lambda p, t: (wrong(*p), -t[0]))
    # The model promises what the function does not do.
    assert run(wrong, jnp.ones(2)).status == Status.LINE_SEARCH_FAILED


UNEQUAL = {
    "brown badly scaled": few.brown_badly_scaled,
    "powell badly scaled": few.powell_badly_scaled,
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ("float64", "float32"))
@pytest.mark.parametrize("name", UNEQUAL)
def test_a_step_that_one_large_parameter_hides_is_no_success(name, dtype, x64):
    """From far away a parameter may grow so large that steps of others seem short."""
    fun = stacked(UNEQUAL[name])
    solve = lambda x, n: stepax.solve.least_squares(fun, x, max_steps=n)
    runs = jax.jit(jax.vmap(solve, (0, None)))
    found = runs(starts(2, 8, dtype), jnp.asarray(500))
    fall = found.value - runs(found.params, jnp.asarray(10)).value
    is_by_step = found.code == Status.CONVERGED_BY_STEP
    assert is_by_step.any()
    assert not (is_by_step & (fall > 1e-6 * jnp.maximum(1, found.value))).any()


def test_a_step_that_is_not_finite_is_taken_back():
    fun = lambda p: jnp.where(p > 0, jnp.log(jnp.where(p > 0, p, 1.0)) + 5, jnp.nan)
    found = stepax.solve.least_squares(fun, jnp.array([1.0]))
    np.testing.assert_allclose(found.params, np.exp([-5]), rtol=1e-4)


@pytest.mark.slow
def test_a_jacobian_that_is_not_finite_is_taken_back():
    # The first step ends where the value is lower, and the derivative NaN.
    bend = lambda p: jnp.where(p < 0.2, jnp.sqrt(jnp.maximum(p - 0.2, 0.0)), 0.0)
    fun = lambda p: jnp.arctan(p - 1) + bend(p)
    first = jnp.array([2.3]) - jnp.arctan(1.3) * (1 + 1.3**2)
    assert jnp.abs(fun(first)) < jnp.abs(fun(jnp.array([2.3])))
    assert jnp.isnan(jax.jit(jax.jacfwd(fun))(first)).all()
    found = stepax.solve.least_squares(fun, jnp.array([2.3]))
    assert found.success
    np.testing.assert_allclose(found.params, 1.0, rtol=1e-5)


def fit(y, scale, edge):
    bounds = (jnp.array([0.0, 0.0, 0.3]) + edge, None)
    found = stepax.solve.least_squares(
        decay, START + 0.5, args=(y,), loss="soft_l1", scale=scale, bounds=bounds,
        tol=Tolerances(gradient=1e-13),
    )  # fmt: skip
    return found.params, found.value, found.residuals


def slopes(derivative):
    """The arguments, and the derivatives of each result with respect to each."""
    point = jnp.asarray(_Y), jnp.asarray(0.1), jnp.asarray(0.0)
    return point, jax.jit(derivative(fit, (0, 1, 2)))(*point)


@pytest.mark.few(1)
@pytest.mark.parametrize("derivative", (jax.jacrev, jax.jacfwd))
def test_derivatives_are_those_of_differences(derivative, x64):
    (point, found), run, h = slopes(derivative), jax.jit(fit), 1e-6
    along = lambda j, d: np.tensordot(j, d, np.ndim(d))
    for direction in ((_Y, 0.0, 0.0), (0 * _Y, 1.0, 0.0), (0 * _Y, 0.0, 1.0)):
        ends = [
            run(*[x + t * d for x, d in zip(point, direction, strict=True)])
            for t in (h, -h)
        ]
        for js, up, down in zip(found, *ends, strict=True):
            # Differences of a minimum known to 1e-12 or so.
            wanted = (up - down) / (2 * h)
            slope = sum(map(along, js, direction))
            np.testing.assert_allclose(slope, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow("test_derivatives_are_those_of_differences")
def test_derivatives_forward_and_backward_are_the_same(x64):
    (_, backward), (_, forward) = slopes(jax.jacrev), slopes(jax.jacfwd)
    for x, y in zip(jax.tree.leaves(backward), jax.tree.leaves(forward), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-10)


REFUSED = {
    "no function": (("mse", START), {}, TypeError, "`residuals` is a `str`"),
    "integers": ((decay, np.arange(3)), {}, TypeError, "holds integers"),
    "integer residuals": ((lambda p: jnp.arange(3), START), {}, TypeError, "int32"),
    "no array": ((lambda p: {"a": "b"}, START), {}, TypeError, r"\['a'\] a `str`"),
    "nothing": ((lambda p: [], START), {}, ValueError, "without any number"),
    "no pair": ((decay, START), {"has_aux": True}, TypeError, "expected a pair"),
    "loss": (
        (decay, START),
        {"loss": "arctan"},
        ValueError,
        "'arctan', expected one of",
    ),
    "solver": (
        (decay, START),
        {"solver": "lsmr"},
        ValueError,
        "'lsmr', expected one of",
    ),
    "jacobian": ((decay, START), {"jacobian": "2-point"}, ValueError, "'2-point'"),
    "scale": ((decay, START), {"scale": 0.0}, ValueError, "`scale` is 0.0"),
    "scales": ((decay, START), {"scale": START}, ValueError, "expected a number"),
    "outside": ((decay, START), {"bounds": (2.0, 3.0)}, ValueError, "project=True"),
    "SciPy's option": (
        (decay, START),
        {"f_scale": 0.3},
        TypeError,
        "write `scale=0.3`",
    ),
    "SciPy's limit": ((decay, START), {"max_nfev": 9}, TypeError, "`max_steps=9`"),
    "SciPy's method": (
        (decay, START),
        {"method": "lm"},
        TypeError,
        "no argument `method`",
    ),
    "JAXopt's limit": ((decay, START), {"maxiter": 9}, TypeError, "`max_steps=9`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_raise_errors(name):
    given, options, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        stepax.solve.least_squares(*given, **options)


def test_a_callback_needs_values():
    run = lambda y: stepax.solve.least_squares(decay, START, args=(y,), callback=print)
    with pytest.raises(ValueError, match="outside of `jit`"):
        jax.jit(run)(_Y)
