"""A hyperparameter is one real number, and so is what a schedule gives."""

import functools as ft
import inspect
import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ARGUMENTS, OTHERS, make, rows, traits
from injection import inject
from inside import ANY, RANGES, ROWS
from keywords import keywords
from loops import each

import stepax


def taken(kind: str) -> list:
    """Every argument of a factory that takes a number or a schedule, with its row."""
    found = []
    for row in ROWS.values():
        scalars: Any = row.factory
        for name, takes in scalars.scalars.takes.items():
            if getattr(takes, kind):
                found.append(pytest.param(row, name, id=f"{row.name}-{name}"))
    return found


NUMBERS, SCHEDULES = taken("number"), taken("schedule")
IDS = {p.id for p in NUMBERS}
EITHER = [p for p in SCHEDULES if p.id in IDS]
SCHEDULES_ALONE = [p for p in SCHEDULES if p.id not in IDS]


def test_all_that_is_annotated_as_a_number_is_looked_at():
    """The products below are of all of them, and of nothing that is no number."""
    looked_at = {p.id for p in NUMBERS} | {p.id for p in SCHEDULES}
    named = {f"{r.name}-{k}" for r in ROWS.values() for k in _parameters(r)}
    numeric = {*RANGES, "step_size", "l2_norm_clip", "noise_multiplier", "optimism"}
    pairs = {"betas", "init_step"}
    expected = {x for x in named if x.partition("-")[2] in numeric - pairs}
    expected -= {"came-eps", "scale_by_came-eps"}  # a pair, too
    assert expected <= looked_at
    for x in looked_at:
        assert not any(word in x for word in ("mask", "dtype", "seed", "key", "axis"))


def _parameters(row) -> list[str]:
    return list(inspect.signature(row.factory).parameters)


def keyed(row, **more) -> Any:
    """A transformation of a row, also of one that needs a random key."""
    return make(row, **({"key": 0} if row.kind == "aggregate" else {}), **more)


WRONG = {
    "string": ("1e-3", TypeError, "is '1e-3', a `str`; write 0.001 without quotes"),
    "boolean": (True, TypeError, "is True"),
    "NumPy boolean": (np.bool_(True), TypeError, "is np.True_"),
    "JAX boolean": (jnp.array(True), TypeError, "is of dtype bool"),
    "list": ([0.1], TypeError, "a `list`"),
    "dtype": (jnp.float32, TypeError, "float32"),
    "NaN": (float("nan"), ValueError, "is nan"),
    "NumPy NaN": (np.float32("nan"), ValueError, "is nan"),
    "0-d NaN": (np.array(np.nan), ValueError, "is nan"),
    "vector": (jnp.ones(2), ValueError, "a scalar, but has shape (2,)"),
    "NumPy vector": (np.ones((1, 3)), ValueError, "a scalar, but has shape (1, 3)"),
    "empty": (jnp.ones(0), ValueError, "a scalar, but has shape (0,)"),
    "key": (jax.random.key(0), TypeError, "is of dtype key<fry>"),
}


@pytest.mark.few(200)
@pytest.mark.parametrize(("row", "name"), NUMBERS)
def test_what_is_no_number_is_an_error_that_says_whose_it_is(row, name):
    for x, kind, said in WRONG.values():
        with pytest.raises(kind) as caught:
            make(row, **{name: x})
        message = str(caught.value)
        assert message.startswith(f"`{row.name}`: `{name}` must be "), message
        assert said in message


@each(NUMBERS)
def test_infinity_none_and_complex_numbers_are_refused_but_where_they_mean_something(
    row, name
):
    takes = row.factory.scalars.takes[name]
    allowed = row.ranges.get(name) or RANGES.get(name, ANY)
    subject = f"`{row.name}`: `{name}` must be "
    if not allowed.is_cap:
        with pytest.raises(ValueError, match="but is inf"):
            make(row, **{name: np.inf})
    if not takes.none:
        with pytest.raises(TypeError) as caught:
            make(row, **{name: None})
        assert str(caught.value).startswith(subject)
    if not takes.complex:
        for x in (1j, np.complex64(1j), jnp.complex64(1j)):
            with pytest.raises(TypeError, match="dtype complex"):
                make(row, **{name: x})


@pytest.mark.thinned
@pytest.mark.parametrize(("row", "name"), NUMBERS)
def test_wrong_numbers_are_refused_under_jit_too(row, name):
    def traced(x):
        make(row, **{name: x})
        return x

    for x, said in ((jnp.ones(2), "shape"), (jnp.array(True), "dtype bool")):
        with pytest.raises((TypeError, ValueError), match=f"`{name}` must be .*{said}"):
            jax.eval_shape(traced, x)


