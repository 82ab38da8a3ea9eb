"""L-BFGS-B: its model, its minima beside SciPy's, its steps and its memory."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from cases import mlp, types
from problems import bounded
from runs import compilations

import stepax
from stepax._optimizers import bounded_model


# --- the model, against dense matrices -----------------------------------------------


def pairs(random, m, n):
    """Differences of a convex quadratic, the oldest first."""
    root = random.randn(n, n)
    s = random.randn(m, n)
    return s, s @ (root @ root.T + np.eye(n))


def dense(s, y):
    """B, by the formula of BFGS from theta I (equation 6.19 of Nocedal and Wright)."""
    theta = y[-1] @ y[-1] / (s[-1] @ y[-1])
    B = theta * np.eye(s.shape[1])
    for a, b in zip(s, y, strict=True):
        Ba = B @ a
        B = B - np.outer(Ba, Ba) / (a @ Ba) + np.outer(b, b) / (b @ a)
    return B


def compact(s, y, order):
    """The same as a model, of pairs in another order than that of their age."""
    theta = jnp.asarray(y[-1] @ y[-1] / (s[-1] @ y[-1]))
    age = jnp.arange(len(s))[::-1][order]
    s, y = s[order], y[order]
    return bounded_model.compact(theta, s, y, s @ s.T, s @ y.T, age)


def walk(B, x, g, lower, upper):
    """Algorithm CP, one breakpoint after another, with the matrix B."""
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(g < 0, (x - upper) / g, (x - lower) / g)
    t = np.where(g == 0, np.inf, t)
    d, z, last = np.where(t > 0, -g, 0.0), np.zeros_like(x), 0.0
    for end in [*np.unique(t[t > 0]), np.inf]:
        slope, curvature = g @ d + d @ B @ z, d @ B @ d
        if slope >= 0:
            break
        best = -slope / curvature
        if last + best < end:
            z = z + best * d
            break
        z, d, last = z + (end - last) * d, np.where(t == end, 0, d), end
    return x + z


def reduced(B, x, g, cauchy, lower, upper):
    """The minimum over the free variables, projected if that descends, else cut."""
    free = (cauchy > lower) & (cauchy < upper)
    d, r = np.zeros_like(x), g + B @ (cauchy - x)
    d[free] = np.linalg.solve(B[np.ix_(free, free)], -r[free])
    full = np.clip(cauchy + d, lower, upper)
    if g @ (full - x) < 0:
        return full
    rooms = (np.where(d < 0, lower, upper) - cauchy)[d != 0] / d[d != 0]
    return cauchy + min(1.0, *rooms) * d


def case(seed, n=8, m=3):
    random = np.random.RandomState(seed)
    s, y = pairs(random, m, n)
    lower, upper = -random.rand(n), random.rand(n)
    lower[0], upper[1], upper[2] = -np.inf, np.inf, lower[2]
    x = np.clip(random.randn(n) / 3, lower, upper)
    g = 10 ** random.uniform(-1, 2) * random.randn(n)
    g[3], x[5:7], g[5:7], upper[5:7] = 0, 0.25, -2.0, 0.5  # breakpoints that are equal
    return s, y, x, g, lower, upper, random.permutation(m)


@jax.jit
def both(s, y, order, x, g, lower, upper):
    model = compact(s, y, order)
    box = x, g, lower, upper
    B = model.theta * jnp.eye(x.size) - model.w.T @ model.solve(model.w)
    return (
        B,
        bounded_model.cauchy_point(model, *box),
        bounded_model.minimize(model, *box),
    )


def compare(parts):
    s, y, x, g, lower, upper, order = parts
    B = dense(s, y)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)
    found, cauchy, end = both(s, y, order, x, g, lower, upper)
    close(found, B)
    close(cauchy, walk(B, x, g, lower, upper))
    cauchy = np.asarray(cauchy)
    for bound in lower, upper:  # what meets a bound is there to the last bit
        assert (cauchy == bound)[np.isclose(cauchy, bound, atol=1e-12)].all()
    close(end, reduced(B, x, g, cauchy, lower, upper))
    return (cauchy > lower) & (cauchy < upper)


@pytest.mark.slow
def test_the_model_and_its_minimum_are_those_of_the_papers(x64):
    free = [compare(case(seed)).sum() for seed in range(60)]
    assert min(free) <= 1 and max(free) >= 4  # so that short and long paths are among


@pytest.mark.slow
def test_a_path_through_many_blocks_of_breakpoints_is_the_same(x64):
    n = 2 * bounded_model.BLOCK + 40
    for scale in (1e-2, 30.0, 1e4):
        s, y, x, g, lower, upper, order = case(1, n)
        s, y = s / np.sqrt(n), y / n  # of eigenvalues near 1
        compare((s, y * np.sqrt(n), x, scale * g, lower, upper, order))


# --- minima, beside SciPy ------------------------------------------------------------

PROBLEMS = bounded.collect()
SIZE = 100  # all as long as this, so that one program serves them all


def functions(x, k):
    short = lambda p: lambda x: p.fun(x[: p.x0.size])
    return jax.lax.switch(k, [short(p) for p in PROBLEMS], x)


def padded(x):
    return np.concatenate([x, np.zeros(SIZE - x.size)])


@jax.jit
def run(k, x, lower, upper):
    """Until SciPy's tests are met: the parameters, value, evaluations, and whether all
    parameters on the way were within the bounds."""
    tx = stepax.lbfgsb(lower, upper)
    value_fn = lambda x: functions(x, k)

    def goes_on(carry):
        x, s, value, grad, last, count, _ = carry
        steep = jnp.abs(jnp.clip(x - grad, lower, upper) - x).max() > 1e-5
        size = jnp.maximum(jnp.maximum(jnp.abs(last), jnp.abs(value)), 1)
        falls = last - value > 1e7 * jnp.finfo(float).eps * size
        return steep & (falls | (s.count == 0)) & (count < 1000)

    def step(carry):
        x, s, value, grad, _, count, is_inside = carry
        u, s = tx.update(grad, s, x, value=value, grad=grad, value_fn=value_fn)
        x, line = stepax.apply_updates(x, u), s.linesearch
        count = count + line.info.num_linesearch_steps
        is_inside = is_inside & ((lower <= x) & (x <= upper)).all()
        return x, s, line.value, line.grad, value, count, is_inside

    value, grad = jax.value_and_grad(value_fn)(x)
    start = x, tx.init(x), value, grad, value, jnp.int32(1), jnp.array(True)
    x, _, value, _, _, count, is_inside = jax.lax.while_loop(goes_on, step, start)
    return x, value, count, is_inside


value_and_grad = jax.jit(jax.value_and_grad(functions))


def scipys(k, p, x0):
    def f(x):
        value, grad = value_and_grad(padded(x), k)
        return float(value), np.asarray(grad)[: x.size]

    box = scipy.optimize.Bounds(p.lower, p.upper)
    return scipy.optimize.minimize(f, x0, jac=True, method="L-BFGS-B", bounds=box)


@pytest.fixture(scope="module")
def results():
    found = {}
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        for k, p in enumerate(PROBLEMS):
            x0 = np.clip(p.x0, p.lower, p.upper)
            ours = run(k, padded(x0), padded(p.lower), padded(p.upper))
            found[p.name] = p, [np.asarray(x) for x in ours], scipys(k, p, x0)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [p.name for p in PROBLEMS])
def test_minima_are_published_ones_and_scipys(results, name):
    p, (_, value, _, is_inside), other = results[name]
    size = max(1, abs(p.minimum))
    assert is_inside
    assert abs(value - other.fun) <= 1e-6 * size
    if name != "hs2":  # where both go from this start to the other minimum
        assert abs(value - p.minimum) <= 1e-6 * size


@pytest.mark.slow
def test_evaluations_are_about_scipys(results):
    ratios = [int(ours[2]) / other.nfev for _, ours, other in results.values()]
    # Rounding decides how a valley is followed, and processors round differently: two
    # of them may take longer, and were at 1.25 at most when this was written.
    assert len(ratios) >= 12
    assert sorted(ratios)[-3] <= 1.3
    assert np.median(ratios) <= 1.1


@pytest.mark.slow
def test_random_quadratics_end_where_an_active_set_does(x64):
    random = np.random.RandomState(3)
    A, b = random.randn(8, 12, 6), random.randn(8, 12)
    lower, upper = -random.rand(8, 6) / 5, random.rand(8, 6) / 5
    upper[:, 0], lower[:, 1] = np.inf, -np.inf

    def solve(A, b, lower, upper):
        f = lambda x: jnp.sum((A @ x - b) ** 2)
        x = jnp.clip(jnp.zeros(6), lower, upper)
        return minimize(f, stepax.lbfgsb(lower, upper, 4), x, 25)[0]

    found = jax.jit(jax.vmap(solve))(A, b, lower, upper)
    for i, x in enumerate(found):
        box = lower[i], upper[i]
        best = scipy.optimize.lsq_linear(A[i], b[i], box, method="bvls", tol=1e-14)
        np.testing.assert_allclose(x, best.x, atol=1e-7)


# --- steps ---------------------------------------------------------------------------


def minimize(f, tx, p, steps):
    """The last parameters and state; value and gradient are those of the search."""
    known = stepax.value_and_grad_from_state(f)

    def step(carry, _):
        p, s = carry
        value, grad = known(p, state=s)
        u, s = tx.update(grad, s, p, value=value, grad=grad, value_fn=f)
        return (stepax.apply_updates(p, u), s), None

    return jax.lax.scan(step, (p, tx.init(p)), None, steps)[0]


def bowl(p):
    """A sum of squares of what is in a tree, less 1, 2, ...; NaN outside of [-1, 1]."""
    leaves = [x.astype(jnp.float32) for x in jax.tree.leaves(p)]
    parts = [jnp.sum((x - i) ** 2 * i) for i, x in enumerate(leaves, 1)]
    is_in = jnp.stack([jnp.abs(x).max() <= 1 for x in leaves]).all()
    return jnp.where(is_in, sum(parts), jnp.nan)


@pytest.fixture(scope="module")
def mixed():
    """A tree of several dtypes at its minimum, and where it started."""
    p = {
        "fixed": jnp.array([0.25, -0.5]),
        "narrow": jnp.full((2, 2), -0.75, jnp.bfloat16),
        "half": jnp.full(3, 0.1, jnp.float16),
        "none": None,
    }
    # Patterns, prefixes and numbers; for 0.3 and 0.7 no dtype is exact.
    lower = {"fixed": p["fixed"], "half": -1, "**": None}
    upper = {"fixed": p["fixed"], "narrow": 0.7, "half": np.float64(0.3), "**": None}
    tx = stepax.lbfgsb(lower, upper, 3)
    end, state = jax.jit(lambda p: minimize(bowl, tx, p, 8))(p)
    return p, tx, end, state


@pytest.mark.slow
def test_parameters_end_at_their_bounds_to_the_last_bit(mixed):
    p, _, end, _ = mixed
    np.testing.assert_array_equal(end["fixed"], p["fixed"])
    np.testing.assert_array_equal(end["narrow"], jnp.bfloat16(0.7))
    np.testing.assert_array_equal(end["half"], np.float16(0.3))
    assert end["none"] is None


@pytest.mark.slow
def test_dtypes_of_the_state_are_kept(mixed):
    p, tx, end, state = mixed
    assert types(end) == types(p)
    assert types(state) == types(tx.init(p))
    assert state.linesearch.value == bowl(end)


@pytest.mark.slow
def test_a_whole_module_is_optimized_by_one_program():
    model, x = mlp(), jnp.array([[0.1, 0.2], [0.5, -1.0], [-0.3, 0.4]])
    loss = lambda model: jnp.mean((jax.vmap(model)(x) - jnp.sin(x)) ** 2)
    tx = stepax.lbfgsb(-0.4, 0.4, 3, project=True)
    dynamic, static = eqx.partition(model, eqx.is_array)

    @jax.jit
    def step(dynamic, state):
        model = eqx.combine(dynamic, static)
        value, grad = stepax.value_and_grad_from_state(loss)(model, state=state)
        more = {"value": value, "grad": grad, "value_fn": loss}
        u, state = tx.update(grad, state, model, **more)
        return eqx.filter(stepax.apply_updates(model, u), eqx.is_array), state

    state = tx.init(model)
    kinds, counts = types(state), []
    for _ in range(4):
        with compilations() as found:
            dynamic, state = step(dynamic, state)
        counts.append(len(found))
        assert all(jnp.abs(x).max() <= 0.4 for x in jax.tree.leaves(dynamic))
    assert counts[1:] == [0, 0, 0]
    assert types(state) == kinds
    assert state.linesearch.value < 0.9 * loss(model)
    assert callable(eqx.combine(dynamic, static).activation)


# --- the memory ----------------------------------------------------------------------


@pytest.mark.slow
def test_pairs_are_a_ring_and_products_are_theirs():
    tx = stepax.lbfgsb(memory_size=3, linesearch=None)
    p, scale = jnp.array([1.0, -2.0, 3.0]), np.array([1, 2, 5], np.float32)
    state, step, points = tx.init(p), jax.jit(tx.update), []
    for i in range(6):
        points.append(p)
        _, state = step(scale * p, state, p)
        p = p + jnp.array([0.5, 0.1 * i, -0.25 * i])
    assert state.pairs == 5
    s = np.array([points[i + 1] - points[i] for i in (3, 4, 2)])  # the newest is at 1
    np.testing.assert_array_equal(state.diff_params_memory, s)
    np.testing.assert_allclose(state.diff_updates_memory, s * scale, rtol=1e-6)
    np.testing.assert_allclose(state.products, s @ s.T, rtol=1e-6)
    np.testing.assert_allclose(state.curvatures, s @ (s * scale).T, rtol=1e-6)
    s, y = s[1], (s * scale)[1]
    np.testing.assert_allclose(state.theta, y @ y / (s @ y), rtol=1e-6)


@pytest.fixture(scope="module")
def simple():
    """An update without a search, in one program, and a state with two pairs."""
    tx = stepax.lbfgsb(-5.0, 5.0, 3, linesearch=None)
    state, step = tx.init(jnp.zeros(2)), jax.jit(tx.update)
    for p in jnp.array([[1.0, 2.0], [1.5, 1.0], [0.5, 0.7]]):
        _, state = step(p * jnp.array([1.0, 3.0]), state, p)
    assert state.pairs == 2
    return step, state


@pytest.mark.slow
def test_a_pair_without_curvature_is_left_out(simple):
    step, state = simple
    p = state.params + 1
    _, after = step(state.updates - 1, state, p)  # s·y < 0
    assert after.pairs == 2
    np.testing.assert_array_equal(after.curvatures, state.curvatures)
    np.testing.assert_array_equal(after.params, p)


@pytest.mark.slow
def test_all_pairs_are_forgotten_where_no_step_was_found(simple):
    step, state = simple
    g = jnp.array([3.0, -4.0])
    u, after = step(g, state, state.params)
    assert after.pairs == 0
    np.testing.assert_allclose(u, -g / 5, rtol=1e-6)  # of length 1


@pytest.mark.slow
def test_a_singular_matrix_is_forgotten(simple):
    step, state = simple
    bad = {
        "theta": jnp.ones([]),
        "curvatures": jnp.eye(3),
        "products": jnp.ones((3, 3)),
    }
    g, p = jnp.array([3.0, -40.0]), jnp.array([4.9, 4.5])
    u, after = step(
        g, state._replace(**bad, updates=g), p
    )  # no pair is added, as y = 0
    assert after.pairs == 0
    np.testing.assert_allclose(u, jnp.clip(p - g, -5, 5) - p, rtol=1e-6)


@pytest.mark.slow
def test_nan_passes_and_leaves_nothing_behind(simple):
    step, state = simple
    p = state.params
    u, bad = step(jnp.full(2, jnp.nan), state, p)
    assert jnp.isnan(u).all()
    u, healed = step(p, bad, p + 0.25)
    numbers = [x for x in jax.tree.leaves((u, healed))]
    assert all(jnp.isfinite(x).all() for x in numbers)
