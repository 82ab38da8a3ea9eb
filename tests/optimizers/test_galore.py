"""GaLore: against the paper, against Optax, and for any base optimizer and tree."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stepax
from stepax.contrib import GaLoreDimensionNumbers, galore, scale_by_galore


SHAPES = {"b": (3,), "k": (6, 5), "t": (4, 5), "x": (2, 3, 4)}


def arrays(lead=()):
    random = np.random.default_rng(0)
    normal = lambda shape: jnp.asarray(random.normal(size=(*lead, *shape)), jnp.float32)
    return {name: normal(shape) for name, shape in SHAPES.items()}


def drive(tx, params, gs):
    """Updates and states of all steps."""

    def step(state, g):
        updates, state = tx.update(g, state, params)
        return state, (updates, state)

    return jax.jit(lambda p, gs: jax.lax.scan(step, tx.init(p), gs)[1])(params, gs)


def reference(gs, rank, gap, side, scale=0.25, b1=0.9, b2=0.999, eps=1e-8):
    """Algorithm 2 with Adam, for one matrix; it projects the shorter side."""
    mu = nu = 0.0
    p = np.zeros(())
    for t, g in enumerate(gs, 1):
        is_left = (g.shape[0] <= g.shape[1]) == (side == "short")
        if (t - 1) % gap == 0:
            u, _, vt = np.linalg.svd(g)
            p = u[:, :rank] if is_left else vt[:rank].T
        r = p.T @ g if is_left else g @ p
        mu, nu = b1 * mu + (1 - b1) * r, b2 * nu + (1 - b2) * r**2
        n = mu / (1 - b1**t) / (np.sqrt(nu / (1 - b2**t)) + eps)
        yield scale * (p @ n if is_left else n @ p.T)


# Singular vectors are known to the eps over the gap of the values, here 1e-14.  The
# signs of a new projector are free, and decide how it goes with the old state.
@pytest.mark.few(1)
@pytest.mark.parametrize("side", ["long", "short"])
@pytest.mark.parametrize("shape", [(4, 3), (3, 5)])
def test_updates_are_those_of_the_paper(shape, side, x64):
    gs = np.random.default_rng(1).normal(size=(8, *shape))
    expected = np.stack(list(reference(gs, 2, 8, side)))
    tx = scale_by_galore(2, 8, 0.25, side=side)
    found, _ = drive(tx, jnp.zeros(shape), jnp.asarray(gs))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("side", ["long", "short"])
def test_the_projector_is_new_at_every_gap_alone(side):
    gs = arrays(lead=(7,))["k"]
    tx = scale_by_galore(2, 3, base_optimizer=stepax.identity(), side=side)
    found, states = drive(tx, gs[0], gs)
    p = np.asarray(states.projector)
    assert p.shape == (7, 6 if side == "long" else 5, 2)
    assert [i for i in range(1, 7) if np.any(p[i] != p[i - 1])] == [3, 6]
    for i in (0, 1, 3, 5):
        np.testing.assert_allclose(p[i].T @ p[i], np.eye(2), atol=1e-5)
        keep, g = p[i] @ p[i].T, np.asarray(gs[i])
        expected = keep @ g if side == "long" else g @ keep
        np.testing.assert_allclose(found[i], expected, atol=1e-5)


def specs(numbers):
    return {"b": None, "k": numbers(), "t": None, "x": numbers(0, (1, 2))}


SETS = {
    "default": lambda o: {},
    "scale": lambda o: {"scale": 0.25, "rank": 9},
    "decay": lambda o: {
        "weight_decay": 0.1,
        "mask": {"b": False, "k": True, "t": False, "x": True},
    },
    "dimensions": lambda o: {
        "weight_dimension_numbers": specs(o.contrib.GaLoreDimensionNumbers)
    },
    "momentum": lambda o: {"base_optimizer": o.sgd(1.0, momentum=0.9)},
}


def layout(state):
    """Names of types and fields, keys, shapes and dtypes."""
    if isinstance(state, tuple):
        kind = type(state).__name__, getattr(state, "_fields", None)
        return kind, [layout(x) for x in state]
    if isinstance(state, dict):
        return {k: layout(x) for k, x in state.items()}
    return state.shape, state.dtype


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SETS)
def test_float32_is_that_of_optax_to_the_last_bit(name):
    params, gs = arrays(), arrays(lead=(200,))
    rate = lambda count: 1 / (10.0 + count)

    def make(library):
        options = {"rank": 2, "update_proj_gap": 7} | SETS[name](library)
        return library.contrib.galore(rate, **options)

    found = drive(make(stepax), params, gs)
    with jax.numpy_dtype_promotion("standard"):
        expected = drive(make(optax), params, gs)
    assert layout(found[1]) == layout(expected[1])
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(x, y, strict=True)


@pytest.mark.slow
def test_none_and_empty_trees_and_arrays_pass():
    """Optax fails."""
    tx = galore(0.1, rank=2)

    def step(g, state, p):
        u, state = tx.update(g, state, p)
        assert jax.tree.structure(u) == jax.tree.structure(g)
        return u, state

    for empty in ({}, {"none": None}):
        step(empty, tx.init(empty), empty)
    p = {"k": arrays()["k"], "none": None, "e": jnp.ones((0, 3))}
    _, state = step(p, tx.init(p), p)
    u, after = step({**p, "k": None}, state, p)
    assert u["k"] is None
    before, kept = (s[0].base_optimizer_state.mu["k"] for s in (state, after))
    np.testing.assert_array_equal(before, kept)


@pytest.mark.slow
def test_keywords_and_parameters_reach_the_base_optimizer():
    """Both projected alike, the parameters are those that it moves."""
    p = arrays()
    seen = []

    def update(updates, state, params=None, **extra):
        seen.append(jax.tree.map(jnp.shape, params))
        assert seen[-1] == jax.tree.map(jnp.shape, updates)
        return jax.tree.map(lambda g: g * extra["factor"], updates), state

    init = lambda params: ()
    base = stepax.GradientTransformationExtraArgs(init, update)
    tx = scale_by_galore(2, base_optimizer=base)
    u, _ = tx.update(p, tx.init(p), p, factor=jnp.float32(3.0))
    np.testing.assert_array_equal(u["b"], 3 * p["b"])
    assert seen == [{"b": (3,), "k": (2, 5), "t": (4, 2), "x": (2, 3, 4)}]
    tx = scale_by_galore(2, base_optimizer=stepax.adamw(0.1))
    u, _ = tx.update(p, tx.init(p), p)
    assert np.linalg.matrix_rank(u["k"], tol=1e-5) == 2


@pytest.mark.slow
def test_hyperparameters_are_injected_under_jit():
    p = arrays()
    tx = stepax.inject_hyperparams(galore)(
        learning_rate=0.1,
        rank=2,
        weight_dimension_numbers=lambda p: specs(GaLoreDimensionNumbers),
    )
    state = jax.jit(tx.init)(p)
    names = {"learning_rate", "scale", "weight_decay", "update_proj_gap"}
    assert set(state.hyperparams) == names
    u, _ = jax.jit(tx.update)(p, state, p)
    plain = galore(0.1, 2, weight_dimension_numbers=specs(GaLoreDimensionNumbers))
    expected, _ = jax.jit(plain.update)(p, plain.init(p), p)
    for key, x in u.items():
        np.testing.assert_allclose(x, expected[key], rtol=1e-6)


def test_a_branch_costs_no_singular_vectors_between():
    """They are behind a condition, of which one side runs."""
    g = arrays()["k"]
    tx = scale_by_galore(2)
    jaxpr = jax.make_jaxpr(tx.update)(g, tx.init(g))
    outer = [e.primitive.name for e in jaxpr.eqns]
    assert "cond" in outer and "svd" not in outer
    assert "svd" in str(jaxpr)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("numbers", "order", "shape"),
    [((0, (1, 2)), (0, 1, 2), (2, 12)), (((-1, 0), 1), (2, 0, 1), (8, 3))],
)
def test_axes_are_joined_in_their_order(numbers, order, shape):
    g = arrays()["x"]
    tx = scale_by_galore(
        2, weight_dimension_numbers={"x": GaLoreDimensionNumbers(*numbers)}
    )
    found, _ = tx.update({"x": g}, tx.init({"x": g}))
    flat = jnp.transpose(g, order).reshape(shape)
    plain = scale_by_galore(2)
    expected, _ = plain.update(flat, plain.init(flat))
    found = jnp.transpose(found["x"], order).reshape(shape)
    np.testing.assert_allclose(found, expected, atol=1e-6)


class Net(eqx.Module):
    x: object
    b: object

    def __call__(self):
        raise AssertionError("the module was called")


NUMBERS = GaLoreDimensionNumbers(0, (1, 2))
FORMS = {
    "module": Net(NUMBERS, None),
    "function": lambda p: Net(NUMBERS, None),
    "patterns": {"x": NUMBERS, "**": None},
    "one for all": NUMBERS,
}


@pytest.mark.parametrize("name", FORMS)
def test_dimension_numbers_in_all_forms(name):
    p = Net(arrays()["x"], arrays()["b"])
    state = scale_by_galore(1, weight_dimension_numbers=FORMS[name]).init(p)
    assert state.projector.x.shape == (12, 1)
    assert state.projector.b.shape == (0, 0)


@pytest.mark.slow
def test_complex_matrices_are_projected():
    random = np.random.default_rng(2)
    for shape in ((4, 3), (3, 4)):
        z = random.normal(size=shape) + 1j * random.normal(size=shape)
        u, s, vh = np.linalg.svd(z, full_matrices=False)
        g = jnp.asarray(z, jnp.complex64)
        tx = scale_by_galore(1, base_optimizer=stepax.identity())
        found, _ = tx.update(g, tx.init(g))
        np.testing.assert_allclose(found, s[0] * u[:, :1] @ vh[:1], atol=1e-5)


@pytest.mark.slow
def test_equal_singular_values_have_finite_derivatives():
    tx = scale_by_galore(2, base_optimizer=stepax.sgd(1.0))
    f = lambda g: jnp.sum(tx.update(g, tx.init(g))[0] * jnp.arange(9.0).reshape(3, 3))
    for g in (jnp.eye(3), jnp.zeros((3, 3))):
        assert np.isfinite(jax.grad(f)(g)).all()


@pytest.mark.slow
def test_galore_descends():
    """To the minimum at T, whose rank is the one that is kept."""
    t = jnp.asarray(np.outer([1.0, 2, 3, 4], [1.0, -1, 0.5]), jnp.float32)
    tx = galore(lambda count: 0.2 * 0.98 ** jnp.asarray(count, jnp.float32), 1, 10)

    def step(carry, _):
        p, state = carry
        updates, state = tx.update(p - t, state, p)
        return (p + updates, state), None

    first = jnp.zeros((4, 3)), tx.init(jnp.zeros((4, 3)))
    (p, _), _ = jax.lax.scan(step, first, length=300)
    assert jnp.sum(jnp.square(p - t)) < 1e-2 * jnp.sum(jnp.square(t))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="`rank` must be >= 1"):
        scale_by_galore(rank=0)
    with pytest.raises(ValueError, match="`update_proj_gap` must be >= 1"):
        galore(0.1, update_proj_gap=0)
    with pytest.raises(
        ValueError, match="`side` is 'left', expected one of .'long', 'short'"
    ):
        galore(0.1, side="left")  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        TypeError,
        match="`base_optimizer` of `scale_by_galore` must be a .* did you mean",
    ):
        galore(0.1, base_optimizer=stepax.adam)  # pyright: ignore[reportArgumentType]
    p = arrays()

    def init(**axes):
        spec = {"b": None, "k": None, "t": None, "x": None}
        spec |= {k: GaLoreDimensionNumbers(*x) for k, x in axes.items()}
        return scale_by_galore(weight_dimension_numbers=spec).init(p)

    where = r"`weight_dimension_numbers` for \['{}'\]"
    with pytest.raises(ValueError, match=where.format("b") + r".*of shape \(3,\)"):
        init(b=(0, 1))
    with pytest.raises(ValueError, match=where.format("k") + r".*\(6, 5\) twice"):
        init(k=(0, 0))
    with pytest.raises(ValueError, match=where.format("x") + r" omits .*\[0\]"):
        init(x=(1, 2))