@each(NUMBERS)
def test_false_is_0(row, name):
    wanted = outcome(row, name, 0)
    for x in False, np.bool_(False):
        assert outcome(row, name, x) == wanted


def outcome(row, name, x) -> Any:
    """What the argument becomes, with its type, or the error."""
    try:
        found = keyed(row, **{name: x}).call.bound.arguments[name]
    except ValueError as error:
        return str(error)
    return found, type(found)


@each(EITHER)
def test_an_array_in_which_there_is_one_number_is_that_number(row, name):
    tx = keyed(row, **{name: np.full((1, 1), 0.5, np.float32)})
    assert tx.call.bound.arguments[name].shape == ()


# --- schedules -----------------------------------------------------------------------

BAD_SCHEDULES = {
    "vector": (lambda *t: jnp.array([1.0, 2.0]), ValueError, "has shape (2,)"),
    "string": (lambda *t: "0.1", TypeError, "is '0.1', a `str`"),
    "None": (lambda *t: None, TypeError, "is None"),
    "boolean": (lambda *t: True, TypeError, "is True"),
    "complex": (lambda *t: 1j, TypeError, "complex"),
    "NaN": (lambda *t: float("nan"), ValueError, "is nan"),
}
P = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}


def step(tx, g=P):
    return tx.update(g, tx.init(g), g, **keywords(g))


def is_used(row, name) -> bool:
    """Whether a schedule is called in a step of what `make` makes."""
    seen = []
    step(make(row, **{name: lambda *t: seen.append(t) or 0.5}))
    return bool(seen)


@pytest.mark.few(2)
@pytest.mark.parametrize(("row", "name"), SCHEDULES)
def test_a_wrong_value_of_a_schedule_says_whose_it_is(row, name):
    if row.kind == "aggregate" or not is_used(row, name):
        pytest.skip("an option that these arguments do not use")
    for bad in ("vector", "None"):  # the others differ in what is returned alone
        schedule, kind, said = BAD_SCHEDULES[bad]
        with pytest.raises(kind) as caught:
            step(make(row, **{name: schedule}))
        message = str(caught.value)
        assert f"`{row.name}`: the value of the schedule `{name}` must be" in message
        assert said in message


@each(SCHEDULES)
def test_a_schedule_is_kept_as_it_was_given(row, name):
    schedule = lambda *t: 0.5
    tx = keyed(row, **{name: schedule})
    assert tx.call.bound.arguments[name] is schedule


@each(SCHEDULES_ALONE)
def test_where_a_schedule_is_wanted_alone_a_number_says_so(row, name):
    with pytest.raises(TypeError, match=f"`{name}` must be a function of the step"):
        make(row, **{name: 0.5})


def test_a_function_where_no_schedule_is_taken_says_what_to_use():
    b1: Any = lambda t: 0.9
    with pytest.raises(TypeError, match="`adam`: `b1` .*use `inject_hyperparams`"):
        stepax.adam(1e-3, b1=b1)
    step(stepax.inject_hyperparams(stepax.adam)(1e-3, b1=b1))


# --- injected ------------------------------------------------------------------------

INJECTED = [
    p
    for p in NUMBERS
    if p.values[0].kind == "optimizer" and p.values[1] in ("learning_rate", "eps")
]


@pytest.mark.few(2)
@pytest.mark.parametrize(("row", "name"), INJECTED)
def test_what_is_written_to_the_state_is_looked_at(row, name):
    p = {"w": jnp.ones((2, 2))} if row.matrices_only else P
    tx = stepax.inject_hyperparams(row.factory)(**_needed(row, name))
    state = tx.init(p)
    for x, kind, said in WRONG.values():
        bad = state._replace(hyperparams=state.hyperparams | {name: x})
        with pytest.raises(kind) as caught:
            tx.update(p, bad, p, **keywords(p))
        message = str(caught.value)
        assert message.startswith(f"`{row.name}`: `{name}` must be"), message
        assert said in message
    for x in (0.25, np.float32(0.25), jnp.float32(0.25), 1):
        good = state._replace(hyperparams=state.hyperparams | {name: x})
        new = tx.update(p, good, p, **keywords(p))[1]
        assert new.hyperparams[name] == x


