"""What is a number or a schedule lives in the state; everything else stays outside."""

import contextlib
import inspect
import math
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from cases import make, rows, types
from injection import (
    EXTRA,
    Warm,
    arguments,
    assert_close,
    gradients,
    half,
    inject,
    is_matrix,
    parameters,
    run,
    run_by_operation,
)
from inside import ANY, RANGES, ROWS
from runs import no_leaks

import stepax
from stepax.schedules import StatefulSchedule


# --- every factory -------------------------------------------------------------------


def _optax_s(row) -> Any:
    return getattr(optax, row.name, getattr(optax.contrib, row.name, None))


@pytest.mark.parametrize(
    "row", [q for q in rows(kind="optimizer") if _optax_s(q.values[0])]
)
def test_a_state_has_no_hyperparameter_that_optax_s_lacks(row):
    known = inspect.signature(_optax_s(row)).parameters
    given = {k: x for k, x in arguments(row).items() if k in known}
    state = inject(row.factory)(**given).init(parameters())
    assert set(state.hyperparams) <= set(known)


@pytest.mark.few(1)
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_an_injected_optimizer_equals_the_plain_one(row):
    # A number that is traced is rounded to float32 before the arithmetic that Python
    # does with it in float64, such as 1 - b2; three steps leave a part in 10^5, of the
    # parameters or of steps as long as the learning rate, or as much as half a unit in
    # the last place of 1 is of 1 - b.
    given = arguments(row)
    decays = [x for x in given.values() if isinstance(x, float) and x < 1]
    rtol = max(2e-5, 2.0**-25 / (1 - max(decays, default=0)))
    plain, _ = run_by_operation(make(row), parameters())
    tx = inject(row.factory)(**given)
    found, state = run_by_operation(tx, parameters())
    atol = max(2e-6, 3 * 2e-5 * given.get("learning_rate", 0))
    assert_close(found, plain, rtol, atol)
    assert int(state.count) == 3


def _second_update(tx, p):
    """At the same parameters: with b2 = 1 some move so far that a gradient of the moved
    ones is a matter of rounding."""
    tx = stepax.with_extra_args_support(tx)
    with jax.disable_jit():
        _, state = tx.update(gradients(p, 0), tx.init(p), p, **EXTRA)
        return tx.update(gradients(p, 1), state, p, **EXTRA)[0]


@pytest.mark.slow
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_a_number_at_the_end_of_its_range_means_the_same_when_traced(row):
    p = {"w": jnp.arange(4.0).reshape(2, 2) / 4 - 0.3}
    checks: Any = inspect.getattr_static(ROWS[row.name].factory, "scalars")
    given = arguments(row)
    for k in given.keys() & checks.takes.keys():
        allowed = checks.own.get(k) or RANGES.get(k, ANY)
        ends = [v for v in (0.0, 1.0, math.inf) if v in allowed]
        if not isinstance(given[k], float) or not ends:
            continue

        def after(x):
            return _second_update(make(row, **{k: x}), p)["w"]  # noqa: B023

        with contextlib.suppress(jax.errors.JAXTypeError):  # it has to be known
            found = jax.vmap(after)(jnp.asarray(ends))
            for x, v in zip(found, ends, strict=True):
                np.testing.assert_allclose(x, after(v), 1e-4, 1e-5, err_msg=f"{k} {v}")


@pytest.mark.thinned
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_numbers_are_injected_and_nothing_else(row):
    given = arguments(row)
    state = inject(row.factory)(**given).init(parameters())
    floats = {k for k, x in given.items() if isinstance(x, float)}
    added = {k for k, x in row.ranges.items() if x.is_added}
    assert floats - added <= set(state.hyperparams)
    assert not added & set(state.hyperparams)
    for k in state.hyperparams:
        assert isinstance(given[k], float | int) and not isinstance(given[k], bool)
    assert state.hyperparams_states == {}


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_hyperparameters_are_float32_for_narrow_parameters(row, dtype):
    tx = inject(row.factory)(**arguments(row))
    first = tx.init(parameters(dtype))
    new, state = run_by_operation(tx, parameters(dtype))
    whole = {k for k, x in arguments(row).items() if isinstance(x, int)}
    for k, x in state.hyperparams.items():
        assert x.dtype == (jnp.int32 if k in whole else jnp.float32)
    assert types(first) == types(state)
    assert {str(x.dtype) for x in jax.tree.leaves(new)} == {dtype}


