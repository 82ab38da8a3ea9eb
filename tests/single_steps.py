"""Single steps of ours and of Optax's, from the same states, and runs against a paper.

Optimizers that feed norms of the whole model back into their steps let roundings grow,
so that runs of 200 steps are compared step by step.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import stepax


STEPS = 200
SHAPES = {"b": (3,), "w": {"k": (2, 5)}}


def to_call(*args, **kwargs):
    return args, kwargs


def rate(count):
    return 1 / (10.0 + count)


def is_matrix(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


def arrays(random, dtype, lead=()):
    one = lambda shape: jnp.asarray(random.normal(size=(*lead, *shape)), dtype)
    return jax.tree.map(one, SHAPES, is_leaf=lambda x: isinstance(x, tuple))


def loss(params):
    """A paraboloid with its minimum, of 0.1, away from where the parameters start."""
    return 0.1 + sum(0.5 * jnp.sum((p - 3) ** 2) for p in jax.tree.leaves(params))


def gradient(params, noise):
    one = lambda p, n: p - 3 + n * jnp.asarray(0.1, n.dtype)
    return jax.tree.map(one, params, noise)


def side_by_side(ours, theirs, dtype) -> Any:
    """For each step the parameters, Optax's state, and what both make of them."""
    random = np.random.default_rng(0)
    params, noise = arrays(random, dtype), arrays(random, dtype, (STEPS,))
    ours, theirs = (
        stepax.with_extra_args_support(ours),
        optax.with_extra_args_support(theirs),
    )
    mine = jax.tree.structure(ours.init(params))

    def step(carry, n):
        p, state = carry
        g, value = gradient(p, n), loss(p)
        same = mine.unflatten(jax.tree.leaves(state))
        found = ours.update(g, same, p, value=value)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            expected = theirs.update(g, state, p, value=value)
        moved = jax.tree.map(jnp.add, p, expected[0])
        return (moved, expected[1]), (p, state, found, expected)

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        first = theirs.init(params)
    assert types(ours.init(params)) == types(first)
    return jax.lax.scan(step, (params, first), noise)[1]


def types(state):
    return [(x.shape, x.dtype) for x in jax.tree.leaves(state)]


def assert_close(found, expected, ulps):
    """Each leaf at each step, in units in the last place of its largest entry."""
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        x, y = np.asarray(x).reshape(STEPS, -1), np.asarray(y).reshape(STEPS, -1)
        assert np.isfinite(y).all()
        if not np.issubdtype(y.dtype, np.floating):
            np.testing.assert_array_equal(x, y)
            continue
        bound = ulps * np.finfo(y.dtype).eps * np.abs(y).max(axis=1)
        assert (np.abs(x - y).max(axis=1) <= bound).all()


def assert_follows(tx, reference, size=5, steps=60):
    """A run of ours in float64 against the formula, which takes (t, p, g, value)."""
    random = np.random.default_rng(1)
    start, noise = random.normal(size=size), random.normal(size=(steps, size))
    tx = stepax.with_extra_args_support(tx)

    def step(carry, n):
        p, state = carry
        u, state = tx.update(gradient(p, n), state, p, value=loss(p))
        return (p + u, state), p + u

    first = jnp.asarray(start)
    found = jax.lax.scan(step, (first, tx.init(first)), jnp.asarray(noise))[1]
    p, expected, step_of = start, [], reference(start)
    for t, n in enumerate(noise, 1):
        value = 0.1 + 0.5 * np.sum((p - 3) ** 2)
        p = step_of(t, p, p - 3 + 0.1 * n, value)
        expected.append(p)
    # A hundred operations a step, whose roundings may grow a thousandfold.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e5 * 2.0**-52)
