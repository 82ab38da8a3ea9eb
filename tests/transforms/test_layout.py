"""Flattening: the same updates from vectors, one for each dtype."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stepax
from stepax import adam, chain, clip_by_global_norm, ema, flatten, scale_by_adam
from stepax.tree import map_params


def random(seed, **dtypes):
    shapes = {"a": (2, 3), "b": (), "c": (4,), "d": (0, 2)}
    rng = np.random.default_rng(seed)
    return {
        k: jnp.asarray(rng.normal(size=shape), dtypes.get(k, "float32"))
        for k, shape in shapes.items()
    }


def assert_equal(found, wanted, rtol=0.0):
    """Equal trees; if `rtol` is given up to that, or the last bit of the dtype."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert x.dtype == y.dtype
        eps = jnp.finfo(x.dtype).eps if rtol else 0
        x, y = np.asarray(x, "complex64"), np.asarray(y, "complex64")
        np.testing.assert_allclose(x, y, rtol=float(max(rtol, eps)), atol=0)


def run(tx, p, gradients) -> Any:
    state, out = tx.init(p), []
    for g in gradients:
        u, state = jax.jit(tx.update)(g, state, p)
        out.append(u)
    return out, state


def test_one_dtype_gives_the_updates_and_states_of_optax():
    p, gs = random(0), [random(i) for i in range(1, 6)]
    found, state = run(flatten(adam(0.1)), p, gs)
    with jax.numpy_dtype_promotion("standard"):
        wanted, theirs = run(optax.flatten(optax.adam(0.1)), p, gs)
    assert_equal(found, wanted)
    assert state[0].mu.shape == (11,)
    for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(theirs), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


DTYPES = {
    "one": {},
    "two": {"a": "bfloat16"},
    "three": {"a": "bfloat16", "b": "float16"},
    "complex": {"c": "complex64"},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "no jit"])
def test_updates_are_those_of_the_tree(dtypes, wrap):
    p, g = random(0, **DTYPES[dtypes]), random(1, **DTYPES[dtypes])
    tx, plain = flatten(scale_by_adam()), scale_by_adam()
    state, reference = tx.init(p), plain.init(p)
    for _ in range(3):
        u, state = wrap(tx.update)(g, state, p)
        wanted, reference = wrap(plain.update)(g, reference, p)
        # In a loop of another length the compiler joins products and sums otherwise:
        # a few float32 roundings, 6e-8 each.
        assert_equal(u, wanted, rtol=5e-7)


def test_several_dtypes_get_a_vector_each():
    p = random(0, a="bfloat16")
    state: Any = flatten(ema(0.9)).init(p)
    shapes = {k: (x.shape, x.dtype) for k, x in state.ema.items()}
    assert type(state.ema) is dict
    assert shapes == {"bfloat16": ((6,), jnp.bfloat16), "float32": ((5,), jnp.float32)}


@pytest.mark.parametrize("params", ["float32", "bfloat16"])
@pytest.mark.parametrize("gradients", ["float32", "bfloat16"])
def test_layout_is_that_of_the_parameters(params, gradients):
    p, g = random(0, a=params), random(1, a=gradients)
    tx = flatten(scale_by_adam())
    state = tx.init(p)
    u, new = jax.jit(tx.update)(g, state, p)
    assert jax.tree.map(lambda x: x.dtype, u) == jax.tree.map(lambda x: x.dtype, g)
    assert jax.tree.map(lambda x: x.dtype, new) == jax.tree.map(
        lambda x: x.dtype, state
    )


def test_parameters_may_be_missing():
    p, g = random(0, a="bfloat16"), random(1, a="bfloat16")
    tx = flatten(scale_by_adam())
    assert_equal(tx.update(g, tx.init(p))[0], tx.update(g, tx.init(p), p)[0])


@pytest.mark.parametrize("tree", [{}, {"none": None}, (), [None, {"x": None}]], ids=str)
def test_trees_without_leaves_work(tree):
    tx = flatten(adam(0.1))
    first = tx.init(tree)
    u, state = tx.update(tree, first, tree)
    assert u == tree
    assert jax.tree.structure(state) == jax.tree.structure(first)


def test_single_arrays_work():
    for p in jnp.float32(2.0), jnp.ones((2, 3)):
        tx: Any = flatten(ema(0.9))
        u, state = tx.update(p, tx.init(p), p)
        assert u.shape == p.shape and state.ema.shape == (p.size,)


def test_missing_gradients_are_zeros_to_the_vector():
    p = random(0)
    g = random(1) | {"a": None}
    tx, plain = flatten(scale_by_adam()), scale_by_adam()
    u, state = tx.update(g, tx.init(p), p)
    wanted, _ = plain.update(g, plain.init(p), p)
    assert_equal(u, wanted)
    u, _ = tx.update(random(2), state, p)  # the length has not changed
    assert u["a"].shape == (2, 3)


