"""Optimizers of the gradients of examples: means, variances, several batches."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax.experimental import aggregating as theirs

import stepax
from stepax.experimental import aggregating as ours


PARAMS = {"w": jnp.zeros(2), "b": jnp.zeros(()), "none": None}


def batch(step, size=3, dtype="float32"):
    rng = np.random.default_rng(step)
    leaf = lambda p: jnp.asarray(rng.normal(size=(size, *p.shape)) + 1, dtype)
    return jax.tree.map(leaf, PARAMS)


def run(tx, steps=4, make=batch, params=PARAMS):
    """The updates and the states of some steps."""
    state, out = tx.init(params), []
    update = jax.jit(tx.update)
    for i in range(steps):
        updates, state = update(make(i), state, params)
        out.append((updates, state))
    return out


def run_optax(tx, steps=4, make=batch):
    """It mixes dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        return run(tx, steps, make)


def assert_close(found, wanted, rtol=1e-6):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-7)


def first(step):
    return jax.tree.map(lambda x: x[0], batch(step))


AGGREGATORS = {
    "mean": (lambda m: m.average_per_element_updates(), batch),
    "mean of several": (lambda m: m.average_incrementally_updates(0, 3), batch),
    "mean of one": (lambda m: m.average_incrementally_updates(0, 1), batch),
    "no axis": (lambda m: m.average_incrementally_updates(None, 2), first),
    "accumulated": (lambda m: m.accumulate_avg_updates(2), first),
    "at once": (lambda m: m.accumulate_avg_updates(1), first),
    "variance": (lambda m: m.get_per_element_mean_and_sum_sq_diff_grads(), batch),
    "variances": (lambda m: m.get_per_element_mean_and_sum_sq_diff_grads(0, 2), batch),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", AGGREGATORS)
def test_aggregators_agree_with_optax(name):
    make, data = AGGREGATORS[name]
    # Sums of squares are added up in another order.
    assert_close(
        run(make(ours), make=data), run_optax(make(theirs), make=data), rtol=3e-6
    )


def processed(m, lib):
    return {
        "momentum": m.process(
            lib.identity(),
            m.average_incrementally_updates(0, 2),
            lib.sgd(1.0, momentum=0.9),
        ),
        "clipped": m.process(
            lib.clip(0.5), m.average_per_element_updates(), lib.adam(0.1)
        ),
    }


@pytest.mark.parametrize("name", ["momentum", "clipped"])
def test_processes_agree_with_optax(name):
    found = run(processed(ours, stepax)[name], 5)
    assert_close(found, run_optax(processed(theirs, optax)[name], 5), rtol=3e-6)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2])
def test_mean_and_variance_are_those_of_all_examples(steps):
    tx = ours.add_mean_variance_to_opt(stepax.sgd(1.0), 0.9, 0, steps)
    out = run(tx, 2 * steps)
    means, variances = [], []
    for k in range(2):
        parts = [batch(i)["w"] for i in range(k * steps, (k + 1) * steps)]
        g = np.concatenate(parts).astype(np.float64)
        means.append(g.mean(0))
        variances.append(g.var(0, ddof=1))
        np.testing.assert_allclose(out[(k + 1) * steps - 1][0]["w"], -g.mean(0), 1e-5)
    mean, variance = ours.get_unbiased_mean_and_variance_ema(out[-1][1])
    weigh = lambda x: (0.9 * x[0] + x[1]) / 1.9
    np.testing.assert_allclose(mean["w"], weigh(means), rtol=1e-5)
    np.testing.assert_allclose(variance["w"], weigh(variances), rtol=1e-5)
    tx = theirs.add_mean_variance_to_opt(optax.sgd(1.0), 0.9, 0, steps)
    their = run_optax(tx, 2 * steps)
    # Optax weighs by 1 - 0.9 in double precision, and corrects in single.
    wanted = theirs.get_unbiased_mean_and_variance_ema(their[-1][1])
    assert_close((mean, variance), wanted, rtol=1e-5)


def test_waiting_costs_no_step_and_changes_nothing():
    tx = ours.process(
        stepax.identity(),
        ours.average_incrementally_updates(0, 2),
        stepax.adam(1.0),
    )
    (u, state), (v, after) = run(tx, 2)
    assert not u["w"].any() and v["w"].all()
    count = lambda s: stepax.tree.get(s, "count")
    assert count(state) == 0 and count(after) == 1