@pytest.mark.few(1)
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_a_changed_hyperparameter_compiles_nothing_anew(row):
    tx, params = inject(row.factory)(**arguments(row)), parameters()
    traced = []

    @jax.jit
    def step(g, s, p):
        traced.append(None)
        return tx.update(g, s, p, **EXTRA)

    state = tx.init(params)
    for i in range(4):
        for k, x in state.hyperparams.items():
            state.hyperparams[k] = x * jnp.asarray(0.99, x.dtype) if i else x
        step.trace(params, state, params)  # recompiles only what it traces again
        with jax.disable_jit():
            _, state = tx.update(params, state, params, **EXTRA)
    assert len(traced) == 1


COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, duration_secs, **kwargs: COMPILED.append(event)
)


def compilations():
    return sum("backend_compile" in name for name in COMPILED)


@pytest.mark.few(1)
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_a_changed_hyperparameter_compiles_nothing_outside_of_jit(row):
    tx, params = inject(row.factory)(**arguments(row)), parameters()
    state, before = tx.init(params), 0
    for i in range(5):
        if i == 2:
            before = compilations()
        for k, x in state.hyperparams.items():
            state.hyperparams[k] = float(x) * 0.99 if x.dtype == jnp.float32 else x
        _, state = tx.update(params, state, params, **EXTRA)
    assert compilations() == before


@pytest.mark.parametrize(
    "mask", [is_matrix, {"w": True, "b": False}, {"b": False, "**": 1}]
)
def test_kernels_are_shared_also_under_a_mask(mask):
    tx, params = inject(stepax.adamw)(0.1, mask=mask), parameters()
    state, before = tx.init(params), 0
    for i in range(4):
        if i == 2:
            before = compilations()
        state.hyperparams["weight_decay"] = 0.1 * i
        _, state = tx.update(params, state, params)
    assert compilations() == before


# --- real Optax ----------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "factory, injected, fixed",
    [
        (
            optax.adafactor,
            {"decay_rate", "eps"},
            {"min_dim_size_to_factor", "factored"},
        ),
        (optax.contrib.galore, {"scale"}, {"rank", "update_proj_gap"}),
        (optax.contrib.adopt, {"b1", "b2"}, {"clip_value_fn", "nesterov"}),
        (optax.contrib.muon, {"beta"}, {"weight_dimension_numbers", "ns_coeffs"}),
        (optax.adamw, {"b1", "weight_decay"}, {"mask", "mu_dtype"}),
        (optax.sgd, set(), {"nesterov", "accumulator_dtype"}),
        (optax.noisy_sgd, {"eta", "gamma"}, {"key", "seed"}),
    ],
)
def test_factories_of_optax_run_without_static_args(factory, injected, fixed):
    given = {"learning_rate": 0.1}
    if "key" in inspect.signature(factory).parameters:
        given["key"] = 0
    params = {"w": jnp.ones((4, 3)) / 2, "b": jnp.ones(3)}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        plain, _ = run(factory(**given), params)
        found, state = run(inject(factory)(**given), params)
    assert_close(found, plain)
    assert injected | {"learning_rate"} <= set(state.hyperparams)
    assert not fixed & set(state.hyperparams)


@pytest.mark.slow
def test_lbfgs_of_optax_is_injected():
    tx = inject(optax.lbfgs)(0.1, linesearch=None)
    with jax.numpy_dtype_promotion("standard"):
        found, state = run(tx, parameters())
        plain, _ = run(optax.lbfgs(0.1, linesearch=None), parameters())
    assert_close(found, plain)
    assert set(state.hyperparams) == {"learning_rate"}


