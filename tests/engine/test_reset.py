"""Parts of a state as they were in the beginning."""

import jax
import jax.numpy as jnp
import pytest
from cases import gradients, make, rows, types
from compare import assert_equal
from jax.sharding import NamedSharding, PartitionSpec as P
from keywords import keywords

import stepax


def params():
    return {"embed": {"w": jnp.ones((4, 2))}, "head": {"w": jnp.ones((2, 3))}}


def stepped(tx, p, n=2):
    state = tx.init(p)
    for i in range(n):
        _, state = tx.update(gradients(p, i), state, p, **keywords(p))
    return state


def test_what_matches_starts_again_and_the_rest_stays():
    tx, p = stepax.adamw(0.1), params()
    old = stepped(tx, p)
    new = stepax.tree.reset(tx, old, p, where=["mu/**", "nu/embed/**"])
    get = stepax.tree.get
    assert_equal(get(new, "mu"), jax.tree.map(jnp.zeros_like, p))
    assert not get(new, "nu")["embed"]["w"].any()
    assert_equal(get(new, "nu")["head"], get(old, "nu")["head"])
    assert get(new, "count") == 2
    assert types(new) == types(old)


@pytest.mark.few(1)
@pytest.mark.parametrize("where", ["mu", "mu/**", "**/mu", "0/mu/**"])
def test_names_and_patterns_mean_all_below(where):
    tx, p = stepax.adam(0.1), params()
    new = stepax.tree.reset(tx, stepped(tx, p), p, where)
    assert_equal(stepax.tree.get(new, "mu"), jax.tree.map(jnp.zeros_like, p))


@pytest.mark.few(1)
@pytest.mark.parametrize("row", rows())
def test_all_of_a_state_is_the_first_one(row):
    p = {"w": jnp.ones((3, 2)), "none": None}
    tx = make(row)
    old = stepped(tx, p)
    if jax.tree.leaves(old):
        new = stepax.tree.reset(tx, old, p, "**")
        assert_equal(new, tx.init(p))
        assert types(new) == types(old)


def test_inside_of_jit_and_with_no_new_compilation():
    tx, p = stepax.inject_hyperparams(stepax.adam)(0.1), params()
    old = stepped(tx, p)
    inside = jax.jit(lambda s: stepax.tree.reset(tx, s, p, "mu/embed/**"))(old)
    outside = stepax.tree.reset(tx, old, p, "mu/embed/**")
    assert_equal(inside, outside)
    traces = []

    @jax.jit
    def step(state):
        traces.append(0)
        return tx.update(p, state, p)

    for state in (old, outside, inside):
        step(state)
    assert len(traces) == 1


def test_other_dtypes_and_slow_copies_are_kept():
    p = params()
    tx = stepax.adam(0.1)
    old = jax.tree.map(lambda x: x.astype(jnp.bfloat16), stepped(tx, p))
    assert types(stepax.tree.reset(tx, old, p, "nu")) == types(old)
    tx = stepax.averages(stepax.sgd(0.1), 0.9)
    p2 = jax.tree.map(lambda x: 3 * x, p)
    new = stepax.tree.reset(tx, stepped(tx, p), p2, "**")
    assert_equal(new, tx.init(p2))


def test_the_devices_stay():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, P(*spec)))
    p = {"w": put(jnp.ones((8, 2)))}
    tx = stepax.adam(0.1)
    # Divided among the devices, though the parameters are not, as with ZeRO.
    state = tx.init(p)
    old = stepax.tree.set(state, mu={"w": put(jnp.ones((8, 2)), "x")})
    new = stepax.tree.reset(tx, old, p, "mu")
    assert stepax.tree.get(new, "mu")["w"].sharding.spec == P("x")
    assert not stepax.tree.get(new, "mu")["w"].any()


def test_random_keys_start_again():
    tx, p = stepax.add_noise(0.1, 0.5, key=jax.random.key(3)), params()
    assert_equal(
        stepax.tree.reset(tx, stepped(tx, p), p, "rng_key"),
        tx.init(p)._replace(count=jnp.int32(2)),
    )


def test_what_does_not_fit_is_named():
    tx, p = stepax.adamw(0.1), params()
    state = tx.init(p)
    with pytest.raises(
        KeyError, match="no value is at the path .mu/embd/.*`mu/embed/w"
    ):
        stepax.tree.reset(tx, state, p, "mu/embd/**")
    with pytest.raises(KeyError, match="no value is named `mo`.*`mu`"):
        stepax.tree.reset(tx, state, p, ["nu", "mo"])
    with pytest.raises(ValueError, match="`state`"):
        stepax.tree.reset(stepax.sgd(0.1, momentum=0.9), state, p, "mu")
    with pytest.raises(TypeError, match="`tx` of `reset` must be a gradient transf"):
        stepax.tree.reset(stepax.adamw, state, p, "mu")  # type: ignore