def test_an_aggregator_of_ones_own_takes_three_arguments():
    mine = ours.Aggregator(
        init=stepax.init_empty_state,
        update=lambda g, s, _: (jax.tree.map(lambda x: jnp.sum(x, axis=0), g), s),
    )
    tx = ours.process(stepax.identity(), mine, stepax.sgd(1.0))
    g = batch(0)
    u, _ = tx.update(g, tx.init(PARAMS), PARAMS, value=1.0)
    assert_close(u, jax.tree.map(lambda x: -jnp.sum(x, axis=0), g))


def test_what_takes_examples_is_an_aggregator():
    parts = stepax.identity(), stepax.sgd(0.1)
    make = lambda inner: ours.process(parts[0], inner, parts[1])
    several = make(ours.average_per_element_updates())
    assert isinstance(several, ours.Aggregator)
    assert isinstance(several, optax.GradientTransformation)
    assert not isinstance(make(ours.accumulate_avg_updates(2)), ours.Aggregator)


def test_states_keep_their_types_and_narrow_gradients_their_precision():
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), PARAMS)
    tx = ours.add_mean_variance_to_opt(stepax.adam(0.1), accumulation_steps=2)
    u, state = None, tx.init(params)
    types = lambda tree: jax.tree.map(lambda x: (x.dtype, x.weak_type), tree)
    update = jax.jit(tx.update)
    for i in range(2):
        u, new = update(batch(i, dtype="bfloat16"), state, params)
        assert types(new) == types(state)
        state = new
    assert u is not None and u["w"].dtype == jnp.bfloat16
    mean, _ = ours.get_unbiased_mean_and_variance_ema(state)
    assert mean["w"].dtype == jnp.float32


def test_nothing_is_divided_by_zero():
    tx = ours.add_mean_variance_to_opt(stepax.sgd(1.0))
    for state in tx.init(PARAMS), run(tx, 1, lambda i: batch(i, size=1))[-1][1]:
        for tree in ours.get_unbiased_mean_and_variance_ema(state):
            assert stepax.tree.norm(tree) < 10


def test_a_nan_costs_one_window():
    def make(step):
        g = first(step)
        return jax.tree.map(lambda x: x * jnp.nan, g) if step == 0 else g

    out = run(ours.accumulate_avg_updates(2), 4, make)
    assert not out[0][0]["w"].any() and jnp.isnan(out[1][0]["w"]).all()
    assert jnp.isfinite(out[3][0]["w"]).all()


WRONG = {
    "`accumulation_steps` is 0": lambda: ours.accumulate_avg_updates(0),
    r"the updates at \['b'\] have shape \(3,\), so there is no example axis "
    "1": lambda: ours.get_batch_size_from_per_elt_updates(batch(0), 1),
    r"the numbers of examples differ: 3 at \['b'\], 2 at \['w'\]": lambda: (
        ours.get_batch_size_from_per_elt_updates(
            {"b": jnp.ones(3), "w": jnp.ones((2, 2))}, 0
        )
    ),
    "`per_elt_updates` has no array": lambda: ours.get_batch_size_from_per_elt_updates(
        {}, 0
    ),
    "`per_elt_axis` is None": lambda: ours.get_batch_size_from_per_elt_updates(
        batch(0), cast(int, None)
    ),
    "`state` holds 0 states": lambda: ours.get_unbiased_mean_and_variance_ema(
        stepax.sgd(1.0).init(PARAMS)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_calls(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message]()


def test_a_part_that_is_no_transformation():
    with pytest.raises(TypeError, match="`aggregator` of `process`"):
        ours.process(stepax.identity(), cast(Any, jnp.mean), stepax.sgd(1.0))


def test_several_axes_of_examples():
    g = {"w": jnp.arange(12.0).reshape(2, 3, 2)}
    tx = ours.average_per_element_updates((0, 1))
    found, _ = tx.update(g, tx.init(g))
    np.testing.assert_array_equal(found["w"], [5.0, 6.0])
    assert ours.get_batch_size_from_per_elt_updates(g, (0, 1)) == 6
