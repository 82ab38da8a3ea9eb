"""Rates, decay and other numbers of all optimizers: scheduled, and changed at will."""

import inspect
from typing import Any

import cases
import jax
import jax.numpy as jnp
import library
import numpy as np
import pytest
from keywords import keywords
from library import make, optax


row = pytest.mark.row

RATE, DECAY = 0.05, 0.1
OPTIMIZERS = library.rows(kind="optimizer")


def takes(row: Any, name: str) -> bool:
    return name in inspect.signature(row.factory).parameters


def those(*names: str) -> Any:
    rows = [p for p in OPTIMIZERS if all(takes(p.values[0], x) for x in names)]
    return pytest.mark.parametrize("row", rows)


def parameters(dtype="float32"):
    return {"w": jnp.full((4, 3), 0.5, dtype), "b": jnp.full(3, -1.5, dtype)}


def factory(row: Any) -> Any:
    return getattr(optax if hasattr(optax, row.name) else optax.contrib, row.name)


def injected(row: Any, **more: Any) -> Any:
    """A row under `inject_hyperparams`, with the arguments that the library takes."""
    given = dict(cases.make(row, **more).call.bound.arguments)
    known = inspect.signature(factory(row)).parameters
    given = {k: x for k, x in given.items() if k in known}
    return optax.inject_hyperparams(factory(row))(**given), factory(row)(**given)


def steps(tx: Any, g: Any, p: Any, n: int = 2) -> list:
    tx = optax.with_extra_args_support(tx)
    with jax.disable_jit():
        state, updates = tx.init(p), []
        for _ in range(n):
            u, state = tx.update(g, state, p, **keywords(g))
            updates.append(u)
    return updates


def assert_close(found: Any, wanted: Any, rtol: float = 2e-5) -> None:
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol, 2e-7)


# --- weight decay --------------------------------------------------------------------


@pytest.mark.slow
@row("weight decay", optax="fails")
@those("weight_decay_mask")
def test_one_pair_of_names_lets_the_weights_of_any_optimizer_decay(row):
    old = {"mask": None} if takes(row, "mask") else {}
    p = parameters()
    zero = jax.tree.map(jnp.zeros_like, p)
    mask = {"w": True, "b": False}
    tx = make(row, weight_decay=DECAY, weight_decay_mask=mask, **old)
    without = make(row, weight_decay=0.0, **old)
    # Not the first step, in which ADOPT, as its authors' program, only starts `nu`.
    (*_, found), (*_, still) = steps(tx, zero, p), steps(without, zero, p)
    assert (found["w"] < still["w"]).all()
    np.testing.assert_array_equal(found["b"], still["b"])


@pytest.mark.slow
@row("weight decay", optax="passes")
@those("mask")
def test_the_name_that_a_mask_had_goes_on_working(row):
    p = parameters()
    tx = make(row, weight_decay=DECAY, mask={"w": False, "b": True})
    (found, *_) = steps(tx, jax.tree.map(jnp.zeros_like, p), p)
    assert (found["w"] == 0).all() and (found["b"] > 0).all()


# --- groups of parameters ------------------------------------------------------------


@row("rates by path (flax#5117, timm#2532, Megatron#3058, marin#5000)", optax="fails")
def test_a_rate_may_differ_by_path():
    p = parameters()
    tx = optax.adamw({"w": 0.0, "**": RATE}, weight_decay={"b": 0.0, "**": DECAY})
    (found, *_) = steps(tx, cases.gradients(p), p)
    (wanted, *_) = steps(optax.adamw(RATE, weight_decay=0.0), cases.gradients(p), p)
    assert (found["w"] == 0).all()
    assert_close(found["b"], wanted["b"])


@row("kinds of weight decay (292, 1290, 1426, pytorch#144101)", optax="fails")
@pytest.mark.parametrize("kind", ["coupled", "independent"])
def test_weight_decay_may_be_coupled_or_independent_of_the_rate(kind):
    p = parameters()
    zero = jax.tree.map(jnp.zeros_like, p)
    tx = optax.sgd(RATE, weight_decay=optax.weight_decay(DECAY, kind))
    (found, *_) = steps(tx, zero, p)
    factor = RATE * DECAY if kind == "coupled" else DECAY
    assert_close(found, jax.tree.map(lambda x: -factor * x, p))


# --- schedules -----------------------------------------------------------------------


def assert_may_be_a_schedule(row: Any, name: str, value: float) -> None:
    """A schedule of one value gives what the number gives."""
    p = parameters()
    g = cases.gradients(p)
    scheduled = make(row, **{name: lambda count: jnp.float32(value)})
    assert_close(steps(scheduled, g, p), steps(make(row, **{name: value}), g, p))


@pytest.mark.slow
@row("learning-rate schedules accepted everywhere", optax="fails")
@those("learning_rate")
def test_every_learning_rate_may_be_a_schedule(row):
    assert_may_be_a_schedule(row, "learning_rate", RATE)