def _needed(row, name) -> dict:
    needed = inspect.signature(row.factory).parameters.values()
    given = {p.name: ARGUMENTS[p.name] for p in needed if p.default is p.empty}
    given |= {"key": 0} if "key" in _parameters(row) else {}
    if "hessian_diagonal_fn" in _parameters(row):
        given["hessian_diagonal_fn"] = ARGUMENTS["hessian_diagonal_fn"]
    return given | {name: 0.5}


@pytest.mark.parametrize("schedule", BAD_SCHEDULES)
def test_whatever_is_wrong_with_a_value_is_said(schedule):
    f, kind, said = BAD_SCHEDULES[schedule]
    with pytest.raises(kind) as caught:
        step(stepax.sgd(f))
    start = "`sgd`: the value of the schedule `learning_rate` must be "
    assert str(caught.value).startswith(start) and said in str(caught.value)


@pytest.mark.parametrize("schedule", BAD_SCHEDULES)
def test_injected_schedules_are_looked_at(schedule):
    f, kind, said = BAD_SCHEDULES[schedule]
    tx = stepax.inject_hyperparams(stepax.adam)(1e-3, b1=f)
    with pytest.raises(kind) as caught:
        step(tx)
    assert "`adam`: the value of the schedule `b1` must be" in str(caught.value)
    assert said in str(caught.value)


def test_own_factories_keep_arrays_and_refuse_what_is_none():
    def mine(scales):
        return stepax.stateless(lambda g, p: jax.tree.map(lambda x: x * scales, g))

    tx = stepax.inject_hyperparams(mine)(jnp.ones(2))
    state = tx.init(P)
    assert state.hyperparams["scales"].shape == (2,)
    with pytest.raises(TypeError, match="`mine`: `scales` must be a number, but is No"):
        tx.update(P, state._replace(hyperparams={"scales": None}), P)


def test_rates_of_a_batch_of_optimizers_are_numbers_under_vmap():
    rates, g = jnp.array([0.1, 0.2, 0.3]), jnp.ones((3, 2))
    made = jax.vmap(lambda r, g: step(stepax.sgd(r), g)[0])(rates, g)
    np.testing.assert_allclose(made, -rates[:, None] * g)
    tx = stepax.inject_hyperparams(stepax.sgd)(0.1)
    state = jax.vmap(tx.init)(g)
    state.hyperparams["learning_rate"] = rates
    np.testing.assert_allclose(jax.vmap(tx.update)(g, state)[0], -rates[:, None] * g)


# --- integers ------------------------------------------------------------------------

WHOLE = {"w": jnp.ones((2, 2)), "deep": {"n": jnp.ones((2, 2), jnp.int8)}}


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", ["int8", "bool"])
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_an_integer_is_not_trained(row, dtype):
    g = {"w": jnp.ones((2, 2)), "deep": {"n": jnp.ones((2, 2), dtype)}}
    tx = make(row)
    with pytest.raises(TypeError) as caught:
        step(tx, g)
    assert f"the gradient at ['deep']['n'] is of dtype {dtype}" in str(caught.value)


@pytest.mark.few(2)
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_integers_without_a_gradient_stay_as_they_are(row):
    for still in (None, np.zeros((2, 2), jax.dtypes.float0)):
        g = {"w": jnp.ones((2, 2)), "deep": {"n": still}}
        tx = make(row)
        u, _ = tx.update(g, tx.init(WHOLE), WHOLE, **keywords(g))
        assert u["deep"]["n"] is still or u["deep"]["n"].dtype == jax.dtypes.float0


def test_an_integer_as_the_gradient_of_a_float_is_a_number():
    tx = stepax.adam(0.1)
    p = {"w": jnp.ones(3)}
    u, _ = tx.update({"w": jnp.array([1, 2, 3])}, tx.init(p), p)
    wanted, _ = tx.update({"w": jnp.array([1.0, 2.0, 3.0])}, tx.init(p), p)
    np.testing.assert_allclose(u["w"], wanted["w"])


def test_python_s_integers_are_numbers_like_any():
    tx = stepax.sgd(0.5)
    u, _ = tx.update({"a": 3}, tx.init({"a": 1}), {"a": 1})
    assert u["a"] == -1.5


def test_masked_integers_are_not_looked_at():
    tx = stepax.masked(stepax.adam(0.1), {"w": True, "deep": False})
    u, _ = step(tx, WHOLE)
    assert u["deep"]["n"].dtype == "int8"


