"""L-BFGS: its direction, its memory, its minima, and what it survives."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import mlp, types
from flax import linen, nnx
from jax.extend.core import jaxprs_in_params

import stepax


def rosenbrock(p):
    return jnp.sum(100 * (p[1:] - p[:-1] ** 2) ** 2 + (1 - p[:-1]) ** 2)


START = (-1.2, 1.0, -0.5, 0.8)


def minimize(library, f, tx, p, steps):
    """The parameters after each step, with value and gradient from the state."""
    value_and_grad = library.value_and_grad_from_state(f)

    @jax.jit
    def step(p, s):
        value, grad = value_and_grad(p, state=s)
        u, s = tx.update(grad, s, p, value=value, grad=grad, value_fn=f)
        return library.apply_updates(p, u), s

    path, s = [], tx.init(p)
    for _ in range(steps):
        p, s = step(p, s)
        path.append(p)
    return path, s


# --- the direction -------------------------------------------------------------------


def dense(pairs, g, is_scaled=True):
    """H g with the matrix H, by the formula of BFGS (7.16 in the book)."""
    size = g.size
    if not pairs:
        return g * (min(1, 1 / np.linalg.norm(g)) if is_scaled else 1)
    s, y = pairs[-1]
    h = np.eye(size) * (s @ y / (y @ y) if is_scaled else 1)
    for s, y in pairs:
        v = np.eye(size) - np.outer(y, s) / (s @ y)
        h = v.T @ h @ v + np.outer(s, s) / (s @ y)
    return h @ g


@pytest.mark.few(1)
@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize("split", [False, True], ids=["array", "tree"])
def test_direction_is_that_of_the_dense_matrix(split, is_scaled, x64):
    random = np.random.RandomState(0)
    root = random.randn(5, 5)
    hessian = root @ root.T + np.eye(5)
    tx = stepax.scale_by_lbfgs(3, is_scaled)
    tree = lambda x: {"a": x[:2], "b": x[2:].reshape(1, 3)} if split else x
    flat = lambda t: np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)])
    p, state, pairs, last = random.randn(5), None, [], None
    state = tx.init(tree(jnp.asarray(p)))
    for i in range(7):
        g = hessian @ p
        if last:
            pairs = [*pairs, (p - last[0], g - last[1])][-3:]
        u, state = tx.update(tree(jnp.asarray(g)), state, tree(jnp.asarray(p)))
        np.testing.assert_allclose(flat(u), dense(pairs, g, is_scaled), rtol=1e-8)
        last, p = (p, g), p + 0.1 * random.randn(5)
        assert state.count == i + 1


def test_memory_is_a_ring_that_the_count_points_into():
    tx = stepax.scale_by_lbfgs(3)
    ps = [jnp.array([1.0, 2.0]) * i**2 for i in range(6)]
    state = tx.init(ps[0])
    assert state.diff_params_memory.shape == (3, 2)
    for p in ps:
        _, state = tx.update(2 * p, state, p)
    for t in (3, 4, 5):  # from step t - 1 to t
        s = ps[t] - ps[t - 1]
        at = (t - 1) % 3
        np.testing.assert_array_equal(state.diff_params_memory[at], s)
        np.testing.assert_array_equal(state.diff_updates_memory[at], 2 * s)
        np.testing.assert_allclose(state.weights_memory[at], 1 / (2 * s @ s), rtol=1e-6)
    np.testing.assert_array_equal(state.params, ps[-1])
    np.testing.assert_array_equal(state.updates, 2 * ps[-1])


# --- the same as Optax ---------------------------------------------------------------

VARIANTS = {
    "default": {},
    "short memory": {"memory_size": 2},
}
RATES = {
    "none": None,
    "small": 0.1,
    "large": 2.0,
    "schedule": lambda t: 1 / (1 + 0.1 * t),
    "warm-up": lambda t: 0.1 + 0.1 * t,
}
SEARCHES = {
    "default": lambda o: {},
    "zoom": lambda o: {"linesearch": o.scale_by_zoom_linesearch(4, curv_rtol=0.1)},
    "zoom from 1": lambda o: {
        "linesearch": o.scale_by_zoom_linesearch(20, initial_guess_strategy="one")
    },
    "backtracking": lambda o: {
        "linesearch": o.scale_by_backtracking_linesearch(20, store_grad=True)
    },
}


# Optax is not written for strict promotion.
@pytest.mark.few(1)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", VARIANTS)
@jax.numpy_dtype_promotion("standard")
def test_path_is_that_of_optax(name, rate, search, x64):
    p = jnp.array(START)
    runs = []
    for library in (stepax, optax):
        tx = library.lbfgs(RATES[rate], **VARIANTS[name], **SEARCHES[search](library))
        runs.append(minimize(library, rosenbrock, tx, p, 24)[0])
    # Rosenbrock's valley amplifies the rounding of each step.
    np.testing.assert_allclose(*map(np.array, runs), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")
def test_path_without_search_is_that_of_optax_at_negative_curvature(x64):
    f = lambda p: 0.5 * jnp.sum(jnp.array([-1.0, -3.0, 1.0]) * p**2)
    runs = []
    for library in (stepax, optax):
        tx, path = library.lbfgs(0.05, linesearch=None), []
        p = jnp.array([1.0, 2.0, 3.0])
        s = tx.init(p)
        for _ in range(30):
            u, s = tx.update(jax.grad(f)(p), s, p)
            p = library.apply_updates(p, u)
            path.append(p)
        runs.append(np.array(path))
    np.testing.assert_allclose(*runs, rtol=1e-6)


@pytest.mark.slow
def test_negative_curvature_can_be_left_out():
    f = lambda p: 0.5 * jnp.sum(jnp.array([-1.0, -3.0, 1.0]) * p**2)
    for positive_only in (False, True):
        tx = stepax.scale_by_lbfgs(3, positive_only=positive_only)
        p = jnp.array([1.0, 2.0, 3.0])
        s, slopes = tx.init(p), []
        for _ in range(4):
            g = jax.grad(f)(p)
            u, s = tx.update(g, s, p)
            slopes.append(-jnp.vdot(g, u))
            p = p - 0.05 * u
        assert (max(slopes) < 0) == positive_only
        assert bool(jnp.all(s.weights_memory >= 0)) == positive_only


# --- minima, dtypes, trees -----------------------------------------------------------


@pytest.mark.slow
def test_rosenbrock_is_minimized():
    path, state = minimize(stepax, rosenbrock, stepax.lbfgs(), jnp.array(START), 60)
    np.testing.assert_allclose(path[-1], np.ones(4), atol=1e-3)
    np.testing.assert_array_equal(state[0].count, 60)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_numbers_stay_finite_at_the_minimum(dtype):
    f = lambda p: jnp.sum((p - 1) ** 2 * jnp.array([1.0, 30.0], p.dtype))
    p = jnp.array([3.0, -2.0], dtype)
    path, state = minimize(stepax, f, stepax.lbfgs(), p, 25)
    assert path[-1].dtype == p.dtype
    np.testing.assert_allclose(np.array(path[-1], np.float32), [1, 1], atol=1e-2)
    for x in jax.tree.leaves((path, state)):
        assert np.isfinite(np.array(x, np.float32)).all()


def test_a_pair_without_curvature_changes_nothing():
    tx = stepax.scale_by_lbfgs(3)
    p, g = jnp.array([1.0, 2.0]), jnp.array([3.0, 1.0])
    state = tx.init(p)
    _, state = tx.update(g, state, p)
    u, state = tx.update(2 * g, state, p - 0.1 * g)  # s·y < 0
    u, state = tx.update(2 * g, state, p - 0.1 * g)  # the same again
    same, after = tx.update(2 * g, state, p - 0.1 * g)
    np.testing.assert_array_equal(same, u)
    _, bad = tx.update(jnp.full(2, jnp.nan), after, p)
    u, healed = tx.update(g, bad, p)
    assert jnp.isfinite(u).all() and jnp.isfinite(healed.diff_updates_memory).all()


@pytest.mark.slow
def test_a_whole_module_is_optimized():
    model, x = mlp(), jnp.array([[0.1, 0.2], [0.5, -1.0], [-0.3, 0.4]])
    loss = lambda model: jnp.mean((jax.vmap(model)(x) - jnp.sin(x)) ** 2)
    tx = stepax.lbfgs()
    value_and_grad = stepax.value_and_grad_from_state(loss)
    state = tx.init(model)
    first, kinds = loss(model), types(state)
    for _ in range(5):
        value, grad = value_and_grad(model, state=state)
        assert grad.activation is None and callable(model.activation)
        more = {"value": value, "grad": grad, "value_fn": loss}
        u, state = tx.update(grad, state, model, **more)
        model = stepax.apply_updates(model, u)
    assert loss(model) < 0.7 * first
    assert types(state) == kinds


@pytest.mark.slow
def test_mixed_dtypes_are_kept():
    p = {"a": jnp.ones(2, jnp.bfloat16), "b": 2 * jnp.ones(3), "none": None}
    f = lambda p: jnp.sum(p["b"] ** 2) + jnp.sum(p["a"].astype(jnp.float32) ** 2)
    path, state = minimize(stepax, f, stepax.lbfgs(), p, 6)
    assert types(path[-1]) == types(p)
    assert types(state) == types(stepax.lbfgs().init(p))
    assert f(path[-1]) < 1e-4


@pytest.mark.slow
def test_complex_numbers_are_pairs_of_real_ones(x64):
    f = lambda z: jnp.sum(jnp.array([1.0, 10.0]) * jnp.abs(z - (1 + 2j)) ** 2)
    z = jnp.array([3 + 0j, 1j])
    tx, pairs = stepax.scale_by_lbfgs(3), stepax.scale_by_lbfgs(3)
    split = lambda z: jnp.concatenate([z.real, z.imag])
    s, t = tx.init(z), pairs.init(split(z))
    for _ in range(5):
        g = jnp.conj(jax.grad(f)(z))
        u, s = tx.update(g, s, z)
        v, t = pairs.update(split(g), t, split(z))
        np.testing.assert_allclose(split(u), v, rtol=1e-9)
        z = z - 0.3 * u


def test_one_program_serves_all_steps():
    traced = []
    tx, p = stepax.lbfgs(), jnp.array(START)

    @jax.jit
    def step(p, s):
        traced.append(None)
        value, grad = jax.value_and_grad(rosenbrock)(p)
        u, s = tx.update(grad, s, p, value=value, grad=grad, value_fn=rosenbrock)
        return stepax.apply_updates(p, u), s

    s = tx.init(p)
    for _ in range(3):
        p, s = step(p, s)
    assert len(traced) == 1


@pytest.mark.slow
def test_members_of_a_batch_search_on_their_own():
    starts = jnp.array([START, (0.0, 0.0, 0.0, 0.0)])
    run = lambda p: minimize(stepax, rosenbrock, stepax.lbfgs(), p, 4)[0][-1]
    together = jax.jit(jax.vmap(run))(starts)
    for p, found in zip(starts, together, strict=True):
        np.testing.assert_allclose(found, run(p), rtol=1e-4, atol=1e-5)


def test_bad_arguments_are_refused():
    for factory in (stepax.lbfgs, stepax.scale_by_lbfgs):
        with pytest.raises(ValueError, match="`memory_size` must be >= 1"):
            factory(memory_size=0)
    tx, p = stepax.scale_by_lbfgs(3), {"w": jnp.ones(2)}
    state = tx.init(p)
    with pytest.raises(ValueError, match="`params` is missing"):
        tx.update(p, state)
    with pytest.raises(ValueError, match=r"nothing in `params` .*\['w'\]"):
        tx.update(p, tx.init({"w": None}), p)
    with pytest.raises(ValueError, match=r"\['w'\] has shape \(2,\)"):
        tx.update(p, tx.init({"w": jnp.ones(3)}), p)


# --- models of other libraries -------------------------------------------------------


INPUTS = jnp.array([[0.1, 0.2], [0.5, -1.0], [-0.3, 0.4]])


def gap(outputs):
    return jnp.mean((outputs - jnp.sin(INPUTS[:, :1])) ** 2)


def linen_model():
    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(1)(jnp.tanh(linen.Dense(4)(x)))

    model = Model()
    return model.init(jax.random.key(0), INPUTS), lambda p: gap(model.apply(p, INPUTS))


def nnx_model():
    class Model(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            self.first = nnx.Linear(2, 4, rngs=rngs)
            self.second = nnx.Linear(4, 1, rngs=rngs)

        def __call__(self, x):
            return self.second(jnp.tanh(self.first(x)))

    graph, p = nnx.split(Model(), nnx.Param)
    return p, lambda p: gap(nnx.merge(graph, p)(INPUTS))


def equinox_model():
    model = eqx.nn.MLP(2, 1, 4, 1, jnp.tanh, key=jax.random.key(0))
    arrays, static = eqx.partition(model, eqx.is_array)
    return arrays, lambda p: gap(jax.vmap(eqx.combine(p, static))(INPUTS))


@pytest.mark.slow
@pytest.mark.parametrize("build", [linen_model, nnx_model, equinox_model])
@jax.numpy_dtype_promotion("standard")  # these libraries ask for it
@jax.numpy_rank_promotion("allow")
def test_models_of_other_libraries_are_optimized(build):
    p, f = build()
    path, state = minimize(stepax, f, stepax.lbfgs(), p, 8)
    assert f(path[-1]) < 0.1 * f(p)
    assert jax.tree.structure(path[-1]) == jax.tree.structure(p)
    assert types(state) == types(stepax.lbfgs().init(p))


# --- programs ------------------------------------------------------------------------


def in_loops(jaxpr):
    """The equations of loops in a program, however deep."""
    found = []
    for eqn in jaxpr.eqns:
        for inner in jaxprs_in_params(eqn.params):
            found += inner.eqns if eqn.primitive.name == "scan" else in_loops(inner)
    return found


def test_loops_do_not_grow_with_the_number_of_short_leaves():
    counts = []
    for leaves in (2, 40):
        p = {f"{i}": jnp.ones(3 + i % 4) for i in range(leaves)}
        tx = stepax.scale_by_lbfgs()
        counts.append(len(in_loops(jax.make_jaxpr(tx.update)(p, tx.init(p), p).jaxpr)))
    assert counts[0] == counts[1] > 0


def test_the_program_contains_the_function_twice():
    f = lambda p: jnp.sum(jnp.sinh(p))  # a name that nothing else has
    tx, p = stepax.lbfgs(), jnp.ones(3)
    value_and_grad = stepax.value_and_grad_from_state(f)

    def step(p, s):
        value, grad = value_and_grad(p, state=s)
        return tx.update(grad, s, p, value=value, grad=grad, value_fn=f)

    assert jax.jit(step).lower(p, tx.init(p)).as_text().count("chlo.sinh") == 2


@pytest.mark.slow
def test_a_scan_writes_pairs_into_the_memory_that_is_there():
    """XLA copies a memory that is read where it is written, all of it at each step."""
    tx, p = stepax.scale_by_lbfgs(7), jnp.ones(5003)

    def step(carry, _):
        p, s = carry
        u, s = tx.update(p * p, s, p)
        return (p - 0.1 * u, s), None

    run = jax.jit(lambda p, s: jax.lax.scan(step, (p, s), length=4)[0])
    program = run.lower(p, tx.init(p)).compile().as_text() or ""
    copies = re.findall(r"= f32\[7,5003\]\S* copy\(", program)
    assert len(copies) <= 2  # of the arguments, which the caller keeps


@pytest.mark.slow
def test_short_leaves_are_gathered_and_long_ones_are_not(x64):
    """Both give the direction of one array that holds them all."""
    random = np.random.RandomState(0)
    sizes = {"a": 3, "long": 5000, "b": 4, "longer": 6000, "c": 2}
    cuts = np.cumsum(list(sizes.values()))[:-1]
    tree = lambda x: dict(zip(sizes, np.split(np.asarray(x), cuts), strict=True))
    tx, p = stepax.scale_by_lbfgs(3), jnp.asarray(random.randn(sum(sizes.values())))
    whole, parts = tx.init(p), tx.init(tree(p))
    for _ in range(5):
        g = p * (1 + p * p)
        wanted, whole = tx.update(g, whole, p)
        u, parts = tx.update(tree(g), parts, tree(p))
        found = np.concatenate([u[k] for k in sizes])
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
        p = p - 0.3 * wanted
