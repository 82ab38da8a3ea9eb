"""Optimizers and schedules are what they were made of: equal, printed, pickled."""

import copy
import inspect
import itertools
import pickle
from collections import OrderedDict
from typing import Any

import cloudpickle
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimistix
import pytest
from cases import make, rows
from wrappers import WRAPPERS

import stepax
import stepax.contrib
from stepax._engine.factories.recorded import recorded
from stepax._engine.functions.calls import copy_containers


P = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}

CYCLE = {"init_value": 0.0, "peak_value": 0.1, "decay_steps": 9, "warmup_steps": 3}

# Each schedule of the library, by its first value.
SCHEDULES: dict[str, Any] = {
    "constant": lambda o, v: o.constant_schedule(v),
    "linear": lambda o, v: o.linear_schedule(v, 0.0, 10),
    "polynomial": lambda o, v: o.polynomial_schedule(v, 0.0, 2, 10, 1),
    "exponential": lambda o, v: o.exponential_decay(v, 5, 0.9, staircase=True),
    "piecewise": lambda o, v: o.piecewise_constant_schedule(v, {3: 0.5, 5: 0.1}),
    "interpolate": lambda o, v: o.piecewise_interpolate_schedule("linear", v, {4: 0.5}),
    "cosine": lambda o, v: o.cosine_decay_schedule(v, 10),
    "onecycle": lambda o, v: o.cosine_onecycle_schedule(10, v),
    "linear onecycle": lambda o, v: o.linear_onecycle_schedule(10, v),
    "join": lambda o, v: o.join_schedules(
        [o.linear_schedule(0.0, v, 3), o.constant_schedule(v)], [3]
    ),
    "sgdr": lambda o, v: o.sgdr_schedule([{**CYCLE, "init_value": v}]),
    "warmup constant": lambda o, v: o.warmup_constant_schedule(0.0, v, 5),
    "warmup cosine": lambda o, v: o.warmup_cosine_decay_schedule(0.0, v, 3, 9),
    "warmup exponential": lambda o, v: o.warmup_exponential_decay_schedule(
        0.0, v, 3, 5, 0.9
    ),
    "warmup stable": lambda o, v: o.schedules.warmup_stable_decay_schedule(v, 3, 4, 5),
    "warmup root": lambda o, v: o.schedules.warmup_inverse_sqrt_schedule(v, 3),
    "power average": lambda o, v: o.schedules.power_average_decay(v / 5),
    "warmup restarts": lambda o, v: o.schedules.warmup_cosine_restarts_schedule(
        v, 5, 2
    ),
}
BOTH = [k for k, f in SCHEDULES.items() if hasattr(optax, f(stepax, 0.1).__name__)]

USES: dict[str, Any] = {
    "alone": lambda s: s,
    "adamw": stepax.adamw,
    "injected": stepax.inject_hyperparams(stepax.adam),
    "negative": lambda s: stepax.scale_by_learning_rate(s),
    "combined": lambda s: stepax.sgd(s, weight_decay=s),
    "chain": lambda s: stepax.chain(stepax.clip(1.0), stepax.lion(learning_rate=s)),
    "wrapped": stepax.WrappedSchedule,
}


def test_every_schedule_has_a_row():
    module = inspect.getmembers(stepax.schedules, inspect.isfunction)
    factories = {n for n, f in module if n.endswith(("schedule", "schedules", "decay"))}
    made = {make(stepax, 0.1).call.name for make in SCHEDULES.values()}
    missing = factories - made
    assert not missing, f"add {missing} to `SCHEDULES` in this file"


@pytest.mark.thinned
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_equal_schedules_make_equal_things(name, use):
    make = lambda v=0.1: USES[use](SCHEDULES[name](stepax, v))
    one = make()
    assert one == make() and hash(one) == hash(make()) and one != make(0.2)
    assert "schedule" in repr(one) or "decay" in repr(one)
    assert " at 0x" not in repr(one)
    for again in (
        pickle.loads(pickle.dumps(one)),
        cloudpickle.loads(cloudpickle.dumps(one)),
        copy.deepcopy(one),
    ):
        assert again == one and hash(again) == hash(one) and repr(again) == repr(one)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
