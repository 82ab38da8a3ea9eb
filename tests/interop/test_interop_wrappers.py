"""Wrappers of Optax around our transformations, and the reverse."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from test_mixing_with_optax import (
    THREE_STEPS,
    assert_same,
    gradients,
    optax,
    parameters,
    run,
    stepax,
)


# Optax's code needs the usual promotion of dtypes.
@pytest.fixture(autouse=True)
def standard(strict):
    with jax.numpy_dtype_promotion("standard"):
        yield


def scale_by_value(library):
    """A transformation that needs the keyword `value`, and raises without it."""

    def update(updates, state, params=None, *, value, **extra_args):
        return jax.tree.map(lambda u: u * value, updates), state

    init = lambda params: library.EmptyState()
    return library.GradientTransformationExtraArgs(init, update)


BOTH = {"w": True, "b": True}
ONE = {"w": "a", "b": "a"}
always = lambda step: step >= 0
WRAPPERS = {
    "with_extra_args_support": lambda wrap, o, tx: wrap(tx),
    "chain": lambda wrap, o, tx: wrap(o.identity(), tx),
    "named_chain": lambda wrap, o, tx: wrap(("a", o.identity()), ("b", tx)),
    "masked": lambda wrap, o, tx: wrap(tx, BOTH),
    "partition": lambda wrap, o, tx: wrap({"a": tx}, ONE),
    "multi_transform": lambda wrap, o, tx: wrap({"a": tx}, ONE),
    "MultiSteps": lambda wrap, o, tx: wrap(tx, every_k_schedule=1),
    "apply_if_finite": lambda wrap, o, tx: wrap(tx, 5),
    "conditionally_transform": lambda wrap, o, tx: wrap(tx, always),
    "conditionally_mask": lambda wrap, o, tx: wrap(tx, always),
    "inject_hyperparams": lambda wrap, o, tx: wrap(
        lambda rate: o.chain(tx, o.scale(rate))
    )(rate=1.0),
}
wrappers = pytest.mark.parametrize("wrapper", WRAPPERS)
LIBRARIES = {"ours": stepax, "theirs": optax}
mixtures = pytest.mark.parametrize(
    ("outer", "inner"),
    [p for p in itertools.product(LIBRARIES, repeat=2) if "ours" in p],
)


def wrapped(wrapper, library, tx):
    return WRAPPERS[wrapper](getattr(library, wrapper), library, tx)


def needs_keywords(library):
    """A transformation that needs what line searches need."""

    def update(updates, state, params=None, *, value, grad, value_fn, **extra_args):
        size = value * value_fn(params)
        return jax.tree.map(lambda u, g: size * u + g, updates, grad), state

    init = lambda params: library.EmptyState()
    return library.GradientTransformationExtraArgs(init, update)


@pytest.mark.few(1)
@mixtures
@wrappers
def test_extra_keywords_reach_what_is_wrapped(wrapper, outer, inner):
    tx = wrapped(wrapper, LIBRARIES[outer], needs_keywords(LIBRARIES[inner]))
    value_fn = lambda params: 3 * params["b"][0]

    @jax.jit
    def step(g, state, params):
        extra = {"value": jnp.float32(2), "grad": g, "value_fn": value_fn}
        return tx.update(g, state, params, **extra, other=3)

    state = tx.init(parameters())
    for t in range(2):
        updates, state = step(gradients(t), state, parameters())
        assert_same(updates, jax.tree.map(lambda g: 7 * g, gradients(t)), ulps=2)


@pytest.mark.few(2)
@mixtures
@wrappers
def test_wrapping_gives_what_optax_gives(wrapper, outer, inner):
    tx = wrapped(wrapper, LIBRARIES[outer], LIBRARIES[inner].adam(1e-2))
    found = run(tx, value=jnp.float32(1))
    wanted = run(wrapped(wrapper, optax, optax.adam(1e-2)), value=jnp.float32(1))
    assert_same(found, wanted, THREE_STEPS)


def test_multi_steps_hands_keywords_on_as_a_transformation():
    tx = stepax.MultiSteps(scale_by_value(stepax), 1).gradient_transformation()
    tx = optax.chain(tx, stepax.identity())
    updates, _ = tx.update(gradients(), tx.init(parameters()), value=jnp.float32(2))
    assert_same(updates, jax.tree.map(lambda g: 2 * g, gradients()))


def test_a_wrapper_drops_keywords_that_a_plain_transformation_cannot_take():
    plain = optax.GradientTransformation(lambda p: (), lambda u, s, p=None: (u, s))
    for tx in (stepax.chain(plain), stepax.with_extra_args_support(plain)):
        updates, _ = tx.update(gradients(), tx.init(parameters()), value=1.0)
        assert_same(updates, gradients())


def test_a_foreign_object_with_init_and_update_is_asked_for_its_signature():
    class Foreign:
        def init(self, params):
            return ()

        def update(self, updates, state, params=None, **extra_args):
            return jax.tree.map(lambda u: u * extra_args["value"], updates), state

    tx = stepax.chain(Foreign())
    updates, _ = tx.update(gradients(), tx.init(parameters()), value=jnp.float32(2))
    assert_same(updates, jax.tree.map(lambda g: 2 * g, gradients()))
