"""Sophia and the estimator of curvature that it has by default."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compare import assert_same_structure

from stepax import inject_hyperparams, masked, scale, strict_keywords
from stepax.contrib import hutchinson_estimator_diag_hessian, sophia


CURVATURES = {"a": np.array([1.0, -2.0, 4.0]), "b": np.array([[0.5, 3.0]])}


def parameters():
    return {"a": jnp.array([0.7, -1.3, 0.2]), "b": jnp.array([[0.5, 0.1]])}


def parabola(p):
    """Its Hessian is diagonal, so that every estimate is exact."""
    terms = [0.5 * jnp.sum(jnp.asarray(CURVATURES[k], x.dtype) * x**2)
             for k, x in p.items()]  # fmt: skip
    return sum(terms)


def bowl(p):
    return jnp.sum(p["a"] ** 4) + jnp.sum(p["b"]) ** 2 * jnp.sum(p["a"])


def follow(tx, loss, p, steps):
    """All updates and states on the way down."""

    def step(carry, _):
        p, state = carry
        u, state = tx.update(jax.grad(loss)(p), state, p, obj_fn=loss)
        return (jax.tree.map(jnp.add, p, u), state), (u, state)

    run = lambda p: jax.lax.scan(step, (p, tx.init(p)), length=steps)[1]
    return jax.jit(run)(p)


def reference(p, h, steps, b1, b2, eps, rate, decay, gamma, clip, k, is_paper):
    """Liu et al., 2024, Algorithm 3, for a parabola of curvatures h.

    Without `is_paper` the mean is corrected, and h acts from the next step on.
    """
    m, nu = 0, 0
    for t in range(1, steps + 1):
        m = b1 * m + (1 - b1) * h * p
        old = nu
        nu = b2 * nu + (1 - b2) * h if t % k == 1 else nu
        mean, curvature = (m, nu) if is_paper else (m / (1 - b1**t), old)
        u = np.clip(mean / np.maximum(gamma * curvature, eps), -clip, clip)
        step = -rate * (u + decay * p)
        yield step
        p = p + step


@pytest.mark.slow
@pytest.mark.parametrize("is_paper", [True, False])
def test_float64_is_what_the_paper_says(is_paper, x64):
    names = "b1 b2 eps learning_rate weight_decay gamma clip_threshold update_interval"
    values = 0.9, 0.8, 1e-3, 0.05, 0.1, 2.0, 0.7, 3
    options = {"bias_correction": not is_paper, "use_new_curvature": is_paper}
    tx = sophia(**dict(zip(names.split(), values, strict=True)), **options)
    p = jax.tree.map(lambda x: x.astype(float), parameters())
    found, _ = follow(tx, parabola, p, 12)
    for k, h in CURVATURES.items():
        wanted = np.stack(list(reference(np.asarray(p[k]), h, 12, *values, is_paper)))
        # Twelve steps of some ten roundings.
        np.testing.assert_allclose(found[k], wanted, rtol=1e-12, atol=1e-15)


SETS = [
    {},
    {"gamma": 10.0, "update_interval": 3, "b1": 0.8, "b2": 0.9},
    {"gamma": 1.0, "clip_threshold": None, "update_interval": 1, "eps": 0.1},
    {"weight_decay": lambda c: 0.1 / (1.0 + c), "weight_decay_mask": {"a": 1, "b": 0}},
]


@pytest.mark.few(1)
@pytest.mark.parametrize("options", SETS)
def test_float32_is_that_of_optax_to_the_last_bit(options):
    found = follow(sophia(0.01, **options), bowl, parameters(), 200)
    with jax.numpy_dtype_promotion("standard"):
        tx = optax.contrib.sophia(0.01, **options)
        wanted = follow(tx, bowl, parameters(), 200)
    assert_same_structure(found, wanted)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(x, y, strict=True)


def test_the_curvature_is_estimated_only_when_it_is_due():
    calls = []

    def loss(p):
        jax.debug.callback(lambda: calls.append(None))
        return parabola(p)

    tx, p = sophia(0.1, update_interval=4), parameters()
    state, step = tx.init(p), jax.jit(lambda s, p: tx.update(p, s, p, obj_fn=loss))
    counts = []
    for _ in range(6):
        state = step(state, p)[1]
        jax.effects_barrier()
        counts.append(len(calls))
    assert 0 < counts[0] == counts[3] < counts[4] == counts[5]


def test_estimates_of_curvature_are_right_in_the_mean():
    estimator, p = hutchinson_estimator_diag_hessian(7), parameters()

    def step(state, _):
        h, state = estimator.update(p, state, p, obj_fn=bowl)
        return state, h

    _, found = jax.jit(lambda s: jax.lax.scan(step, s, length=4000))(estimator.init(p))
    x, total = p["a"], jnp.sum(p["b"])
    wanted = {"a": 12 * x**2, "b": 2 * jnp.sum(x) * jnp.ones((1, 2))}
    # Other entries of a row are below 5 in all; over 4000 draws 0.08, four times it.
    assert 4 * abs(total) < 5
    for k in found:
        np.testing.assert_allclose(jnp.mean(found[k], 0), wanted[k], atol=0.32)


@pytest.mark.slow
def test_other_random_vectors_give_other_estimates():
    p = parameters()
    normal = hutchinson_estimator_diag_hessian(sampler=jax.random.normal)
    h, _ = normal.update(p, normal.init(p), p, obj_fn=parabola)
    ratio = h["a"] / CURVATURES["a"].astype(np.float32)
    assert (ratio >= 0).all() and len(set(map(float, ratio))) == 3


def test_the_seed_may_be_a_number_or_a_key():
    p, raw = parameters(), jax.random.PRNGKey(3)
    states = [
        hutchinson_estimator_diag_hessian(seed).init(p)
        for seed in (3, raw, jax.random.key(3))
    ]
    data = [jax.random.key_data(s.key) if s.key.ndim == 0 else s.key for s in states]
    for x in data:
        np.testing.assert_array_equal(x, raw)
    assert states[1].key.unsafe_buffer_pointer() != raw.unsafe_buffer_pointer()
    none = hutchinson_estimator_diag_hessian().init(p).key
    np.testing.assert_array_equal(none, jax.random.PRNGKey(0))


def squares(p):
    """A loss for any tree."""
    numbers = [x for x in jax.tree.leaves(p) if jnp.result_type(x) == jnp.float32]
    return sum([jnp.sum(jnp.square(x)) for x in numbers], jnp.float32(0))


TREES = {
    "None": {"x": jnp.ones(2), "none": None},
    "empty": {},
    "integers": {"x": jnp.ones(2), "n": jnp.arange(3)},
    "only None": (None,),
    "Python scalar": 1.5,
}


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "eager"])
@pytest.mark.parametrize("tree", TREES)
def test_takes_leaves_without_gradients(tree, wrap):
    tx, p = sophia(0.1, weight_decay=0.0, update_interval=2), TREES[tree]
    g = jax.grad(squares, allow_int=True)(p)
    u, state = g, tx.init(p)
    for _ in range(3):
        step = lambda s: tx.update(g, s, p, obj_fn=squares)
        u, state = wrap(step)(state) if tree != "integers" else step(state)
    assert jax.tree.structure(u) == jax.tree.structure(g)
    # The curvature is 2, seen at the first step and the third one.
    for x in jax.tree.leaves(state[0].nu):
        assert x.dtype != jnp.float32 or jnp.allclose(x, 0.02 * 1.99)


def test_a_mask_keeps_parameters_out_of_the_curvature():
    p = parameters()
    tx = masked(sophia(0.1, weight_decay=0.0), {"a": True, "b": False})
    u, state = tx.update(p, tx.init(p), p, obj_fn=squares)
    np.testing.assert_array_equal(u["b"], p["b"])
    np.testing.assert_allclose(state.inner_state[0].nu["a"], 0.02, rtol=1e-6)


def test_another_estimator_is_given_the_keywords():
    tx = sophia(0.1, hessian_diagonal_fn=scale(2.0), weight_decay=0.0)
    p = parameters()
    _, state = tx.update(p, tx.init(p), p)
    np.testing.assert_allclose(state[0].nu["a"], 0.02 * p["a"], rtol=1e-5)


@pytest.mark.slow
def test_hyperparameters_can_be_injected():
    p, tx = parameters(), inject_hyperparams(sophia)(0.1, update_interval=2)
    state = jax.jit(tx.init)(p)
    numbers = {"learning_rate", "b1", "b2", "eps", "weight_decay", "gamma"}
    assert set(state.hyperparams) == numbers | {"clip_threshold", "update_interval"}
    step = jax.jit(lambda g, s: tx.update(g, s, p, obj_fn=parabola))
    u, _ = step(p, state)
    plain = sophia(0.1, update_interval=2)
    v, _ = plain.update(p, plain.init(p), p, obj_fn=parabola)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), u, v)


@pytest.mark.few(1)
@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_the_part_that_is_not_clipped_is_printed(wrap, capsys):
    options = {"verbose": True, "print_win_rate_every_n_steps": 2}
    tx = sophia(0.1, eps=1.0, clip_threshold=1.0, weight_decay=0.0, **options)
    g, p = {"a": jnp.array([0.5, 0.5, 0.5, 7.0])}, {"a": jnp.zeros(4)}
    state, step = tx.init(p), wrap(lambda s: tx.update(g, s, p, obj_fn=squares))
    for _ in range(5):
        _, state = step(state)
    jax.effects_barrier()
    assert capsys.readouterr().out == "Sophia optimizer win rate: 0.75\n" * 2


def test_complex_parameters_are_refused():
    with pytest.raises(
        TypeError, match=r"needs real parameters, but the parameter at \['x'"
    ):
        sophia(0.1).init({"x": jnp.ones(2, jnp.complex64)})


def test_missing_arguments_are_named():
    p, estimator = parameters(), hutchinson_estimator_diag_hessian()
    with pytest.raises(ValueError, match="reads the keyword `obj_fn`"):
        sophia(0.1).update(p, sophia(0.1).init(p), p)
    with pytest.raises(ValueError, match="needs `params`"):
        estimator.update(p, estimator.init(p), obj_fn=parabola)
    with pytest.raises(TypeError, match="`hessian_diagonal_fn` of `sophia` must be"):
        sophia(0.1, hessian_diagonal_fn=hutchinson_estimator_diag_hessian)  # pyright: ignore[reportArgumentType]


def test_strict_knows_which_keyword_is_read():
    tx, p = strict_keywords(sophia(0.1)), parameters()
    tx.update(p, tx.init(p), p, obj_fn=parabola)
    with pytest.raises(TypeError, match="obj_fun"):
        tx.update(p, tx.init(p), p, obj_fun=parabola)
