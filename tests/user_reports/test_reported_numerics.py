"""No NaN, no overflow and no lost update: gradients of any size, in any precision."""

import cases
import jax
import jax.numpy as jnp
import library
import numpy as np
import pytest
from cases import gradients
from keywords import keywords
from library import make, optax


row = pytest.mark.row
every_optimizer = pytest.mark.parametrize("row", library.rows(kind="optimizer"))


def parameters(dtype="float32"):
    return jax.tree.map(lambda x: x.astype(dtype), cases.TREES["dict"]())


def full(p, size):
    return jax.tree.map(lambda x: jnp.full_like(x, size), p)


def step_of(tx):
    """One update, operation by operation: a program for each takes long to compile."""

    def step(g, state, p):
        with jax.disable_jit():
            return tx.update(g, state, p, **keywords(g))

    return step


def run(tx, gs, p):
    """The last update, and the state, of steps from one point."""
    step, state, u = step_of(tx), tx.init(p), None
    for g in gs:
        u, state = step(g, state, p)
    return u, state


def leaves(tree):
    return [np.asarray(x, np.float64) for x in jax.tree.leaves(tree)]


def all_finite(tree):
    inexact = lambda x: jnp.issubdtype(jnp.result_type(x), jnp.inexact)
    return all(jnp.isfinite(x).all() for x in jax.tree.leaves(tree) if inexact(x))


SIZES = {"float16": [0.0, 1e-4, 1e4], "bfloat16": [0.0, 1e-30, 1e15]}


@pytest.mark.few(1)
@row("float16 zero/tiny gradients", optax="fails")
@pytest.mark.parametrize("dtype", SIZES)
@every_optimizer
def test_no_size_of_a_narrow_gradient_gives_a_nan(row, dtype):
    p, tx = parameters(dtype), make(row)
    step = step_of(tx)
    for size in SIZES[dtype]:
        u, state = full(p, size), tx.init(p)
        for _ in range(2):
            u, state = step(full(p, size), state, p)
        assert all_finite(u), size


APART = {
    "noisy_sgd": "its noise is drawn in the dtype of the gradient",
    "galore": "all directions are singular for a gradient of one number",
    "schedule_free_adamw": "it keeps a position, whose last bit is a part of a step",
}


@pytest.mark.few(1)
@row("float16 zero/tiny gradients", optax="fails")
@every_optimizer
def test_a_narrow_gradient_moves_as_a_wide_one(row):
    if row.name in APART:
        pytest.skip(APART[row.name])
    wide = lambda tree: jax.tree.map(lambda x: x.astype("float32"), tree)
    p, tx = parameters("float16"), make(row)
    for size in (1e-3, 1e3):
        g = full(p, size)
        found, _ = run(tx, [g] * 2, p)
        wanted, _ = run(tx, [wide(g)] * 2, wide(p))
        for x, y in zip(leaves(found), leaves(wanted), strict=True):
            # Moments and positions are rounded to 11 bits, and are subtracted.
            np.testing.assert_allclose(x, y, atol=4e-2 * np.abs(y).max())


@pytest.mark.thinned
@row("zero gradients in parameter-free optimizers", optax="fails")
@every_optimizer
def test_a_gradient_of_zero_gives_a_number(row):
    p, tx = parameters(), make(row)
    u, state = run(tx, [full(p, 0.0)] * 3, p)
    assert all_finite((u, state) if "lbfgs" not in row.name else u)


@pytest.mark.few(1)
@row("parameter-free optimizers", optax="passes")
@pytest.mark.parametrize("name", ["dog", "dowg", "prodigy", "cocob", "dadapt_adamw"])
def test_an_optimizer_without_a_rate_finds_the_minimum(name):
    home = optax if hasattr(optax, name) else optax.contrib
    tx, p = getattr(home, name)(), jnp.array([3.0, -2.0])
    loss = lambda p: jnp.sum((p - 1.0) ** 2)

    def step(carry, _):
        p, state = carry
        u, state = tx.update(jax.grad(loss)(p), state, p)
        return (optax.apply_updates(p, u), state), None

    (p, _), _ = jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), length=1000))(p)
    assert float(loss(p)) < 0.1


CLIPS = {
    "clip_by_global_norm": ((1.0,), {}),
    "adaptive_grad_clip": ((0.1,), {}),
}


