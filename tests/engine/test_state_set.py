"""What is set in a state fits there: no step is recompiled for it."""

from typing import Any, NamedTuple

import cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import GetAttrKey
from runs import compilations

import stepax
from stepax.tree import get_all_with_path, set


class Weak(NamedTuple):
    x: Any
    n: Any


@pytest.mark.parametrize("key", ["n", "a/n"])
def test_weak_types_are_kept(key):
    tree = {"a": Weak(jnp.asarray(1.0), jnp.asarray(2))}
    for five in 5, 5.0, np.int32(5), np.float32(5), jnp.int32(5), jnp.asarray(5):
        new = set(tree, **{key: five})["a"].n
        assert new.weak_type and new == 5
    with pytest.raises(TypeError, match="`a/x` is weakly typed"):
        jax.jit(lambda x: set(tree, **{"a/x": x}))(jnp.ones([]))


# Ways to give a number.
TWOS = [2, 2.0, np.float64(2), np.int64(2), np.array(2.0), jnp.int8(2), jnp.asarray(2)]
TWOS += [jnp.bfloat16(2), jnp.asarray(2.0)]
WHOLE = {"w": jnp.ones((2, 2)), "b": jnp.ones(2, jnp.bfloat16)}


MADE = {
    **{p.id: lambda row=p.values[0]: cases.make(row) for p in cases.rows()},
    "injected": lambda: stepax.inject_hyperparams(stepax.adamw)(1e-3),
    "weak": lambda: stepax.GradientTransformation(
        lambda params: Weak(jnp.asarray(1.0), jnp.asarray(2)),
        lambda g, s, p=None: (g, s),
    ),
    "Optax": lambda: optax.chain(optax.clip(1.0), optax.adam(1e-3)),
    "Optax, injected": lambda: optax.inject_hyperparams(optax.adamw)(1e-3),
    "Optax, masked": lambda: optax.masked(optax.adam(1e-3), {"w": True, "b": False}),
}


def _named(state):
    """The values that have a name in a state, and their paths."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    names = {k.name for path in paths for k in path if isinstance(k, GetAttrKey)}
    if "hyperparams" in names:
        names |= {*state.hyperparams}
    return [(name, x) for name in sorted(names) for x in get_all_with_path(state, name)]


def _kinds(tree):
    arrays = jax.tree.leaves(tree)
    return jax.tree.structure(tree), [jax.typeof(x) for x in arrays]


@pytest.mark.few(10)
@pytest.mark.parametrize("made", MADE)
def test_what_is_set_gets_the_types_that_were_there(made):
    with jax.numpy_dtype_promotion("standard"):  # for Optax
        state = MADE[made]().init(WHOLE)
    if not jax.tree.leaves(state):
        pytest.skip("it keeps nothing")
    for name, (path, old) in _named(state):
        only = lambda p, _, path=path: p == path
        is_number = hasattr(old, "dtype") and jnp.ndim(old) == 0
        is_number = is_number and jnp.issubdtype(old.dtype, jnp.number)
        for two in TWOS if is_number else []:
            new = set(state, only, **{name: two})
            assert _kinds(new) == _kinds(state)
            ((_, x),) = get_all_with_path(new, name, only)
            assert x == 2
        for wrong in (object(), [[]]) if jax.tree.leaves(old) else ():
            with pytest.raises((ValueError, TypeError), match=f"`.*{name}"):
                set(state, only, **{name: wrong})
        for y in [x for x in jax.tree.leaves(old) if jnp.ndim(x)][:1]:
            wide = jax.tree.map(lambda x: x[None] if x is y else x, old)  # noqa: B023
            with pytest.raises(ValueError, match=f"`.*{name}.*shape"):
                set(state, only, **{name: wide})


def test_the_numbers_of_a_random_key_are_put_as_they_are():
    state = stepax.add_noise(0.1, 0.5, key=jax.random.key(0)).init(WHOLE)
    numbers = jax.random.PRNGKey(1)
    assert set(state, rng_key=numbers).rng_key is numbers  # Optax's test asks for it
    for wrong in jax.random.key(1)[None], numbers[None], numbers.astype(jnp.int32), 1:
        with pytest.raises((ValueError, TypeError), match="`rng_key`"):
            set(state, rng_key=wrong)


def test_several_matches_get_each_its_own_types():
    state = stepax.chain(
        stepax.scale_by_adam(mu_dtype=jnp.bfloat16), stepax.scale_by_adam()
    ).init(WHOLE)
    ones = jax.tree.map(lambda x: np.ones(x.shape), WHOLE)
    for values in {"mu": ones, "count": 3.0}, {"**/mu/w": np.ones((2, 2))}:
        assert _kinds(set(state, **values)) == _kinds(state)


def test_a_step_is_not_traced_anew_for_what_was_set():
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    everywhere = NamedSharding(mesh, PartitionSpec())
    tx = stepax.inject_hyperparams(stepax.adamw)(1e-3)
    for params in WHOLE, jax.device_put(WHOLE, everywhere):
        traces = []

        @jax.jit
        def step(state, params):
            traces.append(None)  # noqa: B023
            return tx.update(params, state, params)[1]

        state = step(tx.init(params), params)
        state = step(state, params)
        with compilations() as compiled:
            for rate in 3e-4, np.float64(1e-4), 1:
                new = set(state, learning_rate=rate, count=7.0)
                compiled.clear()  # to convert a number may be compiled once
                step(new, params)
                assert not compiled
        assert len(traces) == 1


@pytest.mark.parametrize("new", [{"count": 1}, "count", 1, [("count", 1)]])
def test_values_that_are_not_given_by_name_are_refused(new):
    """As a dict, they would be a filter of nothing."""
    state = stepax.adam(0.1).init(WHOLE)
    with pytest.raises(TypeError, match="give new values by name, as in `set"):
        set(state, new)
    assert set(state, lambda path, value: False) is not None