@pytest.mark.slow
def test_states_are_those_of_optax():
    schedule = lambda count: jnp.float32(0.1) / (1 + count).astype(jnp.float32)
    for args in (0.1,), (schedule,):
        with jax.numpy_dtype_promotion("standard"):
            wanted, theirs = run(
                optax.inject_hyperparams(optax.adamw)(*args), parameters()
            )
        found, ours = run(inject(stepax.adamw)(*args), parameters())
        assert str(jax.tree.structure(ours)) == str(jax.tree.structure(theirs))
        assert_close(found, wanted)
        assert_close(ours, theirs)
        tx = inject(stepax.adamw)(*args)
        assert_close(
            tx.update(wanted, theirs, wanted)[0], tx.update(wanted, ours, wanted)[0]
        )
    with pytest.warns(DeprecationWarning, match="use `inject_hyperparams`"):
        old = stepax.inject_stateful_hyperparams(stepax.adam)(0.1)
    assert repr(old) == repr(inject(stepax.adam)(0.1))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_parameters_keep_their_states_in_optimizers_of_optax(dtype):
    tx, params = inject(optax.adam)(0.1), parameters(dtype)
    with jax.numpy_dtype_promotion("standard"):
        first = tx.init(params)
        u, state = tx.update(params, first, params)
    assert types(state) == types(first)
    assert {str(x.dtype) for x in jax.tree.leaves(u)} == {dtype}


# --- schedules and dtypes ------------------------------------------------------------


@pytest.mark.slow
def test_three_hundred_steps_with_schedules_equal_the_plain_run():
    # The error of one rounding of the rate to float32, 6e-8 of each step, adds up over
    # 300 steps of about 0.01 to at most 2e-7, which Adam's division makes larger.
    schedule = stepax.warmup_cosine_decay_schedule(0.0, 0.01, 30, 300)
    decay = stepax.linear_schedule(0.1, 0.0, 200)
    make = lambda f: f(schedule, weight_decay=decay, b1=0.8)
    plain, _ = run(make(stepax.adamw), parameters(), 300)
    found, state = run(make(inject(stepax.adamw)), parameters(), 300)
    assert_close(found, plain, rtol=1e-4, atol=1e-5)
    # The value in the state is the one that the last step used.
    np.testing.assert_allclose(state.hyperparams["learning_rate"], schedule(299), 1e-6)


def test_a_schedule_with_a_state_sees_the_keywords():
    assert isinstance(Warm(), StatefulSchedule)
    tx, params = inject(stepax.adam)(Warm()), parameters()
    state = tx.init(params)
    rates = []
    for _ in range(3):
        _, state = tx.update(params, state, params, value=jnp.float32(1))
        rates.append(float(state.hyperparams["learning_rate"]))
    np.testing.assert_allclose(rates, [0.1, 1.1, 2.1], rtol=1e-6)
    assert float(state.hyperparams_states["learning_rate"]) == 3


def test_a_wrapped_schedule_has_the_states_of_optax_s():
    schedule = stepax.linear_schedule(1.0, 0.0, 4)
    ours, theirs = stepax.WrappedSchedule(schedule), optax.WrappedSchedule(schedule)
    state, wanted = ours.init(), theirs.init()
    for _ in range(2):
        assert types(state) == types(wanted) and ours(state) == theirs(wanted)
        state, wanted = ours.update(state), theirs.update(wanted)


@pytest.mark.parametrize("given", [None, "float32", "bfloat16"])
def test_hyperparameters_take_the_dtype_asked_for(given):
    tx = inject(stepax.adam, hyperparam_dtype=given)(0.1)
    _, state = run(tx, parameters())
    dtypes = {str(x.dtype) for x in state.hyperparams.values()}
    assert dtypes == {given or "float32"}


@pytest.mark.slow
def test_hyperparameters_are_float64_for_float64_parameters_alone(x64):
    for dtype in "float32", "float64":
        params, tx = parameters(dtype), inject(stepax.adam)(0.1)
        state = tx.init(params)
        for new in np.float64(0.2), np.float32(0.2), jnp.asarray(0.2), 0.2:
            state.hyperparams["learning_rate"] = new
            _, state = tx.update(params, state, params)
            assert {str(x.dtype) for x in state.hyperparams.values()} == {dtype}


