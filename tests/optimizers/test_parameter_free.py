"""DoG, DoWG, D-Adaptation and Prodigy: papers, Optax, and what Optax gets wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from single_steps import (
    assert_close,
    assert_follows,
    is_matrix,
    rate,
    side_by_side,
    to_call,
)

import stepax
from stepax import contrib


CALLS = {
    "dog": [
        to_call(),
        to_call(rate, ("distance", 0.1), weight_decay=0.1, mask=is_matrix),
        to_call(0.5, ("learning_rate", 0.01), eps=0.1),
    ],
    "dowg": [to_call(), to_call(rate, 0.1, 0.01, 0.1)],
    "dadapt_adamw": [to_call(), to_call(rate, (0.8, 0.9), 0.1, 0.01, 0.3)],
    "prodigy": [
        to_call(),
        to_call(rate, (0.8, 0.9), 0.7, 0.1, 0.01, 0.5, 0.3),
        to_call(rate, (0.8, 0.9), None, 0.1, 0.5, 0.5, 0.3, True),
    ],
}
TABLE = [
    pytest.param(name, call, id=f"{name}-{i}")
    for name, calls in CALLS.items()
    for i, call in enumerate(calls)
]


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "call"), TABLE)
def test_each_step_is_that_of_optax(name, call, dtype):
    args, kwargs = call
    with jax.enable_x64(dtype == "float64"):
        ours = getattr(contrib, name)(*args, **kwargs)
        theirs = getattr(optax.contrib, name)(*args, **kwargs)
        _, _, found, expected = side_by_side(ours, theirs, dtype)
        assert_close(found[0], expected[0], 2)
        # The numerator of the estimates is a sum of terms of both signs.
        assert_close(found[1], expected[1], 8)


def dog(kind, first, eps, rate=lambda n: 1.0):
    """Ivgi et al., 2023, equation 1, with the three ways to begin."""

    def run(start):
        r, total = 0, 0
        if kind != "learning_rate":
            is_relative = kind == "heuristic"
            r = first * (1 + np.linalg.norm(start) if is_relative else 1)

        def step(t, p, g, value):
            nonlocal r, total
            r, total = max(r, np.linalg.norm(p - start)), total + g @ g
            eta = r / np.sqrt(total + eps)
            if t == 1 and kind == "learning_rate":
                eta = first
            return p - rate(t - 1) * eta * g

        return step

    return run


def dowg(first, eps, rate=lambda n: 1.0):
    """Khaled et al., 2023, Algorithm 1, with eps beside the root."""

    def run(start):
        r, v = np.sqrt(first), 0

        def step(t, p, g, value):
            nonlocal r, v
            r = max(r, np.linalg.norm(p - start))
            v = v + r**2 * (g @ g)
            return p - rate(t - 1) * r**2 / (np.sqrt(v) + eps) * g

        return step

    return run


def correction(betas, t):
    """The factor of the rate by Adam's bias corrections; 1 without the betas."""
    return np.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t) if betas else 1


def dadapt(betas, eps, d, decay, rate=lambda n: 1.0, is_corrected=True):
    """Defazio and Mishchenko, 2023, Algorithm 5."""
    b1, b2 = betas

    def run(start):
        m, v, s, r = 0, 0, 0, 0

        def step(t, p, g, value):
            nonlocal m, v, s, r, d
            a = d * rate(t - 1) * correction(is_corrected and betas, t)
            r = b2**0.5 * r + (1 - b2**0.5) * a * np.sum(g * s / (np.sqrt(v) + eps))
            s = b2**0.5 * s + (1 - b2**0.5) * a * g
            m = b1 * m + (1 - b1) * a * g
            v = b2 * v + (1 - b2) * g**2
            d = max(d, r / ((1 - b2**0.5) * np.sum(np.abs(s))))
            return p - m / (np.sqrt(v) + eps) - decay * a * p

        return step

    return run


def dadapt_sgd(momentum, d, decay, rate=lambda n: 1.0):
    """Defazio and Mishchenko, 2023, Algorithm 4, with the authors' momentum."""

    def run(start):
        s, r, first = 0, 0, None

        def step(t, p, g, value):
            nonlocal s, r, d, first
            first = np.linalg.norm(g) if first is None else first
            a, g = d * rate(t - 1) / first, g + decay(t - 1) * p
            r = r + a * np.sum(g * s)
            s = s + a * g
            d = max(d, 2 * r / np.linalg.norm(s))
            return momentum * p + (1 - momentum) * (start - s)

        return step

    return run


