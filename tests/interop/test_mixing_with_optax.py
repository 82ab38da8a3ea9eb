"""Ours and Optax's transformations, states and classes stand in for each other.

Optax is loaded in most programs, because Flax, Brax, NumPyro and others import it.
Optax mixes dtypes, so whatever runs its code runs under standard promotion here.
"""

import copy
import inspect
import pickle
import subprocess
import sys
from typing import Any

import cloudpickle
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax as real_optax
import pytest
from cases import ARGUMENTS, MADE
from inside import ROWS

import stepax as real_stepax


# To a type checker two libraries that know nothing of each other do not mix.
optax: Any = real_optax
stepax: Any = real_stepax

# The engine compiles a step as one program, where a product and a sum may become one
# operation: two ulps a step.  Moments carry the error on for three steps; all numbers
# are of one sign, so that no sum cancels and raises the error in ulps.
THREE_STEPS = 8


@pytest.fixture
def standard():
    """Optax's code needs the usual promotion of dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        yield


standard_promotion = pytest.mark.usefixtures("standard")


def parameters():
    return {"w": jnp.arange(6.0).reshape(2, 3) / 8, "b": jnp.ones(3)}


def gradients(step=0):
    return jax.tree.map(lambda p: 2 + jnp.sin(p + step), parameters())


def assert_same(found, wanted, ulps=0):
    """As many leaves, of equal dtypes and values up to some ulps."""
    found, wanted = jax.tree.leaves(found), jax.tree.leaves(wanted)
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted, strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype
        if ulps and x.dtype.kind == "f":
            np.testing.assert_array_max_ulp(x, y, maxulp=ulps)
        else:
            np.testing.assert_array_equal(x, y)


# Each takes the library, ours or Optax, so that one row serves as its own oracle.
MAKERS = {
    "adam": lambda o: o.adam(1e-2),
    "sgd": lambda o: o.sgd(o.linear_schedule(0.1, 0.0, 10), momentum=0.9),
    "chain": lambda o: o.chain(
        o.clip_by_global_norm(1.0), o.adamw(1e-2, mask={"w": True, "b": False})
    ),
    "named_chain": lambda o: o.named_chain(
        ("clip", o.clip(0.5)), ("lion", o.lion(0.1))
    ),
    "inject": lambda o: o.inject_hyperparams(o.adam)(learning_rate=1e-2),
    "masked": lambda o: o.masked(o.adam(1e-2), {"w": True, "b": False}),
    "partition": lambda o: o.partition(
        {"a": o.adam(1e-2), "f": o.set_to_zero()}, {"w": "a", "b": "f"}
    ),
    "multi_steps": lambda o: o.MultiSteps(o.adam(1e-2), 2).gradient_transformation(),
    "apply_if_finite": lambda o: o.apply_if_finite(o.rmsprop(1e-2), 3),
}
everyone = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
# Flax writes no `OrderedDict`, which is what the state of a named chain is.
in_flax = {name: make for name, make in MAKERS.items() if name != "named_chain"}
flax_knows = pytest.mark.parametrize("make", in_flax.values(), ids=in_flax)


def run(tx, steps=3, **extra):
    """Parameters, updates and state after some steps."""
    params = parameters()
    state, updates = tx.init(params), None
    for t in range(steps):
        updates, state = tx.update(gradients(t), state, params, **extra)
        params = optax.apply_updates(params, updates)
    return params, updates, state


# --- the pair itself -----------------------------------------------------------------


@everyone
def test_a_transformation_is_a_hashable_pair(make):
    tx = make(stepax)
    assert issubclass(type(tx), tuple) and tx._fields == ("init", "update")
    init, update = tx
    assert (init, update) == (tx.init, tx.update) and tx.update is tx.update
    assert hash(tx) == hash(tx) and (tx == tx) is True and (tx != tx) is False
    assert tx._replace(init=init).update is update


@pytest.mark.few(1)
@everyone
def test_tree_map_sees_two_leaves_and_keeps_the_type(make):
    tx = make(stepax)
    assert len(jax.tree.leaves(tx)) == 2
    mapped = jax.tree.map(lambda f: f, tx)
    assert isinstance(mapped, stepax.GradientTransformation)
    assert isinstance(mapped, optax.GradientTransformation)
    assert_same(run(mapped), run(tx))


@pytest.mark.few(1)
@everyone
def test_update_is_a_static_argument_that_traces_once(make):
    tx, traces = make(stepax), []

    def step(update, updates, state, params):
        traces.append(1)
        return update(updates, state, params)

    jitted = jax.jit(step, static_argnums=0)
    state = jax.jit(tx.init)(parameters())
    for t in range(3):
        _, state = jitted(tx.update, gradients(t), state, parameters())
    assert len(traces) == 1


COPIES = {
    "copy": copy.deepcopy,
    "cloudpickle": lambda tx: cloudpickle.loads(cloudpickle.dumps(tx)),
    "pickle": lambda tx: pickle.loads(pickle.dumps(tx)),
}


@pytest.mark.few(5)
@everyone
@pytest.mark.parametrize("how", COPIES)
def test_pickled_and_copied_transformations_act_alike(make, how):
    tx = make(stepax)
    again = COPIES[how](tx)
    assert isinstance(again, stepax.GradientTransformationExtraArgs)
    assert_same(run(again), run(tx))


@everyone
def test_pickled_and_copied_states_keep_their_types(make):
    tx = make(stepax)
    _, _, state = run(tx)
    types = lambda t: [type(x) for x in walk(t)]
    for again in (pickle.loads(pickle.dumps(state)), copy.deepcopy(state)):
        assert jax.tree.structure(again) == jax.tree.structure(state)
        assert types(again) == types(state)
        assert_same(again, state)
        tx.update(gradients(), again, parameters())


def walk(tree):
    """All tuples inside a state, outermost first."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, tuple):
        yield tree
        for child in tree:
            yield from walk(child)