def test_integers_and_functions_are_left_alone():
    p = {"w": jnp.ones(3), "step": jnp.int32(3), "f": jax.nn.relu}
    g = {"w": jnp.ones(3), "step": np.zeros((), jax.dtypes.float0), "f": None}
    tx: Any = flatten(ema(0.9))
    for params in p, None:
        u, state = tx.update(g, tx.init(p), params)
        assert u["f"] is None and u["step"].dtype == jax.dtypes.float0
        assert state.ema.shape == (3,)


def test_modules_work():
    model = eqx.nn.MLP(2, 2, 3, 1, key=jax.random.key(0))
    g = eqx.filter(model, eqx.is_array)
    tx = flatten(adam(0.1))
    u, _ = tx.update(g, tx.init(model), model)
    assert jax.tree.structure(u) == jax.tree.structure(g)


def test_keywords_pass_through():
    seen = []

    def update(updates, state, params: Any = None, **extra):
        seen.append((updates.shape, params.shape, extra))
        return updates, state

    inner: Any = optax.GradientTransformationExtraArgs(lambda params: (), update)
    p = random(0)
    tx = flatten(inner)
    tx.update(p, tx.init(p), p, value=1.0)
    assert seen == [((11,), (11,), {"value": 1.0})]
    inner = optax.scale(1.0)
    plain = flatten(inner)
    plain.update(p, plain.init(p), p, value=1.0)  # takes none, so is given none


def test_flatten_chains_nests_and_scans():
    tx = chain(clip_by_global_norm(1.0), flatten(flatten(adam(0.1))))
    p, g = random(0, a="bfloat16"), random(1, a="bfloat16")

    def step(state, _) -> Any:
        return tx.update(g, state, p)[::-1]

    state, u = jax.jit(lambda s: jax.lax.scan(step, s, length=3))(tx.init(p))
    assert u["a"].shape == (3, 2, 3) and u["a"].dtype == jnp.bfloat16
    assert state[1][0].count == 3


def test_vectors_in_the_state_can_be_mapped():
    p = random(0)
    tx = flatten(adam(0.1))
    state: Any = map_params(tx, lambda x: x + 1.0, tx.init(p))
    assert (state[0].mu == 1).all() and state[0].count == 0


def test_state_shares_no_array_with_the_parameters():
    tx = flatten(chain(adam(0.1)))
    p = {"w": jnp.ones(3)}
    step = lambda p, s: tx.update(p, s, p)
    wanted = jax.jit(step)(p, tx.init(p))
    found = jax.jit(step, donate_argnums=(0, 1))(p, tx.init(p))
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_errors_name_the_leaf_or_the_argument():
    tx = flatten(adam(0.1))
    p = random(0)
    state = tx.init(p)
    with pytest.raises(ValueError, match=r"gradient at \['c'\] has shape \(5,\)"):
        tx.update(p | {"c": jnp.ones(5)}, state, p)
    with pytest.raises(ValueError, match=r"only in `params`: \['e'\]"):
        tx.update(p, state, p | {"e": jnp.ones(5)})
    make: Any = adam
    with pytest.raises(TypeError, match=r"`inner` of `flatten` .* did you mean"):
        flatten(make)


def test_a_line_search_in_flatten_gets_vectors():
    p, target = {"a": jnp.zeros((2, 3)), "b": jnp.zeros(())}, {"a": 1.0, "b": -2.0}
    loss = lambda p: sum(jnp.sum((p[k] - target[k]) ** 4) for k in target)
    tx = flatten(stepax.lbfgs())
    step = jax.jit(lambda p, s: _lbfgs_step(tx, loss, p, s))
    state: Any = tx.init(p)
    value = jnp.inf
    for _ in range(20):
        p, state, value = step(p, state)
    assert value < 1e-4 and p["b"].shape == ()


def _lbfgs_step(tx, loss, p, state):
    value, g = jax.value_and_grad(loss)(p)
    u, state = tx.update(g, state, p, value=value, grad=g, value_fn=loss)
    return stepax.apply_updates(p, u), state, value


def test_under_a_mask_flatten_takes_the_gradients_of_its_part():
    p = random(0)
    alone = {"a": p["a"]}
    tx = stepax.masked(flatten(adam(0.1)), {k: k == "a" for k in p})
    found, _ = tx.update(p, tx.init(p), p, grad=p, value=jnp.float32(1.0))
    wanted, _ = adam(0.1).update(alone, adam(0.1).init(alone), alone)
    np.testing.assert_allclose(found["a"], wanted["a"], rtol=1e-6)