def test_a_schedule_is_a_function_as_in_optax(name):
    ours, theirs = (SCHEDULES[name](o, 0.1) for o in (stepax, optax))
    assert callable(ours) and len(inspect.signature(ours).parameters) == 1
    assert isinstance(ours.__name__, str) and jax.tree.leaves(ours) == [ours]
    for f in (lambda s: s(4), lambda s: jax.jit(s)(4), lambda s: jax.vmap(s)(COUNTS)):
        with jax.numpy_dtype_promotion("standard"):
            found, wanted = f(ours), f(theirs)
        np.testing.assert_array_equal(np.float32(found), np.float32(wanted))


COUNTS = np.arange(12)


def test_equal_schedules_are_traced_once():
    traces = []

    def f(schedule, count):
        traces.append(1)
        return schedule(count)

    step = jax.jit(f, static_argnums=0)
    for _ in range(3):
        step(SCHEDULES["cosine"](stepax, 0.1), 3)
    assert len(traces) == 1


def test_the_numbers_of_a_schedule_can_be_read():
    schedule: Any = stepax.cosine_decay_schedule(0.1, 100)
    given = {"init_value": 0.1, "decay_steps": 100, "alpha": 0.0, "exponent": 1.0}
    assert schedule.arguments == given
    assert repr(schedule) == ("cosine_decay_schedule(init_value=0.1, decay_steps=100)")
    text = str(stepax.describe(stepax.adamw(schedule), P))
    assert f"adamw(learning_rate={schedule!r})" in text
    with pytest.raises(TypeError, match="cosine_decay_schedule"):
        stepax.cosine_decay_schedule(0.1)  # pyright: ignore[reportCallIssue] (wrong)


@pytest.mark.parametrize("array", [jnp.float32, np.float32, np.float64])
def test_a_rate_as_an_array_is_a_value(array):
    make = lambda x=1e-3: stepax.adamw(array(x))
    assert make() == make() and hash(make()) == hash(make()) and make() != make(2e-3)
    assert "0.001" in repr(make()) and "0.001" in str(stepax.describe(make(), P))
    assert pickle.loads(pickle.dumps(make())) == make()


class Decay(eqx.Module):
    """A schedule with an array for a leaf."""

    rate: jax.Array

    def __call__(self, count):
        return self.rate / (1 + jnp.asarray(count, jnp.float32))


@pytest.mark.few(1)
@pytest.mark.parametrize("use", ["adamw", "injected", "chain"])
def test_a_schedule_may_be_a_module(use):
    tx = USES[use](Decay(jnp.float32(0.5)))
    state = tx.init(P)
    for update in (tx.update, jax.jit(tx.update)):
        _, state = update(P, state, P)
    found = stepax.hyperparams(tx, state)
    (rate,) = (x for k, x in found.items() if k.endswith("learning_rate"))
    assert float(rate) == 0.25
    assert any(k.endswith("learning_rate") for k in stepax.describe(tx, P).hyperparams)


# --- what is given is copied ---------------------------------------------------------

CONTAINERS: dict[str, tuple] = {
    "dict": ({"w": True, "b": [1, {"c": 2}]}, lambda x: x["b"][1].update(c=3)),
    "order": ({"w": True, "a": 1}, lambda x: x.pop("w")),
    "list": ([1, [2, 3]], lambda x: x[1].append(4)),
    "tuple": ((1, [2]), lambda x: x[1].append(3)),
    "ordered": (OrderedDict(b=1, a=[2]), lambda x: x["a"].append(3)),
    "array": (np.ones(2), lambda x: x.fill(5)),
    "nested array": ({"x": (np.ones(2),)}, lambda x: x["x"][0].fill(5)),
    "none": ({"x": [None]}, lambda x: x["x"].append(None)),
}