# --- isinstance, in either order of import -------------------------------------------


@pytest.mark.slow
@standard_promotion
@everyone
def test_isinstance_holds_both_ways(make):
    ours, theirs = make(stepax), make(optax)
    assert isinstance(ours, optax.GradientTransformationExtraArgs)
    assert isinstance(theirs, stepax.GradientTransformation)
    pairs = zip(walk(run(ours)[2]), walk(run(theirs)[2]), strict=True)
    for found, wanted in pairs:
        assert isinstance(found, type(wanted)) and isinstance(wanted, type(found))
        assert type(found).__name__ == type(wanted).__name__
        assert getattr(found, "_fields", ()) == getattr(wanted, "_fields", ())


def test_a_plain_transformation_is_not_one_with_extra_args():
    tx = stepax.GradientTransformation(lambda p: (), lambda u, s, p=None: (u, s))
    assert isinstance(tx, optax.GradientTransformation)
    assert not isinstance(tx, optax.GradientTransformationExtraArgs)
    assert not isinstance((1, 2), stepax.GradientTransformation)
    assert not isinstance(optax.EmptyState(), stepax.MaskedNode)


STATES = {
    "EmptyState": (),
    "MaskedNode": (),
    "TraceState": ("trace",),
    "ScaleByAdamState": ("count", "mu", "nu"),
    "ScaleByScheduleState": ("count",),
    "InjectHyperparamsState": ("count", "hyperparams", "inner_state"),
    "PartitionState": ("inner_states",),
    "MaskedState": ("inner_state",),
}


@pytest.mark.parametrize(("name", "fields"), STATES.items(), ids=STATES)
def test_states_pass_for_those_of_the_same_name(name, fields):
    ours, theirs = getattr(stepax, name), getattr(optax, name)
    made, given = (c(**dict.fromkeys(fields)) for c in (ours, theirs))
    assert ours._fields == theirs._fields == fields
    assert isinstance(made, theirs) and isinstance(made, ours)
    assert isinstance(given, ours)