@row("clipping and norms", optax="fails")
@pytest.mark.parametrize("name", CLIPS)
def test_a_gradient_whose_square_overflows_is_clipped_not_dropped(name):
    args, more = CLIPS[name]
    tx, p = getattr(optax, name)(*args, **more), parameters()
    u, _ = tx.update(full(p, 1e25), tx.init(p), p)
    near, _ = tx.update(full(p, 1e4), tx.init(p), p)
    for x, y in zip(leaves(u), leaves(near), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


@row("clipping and norms", optax="fails")
@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])
def test_norms_are_right_as_far_as_float32_reaches(size):
    x = {"w": jnp.array([3.0, 0.0]) * size, "b": jnp.array([4.0]) * size}
    np.testing.assert_allclose(optax.tree.norm(x), 5 * size, rtol=1e-6)
    whole = jnp.array([3.0, 4.0]) * size
    if size >= 1:
        np.testing.assert_allclose(optax.safe_norm(whole, 0.0), 5 * size, rtol=1e-6)


BOUNDS = ["clip_by_global_norm", "clip_by_block_rms", "adaptive_grad_clip", "clip"]


@pytest.mark.slow
@row("clipping and norms", optax="fails")
@pytest.mark.parametrize("bound", [0.0, 1.0])
@pytest.mark.parametrize("name", BOUNDS)
def test_a_gradient_of_zero_is_clipped_and_differentiated(name, bound):
    tx, p = getattr(optax, name)(bound), parameters()
    move = lambda g: tx.update(g, tx.init(p), p)[0]
    summed = lambda g: sum(jnp.sum(x) for x in jax.tree.leaves(move(g)))
    u, slope = move(full(p, 0.0)), jax.grad(summed)(full(p, 0.0))
    assert all((x == 0).all() for x in leaves(u)) and all_finite(slope)


@row("clipping and norms", optax="passes")
def test_complex_gradients_have_real_norms():
    g = jnp.array([3 + 4j, 0])
    u, _ = optax.clip_by_global_norm(1.0).update(g, optax.EmptyState())
    np.testing.assert_allclose(u, np.array([0.6 + 0.8j, 0]), rtol=1e-6)


@row("SAM / normalize at zero gradient", optax="fails")
def test_a_gradient_of_zero_has_no_direction():
    p = parameters()
    tx = optax.contrib.normalize()
    u, _ = tx.update(full(p, 0.0), tx.init(p), p)
    assert all((x == 0).all() for x in leaves(u))
    adversary = optax.chain(optax.contrib.normalize(), optax.sgd(0.1))
    sam = optax.contrib.sam(optax.sgd(0.1), adversary)
    u, _ = run(sam, [full(p, 0.0)] * 3, p)
    assert all_finite(u)


@pytest.mark.slow
@row("adafactor decay_offset; counters", optax="fails")
@pytest.mark.parametrize("offset", [0, 5])
def test_adafactor_may_count_from_later(offset):
    p = parameters()
    tx = optax.adafactor(0.1, decay_offset=offset, min_dim_size_to_factor=2)
    u, state = run(tx, [gradients(p, i) for i in range(8)], p)
    assert all_finite((u, state))


@pytest.mark.few(1)
@row("adafactor decay_offset; counters", optax="fails")
@every_optimizer
def test_counters_stop_at_the_largest_integer(row):
    p, tx = parameters(), make(row)
    _, state = run(tx, [gradients(p)], p)
    is_count = lambda x: jnp.ndim(x) == 0 and jnp.result_type(x) == jnp.int32
    top = jnp.int32(2**31 - 1)
    state = jax.tree.map(lambda x: top if is_count(x) else x, state)
    u, state = step_of(tx)(gradients(p), state, p)
    assert all_finite(u)
    counts = [x for x in jax.tree.leaves(state) if is_count(x)]
    assert all(int(x) >= 0 for x in counts)


@pytest.mark.slow
@row("apply_if_finite", optax="passes")
def test_gradients_are_let_through_until_one_is_finite():
    """As in Optax, whose tests demand it: the count restarts at a finite gradient."""
    tx, p = optax.apply_if_finite(optax.sgd(1.0), 2), jnp.ones(3)
    state, seen = tx.init(p), []
    for bad in [1, 1, 1, 1, 0, 1]:
        u, state = tx.update(jnp.full(3, np.nan if bad else 1.0), state, p)
        seen.append((bool(jnp.isnan(u).any()), int(state.notfinite_count)))
    assert seen == [
        (False, 1),
        (False, 2),
        (True, 3),
        (True, 4),
        (False, 0),
        (False, 1),
    ]


@pytest.mark.slow
@row("meta-learning", optax="fails")
@every_optimizer
def test_a_derivative_through_two_steps_from_zero_is_a_number(row):
    p, tx = parameters(), make(row)

    def moved(g):
        state, total = tx.init(p), 0.0
        for _ in range(2):
            u, state = tx.update(g, state, p, **keywords(g))
            total += sum(jnp.sum(x) for x in jax.tree.leaves(u))
        return total

    zero, one, tiny = (full(p, x) for x in (0.0, 1.0, 1e-20))
    with jax.disable_jit():
        assert all_finite(jax.grad(moved)(zero))
        assert all_finite(jax.grad(moved)(tiny))
        assert all_finite(jax.jvp(moved, (zero,), (one,)))