def test_a_complex_value_is_an_error_that_names_it_and_loses_no_part():
    g = {"w": jnp.ones(2)}
    for x in (2 + 1j, jnp.complex64(2 + 1j)):
        # The program of a real factor, of the same call, must not serve a complex one.
        for factor in (jnp.float32(2.0), x):
            tx = stepax.scale(factor)
            if factor is x:
                with pytest.raises(ValueError, match="`scale` .* a complex argument"):
                    tx.update(g, tx.init(g))
            else:
                tx.update(g, tx.init(g))
        for factory in stepax.scale, lambda step_size: stepax.scale(step_size):
            tx = stepax.inject_hyperparams(factory)(2.5)
            state = tx.init(g)
            state.hyperparams["step_size"] = x
            with pytest.raises(TypeError, match="`step_size` must be real"):
                tx.update(g, state)


def test_a_schedule_may_be_a_condition_and_a_missing_one_fails_where_it_is_called():
    later: Any = lambda count: count >= 1
    tx = stepax.scale_by_schedule(later)
    state, found = tx.init(P), []
    for _ in range(2):
        updates, state = tx.update(P, state)
        found.append(updates["b"][0])
    assert found == [0, 1]
    missing: Any = None
    tx = stepax.scale_by_schedule(missing)
    with pytest.raises(
        TypeError, match="`step_size_fn` must be a function of the step"
    ):
        tx.update(P, tx.init(P))


# How a number is written; integers are 1, which most arguments can be.
KINDS = {
    "float": float,
    "int": lambda x: 1,
    "NumPy float32": np.float32,
    "NumPy int32": lambda x: np.int32(1),
    "NumPy array": lambda x: np.asarray(x, np.float32),
    "NumPy bfloat16": lambda x: jnp.bfloat16(x).dtype.type(x),
    "weak": jnp.asarray,
    "float32": jnp.float32,
    "weak integer": lambda x: jnp.asarray(1),
    "int32": lambda x: jnp.int32(1),
    "bfloat16": lambda x: jnp.asarray(x, jnp.bfloat16),
}


def floats(row) -> dict[str, float]:
    """The arguments of a factory that are real numbers."""
    parameters = inspect.signature(row.factory).parameters
    takes = {k: ARGUMENTS.get(k, p.default) for k, p in parameters.items()}
    named = {p.values[1] for p in NUMBERS if p.values[0] is row}
    return {k: x for k, x in takes.items() if k in named and type(x) is float}


def of_each_kind(row) -> dict[str, dict]:
    """Its real numbers, written in each way."""
    found = {kind: {} for kind in KINDS}
    for kind, write in KINDS.items():
        for name, x in floats(row).items():
            try:
                make(row, **{name: write(x)})
            except ValueError:
                continue  # out of range: 1 or, in bfloat16, what is rounded to it
            found[kind][name] = write(x)
    return {kind: given for kind, given in found.items() if given}


CACHED = type(ft.cache(len))


def forget():
    """Empty all caches of the engine."""
    for name in [x for x in sys.modules if x.startswith("stepax._engine")]:
        for f in vars(sys.modules[name]).values():
            if isinstance(f, CACHED):
                f.cache_clear()


NUMERIC = [x for x in ROWS.values() if x.kind not in OTHERS and floats(x)]
MATRIX = {"w": np.linspace(-1, 2, 6, dtype=np.float32).reshape(3, 2)}
COSINES = jax.tree.map(np.cos, MATRIX)


@pytest.mark.few(1)
@pytest.mark.parametrize("row", [pytest.param(x, id=x.name) for x in NUMERIC])
def test_a_step_outside_of_jit_is_that_of_jit_after_numbers_of_any_kind(row):
    given = of_each_kind(row)

    def step(kind):
        written = kind.removesuffix(", injected")
        factory = row.factory if written == kind else inject(row.factory)
        tx = make(replace(row, factory=factory), **given[written])
        return tx.update(COSINES, tx.init(MATRIX), MATRIX, **keywords(COSINES))[0]

    # Injected numbers become arrays of one type.
    kinds = [*given, "float, injected"]
    wanted = jax.jit(lambda: {kind: step(kind)["w"] for kind in kinds})()
    wrong = []
    for order in (kinds, kinds[::-1]):
        forget()
        for kind in order:
            # In a matrix that is orthogonal small elements are differences.  Some
            # updates are differences of parameters, which round to 2^-23 of 2.  A
            # decomposition amplifies roundings by its gaps: 6e-6 on some processors.
            share = 1e-5 if "batched" in traits(row.name) else 3e-6
            bound = share * np.max(np.abs(wanted[kind])) + 2.0**-22
            try:
                found = step(kind)["w"]
                np.testing.assert_allclose(found, wanted[kind], 0, bound)
            except (AssertionError, TypeError) as error:
                wrong.append((kind, str(error)))
    assert not wrong