ORDER = """
import {first}
import {second}
import jax.numpy as jnp
p = {{"w": jnp.ones(2)}}
tx = stepax.adam(1e-3)
state = tx.init(p)
assert isinstance(tx, optax.GradientTransformation)
assert isinstance(tx, optax.GradientTransformationExtraArgs)
assert isinstance(state[0], optax.ScaleByAdamState)
assert isinstance(state[1], optax.EmptyState)
assert isinstance(stepax.MaskedNode(), optax.MaskedNode)
assert isinstance(optax.adam(1e-3), stepax.GradientTransformation)
assert isinstance(optax.adam(1e-3).init(p)[0], stepax.ScaleByAdamState)
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", [("stepax", "optax"), ("optax", "stepax")])
def test_isinstance_does_not_depend_on_the_order_of_imports(order):
    program = ORDER.format(first=order[0], second=order[1])
    subprocess.run([sys.executable, "-c", program], check=True)


# --- states of one library in the hands of the other ---------------------------------


@standard_promotion
@everyone
def test_states_have_the_leaves_of_optax(make):
    ours, theirs = (make(o).init(parameters()) for o in (stepax, optax))
    paths = lambda t: [jax.tree_util.keystr(k) for k, _ in jax.tree.leaves_with_path(t)]
    assert paths(ours) == paths(theirs)
    assert_same(ours, theirs)


@pytest.mark.few(1)
@standard_promotion
@everyone
def test_a_run_of_optax_is_continued(make):
    ours, theirs = make(stepax), make(optax)
    _, _, state = run(theirs)
    structure = jax.tree.structure(ours.init(parameters()))
    adopted = jax.tree.unflatten(structure, jax.tree.leaves(state))
    found = ours.update(gradients(7), adopted, parameters())
    wanted = theirs.update(gradients(7), state, parameters())
    assert_same(found, wanted, THREE_STEPS)


# What branches must return one type of state from either branch, so it is left out.
straight = {
    k: m for k, m in MAKERS.items() if k not in {"multi_steps", "apply_if_finite"}
}


@standard_promotion
@pytest.mark.parametrize("make", straight.values(), ids=straight)
def test_a_state_of_optax_is_taken_as_it_is(make):
    ours, theirs = make(stepax), make(optax)
    _, _, state = run(theirs)
    found = ours.update(gradients(7), state, parameters())
    wanted = theirs.update(gradients(7), state, parameters())
    assert_same(found, wanted, THREE_STEPS)


@standard_promotion
@everyone
@pytest.mark.parametrize(
    ("mapper", "of"), [(optax, stepax), (stepax, optax), (stepax, stepax)]
)
def test_tree_map_params_sees_the_parameters_in_a_state(make, mapper, of):
    tx = make(of)
    state = tx.init(parameters())
    kept = lambda x: "kept"
    mapped = mapper.tree_map_params(
        tx, lambda p: "a parameter", state, transform_non_params=kept
    )
    wanted = optax.tree_map_params(
        make(optax),
        lambda p: "a parameter",
        make(optax).init(parameters()),
        transform_non_params=kept,
    )
    assert jax.tree.leaves(mapped) == jax.tree.leaves(wanted)
    assert jax.tree.structure(mapped) == jax.tree.structure(state)


@everyone
def test_tree_map_params_needs_no_optax(make, monkeypatch):
    tx = make(stepax)
    state = tx.init(parameters())
    marked = lambda: stepax.tree_map_params(
        tx, lambda p: "a parameter", state, transform_non_params=lambda x: "kept"
    )
    wanted = marked()
    monkeypatch.setitem(sys.modules, "optax", None)
    assert marked() == wanted


@standard_promotion
def test_optax_finds_and_sets_what_our_states_hold():
    tx = stepax.chain(stepax.clip(1.0), stepax.inject_hyperparams(stepax.adam)(0.1))
    state = tx.init(parameters())
    get, put = optax.tree_utils.tree_get, optax.tree_utils.tree_set
    assert_same(get(state, "nu"), jax.tree.map(jnp.zeros_like, parameters()))
    assert get(state, "ScaleByAdamState").count == 0
    assert get(state, "learning_rate") == jnp.float32(0.1)
    state = put(state, learning_rate=jnp.float32(0.2))
    assert state[1].hyperparams["learning_rate"] == jnp.float32(0.2)


def test_a_schedule_state_is_found_by_its_type():
    state = run(stepax.adam(stepax.constant_schedule(0.1)))[2]
    found = [x for x in walk(state) if isinstance(x, optax.ScaleByScheduleState)]
    assert jax.tree.leaves(found) == [3]


@flax_knows
def test_flax_serialization_keeps_a_state(make):
    tx = make(stepax)
    _, _, state = run(tx)
    empty = jax.tree.map(jnp.zeros_like, state)
    data = flax.serialization.to_bytes(state)
    again = flax.serialization.from_bytes(empty, data)
    assert jax.tree.structure(again) == jax.tree.structure(state)
    assert_same(again, state)
    names = flax.serialization.to_state_dict(state)
    assert_same(flax.serialization.from_state_dict(empty, names), state)


@standard_promotion
@flax_knows
def test_flax_restores_what_optax_saved(make):
    _, _, theirs = run(make(optax))
    ours = make(stepax).init(parameters())
    again = flax.serialization.from_bytes(ours, flax.serialization.to_bytes(theirs))
    assert jax.tree.structure(again) == jax.tree.structure(ours)
    assert_same(again, theirs)


# Ours hand keywords on to what they wrap.
WIDE = {"scale_by_galore", "split_real_and_imaginary"}


def made_by(factory):
    """What a factory of either library makes of the arguments that it requires."""
    needed = inspect.signature(factory).parameters.values()
    required = [p.name for p in needed if p.default is p.empty]
    given = {k: ARGUMENTS[k] for k in required if k in ARGUMENTS and k != "args"}
    return factory(**{k: x() if k in MADE else x for k, x in given.items()})


@pytest.mark.filterwarnings("ignore")
def test_pieces_that_read_no_keyword_are_of_the_class_that_optax_gives_them():
    homes, wrong, wide = vars(optax) | vars(optax.contrib), [], set()
    several = {"chain", "named_chain", "dpsgd", "lookahead"}  # and a key, and pairs
    for row in ROWS.values():
        if row.name not in homes.keys() - several:
            continue
        pair = made_by(row.factory), made_by(homes[row.name])
        for library in optax, stepax:
            kind = library.GradientTransformationExtraArgs
            is_wide, wanted = [isinstance(tx, kind) for tx in pair]
            wide |= {wanted}
            if is_wide != wanted and not (is_wide and row.name in WIDE):
                wrong.append(row.name)
    assert not wrong
    assert wide == {True, False}


def test_a_plain_piece_takes_keywords_once_it_is_asked_to():
    tx = stepax.with_extra_args_support(stepax.scale(0.5))
    assert isinstance(tx, optax.GradientTransformationExtraArgs)
    assert tx == stepax.scale(0.5)
    assert tx.update(jnp.ones(2), tx.init(jnp.ones(2)), value=1.0)[0].sum() == 1