def prodigy(
    betas,
    b3,
    eps,
    d0,
    coef,
    decay,
    is_safe,
    rate=lambda n: 1.0,
    is_corrected=True,
    every=1,
    growth=np.inf,
):
    """Mishchenko and Defazio, 2023, Algorithm 4."""
    b1, b2 = betas

    def run(start):
        m, v, s, r, d, most = 0, 0, 0, 0, d0, d0

        def step(t, p, g, value):
            nonlocal m, v, s, r, d, most
            a = d * rate(t - 1) * correction(is_corrected and betas, t)
            r = b3 * r + d / d0 * a * (g[::every] @ (start - p)[::every])
            s = b3 * s + d / d0 * (d if is_safe else a) * g[::every]
            m = b1 * m + (1 - b1) * d * g
            v = b2 * v + (1 - b2) * d**2 * g**2
            found = coef * r / np.sum(np.abs(s))
            d, most = max(d, found) if d == d0 else d, max(most, found)
            d = min(most, d * growth)
            return p - a * m / (np.sqrt(v) + d * eps) - decay * a * p

        return step

    return run


PAPERS = {
    "dog, heuristic": (contrib.dog(), dog("heuristic", 1e-6, 1e-8)),
    "dog, distance": (
        contrib.dog(rate, ("distance", 0.1), 0.1),
        dog("distance", 0.1, 0.1, rate),
    ),
    "dog, learning rate": (
        contrib.dog(init_step=("learning_rate", 0.01)),
        dog("learning_rate", 0.01, 1e-8),
    ),
    "L-DoG": (
        stepax.scale_by_distance_over_gradients(
            1e-3, param_dtype="float64", global_scale=-1.0
        ),
        dog("heuristic", 1e-3, 1e-8),
    ),
    "dowg": (contrib.dowg(), dowg(1e-4, 1e-4)),
    "dowg, scheduled": (contrib.dowg(rate, 0.1, 0.01), dowg(0.1, 0.01, rate)),
    "dadapt_adamw": (
        contrib.dadapt_adamw(rate, (0.8, 0.9), 0.1, 0.01, 0.3),
        dadapt((0.8, 0.9), 0.1, 0.01, 0.3, rate),
    ),
    "dadapt_adamw, default": (
        contrib.dadapt_adamw(),
        dadapt((0.9, 0.999), 1e-8, 1e-6, 0.0),
    ),
    "dadapt_adamw, not corrected": (
        contrib.dadapt_adamw(rate, (0.8, 0.9), 0.1, 0.01, 0.3, bias_correction=False),
        dadapt((0.8, 0.9), 0.1, 0.01, 0.3, rate, False),
    ),
    "dadapt_sgd": (
        contrib.dadapt_sgd(rate, 0.8, 0.01, lambda n: rate(n) / 3),
        dadapt_sgd(0.8, 0.01, lambda n: rate(n) / 3, rate),
    ),
    "dadapt_sgd, default": (
        contrib.dadapt_sgd(),
        dadapt_sgd(0.0, 1e-6, lambda n: 0.0),
    ),
    "prodigy, slices that grow slowly": (
        contrib.prodigy(
            rate,
            (0.8, 0.9),
            0.7,
            0.1,
            0.01,
            0.5,
            0.3,
            bias_correction=False,
            slice_p=2,
            growth_rate=1.02,
        ),
        prodigy((0.8, 0.9), 0.7, 0.1, 0.01, 0.5, 0.3, False, rate, False, 2, 1.02),
    ),
    "prodigy": (
        contrib.prodigy(rate, (0.8, 0.9), 0.7, 0.1, 0.01, 0.5, 0.3),
        prodigy((0.8, 0.9), 0.7, 0.1, 0.01, 0.5, 0.3, False, rate),
    ),
    "prodigy, safe": (
        contrib.prodigy(rate, (0.8, 0.9), 0.7, 0.1, 0.01, 0.5, 0.3, True),
        prodigy((0.8, 0.9), 0.7, 0.1, 0.01, 0.5, 0.3, True, rate),
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", PAPERS)
def test_follows_the_paper(name, x64):
    assert_follows(*PAPERS[name])


def test_dog_by_layers_is_dog_for_one_array():
    p, g = jnp.arange(3.0), jnp.array([1.0, -2.0, 0.5])
    whole = contrib.dog()
    each = stepax.scale_by_distance_over_gradients(global_scale=-1.0)
    s, t = whole.init(p), each.init(p)
    for _ in range(3):
        u, s = whole.update(g, s, p)
        v, t = each.update(g, t, p)
        np.testing.assert_array_equal(u, v)
        p = p + 100 * u


FREE = {
    "dog": contrib.dog(),
    "dowg": contrib.dowg(),
    "L-DoG": stepax.scale_by_distance_over_gradients(),
    "dadapt_adamw": contrib.dadapt_adamw(),
    "dadapt_sgd": contrib.dadapt_sgd(momentum=0.5),
    "prodigy": contrib.prodigy(),
    "prodigy, sliced": contrib.prodigy(slice_p=2, growth_rate=1.5),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", FREE)
def test_gradients_of_zeros_give_no_step(name, dtype):
    """Optax's D-Adaptation and Prodigy return NaN, from the first step on."""
    tx, p = FREE[name], jnp.ones(3, dtype)
    state = tx.init(p)
    for _ in range(2):
        u, state = tx.update(jnp.zeros_like(p), state, p)
        np.testing.assert_array_equal(np.asarray(u, np.float32), 0)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(state))


ESTIMATING = [contrib.dadapt_adamw, contrib.dadapt_sgd, contrib.prodigy]


@pytest.mark.few(1)
@pytest.mark.parametrize("make", ESTIMATING)
def test_a_learning_rate_that_starts_at_zero_keeps_the_estimate(make):
    tx, p = make(stepax.linear_schedule(0.0, 1.0, 2)), jnp.ones(3)
    state = tx.init(p)
    u, state = tx.update(jnp.ones(3), state, p)
    np.testing.assert_array_equal(u, 0)
    assert state.estim_lr == jnp.float32(1e-6)
    u, _ = tx.update(jnp.ones(3), state, p)
    assert (u < 0).all()


@pytest.mark.parametrize("first", [contrib.dog(eps=0.0), contrib.dowg(eps=0.0)])
def test_no_eps_is_needed(first):
    p = jnp.ones(2)
    u, state = first.update(jnp.zeros(2), first.init(p), p)
    np.testing.assert_array_equal(u, 0)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(state))


SHARED = {"max_dist", "sum_sq_norm_grads", "weighted_sq_norm_grads", "estim_sq_dist"}
SHARED |= {"estim_lr", "numerator_weighted", "estim_lr_max", "grad_norm0"}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", sorted(FREE.keys() - {"L-DoG"}))
def test_numbers_of_a_mixed_tree_are_float32_and_stay_so(name):
    tx = FREE[name]
    p = {"w": jnp.ones(2, "bfloat16"), "b": jnp.ones(2)}
    first = tx.init(p)
    _, state = tx.update(p, first, p)
    kinds = lambda state: [x.dtype for x in jax.tree.leaves(state)]
    assert kinds(state) == kinds(first)
    found = [stepax.tree.get(state, k) for k in SHARED]
    assert {x.dtype for x in found if x is not None} == {jnp.dtype("float32")}


@pytest.mark.parametrize("make", [contrib.dadapt_adamw, contrib.prodigy])
def test_small_steps_do_not_vanish_in_float16(make):
    tx, p = make(), jnp.ones(2, "float16")
    state = tx.init(p)
    _, state = tx.update(p, state, p)
    for x in (state.exp_avg, state.exp_avg_sq, state.grad_sum):
        assert x.dtype == jnp.float32
        assert (x > 0).all()


def test_sums_over_few_elements_take_little_memory():
    p = {"w": jnp.ones((4, 3)), "s": jnp.ones(())}
    state = contrib.prodigy(slice_p=5).init(p)
    for few in (state.grad_sum, state.params0):
        assert {k: x.shape for k, x in few.items()} == {"w": (3,), "s": (1,)}
    shapes = jax.eval_shape(lambda: p)
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(
        jnp.shape, contrib.prodigy(slice_p=5).init(shapes)
    )


@pytest.mark.slow
def test_growth_may_be_limited_by_an_injected_number():
    p, g = jnp.ones(3), jnp.full(3, 0.5)
    tx = stepax.inject_hyperparams(contrib.prodigy)(growth_rate=1.5, estim_lr0=1e-3)
    state, found = tx.init(p), []
    for _ in range(8):
        u, state = tx.update(g, state, p)
        p = p + u
        found.append(float(stepax.tree.get(state, "estim_lr")))
    growth = np.array(found[1:]) / found[:-1]
    assert growth.max() == pytest.approx(1.5, rel=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("mask", [True, {"b": False, "w": True}])
def test_decay_does_not_count_as_the_first_gradient(mask):
    """1e-3 for each coordinate, of a gradient of norm 1 in each."""
    tx = contrib.dadapt_sgd(estim_lr0=1e-3, weight_decay=0.5, weight_decay_mask=mask)
    p = {"b": jnp.full(2, 2.0), "w": jnp.full(2, 2.0)}
    g = jax.tree.map(lambda p: 0.25 * p, p)  # of norm 1
    u, state = tx.update(g, tx.init(p), p)
    assert state.grad_norm0 == 1
    np.testing.assert_allclose(u["w"], -1e-3 * 1.5, rtol=1e-4)
    np.testing.assert_allclose(u["b"], -1e-3 * (1.5 if mask is True else 0.5), 1e-4)


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_dadapt_sgd_begins_at_the_first_gradient_that_is_not_zero(scale):
    tx, p = contrib.dadapt_sgd(weight_decay=0.1), jnp.ones(4)
    u, state = tx.update(jnp.full(4, scale), tx.init(p), p)
    assert state.grad_norm0 == 2 * scale
    u, state = tx.update(jnp.full(4, 0.5), state, p)
    assert state.grad_norm0 == (2 if scale else 1)
    assert (u < 0).all()


def test_prodigy_decays_where_the_mask_says():
    p = {"b": jnp.ones(2), "w": jnp.ones(2)}
    g = jax.tree.map(lambda p: 0.5 * p, p)
    settings = {"estim_lr0": 0.1, "weight_decay": rate}
    masked = contrib.prodigy(**settings, weight_decay_mask={"b": False, "w": True})
    bare = contrib.prodigy(estim_lr0=0.1)
    whole = contrib.prodigy(**settings)
    state = masked.init(p)
    for _ in range(2):
        u, new = masked.update(g, state, p)
        v, _ = bare.update(g, state, p)
        w, same = whole.update(g, state, p)
        assert jax.tree.structure(new) == jax.tree.structure(same)
        np.testing.assert_array_equal(u["b"], v["b"])
        np.testing.assert_allclose(u["w"], w["w"], rtol=2.0**-22)
        assert (w["b"] < u["b"]).all()
        state = new


@pytest.mark.parametrize("make", [contrib.dog, contrib.dadapt_adamw, contrib.prodigy])
def test_weight_decay_may_be_a_schedule(make):
    p, g = jnp.ones(3), jnp.full(3, 0.5)
    fixed, scheduled = make(weight_decay=0.1), make(weight_decay=lambda count: 0.1)
    u, _ = fixed.update(g, fixed.init(p), p)
    v, _ = scheduled.update(g, scheduled.init(p), p)
    np.testing.assert_array_equal(u, v)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["dog", "dowg"])
def test_complex_parameters_are_pairs_of_real_ones(name):
    tx, z = FREE[name], jnp.array([1 + 2j, 3 - 1j], "complex64")
    split = lambda z: jnp.stack([z.real, z.imag])
    s, t = tx.init(z), tx.init(split(z))
    x = split(z)
    for _ in range(3):
        u, s = tx.update(z * (1 - 2j), s, z)
        v, t = tx.update(split(z * (1 - 2j)), t, x)
        np.testing.assert_allclose(split(u), v, rtol=1e-6)
        z, x = z + u, x + v


@pytest.mark.parametrize("init_step", [("size", 1.0), "distance", ("heuristic",)])
def test_dog_names_the_ways_to_begin(init_step):
    with pytest.raises(ValueError, match="`init_step` is .*expected a pair of one of"):
        contrib.dog(init_step=init_step)
