"""ACProp, AdEMAMix, ADOPT, MADGRAD and COCOB, against their papers and Optax.

The references are written from the papers, in NumPy and float64; each takes the
gradients of all steps and yields the update of each.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compare import assert_same_structure

from stepax import inject_hyperparams, linear_schedule
from stepax._optimizers import adabelief, adagrad, ademamix, adopt, dog


MODULES = (adabelief, ademamix, adopt, dog, adagrad)
OURS = {k: v for m in MODULES for k, v in vars(m).items()}
START = np.array([0.7, -1.3, 0.2, 0.0])


def reference_acprop(gs, p, b1, b2, eps, eps_root, late):
    """Zhuang et al., 2021, Algorithm 1; `late` is as published."""
    m, s = 0, 0
    for t, g in enumerate(gs):
        v = s / (1 - b2**t) if t else 1.0
        yield g / (np.sqrt(v) + eps)
        before, m = m, b1 * m + (1 - b1) * g
        s = b2 * s + (1 - b2) * (g - (m if late else before)) ** 2 + eps_root


def reference_ademamix(gs, p, b1, b2, b3, alpha, eps):
    """Pagliardini et al., 2024, Algorithm 1; `b3` and `alpha` of the step."""
    m1, m2, nu = 0, 0, 0
    for t, g in enumerate(gs, 1):
        m1 = b1 * m1 + (1 - b1) * g
        m2 = b3(t - 1) * m2 + (1 - b3(t - 1)) * g
        nu = b2 * nu + (1 - b2) * g**2
        root = np.sqrt(nu / (1 - b2**t)) + eps
        yield (m1 / (1 - b1**t) + alpha(t - 1) * m2) / root


def reference_simplified(gs, p, b1, b2, alpha, eps):
    """Morwani et al., 2025, Algorithm 2."""
    m, n = 0, 0
    for t, g in enumerate(gs, 1):
        m = b1 * m + g
        n = b2 * n + (1 - b2) * g**2
        yield (m + alpha * g) / (np.sqrt(n / (1 - b2**t)) + eps)


def reference_adopt(gs, p, b1, b2, eps, clips):
    """Taniguchi et al., 2024, Algorithm 2, whose step 0 only starts v."""
    m, v = 0, gs[0] ** 2
    yield 0 * gs[0]
    for t, g in enumerate(gs[1:], 1):
        x = g / np.maximum(np.sqrt(v), eps)
        m = b1 * m + (1 - b1) * (np.clip(x, -(t**0.25), t**0.25) if clips else x)
        v = b2 * v + (1 - b2) * g**2
        yield m


def reference_madgrad(gs, p, rate, momentum, eps):
    """Defazio and Jelassi, 2021, Algorithm 1, with eps as in their program."""
    x, s, nu = p, 0, 0
    for k, g in enumerate(gs):
        weight = (rate + eps) * np.sqrt(k + 1)
        s, nu = s + weight * g, nu + weight * g**2
        z = p - s / (np.cbrt(nu) + eps)
        new = momentum * x + (1 - momentum) * z
        yield new - x
        x = new


def reference_cocob(gs, p, alpha, eps):
    """Orabona and Tommasi, 2017, Algorithm 2."""
    w, theta, L, G, reward = p, 0, eps, 0, 0
    for g in gs:
        L, G = np.maximum(L, np.abs(g)), G + np.abs(g)
        reward = np.maximum(reward - (w - p) * g, 0)
        theta = theta - g
        new = p + theta / (L * np.maximum(G + L, alpha * L)) * (L + reward)
        yield new - w
        w = new


def slow(t):
    return 0.9 + 0.01 * t


PAPERS = [
    ("acprop", (0.8, 0.9, 1e-3, 1e-3), {}, reference_acprop, (False,)),
    ("acprop", (0.8, 0.9, 0.1, 0.1), {"center_late": True}, reference_acprop, (True,)),
    ("ademamix", (0.9, 0.99, slow, slow, 1e-3), {}, reference_ademamix, ()),
    ("simplified_ademamix", (0.9, 0.99, 2.0, 1e-3), {}, reference_simplified, ()),
    ("adopt", (0.8, 0.9, 1e-2), {}, reference_adopt, (True,)),
    ("adopt", (0.8, 0.9, 1e-2), {"use_clipping": False}, reference_adopt, (False,)),
    ("madgrad", (0.1, 0.7, 1e-3), {}, reference_madgrad, ()),
    ("cocob", (10.0, 1e-3), {}, reference_cocob, ()),
]


def random_gradients(steps=20):
    """Of sizes that vary, none of them 0."""
    random = np.random.default_rng(3)
    return random.normal(size=(steps, 4)) * np.exp(random.normal(size=(steps, 1)))


def follow(tx, gs, p):
    """All updates and states, at parameters that follow them."""

    def step(carry, g):
        p, state = carry
        u, state = tx.update(g, state, p)
        return (p + u, state), (u, state)

    return jax.jit(lambda p, gs: jax.lax.scan(step, (p, tx.init(p)), gs)[1])(p, gs)


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "args", "options", "reference", "more"), PAPERS)
def test_float64_is_what_the_paper_says(name, args, options, reference, more, x64):
    gs = random_gradients()
    found, _ = follow(OURS[f"scale_by_{name}"](*args, **options), gs, jnp.array(START))
    wanted = np.stack(list(reference(gs, START, *args, *more)))
    # Twenty steps of some ten roundings each, a part of them carried on.
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-14)


def rate(count):
    """A schedule that rounds once, so that compiled and not it is the same."""
    return 1 / (10.0 + count)


CALLS = [
    ("scale_by_acprop", (), {}),
    ("scale_by_acprop", (0.8, 0.9, 1e-3, 1e-4), {}),
    ("acprop", (rate,), {"weight_decay": rate, "mask": True}),
    ("scale_by_ademamix", (), {}),
    ("scale_by_ademamix", (0.8, 0.9, rate, rate, 1e-3, 1e-4), {}),
    ("ademamix", (rate,), {"weight_decay": rate, "mask": True}),
    ("scale_by_simplified_ademamix", (), {}),
    ("scale_by_simplified_ademamix", (0.9, 0.99, rate, 1e-3, 1e-4), {}),
    ("simplified_ademamix", (rate,), {"weight_decay": rate, "mask": True}),
    ("scale_by_adopt", (), {}),
    ("scale_by_adopt", (0.8, 0.99, 1e-2), {"nesterov": True, "use_clipping": False}),
    ("adopt", (rate,), {"clip_value_fn": lambda count: 0.5 + 0 * count}),
    ("scale_by_cocob", (), {}),
    ("scale_by_cocob", (10.0, 1e-3), {}),
    ("cocob", (rate,), {"weight_decay": rate, "mask": True}),
    ("scale_by_madgrad", (0.1,), {}),
    ("madgrad", (rate, 0.5, rate, 1e-3), {}),
]


def both(name, args, options, dtype):
    """What follows from 200 gradients, by us and by Optax."""
    gs = jnp.asarray(random_gradients(200), dtype)
    p = jnp.asarray(START, dtype)
    found = follow(OURS[name](*args, **options), gs, p)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        tx = getattr(optax.contrib, name)(*args, **options)
        return found, follow(tx, gs, p)


def assert_equal(found, wanted):
    assert_same_structure(found, wanted)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert np.isfinite(y).all()
        np.testing.assert_array_equal(x, y, strict=True)


EQUAL = [call for call in CALLS if "madgrad" not in call[0]]


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "args", "options"), EQUAL)
def test_float32_is_that_of_optax_to_the_last_bit(name, args, options):
    assert_equal(*both(name, args, options, jnp.float32))


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "args", "options"), EQUAL)
def test_float64_is_that_of_optax_to_the_last_bit(name, args, options, x64):
    assert_equal(*both(name, args, options, jnp.float64))


@pytest.mark.parametrize(
    ("name", "args", "options"), [c for c in CALLS if "madgrad" in c[0]]
)
def test_madgrad_is_that_of_optax_to_the_rounding_of_parameters(name, args, options):
    """Optax subtracts parameters, whose last digits are lost from its updates.

    These are parameters below 4, rounded twice.
    """
    (found, ours), (wanted, theirs) = both(name, args, options, jnp.float32)
    assert_same_structure(ours, theirs)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=2 * 2.0**-22)


def test_madgrad_is_nearer_to_the_truth_than_optax():
    (found, _), (wanted, _) = both("scale_by_madgrad", (0.1,), {}, jnp.float32)
    gs = np.asarray(random_gradients(200), np.float32).astype(float)
    exact = list(reference_madgrad(gs, START, 0.1, 0.9, 1e-6))
    error = lambda u: np.abs(np.asarray(u, float) - exact).max()
    assert error(found) < error(wanted)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["madgrad", "cocob", "acprop", "adopt", "ademamix"])
def test_without_a_gradient_nothing_moves(name):
    p, gs = jnp.asarray(START, jnp.float32), jnp.zeros((5, 4), jnp.float32)
    tx = OURS[name](0.1)
    found, _ = follow(tx, gs, p)
    np.testing.assert_array_equal(found, 0)


@pytest.mark.parametrize("eps_root", [1e-16, 0.0])
def test_the_first_gradient_of_a_coordinate_does_not_explode_in_acprop(eps_root):
    gs = jnp.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.5], [1.0, 0.5]])
    tx = adabelief.scale_by_acprop(eps_root=eps_root)
    found, _ = follow(tx, gs, jnp.zeros(2))
    np.testing.assert_array_equal(found[:3, 1], [0, 0, 0.5])
    assert jnp.abs(found).max() < 10


@pytest.mark.parametrize("name", ["madgrad", "cocob"])
def test_zero_eps_and_zero_gradients_give_no_nan(name):
    options = {"eps": 0.0} | ({"learning_rate": 0.1} if name == "madgrad" else {})
    gs = jnp.array([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    found, _ = follow(OURS[f"scale_by_{name}"](**options), gs, jnp.ones(2))
    assert jnp.isfinite(found).all()


ROTATED = ["scale_by_acprop", "scale_by_adopt", "scale_by_ademamix", "scale_by_cocob"]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [*ROTATED, "scale_by_simplified_ademamix", "madgrad"])
def test_turning_complex_gradients_turns_the_updates(name):
    """What is computed of a complex number depends on its length alone."""
    tx = OURS[name](0.1) if name == "madgrad" else OURS[name]()
    gs = jnp.asarray(random_gradients(6), jnp.complex64)
    p, turn = jnp.zeros(4, jnp.complex64), np.complex64(np.exp(1j))
    real, _ = follow(tx, gs, p)
    turned, _ = follow(tx, turn * gs, p)
    np.testing.assert_allclose(turned, turn * real, rtol=1e-5, atol=1e-6)
    plain, _ = follow(tx, gs.real, p.real)
    np.testing.assert_allclose(real, plain, rtol=1e-5, atol=1e-6)


def test_a_narrow_mean_leaves_the_mean_square_of_ademamix_wide():
    state = ademamix.scale_by_ademamix(mu_dtype=jnp.bfloat16).init(jnp.ones(2))
    dtypes = [x.dtype for x in (state.m1, state.m2, state.nu)]
    assert dtypes == [jnp.bfloat16, jnp.bfloat16, jnp.float32]


@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_adopt_takes_injected_hyperparameters(wrap):
    p = jnp.ones(3)
    plain, injected = adopt.adopt(0.1), inject_hyperparams(adopt.adopt)(0.1)
    state, other = wrap(injected.init)(p), plain.init(p)
    assert "clip_value_fn" not in state.hyperparams
    assert state.hyperparams_states == {}
    for g in p, 2 * p:
        u, state = wrap(injected.update)(g, state, p)
        v, other = wrap(plain.update)(g, other, p)
    np.testing.assert_allclose(u, v, rtol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["acprop", "ademamix", "simplified_ademamix", "cocob"])
def test_a_weight_decay_may_be_a_schedule(name):
    p, decay = jnp.ones(2), linear_schedule(0.0, 0.5, 1)
    scheduled, constant = OURS[name](0.1, weight_decay=decay), OURS[name](0.1)
    found, _ = follow(scheduled, jnp.zeros((2, 2)), p)
    still, _ = follow(constant, jnp.zeros((2, 2)), p)
    np.testing.assert_array_equal(found[0], still[0])
    assert (found[1] < still[1]).all()


@pytest.mark.parametrize("name", ["scale_by_cocob", "madgrad"])
def test_parameters_are_asked_for(name):
    tx = OURS[name](0.1)
    with pytest.raises(ValueError, match="params"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