@pytest.mark.few(1)
@row("learning-rate schedules accepted everywhere", optax="fails")
@those("weight_decay")
def test_every_weight_decay_may_be_a_schedule(row):
    assert_may_be_a_schedule(row, "weight_decay", DECAY)


# --- changing numbers ----------------------------------------------------------------


@pytest.mark.few(1)
@row("changing the rate without recompiling", optax="fails")
@those()
def test_no_injected_number_is_compiled_into_the_program(row):
    tx, _ = injected(row)
    p = parameters()
    g = cases.gradients(p)
    state = jax.eval_shape(tx.init, p)
    step = lambda state: tx.update(g, state, p, **keywords(g))[1]
    new = jax.eval_shape(step, state)
    assert cases.types(new) == cases.types(state)
    assert jax.tree.structure(new) == jax.tree.structure(state)


@row("changing the rate without recompiling", optax="fails")
def test_an_equal_optimizer_made_anew_is_not_traced_again():
    traces, p = [], parameters()

    def step(tx, g, state):
        traces.append(tx)
        return tx.update(g, state, p)

    step = jax.jit(step, static_argnums=0)
    for _ in range(3):
        tx = optax.adamw(RATE)
        step(tx, p, tx.init(p))
    assert len(traces) == 1


@row("changing the rate without recompiling", optax="passes")
def test_a_step_that_takes_the_rate_as_an_array_is_traced_once():
    traces, p = [], parameters()

    @jax.jit
    def step(rate, g, state):
        traces.append(rate)
        return optax.adamw(rate).update(g, state, p)

    state = optax.adamw(RATE).init(p)
    for rate in 0.1, 0.2, 0.3:
        _, state = step(rate, p, state)
    assert len(traces) == 1


# --- what is injected ----------------------------------------------------------------


@pytest.mark.slow("wrappers/test_hyperparams.py")
@row("inject_hyperparams needs static_args", optax="fails")
@those()
def test_nobody_has_to_name_what_is_no_number(row):
    tx, plain = injected(row)
    p = parameters()
    g = cases.gradients(p)
    jax.eval_shape(tx.init, p)
    assert_close(steps(tx, g, p), steps(plain, g, p))


@row("inject_hyperparams needs static_args", optax="fails")
def test_a_function_that_makes_a_mask_is_no_schedule():
    mask = lambda params: jax.tree.map(lambda p: jnp.ndim(p) > 1, params)
    tx = optax.inject_hyperparams(optax.adamw)(RATE, weight_decay=DECAY, mask=mask)
    plain = optax.adamw(RATE, weight_decay=DECAY, mask=mask)
    p = parameters()
    assert_close(steps(tx, p, p), steps(plain, p, p))


@row("inject_hyperparams needs static_args", optax="fails")
def test_a_dtype_is_no_schedule():
    tx = optax.inject_hyperparams(optax.adam)(RATE, mu_dtype=jnp.bfloat16)
    state = tx.init(parameters())
    assert {x.dtype for x in jax.tree.leaves(state.inner_state[0].mu)} == {
        jnp.dtype("bfloat16")
    }


@pytest.mark.thinned
@row("inject_hyperparams dtypes", optax="fails")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@those()
def test_hyperparameters_are_as_exact_as_for_float32(row, dtype):
    tx, _ = injected(row)
    p = parameters(dtype)
    state = jax.eval_shape(tx.init, p)
    step = lambda state: tx.update(p, state, p, **keywords(p))
    u, new = jax.eval_shape(step, state)
    wide = jax.eval_shape(tx.init, parameters()).hyperparams
    assert cases.types(new) == cases.types(state)
    assert cases.types(new.hyperparams) == cases.types(wide)
    assert {x.dtype for x in jax.tree.leaves(u)} == {jnp.dtype(dtype)}


@row("inject_hyperparams dtypes", optax="fails")
def test_a_decay_near_one_is_not_rounded_to_one():
    tx = optax.inject_hyperparams(optax.adam)(RATE, b2=0.999)
    state = tx.init(parameters("bfloat16"))
    assert float(state.hyperparams["b2"]) == pytest.approx(0.999, rel=1e-6)


@row("injected run == plain run", optax="passes")
def test_three_hundred_steps_are_those_of_the_plain_optimizer():
    # The rounding of a rate of 0.01 to float32, 6e-8 of each step, adds up to 2e-7,
    # which Adam's division makes larger.
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.01, 30, 300)

    def run(tx):
        def step(carry, i):
            p, state = carry
            g = jax.tree.map(lambda p: jnp.sin(3 * p + i), p)
            u, state = tx.update(g, state, p)
            return (optax.apply_updates(p, u), state), None

        start = parameters(), tx.init(parameters())
        return jax.lax.scan(step, start, jnp.arange(300.0))[0][0]

    found = run(optax.inject_hyperparams(optax.adamw)(schedule, weight_decay=DECAY))
    wanted = run(optax.adamw(schedule, weight_decay=DECAY))
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
