"""Complex arrays as pairs of real ones, for any inner transformation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compare import assert_same_tree
from wrappers import WRAPPERS

import stepax
from stepax.contrib import split_real_and_imaginary


def parameters():
    random = np.random.default_rng(0)
    z = random.normal(size=(2, 3)) + 1j * random.normal(size=(2, 3))
    x = random.normal(size=2)
    return {"z": jnp.asarray(z, jnp.complex64), "x": jnp.asarray(x, jnp.float32)}


def halves(tree):
    return {"re": tree["z"].real, "im": tree["z"].imag, "x": tree["x"]}


def run(tx, p, steps=20):
    def step(carry, _):
        p, state = carry
        g = jax.tree.map(lambda x: x * jnp.asarray(0.5, x.dtype), p)
        u, state = tx.update(g, state, p)
        return (jax.tree.map(jnp.add, p, u), state), p

    first = p, tx.init(p)
    (_, state), ps = jax.jit(lambda c: jax.lax.scan(step, c, length=steps))(first)
    return ps, state


def test_the_parts_are_optimized_like_two_arrays():
    p = parameters()
    inner = stepax.adamw(0.1, weight_decay=0.1)
    found, _ = run(split_real_and_imaginary(inner), p)
    expected, _ = run(inner, halves(p))
    for key, x in halves(found).items():
        # A complex sum is fused otherwise than a real one: an ulp a step, of 20.
        np.testing.assert_allclose(x, expected[key], rtol=0, atol=20 * 2.0**-23)


def test_updates_and_state_are_those_of_optax():
    p = parameters()
    gs = jax.tree.map(lambda x: jnp.stack([x * (i % 7 - 3) for i in range(200)]), p)

    def updates(tx):
        def step(state, g):
            u, state = tx.update(g, state, p)
            return state, u

        return jax.jit(lambda gs: jax.lax.scan(step, tx.init(p), gs))(gs)

    found = updates(split_real_and_imaginary(stepax.adam(0.1)))
    with jax.numpy_dtype_promotion("standard"):
        expected = updates(optax.contrib.split_real_and_imaginary(optax.adam(0.1)))
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(x, y, strict=True)
    names = lambda s: [type(x).__name__ for x in (s, s.inner_state[0].mu["z"])]
    assert names(found[0]) == names(expected[0])
    assert isinstance(found[0], optax.contrib.SplitRealAndImaginaryState)


def test_keywords_reach_the_inner_transformation():
    """Optax drops them."""
    p = parameters()
    tx = split_real_and_imaginary(stepax.polyak_sgd(10.0))
    u, _ = tx.update(p, tx.init(p), p, value=jnp.float32(2.0))
    square = sum(float(jnp.sum(jnp.abs(x) ** 2)) for x in p.values())
    for key, x in p.items():
        np.testing.assert_allclose(u[key], -2 / square * np.asarray(x), rtol=1e-5)
    with pytest.raises(TypeError, match="`value`"):
        tx.update(p, tx.init(p), p)


def test_leaves_without_a_gradient_keep_their_state():
    p = {**parameters(), "none": None}
    tx = split_real_and_imaginary(stepax.adam(0.1))
    _, state = tx.update(p, tx.init(p), p)
    u, after = tx.update({**p, "z": None}, state, p)
    assert u["z"] is None and u["none"] is None and u["x"].dtype == jnp.float32
    before, kept = (s.inner_state[0].mu["z"] for s in (state, after))
    np.testing.assert_array_equal(kept.real, before.real)


def test_it_works_inside_a_mask():
    p = parameters()
    tx = stepax.masked(split_real_and_imaginary(stepax.sgd(0.5)), {"z": 1, "x": 0})
    u, _ = tx.update(p, tx.init(p), p)
    np.testing.assert_array_equal(u["z"], -0.5 * np.asarray(p["z"]))
    np.testing.assert_array_equal(u["x"], p["x"])


def test_double_precision_stays(x64):
    z = {"z": jnp.asarray([1 + 2j], jnp.complex128)}
    tx = split_real_and_imaginary(stepax.adam(0.1))
    u, state = tx.update(z, tx.init(z), z)
    assert u["z"].dtype == jnp.complex128
    assert state.inner_state[0].mu["z"].imaginary.dtype == jnp.float64


def test_what_is_no_transformation_is_named():
    with pytest.raises(TypeError, match="`inner` of `split_real_and_imaginary` must"):
        split_real_and_imaginary(stepax.adam)  # pyright: ignore[reportArgumentType]


@pytest.mark.thinned
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_gradient_as_a_keyword_matters_to_no_one_who_reads_none(name):
    inner = WRAPPERS[name](stepax.flatten(stepax.scale_by_adam()))
    tx, p, value = split_real_and_imaginary(inner), parameters(), jnp.float32(1.0)
    state = tx.init(p)
    found = tx.update(p, state, p, value=value, grad=p)
    assert_same_tree(found, tx.update(p, state, p, value=value))
