"""Averages of parameters, masters, loss scales, and dtypes that stay."""

import cases
import jax
import jax.numpy as jnp
import library
import numpy as np
import pytest
from keywords import keywords
from library import make, optax


row = pytest.mark.row
NARROW = ["bfloat16", "float16"]
optimizers = pytest.mark.parametrize("row", library.rows(kind="optimizer"))


def parameters(dtype="float32"):
    return {"w": jnp.ones((4, 3), dtype), "b": jnp.ones(3, dtype)}


def constant(x, dtype="float32"):
    return jax.tree.map(lambda p: jnp.full_like(p, x), parameters(dtype))


def train(tx, gradients, p):
    """The parameters after each step, and the last state."""
    tx = optax.with_extra_args_support(tx)
    step = jax.jit(lambda g, s, p: tx.update(g, s, p, **keywords(g)))
    state, ps = tx.init(p), []
    for g in gradients:
        u, state = step(g, state, p)
        p = optax.apply_updates(p, u)
        ps.append(p)
    return ps, state


def many_steps(tx, p, g, n):
    """The parameters, and the last update, after n steps with one gradient."""

    def step(carry, _):
        p, state = carry
        u, state = tx.update(g, state, p)
        return (optax.apply_updates(p, u), state), u

    run = lambda: jax.lax.scan(step, (p, tx.init(p)), None, n)
    (p, _), u = jax.jit(run)()
    return p, jax.tree.map(lambda x: x[-1], u)


def close(x, y, **tolerance):
    for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
        np.testing.assert_allclose(np.float32(a), np.float32(b), **tolerance)


# --- averages ------------------------------------------------------------------------


@pytest.mark.few(1)
@row("EMA / SWA of parameters", optax="fails")
@optimizers
def test_any_optimizer_keeps_the_average_of_its_parameters(row):
    tx = optax.averages(make(row), decay=None)
    ps, state = train(tx, [constant(0.1), constant(0.2)], parameters())
    mean = jax.tree.map(lambda x, y: (x + y) / 2, *ps)
    # Not by `eval_params`, which asks which one: some have iterates of their own.
    close(state.average, mean, rtol=1e-6)


@pytest.mark.few(1)
@row("EMA / SWA of parameters", optax="fails")
@pytest.mark.parametrize("dtype", NARROW)
def test_averages_of_narrow_parameters_follow_small_steps(dtype):
    tx = optax.averages(optax.sgd(2.0**-8), decay=0.999)
    _, state = train(tx, [constant(1.0, dtype)] * 8, parameters(dtype))
    average = optax.tree_utils.tree_get(state, "average")
    assert all((x < 1).all() for x in jax.tree.leaves(average))
    found = optax.eval_params(state, parameters(dtype))
    assert {str(x.dtype) for x in jax.tree.leaves(found)} == {dtype}


@row("EMA / SWA of parameters", optax="fails")
def test_an_average_is_debiased_and_can_start_late():
    tx = optax.averages(optax.sgd(1.0), decay=0.5, start=1)
    ps, state = train(tx, [constant(1.0)] * 3, parameters())
    # Weights of the two that enter: 0.5 * 0.5 and 0.5, whose sum is 1 - 0.5^2.
    wanted = jax.tree.map(lambda x, y: (0.25 * x + 0.5 * y) / 0.75, *ps[1:])
    close(optax.eval_params(state, ps[-1]), wanted, rtol=1e-6)


# --- masters and dtypes of states ----------------------------------------------------


@pytest.mark.few(1)
@row("fp32 master weights, moments in a chosen dtype", optax="fails")
@optimizers
def test_parameters_follow_masters_with_any_optimizer(row):
    gs = [constant(x, "bfloat16") for x in (0.5, 0.25, 0.5)]
    ps, state = train(optax.master_weights(make(row)), gs, parameters("bfloat16"))
    masters = optax.tree_utils.tree_get(state, "masters")
    # The update is rounded, too: to half of its last digit, which is that of numbers
    # near 1 at most.
    eps = float(jnp.finfo("bfloat16").eps)
    close(ps[-1], masters, rtol=eps, atol=eps)
    found = {str(x.dtype) for x in jax.tree.leaves(state) if x.ndim}
    assert "bfloat16" not in found
    assert any((x != 1).any() for x in jax.tree.leaves(masters))


@pytest.mark.slow
@row("fp32 master weights, moments in a chosen dtype", optax="fails")
@pytest.mark.parametrize("wrapper", ["master_weights", "stochastic_rounding"])
def test_steps_smaller_than_the_spacing_of_numbers_are_not_lost(wrapper):
    more = {"key": 0} if wrapper == "stochastic_rounding" else {}
    tx = getattr(optax, wrapper)(optax.sgd(1e-4), **more)
    p = jnp.ones((32, 32), "bfloat16")
    found, _ = many_steps(tx, p, jnp.ones_like(p), 1000)
    # Masters are rounded once, by half an ulp; a thousand roundings at random are
    # ones of 1024 numbers, so that their mean is within 2^-8 sqrt(26) / 32 = 6e-4.
    np.testing.assert_allclose(np.float32(found).mean(), 0.9, atol=2.0**-8)


@row("fp32 master weights, moments in a chosen dtype", optax="fails")
def test_adam_in_bfloat16_has_steps_of_the_right_length():
    dtypes = {"mu": jnp.float32, "nu": jnp.float32}
    tx = optax.with_state_dtypes(optax.adam(1.0), dtypes)
    p = jnp.ones(3, "bfloat16")
    _, u = many_steps(tx, p, jnp.full_like(p, 0.1), 1000)
    np.testing.assert_allclose(np.float32(u), -1, rtol=2.0**-8)


