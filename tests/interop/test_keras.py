"""Keras trains with our transformations, saves their states and distributes them."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import stepax
from stepax.interop.keras import KerasOptimizer


X = np.random.RandomState(0).randn(32, 4).astype("float32")
Y = X.sum(1, keepdims=True)


@pytest.fixture(autouse=True)
def standard(strict):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def network(optimizer) -> Any:
    """The same at each call."""
    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(8, activation="tanh", name="hidden")
    head = keras.layers.Dense(1, name="head", bias_constraint="non_neg")
    model = keras.Sequential([keras.Input((4,)), hidden, head], name="net")
    model.compile(optimizer, loss="mse")
    return model


def fit(model, epochs=2, **options):
    found = model.fit(X, Y, epochs=epochs, shuffle=False, verbose=0, **options)
    return found.history["loss"]


def variables(*shapes, **options):
    return [
        keras.Variable(jnp.ones(shape), name=f"v{i}", **options)
        for i, shape in enumerate(shapes)
    ]


def built(tx, *shapes, **options) -> Any:
    """An optimizer, and the variables it was built with."""
    found, optimizer = variables(*shapes, **options), KerasOptimizer(tx)
    optimizer.build(found)
    return optimizer, found


@pytest.mark.slow
def test_adam_takes_the_steps_of_keras():
    # Keras adds epsilon before the bias is corrected: at 1e-7 of 1, no matter.
    wanted = fit(network(keras.optimizers.Adam(1e-2, epsilon=1e-8)))
    np.testing.assert_allclose(
        fit(network(KerasOptimizer(stepax.adam(1e-2)))), wanted, rtol=1e-5
    )


@pytest.mark.slow
def test_a_saved_model_goes_on_as_if_it_had_not_been_saved(tmp_path):
    tx = stepax.MultiSteps(
        stepax.chain(
            stepax.freeze({"hidden/bias": True, "**": False}),
            stepax.clip_by_global_norm(1.0),
            stepax.inject_hyperparams(stepax.adamw)(
                1e-2, mask={"kernel": True, "**": False}
            ),
        ),
        2,
    )
    model = network(KerasOptimizer(tx, name="mine"))
    fit(model, epochs=3)
    model.save(tmp_path / "model.keras")
    again: Any = keras.saving.load_model(tmp_path / "model.keras")
    assert again.optimizer.name == "mine"
    assert jax.tree.structure(again.optimizer.state) == jax.tree.structure(
        model.optimizer.state
    )
    assert fit(again) == fit(model)


@pytest.mark.slow
def test_callbacks_set_an_injected_rate():
    tx = stepax.inject_hyperparams(stepax.sgd)(learning_rate=0.1)
    model = network(KerasOptimizer(tx))
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    fit(model, callbacks=[halve])
    assert float(model.optimizer.learning_rate) == np.float32(0.025)
    assert stepax.tree.get(model.optimizer.state, "learning_rate") == np.float32(0.025)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_of_keras_works(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = network(KerasOptimizer(stepax.adam(1e-2)))
        losses = fit(model, epochs=6)  # the first scales overflow
    finally:
        keras.config.set_dtype_policy("float32")
    assert losses[-1] < losses[0]
    has_scale = type(model.optimizer).__name__ == "LossScaleOptimizer"
    assert has_scale == (policy == "mixed_float16")


@pytest.mark.slow
def test_a_state_is_sharded_like_its_variables():
    place = keras.distribution
    mesh = place.DeviceMesh((2, 4), ["data", "model"], place.list_devices())
    layouts = place.LayoutMap(mesh)
    layouts["kernel"] = (None, "model")
    before = place.distribution()
    place.set_distribution(
        place.ModelParallel(layout_map=layouts, batch_dim_name="data")
    )
    try:
        kernel = keras.Variable(jnp.ones((4, 8)), name="kernel")
        bias = keras.Variable(jnp.ones(8), name="bias")
        optimizer = KerasOptimizer(stepax.adam(1e-2))
        optimizer.apply([jnp.ones((4, 8)), jnp.ones(8)], [kernel, bias])
    finally:
        place.set_distribution(before)
    spec = jax.sharding.PartitionSpec(None, "model")
    for field in ("mu", "nu"):
        found = stepax.tree.get(optimizer.state, f"{field}/kernel")
        assert kernel.value.sharding.spec == found.sharding.spec == spec
        assert stepax.tree.get(optimizer.state, f"{field}/bias").is_fully_replicated


STATES = {
    "a random key": stepax.chain(stepax.add_noise(1e-3, 0.55, key=0), stepax.sgd(0.1)),
    "codes": stepax.low_bit_states(stepax.adam(0.1), 4, min_size=0),
    "nothing": stepax.sgd(0.1),
    "matrices": stepax.contrib.muon(0.1),
    "masters": stepax.master_weights(stepax.adam(0.1), remainder=16),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("tx", STATES.values(), ids=STATES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_are_those_of_the_transformation(tx, dtype):
    if dtype == "float32" and "remainder" in repr(tx):
        tx = stepax.master_weights(stepax.adam(0.1))
    optimizer, found = built(tx, (2, 3), (3,), dtype=dtype)
    params = {v.path: v.value for v in found}
    state = tx.init(params)
    for i in (1, 2):
        gradients = jax.tree.map(lambda p, i=i: p * i, params)
        optimizer.apply(gradients.values())
        updates, state = tx.update(gradients, state, params)
        params = stepax.apply_updates(params, updates)
    assert optimizer.iterations.numpy() == 2
    for v in found:
        np.testing.assert_array_equal(v.value, params[v.path])
    assert jax.tree.structure(optimizer.state) == jax.tree.structure(state)
    assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, optimizer.state, state)))


def test_parts_are_frozen_by_path():
    parts = {"train": stepax.sgd(0.1), "freeze": stepax.set_to_zero()}
    tx = stepax.partition(parts, {"hidden": "freeze", "head/*": "train"})
    model = network(KerasOptimizer(tx))
    before = [v.numpy() for v in model.trainable_variables]
    model.optimizer.apply(
        [jnp.ones(v.shape) for v in before], model.trainable_variables
    )
    moved = [
        bool((v.numpy() != x).any())
        for v, x in zip(model.trainable_variables, before, strict=True)
    ]
    # The bias of the head would be negative, which its constraint does not allow.
    assert moved == [False, False, True, False]


def test_a_variable_without_gradient_is_passed_over():
    optimizer, (a, b) = built(stepax.adam(0.1), (2,), (2,))
    optimizer.apply([None, jnp.ones(2)])
    optimizer.apply([jnp.ones(2)], [b])
    np.testing.assert_array_equal(a.value, 1)
    assert (b.value < 1).all() and optimizer.iterations.numpy() == 2


def test_a_scale_of_float8_becomes_its_gradient():
    a, b = variables((2,), ())
    b.overwrite_with_gradient = True
    optimizer = KerasOptimizer(stepax.sgd(0.1, momentum=0.9))
    optimizer.apply([jnp.ones(2), jnp.float32(7.0)], [a, b])
    assert b.value == 7 and (a.value < 1).all()
    assert len(jax.tree.leaves(optimizer.state)) == 1


def test_a_state_can_be_replaced():
    optimizer, _ = built(stepax.adam(0.1), (2,))
    state = stepax.tree.set(optimizer.state, **{"mu/v0": jnp.full(2, 3.0)})
    optimizer.set_state(state)
    np.testing.assert_array_equal(stepax.tree.get(optimizer.state, "mu/v0"), 3)
    with pytest.raises(ValueError, match="the structure of the current one"):
        optimizer.set_state(stepax.sgd(0.1).init({}))


def test_a_learning_rate_that_cannot_be_set_says_how():
    optimizer, _ = built(stepax.MultiSteps(stepax.adam(0.25), 2), (2,))
    assert optimizer.learning_rate == 0.25
    with pytest.raises(ValueError, match="inject_hyperparams"):
        optimizer.learning_rate = 0.5


def test_several_learning_rates_are_listed():
    tx = stepax.partition(
        {"a": stepax.sgd(0.1), "b": stepax.sgd(0.2)}, {"v0": "a", "**": "b"}
    )
    optimizer, _ = built(tx, (2,), (2,))
    with pytest.raises(AttributeError, match="has 2 learning rates .*a/.*b/"):
        optimizer.learning_rate  # noqa: B018 (which raises)


@pytest.mark.parametrize(
    "wrong", [stepax.adam, 1e-3, "adam"], ids=["factory", "number", "name"]
)
def test_what_is_no_transformation_is_refused(wrong):
    with pytest.raises(TypeError, match="`tx` of `KerasOptimizer` must be a grad"):
        KerasOptimizer(wrong)


def test_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(RuntimeError, match="runs on torch; set .* `KERAS_BACKEND`"):
        KerasOptimizer(stepax.adam(1e-3))


def test_unknown_variables_are_named():
    optimizer, _ = built(stepax.sgd(0.1), (2,))
    other = keras.Variable(jnp.ones(2), name="other")
    with pytest.raises(ValueError, match="`other` is not one of the variables"):
        optimizer.apply([jnp.ones(2)], [other])


@pytest.mark.parametrize(
    "names",
    [("a", "b", "a"), ("a", "b", "a/c"), ("a/c", "b", "a"), ("a", "b", "a/c/d")],
)
def test_variables_of_one_path_are_refused(names):
    found = [SimpleNamespace(path=f"net/{x}", value=jnp.ones(2)) for x in names]
    with pytest.raises(ValueError, match=f"`net/{names[2]}` of a var.* another one"):
        KerasOptimizer(stepax.sgd(0.1)).build(found)


def test_what_all_paths_begin_with_is_left_out():
    names = ("net/encoder/a/kernel", "net/encoder/b/kernel", "net/encoder/bias")
    optimizer = KerasOptimizer(stepax.trace(0.9))
    optimizer.build([SimpleNamespace(path=x, value=jnp.ones(2)) for x in names])
    assert set(stepax.tree.flat(optimizer.state)) == {
        "trace/a/kernel",
        "trace/b/kernel",
        "trace/bias",
    }


def test_it_is_made_again_from_its_configuration():
    optimizer = KerasOptimizer(stepax.adamw(1e-3, mask={"bias": False, "**": True}))
    config: Any = keras.optimizers.serialize(optimizer)
    again: Any = keras.optimizers.deserialize(config)
    assert keras.optimizers.serialize(again) == config
    assert config["registered_name"] == "stepax>KerasOptimizer"


@pytest.mark.parametrize("name", ["state", "learning_rate"])
def test_before_it_is_built_it_has_no_state(name):
    with pytest.raises(AttributeError, match=rf"`{name}` needs the state.*build"):
        getattr(KerasOptimizer(stepax.sgd(0.1)), name)
