"""Leaves are frozen, masked and divided without a trace of the ones left out."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stepax


NAN = float("nan")
NO_CALL: Any = stepax.adam


def parameters():
    return {
        "body": {"w": jnp.full((2, 2), 0.5), "b": jnp.full(2, 0.25)},
        "head": {"w": jnp.full((2, 1), 1.5), "b": jnp.full(1, 2.0)},
    }


def gradients(params, i=0):
    return jax.tree.map(lambda p: jnp.sin(p + i), params)


def run(tx, params, steps=3, grads=gradients):
    """Parameters and state after some steps."""
    update = jax.jit(tx.update)
    state = tx.init(params)
    for i in range(steps):
        u, state = update(grads(params, i), state, params)
        params = stepax.apply_updates(params, u)
    return params, state


def assert_same(found, wanted, rtol=1e-6):
    # Two programs may contract a product and a sum differently in each step.
    assert str(jax.tree.structure(found)) == str(jax.tree.structure(wanted))
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol)


# --- nests ---------------------------------------------------------------------------


HEAD = {"body": {"w": False, "b": False}, "head": {"w": True, "b": True}}
MATRICES = {"body": {"w": True, "b": False}, "head": {"w": True, "b": False}}
PARTS = {"body": {"w": "slow", "b": "slow"}, "head": {"w": "fast", "b": "zero"}}
is_matrix = lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)

# Of a library `o`; in mixed nests the inner transformations are of another, `i`.
NESTS = {
    "masked in masked": lambda o, i: o.masked(o.masked(i.adam(0.1), MATRICES), HEAD),
    "functions in functions": lambda o, i: o.masked(
        o.masked(i.adam(0.1), is_matrix), lambda p: HEAD
    ),
    "masked in masked in partition": lambda o, i: o.partition(
        {
            "slow": o.masked(o.masked(i.adam(0.1), is_matrix), MATRICES),
            "fast": i.adamw(0.1, weight_decay=0.5, mask=is_matrix),
            "zero": i.set_to_zero(),
        },
        PARTS,
    ),
    "partition in partition": lambda o, i: o.partition(
        {
            "slow": i.adam(0.1),
            "fast": o.partition({True: i.adam(0.1), False: i.sgd(1.0)}, MATRICES),
            "zero": i.set_to_zero(),
        },
        PARTS,
    ),
    "masked chain": lambda o, i: o.masked(
        o.chain(o.clip_by_global_norm(0.5), i.adam(0.1), i.scale(0.5)), HEAD
    ),
    "chain of masked": lambda o, i: o.chain(
        o.masked(i.scale_by_adam(), MATRICES),
        o.masked(i.add_decayed_weights(0.5, is_matrix), HEAD),
        i.scale(-0.1),
    ),
    "masked multi_steps": lambda o, i: o.masked(
        o.MultiSteps(i.adam(0.1), 2).gradient_transformation(), HEAD
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("inner", [stepax, optax], ids=["ours", "Optax's"])
@pytest.mark.parametrize("nest", NESTS)
def test_nests_of_masks_are_as_in_optax(nest, inner):
    params = parameters()
    if nest == "masked multi_steps":
        inner = stepax  # its states are compared, too: see test_multi_steps.py
    with jax.numpy_dtype_promotion("standard"):
        wanted, optax_state = run(NESTS[nest](optax, optax), params)
        found, state = run(NESTS[nest](stepax, inner), params)
    assert_same(found, wanted)
    if nest != "masked multi_steps":
        assert_same(state, optax_state)


def test_a_mask_function_sees_what_masks_around_it_left():
    seen = []

    def mask(tree):
        seen.append(tree)
        return jax.tree.map(lambda x: x.ndim > 1, tree)

    tx = stepax.masked(stepax.masked(stepax.adam(0.1), mask), HEAD)
    params = parameters()
    tx.update(params, tx.init(params), params)
    for tree in seen:
        assert isinstance(tree["body"]["w"], stepax.MaskedNode)
        assert tree["head"]["w"].shape == (2, 1)
    assert len(seen) == 2


@pytest.mark.slow
def test_patterns_for_all_parameters_work_inside_a_partition():
    decay = {"b": False, "**": True}
    tx = stepax.partition(
        {"train": stepax.adamw(0.1, mask=decay), "zero": stepax.set_to_zero()},
        {"head/b": "zero", "body/b": "zero", "**": "train"},
    )
    plain = stepax.partition(
        {"train": stepax.adamw(0.1), "zero": stepax.set_to_zero()},
        {"**/b": "zero", "**": "train"},
    )
    assert_same(run(tx, parameters())[0], run(plain, parameters())[0], rtol=0)


def test_what_a_mask_leaves_out_passes_through_unchanged():
    g = gradients(parameters())
    tx = stepax.masked(stepax.adam(0.1), HEAD)
    u, _ = tx.update(g, tx.init(g), g)
    assert u["body"]["w"] is g["body"]["w"]


# --- extra keywords ------------------------------------------------------------------


def recording(seen):
    def update(updates, state, params=None, **extra):
        seen.append(extra)
        return updates, state

    return lambda o: o.GradientTransformationExtraArgs(lambda p: (), update)


@pytest.mark.parametrize("compatible", [False, True])
@pytest.mark.parametrize("wrapper", ["masked", "partition"])
def test_keywords_are_masked_only_where_asked_for(wrapper, compatible):
    params, found = parameters(), {}
    mask = {"body": {"w": True, "b": False}, "head": {"w": False, "b": False}}
    for o in stepax, optax:
        seen = []
        inner = recording(seen)(o)
        more = {"mask_compatible_extra_args": compatible}
        if wrapper == "masked":
            tx = o.masked(inner, mask, **more)
        else:
            tx = o.partition({True: inner, False: o.set_to_zero()}, mask, **more)
        extra = {
            "hessian": params,
            "value": jnp.float32(1),
            "pair": (1.0, 2.0),
            "none": None,
        }
        tx.update(params, tx.init(params), params, **extra)
        found[o] = seen[0]
    assert_same(found[stepax], found[optax])
    left_out = jax.tree.leaves(found[stepax]["hessian"])
    assert len(left_out) == (1 if compatible else 4)


# --- freezing ------------------------------------------------------------------------


FROZEN = {"body": True, "head": False}
FREEZERS = {
    "chain with freeze": lambda tx: stepax.chain(tx, stepax.freeze(FROZEN)),
    "selective_transform": lambda tx: stepax.selective_transform(
        tx, freeze_mask=FROZEN
    ),
    "partition": lambda tx: stepax.partition(
        {"train": tx, "zero": stepax.set_to_zero()}, {"body": "zero", "head": "train"}
    ),
    "pattern": lambda tx: stepax.partition(
        {"train": tx, "zero": stepax.set_to_zero()}, {"body/**": "zero", "**": "train"}
    ),
    "masked twice": lambda tx: stepax.chain(
        stepax.masked(tx, {"body": False, "head": True}), stepax.freeze(FROZEN)
    ),
}
THRIFTY = [name for name in FREEZERS if name != "chain with freeze"]


def bad_in_body(params, i):
    g = gradients(params, i)
    return g | {"body": jax.tree.map(lambda x: x * NAN, g["body"])}


@pytest.mark.few(1)
@pytest.mark.parametrize("freezer", FREEZERS)
@pytest.mark.parametrize("grads", [gradients, bad_in_body])
def test_frozen_leaves_are_bit_identical_whatever_their_gradients(freezer, grads):
    params = parameters()
    # Not -0.0, which a zero update turns to 0.0.
    params["body"]["w"] = jnp.array([[0.1, 3e38], [1e-30, NAN]])
    found, _ = run(FREEZERS[freezer](stepax.adamw(0.1)), params, grads=grads)
    for k, p in params["body"].items():
        assert np.asarray(p).tobytes() == np.asarray(found["body"][k]).tobytes()


@pytest.mark.few(1)
@pytest.mark.parametrize("freezer", THRIFTY)
def test_frozen_leaves_own_no_state_and_poison_nothing(freezer):
    clipped = stepax.chain(stepax.clip_by_global_norm(0.5), stepax.adamw(0.1))
    found, state = run(FREEZERS[freezer](clipped), parameters(), grads=bad_in_body)
    alone, alone_state = run(clipped, {"head": parameters()["head"]})
    assert_same(found["head"], alone["head"])
    sizes = lambda tree: sorted(x.size for x in jax.tree.leaves(tree))
    assert sizes(state) == sizes(alone_state)
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(state))


def unusual():
    """What is no number to train, with its gradient by `jax.grad` of integers."""
    return {
        "integer": jnp.arange(3),
        "bool": jnp.array([True, False]),
        "key": jax.random.key(0),
        "w": jnp.ones(2),
    }


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "make",
    [
        lambda: stepax.selective_transform(
            stepax.adam(0.1), freeze_mask={"w": False, "**": True}
        ),
        lambda: stepax.partition(
            {"a": stepax.adam(0.1), "zero": stepax.set_to_zero()},
            {"w": "a", "**": "zero"},
        ),
        lambda: stepax.chain(
            stepax.masked(stepax.adam(0.1), {"w": True, "**": False}),
            stepax.freeze({"w": False, "**": True}),
        ),
    ],
    ids=["selective_transform", "partition", "freeze"],
)
def test_integers_flags_and_keys_are_frozen_with_gradients_that_carry_nothing(make):
    params, tx = unusual(), make()
    loss = lambda p: jnp.sum(p["w"] ** 2)
    state = tx.init(params)
    g = jax.grad(loss, allow_int=True)(params)
    assert g["integer"].dtype == jax.dtypes.float0
    u, state = tx.update(g, state, params)
    moved = stepax.apply_updates(params, u)
    assert [x.shape for x in jax.tree.leaves(state)] == [(), (2,), (2,)]
    for k in ("integer", "bool"):
        assert moved[k].dtype == params[k].dtype
        np.testing.assert_array_equal(moved[k], params[k])
    assert (
        jax.random.key_data(moved["key"]) == jax.random.key_data(params["key"])
    ).all()
    assert (moved["w"] < params["w"]).all()


# --- costs, states and trees ---------------------------------------------------------


def test_a_partition_adds_few_equations():
    params = {f"layer_{i}": jnp.ones((2, 2)) for i in range(60)}
    txs = {"a": stepax.adamw(0.1), "b": stepax.sgd(0.1), "zero": stepax.set_to_zero()}
    labels = {"layer_?": "a", "layer_1*": "zero", "**": "b"}
    tx = stepax.partition(txs, labels)
    program = jax.make_jaxpr(tx.update)(params, tx.init(params), params)
    assert len(program.eqns) <= 60 + 20


@pytest.mark.parametrize("wrap", ["masked", "partition"])
def test_none_and_functions_keep_the_structure_of_the_state(wrap):
    model = eqx.nn.MLP(2, 2, 3, 1, key=jax.random.key(0))
    tx = {
        "masked": stepax.masked(
            stepax.adam(0.1), lambda p: {"weight": True, "**": False}
        ),
        "partition": stepax.partition(
            {"a": stepax.adam(0.1), "b": stepax.set_to_zero()},
            {"weight": "a", "**": "b"},
        ),
    }[wrap]
    state = tx.init(model)
    g = eqx.filter(model, eqx.is_array)
    for params in (model, g):
        _, new = tx.update(g, state, params)
        assert jax.tree.structure(new) == jax.tree.structure(state)


def test_a_label_may_be_none():
    txs = {None: stepax.scale(2.0)}
    tx = stepax.masked(
        stepax.partition(txs, {"x": None, "y": None}), {"x": True, "y": False}
    )
    params = {"x": jnp.ones(1), "y": jnp.ones(1)}
    u, _ = tx.update(params, tx.init(params))
    assert (u["x"], u["y"]) == (2, 1)


class Other(NamedTuple):
    field: Any


@pytest.mark.parametrize(
    "tx, state, message",
    [
        (
            stepax.masked(stepax.adam(0.1), {"w": True}),
            Other(1),
            r"`masked` needs a state `MaskedState`, but was given a `Other` of",
        ),
        (
            stepax.partition({"a": stepax.adam(0.1)}, {"w": "a"}),
            stepax.MultiTransformState({"b": ()}),
            r"`partition` has states for \['a'\], but got \['b'\]",
        ),
        (
            stepax.partition({"a": stepax.adam(0.1)}, {"w": "a"}),
            stepax.PartitionState({"a": ()}),
            r"`partition\['a'\]` needs a state `MaskedState`, but was given a tuple",
        ),
        (
            stepax.partition({"a": stepax.adam(0.1)}, {"w": "a"}),
            Other(1),
            r"`partition` has states for \['a'\], but got a `Other`",
        ),
    ],
)
def test_a_state_of_another_optimizer_is_refused(tx, state, message):
    params = {"w": jnp.ones(2)}
    with pytest.raises(ValueError, match=message):
        tx.update(params, state, params)


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: stepax.masked(NO_CALL, True),
            "`inner` of `masked` must be a gradie",
        ),
        (
            lambda: stepax.partition({"a": NO_CALL}, "a"),
            r"the transformation for label 'a' .*did you mean `adam\(\.\.\.\)`",
        ),
    ],
)
def test_what_is_no_transformation_is_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_names_for_one_thing_are_one_thing():
    assert stepax.multi_transform is stepax.partition
    assert stepax.MultiTransformState is stepax.PartitionState


PREFIXES = {
    "field": {"policy": True, "value": False},
    "all": True,
    "none": False,
    "deep": {"policy": {"w": False, "deep": True}, "value": True},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", PREFIXES)
def test_a_prefix_leaves_one_node_for_all_below_it_as_optax_does(name):
    layer = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
    params = {"policy": {"w": jnp.ones(3), "deep": layer}, "value": layer}
    ours = stepax.masked(stepax.adam(1e-2), PREFIXES[name])
    theirs = optax.masked(optax.adam(1e-2), PREFIXES[name])
    state, expected = ours.init(params), theirs.init(params)
    for _ in range(2):
        assert str(jax.tree.structure(state)) == str(jax.tree.structure(expected))
        u, state = ours.update(params, state, params)
        with jax.numpy_dtype_promotion("standard"):
            v, expected = theirs.update(params, expected, params)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), u, v)
    # A state of Optax is taken as it is.
    u, _ = ours.update(params, expected, params)
    v, _ = ours.update(params, state, params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), u, v)
