"""`sam` descends by the gradient from where the loss is worse."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import types
from runs import compare

import stepax


sam: Any = stepax.contrib.sam
normalize = stepax.contrib.normalize
SCALE = np.array([4.0, 1.0, 0.25])
STEPS = 200


def start(dtype=jnp.float32):
    return {"w": jnp.asarray([1.0, -2.0, 0.5], dtype), "b": jnp.ones([], dtype)}


def gradient(p, i=0):
    """Of w · SCALE w / 2 + (b - 1/3)² / 2."""
    scale = jnp.asarray(SCALE, p["w"].dtype)
    return {"w": scale * p["w"], "b": p["b"] - 1 / 3}


def climb(optax_or_stepax=stepax, rho=0.1):
    home = optax_or_stepax
    return home.chain(home.contrib.normalize(), home.sgd(rho))


def drive(tx, p, calls, **extra):
    """The parameters after each call, and the last state."""

    def step(carry, _):
        p, state = carry
        u, state = tx.update(gradient(p), state, p, **extra)
        p = jax.tree.map(jnp.add, p, u)
        return (p, state), p

    (_, state), found = jax.lax.scan(step, (p, tx.init(p)), length=calls)
    return found, state


def reference(rho, rate, steps=50):
    """Algorithm 1 in NumPy, on the loss of `gradient`."""
    p, out = np.array([1.0, -2.0, 0.5, 1.0]), []
    slope = lambda p: np.append(SCALE * p[:3], p[3] - 1 / 3)
    for _ in range(steps):
        g = slope(p)
        p = p - rate * slope(p + rho * g / np.linalg.norm(g))
        out.append(p)
    return np.stack(out)


@pytest.mark.parametrize("opaque", [False, True])
def test_steps_are_those_of_the_paper(opaque, x64):
    extra = {"grad_fn": gradient} if opaque else {}
    tx = sam(stepax.sgd(0.1), climb(), opaque_mode=opaque)
    found, _ = drive(tx, start(jnp.float64), 50 if opaque else 100, **extra)
    found = np.column_stack([found["w"], found["b"]])
    wanted = reference(0.1, 0.1)
    found = found if opaque else found[1::2]
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


CALLS = [
    ({"sync_period": 2}, {}),
    ({"sync_period": 3, "reset_state": False}, {}),
    ({"sync_period": 3, "opaque_mode": True}, {"grad_fn": gradient}),
]


@pytest.mark.few(1)
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(("kwargs", "extra"), CALLS)
def test_parameters_and_states_are_optax_s(kwargs, extra):
    found = drive(sam(stepax.sgd(0.1, 0.9), climb(), **kwargs), start(), STEPS, **extra)
    with jax.numpy_dtype_promotion("standard"):
        theirs = optax.contrib.sam(optax.sgd(0.1, 0.9), climb(optax), **kwargs)
        wanted = drive(theirs, start(), STEPS, **extra)
    assert types(found) == types(wanted)
    # What is a product and a sum here may be one operation there: two ulps of numbers
    # up to 2 that the steps of momentum carry on, up to ten of them.
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=20 * 2.0**-22)
    compare(close, found, wanted)


def test_every_way_to_run_it_gives_the_same():
    tx, p = sam(stepax.adam(0.1), climb(), 3), start()
    (wanted, last), q, r = drive(tx, p, 4), p, p
    eager = jitted = tx.init(p)
    for _ in range(4):
        u, eager = tx.update(gradient(q), eager, q)
        v, jitted = jax.jit(tx.update)(gradient(r), jitted, r)
        q, r = stepax.apply_updates(q, u), stepax.apply_updates(r, v)
    assert types(eager) == types(jitted) == types(last)
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    end = jax.tree.map(lambda x: x[-1], wanted)
    compare(close, (q, eager), (end, last))
    compare(close, (r, jitted), (end, last))


def recorder(log, name):
    """A transformation that notes when it runs, and with which keywords."""

    def update(updates, state, params=None, **extra_args):
        log.append((name, *extra_args))
        return jax.tree.map(jnp.negative, updates), state

    return stepax.GradientTransformationExtraArgs(stepax.init_empty_state, update)


def test_only_the_optimizer_whose_turn_it_is_runs_and_sees_the_keywords():
    log = []
    tx, p = sam(recorder(log, "outer"), recorder(log, "adv"), 3), start()
    state = tx.init(p)
    for _ in range(3):
        _, state = tx.update(p, state, p, value=1.0)
    assert log == [("adv", "value"), ("adv", "value"), ("outer", "value")]
    log.clear()
    tx = sam(recorder(log, "outer"), recorder(log, "adv"), 3, opaque_mode=True)
    steps = []
    grad_fn = lambda p, i: (steps.append(i), p)[1]
    tx.update(p, tx.init(p), p, value=1.0, grad_fn=grad_fn)
    assert log == [("adv", "value"), ("adv", "value"), ("outer", "value")]
    assert steps == [0, 1]


@pytest.mark.parametrize("opaque", [False, True])
def test_with_a_period_of_1_the_outer_optimizer_is_alone(opaque):
    extra = {"grad_fn": gradient} if opaque else {}
    p, alone = start(), stepax.sgd(0.1, 0.9)
    tx = sam(alone, climb(), 1, opaque_mode=opaque)
    found, wanted = drive(tx, p, 9, **extra)[0], drive(alone, p, 9)[0]
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)
    compare(close, found, wanted)


@pytest.mark.parametrize("opaque", [False, True])
def test_zero_gradients_leave_parameters_where_they_are(opaque):
    p = start()
    zeros = jax.tree.map(jnp.zeros_like, p)
    extra = {"grad_fn": lambda p, i: zeros} if opaque else {}
    tx = sam(stepax.sgd(0.1), climb(), opaque_mode=opaque)
    state = tx.init(p)
    for _ in range(2):
        u, state = jax.jit(lambda s: tx.update(zeros, s, p, **extra))(state)
        assert not any(x.any() for x in jax.tree.leaves(u))


@pytest.mark.slow
def test_a_normalized_gradient_has_length_1_or_0():
    tx = normalize()
    for dtype in ("bfloat16", "complex64"):
        p = {"w": jnp.full((2, 2), 300, dtype), "b": jnp.full([], -400, dtype)}
        u, _ = tx.update(p, tx.init(p))
        assert u["w"].dtype == dtype
        np.testing.assert_allclose(float(stepax.tree.norm(u)), 1.0, rtol=0.004)
        u, _ = tx.update(jax.tree.map(jnp.zeros_like, p), tx.init(p))
        assert not u["w"].any() and not u["b"].any()
    loss = lambda g: jnp.sum(tx.update(g, tx.init(g))[0])
    assert jnp.isfinite(jax.grad(loss)(jnp.zeros(2))).all()


def test_gradients_are_averaged_over_the_axis_as_by_optax():
    def one(home, g, size):
        tx = home.contrib.sam(
            home.sgd(1.0), home.sgd(1.0), 3, opaque_mode=True, batch_axis_name="i"
        )
        grad_fn = lambda p, i: size * p
        p = jnp.ones(2)
        return tx.update(g, tx.init(p), p, grad_fn=grad_fn)[0]

    g, size = jnp.array([[0.5, -1.0], [1.5, -3.0]]), jnp.array([1.0, 2.0])
    found, wanted = (
        jax.vmap(lambda g, size, home=home: one(home, g, size), axis_name="i")(g, size)
        for home in (stepax, optax)
    )
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(found[0], found[1])


def test_opaque_mode_leaves_alone_what_has_no_gradient():
    p = {"w": jnp.ones(2), "n": jnp.arange(2), "f": jnp.tanh, "still": jnp.ones(1)}
    nothing = np.zeros(2, jax.dtypes.float0)
    g = {"w": jnp.ones(2), "n": nothing, "f": None, "still": None}
    grad_fn = lambda p, i: {**g, "w": p["w"]}
    tx = sam(stepax.sgd(0.5), climb(rho=2**0.5), opaque_mode=True)
    u, _ = tx.update(g, tx.init(p), p, grad_fn=grad_fn)
    np.testing.assert_allclose(u["w"], [-1.0, -1.0], rtol=1e-6)
    assert u["n"].dtype == jax.dtypes.float0 and u["f"] is u["still"] is None


def test_updates_have_the_dtype_of_gradients():
    p = {"w": jnp.ones(2, jnp.bfloat16)}
    g = {"w": jnp.ones(2, jnp.bfloat16)}
    wide = lambda p, i: {"w": p["w"].astype(jnp.float32)}
    for opaque in (False, True):
        extra = {"grad_fn": wide} if opaque else {}
        tx = sam(stepax.adam(0.1), climb(), opaque_mode=opaque)
        state = tx.init(p)
        for _ in range(2):
            u, new = tx.update(g, state, p, **extra)
            assert u["w"].dtype == jnp.bfloat16
            assert types(new) == types(state)
            state = new


def test_it_finds_the_minimum():
    tx = sam(stepax.sgd(stepax.linear_schedule(0.2, 0.0, 400)), climb(rho=1e-3))
    end = jax.tree.map(lambda x: x[-1], drive(tx, start(), 800)[0])
    np.testing.assert_allclose(end["w"], 0.0, atol=5e-3)
    np.testing.assert_allclose(end["b"], 1 / 3, atol=5e-3)


def test_errors_say_what_is_expected():
    tx, p = sam(stepax.sgd(0.1), climb(), opaque_mode=True), start()
    with pytest.raises(
        ValueError, match=r"reads the keyword `grad_fn`.*grad_fn=\.\.\."
    ):
        tx.update(p, tx.init(p), p)
    for each in (tx, sam(stepax.sgd(0.1), climb())):
        with pytest.raises(ValueError, match="`sam` reads .* `params` is missing"):
            each.update(p, each.init(p))
    with pytest.raises(ValueError, match="`sam`: `sync_period` must be >= 1, but is 0"):
        sam(stepax.sgd(0.1), climb(), 0)
    with pytest.raises(TypeError, match=r"`optimizer` of `sam` .*`sgd\("):
        sam(stepax.sgd, climb())
    with pytest.raises(TypeError, match=r"`adv_optimizer` of `sam` .*`sgd\("):
        sam(climb(), stepax.sgd)