@pytest.mark.slow
@row("meta-learning", optax="passes")
def test_a_rate_can_be_learned():
    p, g = parameters(), gradients(parameters())

    def loss(rate):
        tx = optax.adam(rate)
        u, _ = tx.update(g, tx.init(p), p)
        q = optax.apply_updates(p, u)
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(q))

    with jax.disable_jit():
        slope, h = jax.grad(loss)(0.1), 1e-3
        difference = (loss(0.1 + h) - loss(0.1 - h)) / (2 * h)
    np.testing.assert_allclose(slope, difference, rtol=1e-2)


@row("MoMo decay", optax="fails")
def test_decay_may_be_that_of_the_paper():
    """Optax's own tests pin p / k - step, so that equation 16 is by a flag."""
    tx, p = optax.contrib.momo(1.0, weight_decay=1.0, proximal_decay=True), jnp.ones(1)
    u, _ = tx.update(jnp.ones(1), tx.init(p), p, value=jnp.float32(0.0))
    np.testing.assert_allclose(p + u, 0.5, rtol=1e-6)


@pytest.mark.slow
@row("acprop first steps", optax="passes")
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_first_steps_of_acprop_are_no_longer_than_its_rate(scale):
    tx, p = optax.contrib.acprop(1e-2), jnp.array([1.0, -2.0, 3.0])
    state = tx.init(p)
    for i in range(5):
        u, state = tx.update(scale * p, state, p)
        if i:
            assert jnp.abs(u).max() < 0.1
        p = optax.apply_updates(p, u)


@row("Muon", optax="passes")
def test_muon_makes_updates_orthogonal():
    tx, p = optax.contrib.muon(1.0, weight_decay=0.0), jnp.ones((4, 3))
    g = jnp.asarray(np.random.RandomState(0).randn(4, 3), "float32")
    u, _ = tx.update(g, tx.init(p), p)
    values = np.linalg.svd(np.asarray(u), compute_uv=False)
    assert (values > 0.5).all() and (values < 1.5).all()


@row("Muon", optax="passes")
def test_muon_takes_another_rate_for_what_is_no_matrix():
    tx, p = optax.contrib.muon(1.0, adam_learning_rate=1e-2), parameters()
    u, _ = tx.update(gradients(p), tx.init(p), p)
    assert jnp.abs(u["b"]).max() < 0.02 and jnp.abs(u["w"]).max() > 0.1


@pytest.mark.slow
@row("Muon", optax="fails")
def test_muon_takes_names_and_empty_matrices():
    p = {"w": jnp.ones((4, 3)), "nothing": jnp.zeros((0, 3)), "b": jnp.ones(3)}
    numbers = optax.contrib.MuonDimensionNumbers()
    specs = {"w": numbers, "nothing": numbers, "b": None}
    tx = optax.contrib.muon(1.0, muon_weight_dimension_numbers=specs)
    u, _ = tx.update(gradients(p), tx.init(p), p)
    assert all_finite(u) and u["nothing"].shape == (0, 3)


@pytest.mark.slow
@row("Bugs found by us 6", optax="fails")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_lbfgs_stays_at_the_optimum_in_any_precision(dtype):
    loss = lambda p: jnp.sum((p - jnp.ones((), dtype)) ** 2).astype(dtype)
    tx, p = optax.lbfgs(), jnp.array([3.0, -1.0, 0.5], dtype)
    state = tx.init(p)

    @jax.jit
    def step(p, state):
        value, g = jax.value_and_grad(loss)(p)
        more = {"value": value, "grad": g, "value_fn": loss}
        u, state = tx.update(g, state, p, **more)
        return optax.apply_updates(p, u), state

    for _ in range(12):
        p, state = step(p, state)
    np.testing.assert_allclose(np.float64(p), 1.0, atol=1e-2)


@row("attention logits: QK-clip (maxtext#2968, Megatron#1929)", optax="fails")
def test_attention_logits_are_clipped():
    p = {"q": jnp.ones((4, 2, 3)), "k": jnp.ones((4, 2, 3))}
    tx = optax.chain(optax.sgd(0.0), optax.qk_clip(100.0, {"q": "k"}, head_axis=1))
    logits = {"q": jnp.array([50.0, 400.0])}
    u, _ = jax.jit(lambda s: tx.update(p, s, p, max_logits=logits))(tx.init(p))
    new = optax.apply_updates(p, u)
    for name in "qk":
        np.testing.assert_allclose(new[name][0, :, 0], [1.0, 0.5], rtol=1e-6)
