"""Accumulating gradients: right in every dtype, cheap, and safe from one bad batch."""

import cases
import jax
import jax.numpy as jnp
import library
import numpy as np
import pytest
from library import make, optax


row = pytest.mark.row


def parameters(dtype="float32"):
    return {"w": jnp.ones(3, dtype), "b": jnp.ones((2, 2), dtype)}


def constant(x, dtype="float32"):
    return jax.tree.map(lambda p: jnp.full_like(p, x), parameters(dtype))


def run(tx, gradients, params, jit=False):
    """Updates of some steps, and the last state.

    Operation by operation is quickest, because each is compiled once for all tests.
    """
    step = lambda g, s: tx.update(g, s, params, value=jnp.float32(1.0))
    if not jit:
        with jax.disable_jit():
            return run_with(step, tx, gradients, params)
    return run_with(jax.jit(step), tx, gradients, params)


def run_with(step, tx, gradients, params):
    state, updates = tx.init(params), []
    for g in gradients:
        u, state = step(g, state)
        updates.append(u)
    return updates, state


def steps_of(inner, k, **more):
    return optax.MultiSteps(inner, k, **more)


@pytest.mark.slow
@row("MultiSteps: NaN", optax="fails")
@pytest.mark.parametrize("row", library.rows(kind="optimizer"))
def test_a_bad_batch_costs_one_window_and_training_goes_on(row):
    tx = steps_of(optax.chain(optax.zero_nans(), make(row)), 2)
    tx = optax.chain(tx.gradient_transformation())
    good, bad = constant(0.1), constant(np.inf) | {"w": jnp.full(3, np.nan)}
    updates, state = run(tx, [bad, good, good, good, good, good], parameters())
    for waiting in updates[::2]:
        assert all((x == 0).all() for x in jax.tree.leaves(waiting))
    for x in jax.tree.leaves((updates[3:], state)):
        assert jnp.isfinite(x).all()


@pytest.mark.slow
@row("MultiSteps: dtypes", optax="fails")
def test_the_imaginary_part_of_complex_gradients_is_kept():
    g = constant(1 + 2j, "complex64")
    updates, _ = run(steps_of(optax.scale(1.0), 2), [g, g], parameters("complex64"))
    np.testing.assert_array_equal(updates[-1]["w"], g["w"])


@pytest.mark.slow
@row("MultiSteps: dtypes", optax="fails")
def test_double_gradients_are_accumulated_in_double(x64):
    g = constant(1 + 1e-12, "float64")
    updates, _ = run(steps_of(optax.scale(1.0), 2), [g, g], parameters("float64"))
    np.testing.assert_allclose(updates[-1]["w"], g["w"], rtol=1e-15)


@pytest.mark.slow
@row("MultiSteps: dtypes", optax="passes")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_gradients_are_accumulated_in_single(dtype):
    tx = steps_of(optax.scale(1.0), 257, use_grad_mean=False)
    first, small = constant(1.0, dtype), constant(2.0**-8, dtype)
    updates, _ = run(tx, [first] + [small] * 256, parameters(dtype))
    assert float(updates[-1]["w"][0]) == 2.0


@row("MultiSteps: memory and speed", optax="fails")
def test_the_inner_optimizer_runs_only_when_due():
    calls = []

    def update(updates, state, params=None):
        jax.debug.callback(lambda: calls.append(None))
        return updates, state

    inner = optax.GradientTransformation(lambda params: (), update)
    _, state = run(steps_of(inner, 4), [constant(1.0)] * 8, parameters(), jit=True)
    jax.block_until_ready(state)
    jax.effects_barrier()
    assert len(calls) == 2


@row("MultiSteps: memory and speed", optax="passes")
def test_one_buffer_is_all_that_accumulation_costs():
    p = parameters()
    bare, state = optax.adam(1e-2).init(p), steps_of(optax.adam(1e-2), 4).init(p)
    size = lambda tree: sum(x.size for x in jax.tree.leaves(tree) if x.ndim)
    assert size(state) == size(bare) + size(p)


@row("MultiSteps under shard_map/pmap", optax="passes")
def test_accumulation_runs_in_shard_map():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    tx, p = steps_of(optax.adam(1e-2), 2), parameters()
    spec = jax.sharding.PartitionSpec

    def step(p, x):
        u, state = p, tx.init(p)
        for _ in range(2):
            g = jax.tree.map(lambda p: p * jnp.mean(x), p)
            u, state = tx.update(jax.lax.pmean(g, "d"), state, p)
        return u

    specs = {"in_specs": (spec(), spec("d")), "out_specs": spec()}
    sharded = jax.shard_map(step, mesh=mesh, **specs)
    u = jax.jit(sharded)(p, jnp.arange(4.0))
    np.testing.assert_allclose(u["w"], -1e-2, rtol=1e-5)


@row("MultiSteps: tokens (transformers#35203, verl#3332, maxtext#812)", optax="fails")
def test_a_gradient_counts_by_its_tokens():
    tx = steps_of(optax.scale(1.0), 2)
    state = tx.init(parameters())
    for x, tokens in (1.0, 30.0), (5.0, 10.0):
        u, state = tx.update(constant(x), state, parameters(), weight=tokens)
    np.testing.assert_allclose(u["w"], (30 * 1 + 10 * 5) / 40, rtol=1e-6)


@row("few exchanges: DiLoCo (maxtext#2920, maxtext#4759, torchft#76)", optax="fails")
def test_islands_meet_after_some_steps():
    far = optax.sgd(0.7, momentum=0.9, nesterov=True)
    tx = optax.contrib.diloco(optax.sgd(0.1), far, every=2)
    p, state = parameters(), tx.init(parameters())
    for _ in range(2):
        u, state = tx.update(constant(1.0), state, p)
        p = optax.apply_updates(p, u)
    # Two steps of 0.1 are the outer gradient, of which Nesterov takes 1.9 times 0.7.
    np.testing.assert_allclose(p["w"], 1 - 0.7 * 1.9 * 0.2, rtol=1e-6)


@row("MultiSteps and extra arguments", optax="fails")
@pytest.mark.parametrize("in_chain", [False, True])
def test_the_value_of_the_loss_reaches_the_inner_optimizer(in_chain):
    tx = steps_of(optax.contrib.reduce_on_plateau(patience=1), 1)
    tx = optax.chain(tx.gradient_transformation()) if in_chain else tx
    p, state = parameters(), tx.init(parameters())
    for _ in range(3):
        _, state = tx.update(constant(1.0), state, p, value=jnp.float32(1.0))
    assert float(optax.tree.get(state, "scale")) < 1.0


@pytest.mark.slow
@row("Equinox models handed over unfiltered", optax="fails")
@pytest.mark.parametrize("row", library.rows(kind="optimizer"))
def test_a_whole_module_may_be_handed_over(row):
    model = cases.mlp()
    g = cases.gradients(model)
    for tx in make(row), steps_of(make(row), 2):
        u, _ = tx.update(g, tx.init(model), model, value=jnp.float32(1.0))
        assert jax.tree.structure(u) == jax.tree.structure(g)