@pytest.mark.parametrize(
    "new", [np.float64(0.2), np.float32(0.2), 0.2, 1, jnp.float16(0.2)]
)
def test_a_hyperparameter_may_be_replaced_by_any_number(new):
    tx, params = inject(stepax.adam)(0.1), parameters()
    state = tx.init(params)
    state.hyperparams["learning_rate"] = new
    _, state = tx.update(params, state, params)
    assert state.hyperparams["learning_rate"].dtype == jnp.float32
    assert not state.hyperparams["learning_rate"].weak_type


# --- states --------------------------------------------------------------------------


def test_nothing_is_mutated_and_nothing_is_shared():
    tx, params = inject(stepax.adamw)(jnp.float32(0.1)), parameters()

    @jax.jit
    def step(state):
        state.hyperparams["learning_rate"] = jnp.float32(0.5)
        before = dict(state.hyperparams)
        _, new = tx.update(params, state, params)
        assert state.hyperparams == before and new.hyperparams is not state.hyperparams
        new.hyperparams["learning_rate"] *= 2
        assert state.hyperparams == before
        return new

    state = step(tx.init(params))
    assert state.hyperparams["learning_rate"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    "factory, args",
    [(stepax.adamw, {}), (optax.contrib.prodigy, {}), (optax.contrib.dadapt_adamw, {})],
)
def test_parameters_and_a_fresh_state_can_be_donated(factory, args, jit):
    rate, params = jnp.float32(0.1), parameters()
    with jax.numpy_dtype_promotion("standard"):
        tx = inject(factory)(rate, **args)
        # A copy, because Prodigy of Optax keeps the parameters themselves.
        own = jax.tree.map(jnp.copy, params)
        state = (jax.jit(tx.init) if jit else tx.init)(own)
        step = jax.jit(tx.update, donate_argnums=(1, 2))
        for _ in range(2):
            _, state = step(gradients(params), state, jax.tree.map(jnp.copy, params))
            _, state = tx.update(params, state, params)
    assert rate == 0.1 and not rate.is_deleted()


@pytest.mark.slow
def test_nothing_leaks():
    tx, params = inject(stepax.adamw)(half, mask=is_matrix), parameters()
    with no_leaks():
        state = jax.jit(tx.init)(params)
        u, _ = jax.jit(tx.update)(params, state, params)
        jax.vmap(lambda rate: inject(stepax.adam)(rate).init(params))(jnp.ones(2))
    assert types(u) == types(params)


def test_one_in_another_keeps_both_states():
    outer = lambda o: o.inject_hyperparams(
        lambda lr: o.inject_hyperparams(o.adam)(lr, b1=0.8)
    )(0.1)
    with jax.numpy_dtype_promotion("standard"):
        wanted, theirs = run(outer(optax), parameters())
    found, ours = run(outer(stepax), parameters())
    assert_close(found, wanted)
    assert str(jax.tree.structure(ours)) == str(jax.tree.structure(theirs))


def test_a_state_survives_flattening():
    tx, params = inject(stepax.adamw)(half), parameters()
    _, state = tx.update(params, tx.init(params), params)
    leaves, treedef = jax.tree.flatten(state)
    again = treedef.unflatten([np.asarray(x) for x in leaves])
    u, _ = tx.update(params, again, params)
    assert_close(u, tx.update(params, state, params)[0], rtol=0, atol=0)


def test_a_mistyped_hyperparameter_is_an_error():
    tx, params = inject(stepax.adamw)(0.1), parameters()
    state = tx.init(params)
    state.hyperparams["learning_rat"] = 0.5
    with pytest.raises(
        ValueError, match="`learning_rat` in .*did you mean `learning_rate"
    ):
        tx.update(params, state, params)
    del state.hyperparams["learning_rat"], state.hyperparams["b1"]
    with pytest.raises(ValueError, match=r"lacks \['b1'\]"):
        tx.update(params, state, params)
    with pytest.raises(
        ValueError, match="`InjectStatefulHyperparamsState`, but was given"
    ):
        tx.update(params, stepax.adam(0.1).init(params), params)


def test_an_injected_optimizer_is_printed_and_compared():
    make = lambda: inject(stepax.adam)(0.1, b1=0.8)
    assert repr(make()) == "inject_hyperparams(adam)(0.1, b1=0.8)"
    assert make() == make() and hash(make()) == hash(make())
