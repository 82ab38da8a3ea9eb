"""`dynamic_loss_scale` finds the scale, and leaves out steps that overflow."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import types
from runs import close, compare, equal, everyhow, jitted, many, parameters, with_value

import stepax


def run(tx, pattern, p):
    """States after steps that overflow where the pattern has an x."""
    step, state, states = jax.jit(tx.update), tx.init(p), []
    for c in pattern:
        g = jax.tree.map(lambda x, c=c: x * (np.inf if c == "x" else 1.0), p)
        _, state = step(g, state, p)
        states.append(state)
    return states


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["......", "..x....x.", "xxx....", "...x......x"])
def test_the_scale_is_pytorch_s(pattern):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    wanted = []
    for c in pattern:
        optimizer.zero_grad()
        factor = float("inf") if c == "x" else 1.0
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        wanted.append(scaler.get_scale())
    tx = stepax.dynamic_loss_scale(stepax.sgd(1.0), 1024.0, 3)
    states = run(tx, pattern, jnp.ones(2))
    equal([float(s.loss_scale) for s in states], wanted)
    assert int(states[-1].skipped) == pattern.count("x")


@pytest.mark.few(1)
@everyhow
def test_a_step_that_overflows_leaves_no_trace(run):
    p, gs = parameters(), many(3)
    tx = stepax.dynamic_loss_scale(stepax.adam(1e-2), 4.0)
    # Divided by 4 after the first two, and by 2 after the overflow of the second.
    first, last = (
        jax.tree.map(lambda g, k=k: g * k, gs[i]) for i, k in ((0, 4), (2, 2))
    )
    u, state = run(tx, [first, with_value(gs, 1, np.nan)[1], last], p)
    v, wanted = run(stepax.adam(1e-2), [gs[0], gs[2]], p)
    keep = jnp.array([0, 2])
    compare(close, jax.tree.map(lambda x: x[keep], u), v)
    compare(close, state.inner_state, wanted)
    assert not any(x[1].any() for x in jax.tree.leaves(u))
    assert types(state) == types(tx.init(p))


def test_gradients_are_divided_in_single_precision():
    seen = []

    def update(updates, state, params=None):
        seen.append(updates)
        return updates, state

    inner = stepax.GradientTransformation(stepax.init_empty_state, update)
    g = jnp.array([2.0**-10, 1.0], "float16")
    tx = stepax.dynamic_loss_scale(inner, 2.0**24)
    u, _ = tx.update(g, tx.init(g), g)
    equal(seen[0], np.float32(g) * 2.0**-24)  # no number of float16
    assert u.dtype == jnp.float16


@pytest.mark.parametrize("use_scale", [True, False])
def test_losses_whose_gradients_vanish_in_float16_are_minimized(use_scale):
    # The gradient, 2^-25 p, is no number of float16.
    loss = lambda p: jnp.sum(jnp.square(p * jnp.float16(2.0**-13)))
    p, tx = jnp.full(2, 0.5, "float16"), stepax.dynamic_loss_scale(stepax.sgd(2.0**24))

    @jax.jit
    def step(p, state):
        scale = stepax.tree.get(state, "loss_scale") if use_scale else jnp.ones([])
        g = jax.grad(lambda p: loss(p) * scale.astype("float16"))(p)
        u, state = tx.update(g, state, p)
        return stepax.apply_updates(p, u), state

    state = tx.init(p)
    for _ in range(8):
        p, state = step(p, state)
    assert (p < 0.1).all() == use_scale


def test_the_scale_stays_within_its_bounds():
    tx = stepax.dynamic_loss_scale(stepax.sgd(1.0), 8.0, 1, min_scale=2, max_scale=16)
    found = [float(s.loss_scale) for s in run(tx, "...xxxxxx", jnp.ones(2))]
    equal(found, [16, 16, 16, 8, 4, 2, 2, 2, 2])
    assert stepax.dynamic_loss_scale(stepax.sgd(1.0), 99.0, max_scale=16).init(
        jnp.ones(2)
    ).loss_scale == jnp.float32(16)


def test_another_factor():
    tx = stepax.dynamic_loss_scale(stepax.sgd(1.0), 100.0, 2, 10.0)
    found = [float(s.loss_scale) for s in run(tx, "..x..x", jnp.ones(2))]
    equal(found, [100, 1000, 100, 100, 1000, 100])


def test_in_steps_of_many_gradients_a_bad_one_costs_itself():
    p, gs = parameters(), [jax.tree.map(lambda g: 4 * g, g) for g in many(3)]
    inner = stepax.MultiSteps(stepax.sgd(1.0), 2).gradient_transformation()
    tx = stepax.dynamic_loss_scale(inner, 4.0)
    state = tx.init(p)
    half = jax.tree.map(lambda g: g / 2, gs[2])
    for g in gs[0], with_value(gs, 1, np.inf)[1], half:
        u, state = tx.update(g, state, p)
    compare(close, u, jax.tree.map(lambda a, b: -(a + b) / 8, gs[0], gs[2]))


def test_no_transformation_is_an_error():
    not_called: Any = stepax.adam
    with pytest.raises(TypeError, match="`inner` of `dynamic_loss_scale`"):
        stepax.dynamic_loss_scale(not_called)


def test_the_factor_may_be_injected():
    tx = stepax.inject_hyperparams(stepax.dynamic_loss_scale)(stepax.sgd(1.0))
    _, state = jitted(tx, many(2), parameters())
    assert {"initial", "factor", "min_scale", "max_scale"} == set(state.hyperparams)


def test_bounds_of_the_scale_that_cross_are_refused():
    tx = stepax.sgd(0.1)
    stepax.dynamic_loss_scale(tx, min_scale=4.0, max_scale=4.0)
    with pytest.raises(ValueError, match="`min_scale` is 16.0, .* `max_scale`, 4.0"):
        stepax.dynamic_loss_scale(tx, min_scale=16.0, max_scale=4.0)