@pytest.mark.few(1)
@row("fp32 master weights, moments in a chosen dtype", optax="fails")
@pytest.mark.parametrize("row", library.rows("mu_dtype", kind="optimizer"))
def test_the_second_moment_has_a_dtype_of_its_own(row):
    get = lambda state: optax.tree_utils.tree_get_all_with_path(state, "nu")
    if not get(make(row).init(parameters())):
        pytest.skip("it has none")
    tx = optax.with_state_dtypes(make(row), {"nu": "bfloat16"})
    _, state = train(tx, [constant(0.1)], parameters())
    for _, nu in get(state):
        assert {str(x.dtype) for x in jax.tree.leaves(nu)} == {"bfloat16"}


@pytest.mark.few(1)
@row("fp32 master weights, moments in a chosen dtype", optax="fails")
@pytest.mark.parametrize("row", library.rows("mu_dtype", kind="optimizer"))
def test_the_first_moment_has_the_dtype_that_is_asked_for(row):
    tx = make(row, mu_dtype=jnp.bfloat16)
    _, state = train(tx, [constant(0.1)] * 2, parameters())
    found = {str(x.dtype) for x in jax.tree.leaves(state)}
    assert "bfloat16" in found


# --- spikes and loss scales ----------------------------------------------------------


@pytest.mark.few(1)
@row("skip steps on spikes, loss scaling", optax="fails")
@pytest.mark.parametrize("watch", ["norm", "value"])
def test_a_spike_costs_one_step(watch):
    tx = optax.skip_spikes(optax.adam(0.1), watch=watch, warmup=4)
    p, state = parameters(), tx.init(parameters())
    moved = []
    for x in [1.0, 1.1, 0.9, 1.0, 1.05, 40.0, 1.0]:
        u, state = tx.update(constant(x), state, p, value=jnp.float32(x))
        moved.append(bool(u["w"].any()))
    assert moved == [True] * 5 + [False, True]
    assert int(optax.tree_utils.tree_get(state, "skipped")) == 1


@row("skip steps on spikes, loss scaling", optax="fails")
def test_spikes_that_keep_coming_are_let_through():
    tx = optax.skip_spikes(optax.sgd(0.1), warmup=2, max_consecutive=2)
    xs = [1.0, 1.1, *[40.0] * 4]
    ps, _ = train(tx, [constant(x) for x in xs], parameters())
    moved = [bool((x["w"] != y["w"]).any()) for x, y in zip(ps[1:], ps, strict=False)]
    assert moved == [True, False, False, True, True]


@pytest.mark.few(1)
@row("skip steps on spikes, loss scaling", optax="fails")
@optimizers
def test_the_loss_scale_falls_and_grows_around_any_optimizer(row):
    tx = optax.dynamic_loss_scale(make(row), 2.0**10, growth_interval=2)
    bad, good = constant(np.inf, "float16"), constant(2.0**9, "float16")
    ps, state = train(tx, [bad, good, good], parameters("float16"))
    assert float(optax.tree_utils.tree_get(state, "loss_scale")) == 2.0**10
    close(ps[0], parameters(), rtol=0)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves((ps, state)))


# --- dtypes that stay ----------------------------------------------------------------

MIXED = {
    "bfloat16": ("bfloat16", "bfloat16"),
    "bfloat16, float32 gradients": ("bfloat16", "float32"),
    "float32, bfloat16 gradients": ("float32", "bfloat16"),
}


@pytest.mark.few(11)
@row("state dtype and weak-type stability", optax="fails")
@pytest.mark.parametrize("dtypes", MIXED)
@optimizers
def test_a_state_keeps_its_types(row, dtypes):
    p, g = cases.mixed(*MIXED[dtypes])
    tx = optax.with_extra_args_support(make(row))
    first = jax.eval_shape(tx.init, p)
    step = lambda s: tx.update(g, s, p, **keywords(g))[1]
    assert cases.types(jax.eval_shape(step, first)) == cases.types(first)


@row("state dtype and weak-type stability", optax="fails")
@pytest.mark.parametrize("row", library.rows(kind="optimizer", takes="learning_rate"))
def test_no_state_is_weakly_typed(row):
    p = {"x": 1.5, "y": jnp.asarray(2.0)}  # a number of Python, and one like it
    state = jax.eval_shape(make(row).init, p)
    assert not any(x.weak_type for x in jax.tree.leaves(state))


RATES = {
    "Python": 0.1,
    "np.float32": np.float32(0.1),
    "np.float64": np.float64(0.1),
    "jnp.float32": jnp.float32(0.1),
    "schedule": lambda count: 0.1 / (1 + count),
}


@pytest.mark.few(12)
@row("update dtype", optax="fails")
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("row", library.rows(kind="optimizer", takes="learning_rate"))
def test_updates_have_the_dtype_of_the_parameters_whatever_the_rate(row, rate):
    p, g = cases.mixed("bfloat16", "bfloat16")
    tx = optax.with_extra_args_support(make(row, learning_rate=RATES[rate]))
    step = lambda g: tx.update(g, tx.init(p), p, **keywords(g))[0]
    found = jax.tree.leaves(jax.eval_shape(step, g))
    assert {str(x.dtype) for x in found} == {"bfloat16"}