@recorded
def anything(x: Any, *args: Any, **kwargs: Any) -> Any:
    seen = x, args, kwargs
    tx = stepax.scale(1.0)
    return stepax.contrib.split_real_and_imaginary(tx) if seen is None else tx


@pytest.mark.parametrize("name", CONTAINERS)
def test_what_is_given_is_copied(name):
    for give in (
        anything,
        lambda given: anything(0, given),
        lambda given: anything(0, more=given),
        lambda given: stepax.inject_hyperparams(anything)(0.1, more=given),
    ):
        given, change = copy.deepcopy(CONTAINERS[name])
        tx, same = give(given), give(given)
        shown, key = repr(tx), hash(tx)
        change(given)
        assert repr(tx) == shown and hash(tx) == key and tx == same
        assert tx != give(given)


@pytest.mark.thinned
@pytest.mark.parametrize("row", rows(takes="weight_decay_mask"))
def test_a_mask_that_is_changed_later_changes_nothing(row):
    mask = {"w": True, "b": False}
    both = "mask" in inspect.signature(row.factory).parameters
    other = {"mask": None} if both else {}
    tx = make(row, weight_decay=0.1, weight_decay_mask=mask, **other)
    shown = repr(tx)
    before = stepax.describe(tx, P)
    mask["b"] = True
    assert repr(tx) == shown and stepax.describe(tx, P) == before


def test_the_arguments_of_schedules_and_partitions_are_copied():
    scales, schedules, starts = {3: 0.5}, [stepax.constant_schedule(1.0)] * 2, [3]
    transforms: dict = {"a": stepax.sgd(0.1)}
    made = [
        stepax.piecewise_constant_schedule(1.0, scales),
        stepax.join_schedules(schedules, starts),
        stepax.partition(transforms, "a"),
    ]
    shown = list(map(repr, made))
    scales[3], schedules[1], starts[0] = 0.1, stepax.constant_schedule(2.0), 5
    transforms["b"] = stepax.adam(0.1)
    assert list(map(repr, made)) == shown
    assert float(made[0](4)) == 0.5 and float(made[1](4)) == 1.0


def test_what_has_an_identity_keeps_it():
    module, array, tx = Decay(jnp.float32(1.0)), jnp.ones(2), stepax.sgd(0.1)
    for x in (module, array, tx, lambda t: t, "text", None):
        assert copy_containers({"x": [x]})["x"][0] is x


# --- equality ------------------------------------------------------------------------


# Ways to a pair of the same two functions, or of ones that were made alike.
WAYS: dict[str, Any] = {
    "itself": lambda tx: tx,
    "replace": lambda tx: tx._replace(init=tx.init),
    "replace nothing": lambda tx: tx._replace(),
    "make": lambda tx: type(tx)._make(tx),
    "fields": lambda tx: type(tx)(**tx._asdict()),
    "class": lambda tx: type(tx)(tx.init, tx.update),
    "plain": lambda tx: stepax.GradientTransformation(tx.init, tx.update),
    "extra": lambda tx: stepax.GradientTransformationExtraArgs(tx.init, tx.update),
    "support": stepax.with_extra_args_support,
    "optax support": optax.with_extra_args_support,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda tx: cloudpickle.loads(cloudpickle.dumps(tx)),
}
# Tuples of other classes, which know functions alone.
FOREIGN: dict[str, Any] = {
    "optax": lambda tx: optax.GradientTransformation(tx.init, tx.update),
    "optax extra": lambda tx: optax.GradientTransformationExtraArgs(tx.init, tx.update),
    "tuple": tuple,
}


