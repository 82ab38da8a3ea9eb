"""Random gradients, runs over them, and comparisons leaf by leaf."""

import jax
import jax.numpy as jnp
import numpy as np


SHAPES = {"w": (5, 7), "b": (7,), "s": (), "k": (2, 3, 4)}


def random(seed, dtype="float32", lead=()):
    rng = np.random.default_rng(seed)
    normal = lambda shape: jnp.asarray(rng.normal(size=lead + shape), dtype)
    return {name: normal(shape) for name, shape in SHAPES.items()}


def at(i, tree):
    return jax.tree.map(lambda x: x[i], tree)


def array(x):
    """A leaf as a NumPy array; of a key, its data."""
    is_key = jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def leaves(tree):
    return list(map(array, jax.tree.leaves(tree)))


def assert_equal(found, wanted):
    for x, y in zip(leaves(found), leaves(wanted), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def assert_same_tree(found, wanted):
    """Equal structures, dtypes and values."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    assert_equal(found, wanted)


def assert_same_structure(found, wanted):
    """Equal trees, when classes of states count as equal by their names."""
    if not isinstance(found, tuple):
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        return
    names = [getattr(type(x), "_fields", len(x)) for x in (found, wanted)]
    assert names[0] == names[1]
    assert type(found).__name__ == type(wanted).__name__
    for x, y in zip(found, wanted, strict=True):
        assert_same_structure(x, y)


def run(tx, gradients, params, wrap=jax.jit, steps=200):
    state, out = tx.init(params), []
    update = wrap(tx.update)
    for i in range(steps):
        u, state = update(at(i, gradients), state, params)
        out.append(u)
    return jax.tree.map(lambda *x: np.stack(x), *out), state
