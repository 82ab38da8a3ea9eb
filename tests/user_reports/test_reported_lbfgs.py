"""L-BFGS: at hand, in every dtype, as good as SciPy's, with more to return."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.core import Tracer
from library import optax


row = pytest.mark.row


def rosenbrock(p):
    return jnp.sum(100 * (p[1:] - p[:-1] ** 2) ** 2 + (1 - p[:-1]) ** 2)


def step_of(tx, f):
    """One step, by the value and gradient that the search has left in the state."""
    value_and_grad = optax.value_and_grad_from_state(f)

    def step(p, s):
        value, grad = value_and_grad(p, state=s)
        u, s = tx.update(grad, s, p, value=value, grad=grad, value_fn=f)
        return optax.apply_updates(p, u), s

    return step


def scanned(f, p, steps):
    """The parameters after some steps, all in one program."""
    tx = optax.lbfgs()
    step = step_of(tx, f)
    move = lambda carry, _: (step(*carry), None)
    return jax.jit(lambda p: jax.lax.scan(move, (p, tx.init(p)), length=steps)[0][0])(p)


FORM = "L-BFGS availability and form"


@pytest.mark.slow
@row(FORM, optax="fails")
def test_one_call_runs_to_convergence():
    found = optax.minimize(rosenbrock, jnp.array([-1.2, 1.0]))
    assert found.success, found.status.message
    np.testing.assert_allclose(found.params, 1.0, atol=1e-2)


@pytest.mark.slow
@row(FORM, optax="fails")
def test_bounds_are_kept():
    found = optax.minimize(rosenbrock, jnp.array([-1.2, 0.5]), bounds=(None, 0.8))
    assert found.success, found.status.message
    np.testing.assert_allclose(found.params, [0.8, 0.64], atol=1e-3)
    assert (found.params <= jnp.float32(0.8)).all()


DTYPES = "L-BFGS dtypes and tracing"


def bowl(p):
    return sum(jnp.sum(jnp.square(x.astype(jnp.float32))) for x in jax.tree.leaves(p))


@pytest.mark.slow
@row(DTYPES, optax="passes")
def test_steps_in_x64_can_be_scanned(x64):
    p = scanned(rosenbrock, jnp.array([-1.2, 1.0]), 60)
    np.testing.assert_allclose(p, 1.0, atol=1e-8)


@pytest.mark.slow
@row(DTYPES, optax="fails")
def test_float16_stays_finite_at_the_optimum():
    loss = lambda p: jnp.sum((p - jnp.float16(1)) ** 2)
    p = scanned(loss, jnp.array([3.0, -1.0, 0.5], jnp.float16), 12)
    np.testing.assert_allclose(p.astype(jnp.float32), 1.0, atol=1e-2)


@pytest.mark.slow
@row(DTYPES, optax="fails")
def test_leaves_of_two_dtypes_are_minimized_together():
    p = {"w": jnp.ones(3), "b": jnp.full(2, 2.0, jnp.bfloat16)}
    end = scanned(bowl, p, 5)
    assert {k: x.dtype for k, x in end.items()} == {k: x.dtype for k, x in p.items()}
    for x in end.values():
        np.testing.assert_allclose(x.astype(jnp.float32), 0.0, atol=1e-2)


@pytest.mark.slow
@row(DTYPES, optax="fails")
def test_a_jitted_step_is_traced_once():
    traces = []
    tx = optax.lbfgs()
    step = step_of(tx, rosenbrock)

    @jax.jit
    def jitted(p, s):
        traces.append(None)
        return step(p, s)

    p = jnp.array([-1.2, 1.0])
    s = tx.init(p)
    for _ in range(3):
        p, s = jitted(p, s)
    assert len(traces) == 1


QUALITY = "L-BFGS quality"


def beale(p):
    x, y = p
    powers = jnp.array([y, y**2, y**3])
    return jnp.sum((jnp.array([1.5, 2.25, 2.625]) - x * (1 - powers)) ** 2)


def himmelblau(p):
    x, y = p
    return (x**2 + y - 11) ** 2 + (x + y**2 - 7) ** 2


# Rosenbrock 1960; Beale 1958; Himmelblau 1972.
CLASSICS = {
    "Rosenbrock": (rosenbrock, (-1.2, 1.0)),
    "Rosenbrock of 10": (rosenbrock, (-1.2, 1.0) * 5),
    "Beale": (beale, (1.0, 1.0)),
    "Himmelblau": (himmelblau, (0.0, 0.0)),
}


@pytest.mark.slow
@row(QUALITY, optax="passes")
@pytest.mark.parametrize("name", CLASSICS)
def test_classics_end_where_those_of_scipy_do(name, x64):
    f, start = CLASSICS[name]
    theirs = scipy.optimize.minimize(
        jax.value_and_grad(f), np.array(start), jac=True, method="L-BFGS-B"
    )
    ours = scanned(f, jnp.array(start), theirs.nit + 10)
    assert f(ours) <= theirs.fun + 1e-9


@pytest.mark.slow
@row(QUALITY, optax="passes")
@pytest.mark.parametrize("wall", [jnp.inf, jnp.nan])
def test_walls_are_backed_away_from(wall):
    f = lambda p: jnp.where(p[0] > 0, p[0] - jnp.log(p[0]), wall)
    np.testing.assert_allclose(scanned(f, jnp.array([10.0]), 20), 1.0, atol=1e-3)


@pytest.mark.slow
@row(QUALITY, optax="fails")
def test_a_loop_in_python_does_not_trace_the_search_again():
    calls = []

    def f(p):
        calls.append(isinstance(p, Tracer))
        return rosenbrock(p)

    tx = optax.lbfgs()
    step = step_of(tx, f)
    p = jnp.array([-1.2, 1.0])
    s = tx.init(p)
    for _ in range(3):
        calls.clear()
        p, s = step(p, s)
    # A search in Python evaluates as often as it says; a traced one again at each step.
    evaluations = optax.tree.get(s, "num_linesearch_steps")
    assert len(calls) <= evaluations


MORE = "line search with aux, argnums, differentiation"


def with_aux(p):
    return rosenbrock(p), {"sum": jnp.sum(p)}


def after_one_search(f):
    tx, p = optax.lbfgs(), jnp.array([-1.2, 1.0])
    value, grad = jax.value_and_grad(f)(p)
    step = jax.jit(lambda s: tx.update(grad, s, p, value=value, grad=grad, value_fn=f))
    u, s = step(tx.init(p))
    return optax.apply_updates(p, u), s


@row(MORE, optax="fails")
def test_aux_comes_with_the_value_in_the_state():
    p, s = after_one_search(rosenbrock)
    both = optax.value_and_grad_from_state(with_aux, has_aux=True)
    (value, aux), grad = both(p, state=s)
    np.testing.assert_allclose(value, rosenbrock(p), rtol=1e-6)
    np.testing.assert_allclose(grad, jax.grad(rosenbrock)(p), rtol=1e-5)
    np.testing.assert_allclose(aux["sum"], jnp.sum(p), rtol=1e-6)


@row(MORE, optax="fails")
def test_the_parameters_may_be_another_argument():
    f = lambda batch, p: batch * rosenbrock(p)
    p, s = after_one_search(lambda p: f(2.0, p))
    value, grad = optax.value_and_grad_from_state(f, argnums=1)(2.0, p, state=s)
    np.testing.assert_allclose(value, f(2.0, p), rtol=1e-6)
    np.testing.assert_allclose(grad, jax.grad(f, 1)(2.0, p), rtol=1e-5)


@pytest.mark.slow
@row(MORE, optax="fails")
def test_a_step_with_a_search_can_be_differentiated():
    def after(scale):
        f = lambda p: scale * jnp.sum(jnp.square(p))
        tx, p = optax.lbfgs(), jnp.ones(2)
        value, grad = jax.value_and_grad(f)(p)
        u, _ = tx.update(grad, tx.init(p), p, value=value, grad=grad, value_fn=f)
        return jnp.sum(optax.apply_updates(p, u))

    assert jnp.isfinite(jax.grad(after)(2.0))


@pytest.mark.slow
@row("constraints", optax="fails")
@pytest.mark.parametrize("form", ["ours", "SciPy's"])
def test_a_minimum_keeps_its_constraints(form):
    """patrick-kidger/optimistix#45, jax-ml/jax#6038."""
    line, half = lambda p: p[0] + p[1] - 1, lambda p: p[0] - 0.7
    kinds = {"eq": line, "ineq": half}
    limits = [{"type": kind, "fun": fun} for kind, fun in kinds.items()]
    if form == "ours":
        limits = [
            optax.solve.constraints.equality(line),
            optax.solve.constraints.inequality(half),
        ]
    found = optax.minimize(lambda p: jnp.sum(p**2), jnp.zeros(2), constraints=limits)
    np.testing.assert_allclose(found.params, [0.7, 0.3], atol=1e-3)
