"""Transforming at some steps only."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compare import assert_equal, assert_same_structure, at, random, run

from stepax import adam, chain, scale, scale_by_adam
from stepax._transforms import mean
from stepax._wrappers import conditional
from stepax.tree import map_params


CONDITIONS = {
    "conditionally_transform": lambda g: g,
    "conditionally_mask": lambda g: jax.tree.map(jnp.zeros_like, g),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "no jit"])
def test_condition_chooses_the_steps(name, wrap):
    even = lambda step: step % 2 == 0
    p, gs = random(0), random(1, lead=(5,))
    tx = getattr(conditional, name)(adam(0.1), even)
    inner = adam(0.1)
    state, alone = tx.init(p), inner.init(p)
    update, plain = wrap(tx.update), wrap(inner.update)
    for i in range(5):
        g = at(i, gs)
        u, state = update(g, state, p)
        if i % 2 == 0:
            wanted, alone = plain(g, alone, p)
        else:
            wanted = CONDITIONS[name](g)
        assert_equal(u, wanted)
        assert_equal(state.inner_state, alone)
        assert state.step == i + 1 and state.step.dtype == jnp.int32


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CONDITIONS)
def test_condition_makes_the_states_and_updates_of_optax(name):
    odd = lambda step: step % 2 == 1
    p, gs = random(0), random(1, lead=(4,))
    tx = getattr(conditional, name)(mean.ema(0.9), odd)
    reference = getattr(optax, name)(optax.ema(0.9), odd)
    with jax.numpy_dtype_promotion("standard"):
        wanted, theirs = run(reference, gs, p, steps=4)
    found, state = run(tx, gs, p, steps=4)
    assert_equal((found, state), (wanted, theirs))
    assert_same_structure(state, theirs)


@pytest.mark.parametrize("name", CONDITIONS)
def test_condition_may_read_keywords(name):
    seen = []

    def condition(step, **extra):
        seen.append(extra)
        return True

    def inner_update(updates, state, params=None, **extra):
        seen.append(extra)
        return updates, state

    inner = optax.GradientTransformationExtraArgs(lambda params: (), inner_update)
    g = jnp.ones(2)
    for forward in True, False:
        tx = getattr(conditional, name)(inner, condition, forward)
        tx.update(g, tx.init(g), g, value=1.0)
    assert seen == [{"value": 1.0}, {"value": 1.0}, {}, {"value": 1.0}]
    plain = getattr(conditional, name)(optax.scale(1.0), condition)
    plain.update(g, plain.init(g), g, value=1.0)  # takes none, so is given none


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("params", ["bfloat16", "float32"])
@pytest.mark.parametrize("gradients", ["bfloat16", "float32", "int32"])
def test_branches_agree_in_their_types(name, params, gradients):
    tx = getattr(conditional, name)(scale_by_adam(), lambda step: step > 0)
    p = {"w": jnp.ones(2, params), "none": None}
    g = {"w": jnp.ones(2, gradients), "none": None}
    state = tx.init(p)
    for _ in range(2):
        u, new = jax.jit(tx.update)(g, state, p)
        wanted = "float32" if gradients == "int32" else gradients
        assert u["w"].dtype == wanted and u["none"] is None
        assert jax.tree.map(lambda x: x.dtype, new) == jax.tree.map(
            lambda x: x.dtype, state
        )
        state = new


@pytest.mark.parametrize("name", CONDITIONS)
def test_steps_that_are_left_out_compile_nothing(name):
    tx = getattr(conditional, name)(scale(2.0), lambda step: step > 10)
    g = {"w": jnp.ones(3)}
    state = tx.init(g)
    _, state = tx.update(g, state)
    with Compilations() as compiled:
        for _ in range(3):
            _, state = tx.update(g, state)
    assert not compiled


class Compilations:
    """Collects the programs that are compiled inside."""

    def __enter__(self):
        self.events = []
        jax.monitoring.register_event_duration_secs_listener(self.listen)
        return self.events

    def listen(self, event, duration_secs, **kwargs):
        if "backend_compile" in event:
            self.events.append(event)

    def __exit__(self, *error):
        jax.monitoring.unregister_event_duration_listener(self.listen)


@pytest.mark.parametrize("name", CONDITIONS)
def test_condition_must_be_one_boolean(name):
    tx = getattr(conditional, name)(scale(2.0), lambda step: jnp.ones(1, bool))
    g = jnp.ones(2)
    with pytest.raises(TypeError, match=r"`should_transform_fn` .* shape \(1,\)"):
        tx.update(g, tx.init(g))


@pytest.mark.parametrize("name", CONDITIONS)
def test_inner_must_be_a_transformation(name):
    with pytest.raises(TypeError, match=r"`inner` .* did you mean `adam\(...\)`"):
        getattr(conditional, name)(adam, lambda step: True)


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_take_modules_and_map_their_states(name):
    model = eqx.nn.MLP(2, 2, 3, 1, key=jax.random.key(0))
    arrays = eqx.filter(model, eqx.is_array)
    tx = getattr(conditional, name)(chain(adam(0.1)), lambda step: step == 0)
    state = tx.init(model)
    u, state = tx.update(arrays, state, model)
    assert jax.tree.structure(u) == jax.tree.structure(arrays)
    doubled = map_params(tx, lambda x: 2 * x, state)
    assert doubled.step == 1
    first, second = map(
        lambda s: jax.tree.leaves(s.inner_state[0][0].mu), (state, doubled)
    )
    np.testing.assert_array_equal(2 * first[0], second[0])