# `lookahead` has the call of another one there, so that it takes single parameters.
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["adamw", *sorted(WRAPPERS.keys() - {"lookahead"})])
def test_the_same_two_functions_are_the_same(name):
    wrap = WRAPPERS.get(name, lambda tx: tx)
    tx, alike, other = (wrap(stepax.adamw(rate)) for rate in (0.1, 0.1, 0.2))
    # One that is given a new function each time is another one, and as unpickled.
    ways = WAYS if tx == alike else {k: WAYS[k] for k in WAYS.keys() - {"pickle"}}
    assert tx == alike or " at 0x" in repr(tx.call.bound)
    ones = (tx, alike) if tx == alike else (tx,)
    pairs = [way(x) for x in ones for way in ways.values()]
    foreign = [way(x) for x in (tx, alike, other) for way in FOREIGN.values()]
    for x, y in itertools.product(pairs, pairs):
        assert x == y and not x != y and hash(x) == hash(y)
    for x, y in itertools.product(pairs, [way(other) for way in WAYS.values()]):
        assert x != y and not x == y
    for x, y in itertools.product(pairs, foreign):
        is_same = x.init is y[0] and x.update is y[1]
        assert (x == y) == (y == x) == is_same != (x != y) and (y != x) != is_same
    assert tx._replace(init=stepax.sgd(0.1).init) != tx
    assert len({*pairs, other}) == 2


def init(params):
    return ()


def update(updates, state, params=None):
    return updates, state


def test_plain_pairs_are_equal():
    made = stepax.GradientTransformation(init, update)
    for other in (
        stepax.GradientTransformation(init, update),
        stepax.GradientTransformationExtraArgs(init, update),
        pickle.loads(pickle.dumps(made)),
    ):
        assert made == other and hash(made) == hash(other)
    assert made != stepax.GradientTransformation(init, lambda *args: args)
    assert stepax.chain(made) == stepax.chain(made._replace(init=init))


# --- libraries that look into closures -----------------------------------------------

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda o, v: o.sgd(v),
    "momentum": lambda o, v: o.sgd(0.1, momentum=v),
    "adam": lambda o, v: o.adam(0.1, b1=v),
    "adamw": lambda o, v: o.adamw(0.1, weight_decay=v),
    "lion": lambda o, v: o.lion(v),
    "chain": lambda o, v: o.chain(o.clip_by_global_norm(v), o.adam(0.1)),
    "schedule": lambda o, v: o.adam(o.cosine_decay_schedule(v, 10)),
    "a function": lambda o, v: o.adam(lambda count: v / (count + 1)),
    "injected": lambda o, v: o.inject_hyperparams(o.adam)(v),
    "partition": lambda o, v: o.partition({"a": o.sgd(v)}, "a"),
    "if finite": lambda o, v: o.apply_if_finite(o.adam(v), 2),
    "foreign": lambda o, v: o.chain(optax.sgd(v)),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimistix_traces_once_for_all_numbers(name):
    found, wanted = (solutions(o, OPTIMIZERS[name]) for o in (stepax, optax))
    assert found[0] == wanted[0] == [1, 1]
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-5)


def solutions(o, make) -> tuple[list, list]:
    """How often was traced after each of two optimizers, and what they found."""
    traces, counts, values = [], [], []

    @eqx.filter_jit
    def solve(solver, y):
        traces.append(1)
        f = lambda y, args: jnp.sum((y - 1) ** 2)
        return optimistix.minimise(f, solver, y, max_steps=5, throw=False).value

    for v in (0.1, 0.2):
        with jax.numpy_dtype_promotion("standard"):
            tx = make(o, jnp.float32(v))
            solver = optimistix.OptaxMinimiser(tx, rtol=1e-3, atol=1e-3)
            values.append(solve(solver, jnp.zeros(2)))
        counts.append(len(traces))
    return counts, values


def test_equinox_converts_the_closure_of_an_update():
    found = []
    for rate in (0.5, 0.25):
        tx = stepax.sgd(jnp.float32(rate))
        state = tx.init(P)
        update = eqx.filter_closure_convert(tx.update, P, state, P)
        u, _ = update(P, state, P)
        found.append(float(u["w"][0, 0]))
        leaves, treedef = jax.tree.flatten(jax.tree_util.Partial(tx.update))
        assert treedef.unflatten(leaves)(P, state, P)[0]["w"][0, 0] == -rate
    assert found == [-0.5, -0.25]
