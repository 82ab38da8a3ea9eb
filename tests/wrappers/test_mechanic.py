"""Mechanic: the paper, Optax, and what it hands to the optimizer that it tunes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from single_steps import STEPS, assert_follows, rate, side_by_side

import stepax
from stepax import contrib


def mechanic(learning_rate, decay, eps, s_init, number):
    """Cutkosky et al., 2023, Algorithm 1, around gradient descent."""
    betas = 1 - 10.0 ** -np.arange(1, number + 1)

    def run(start):
        r, m, v, s = 0, 0, 0, np.full(number, s_init)

        def step(t, p, g, value):
            nonlocal r, m, v, s
            delta = (start - p) / (np.sum(s) + eps)
            norms = np.linalg.norm(g) / (np.linalg.norm(p) + eps)
            h = delta @ (g + decay(t - 1) * np.sum(s) * norms * p)
            r = betas * r + np.clip(h, -m, m) * s
            m = np.maximum(betas * m, abs(h) + eps)
            v = betas**2 * v + h**2
            s = (s_init * m / number + np.maximum(r, 0)) / (np.sqrt(v) + eps)
            return start - np.sum(s) * (delta + learning_rate * g)

        return step

    return run


@pytest.mark.parametrize("decay", [0.3, rate])
def test_follows_the_paper(decay, x64):
    tx = contrib.mechanize(stepax.sgd(0.1), decay, 1e-3, 1e-2, 3)
    decay_at = decay if callable(decay) else lambda n: decay
    assert_follows(tx, mechanic(0.1, decay_at, 1e-3, 1e-2, 3))


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("args", [(), (1.0, 0.1, 0.01, 3)], ids=["default", "other"])
def test_each_step_is_that_of_optax(args, dtype):
    """To the rounding of p_start, of which Optax subtracts the sum of the updates."""
    with jax.enable_x64(dtype == "float64"):
        ours = contrib.mechanize(stepax.adam(1.0), *args)
        theirs = optax.contrib.mechanize(optax.adam(1.0), *args)
        p, was, found, expected = side_by_side(ours, theirs, dtype)
        eps = np.finfo(dtype).eps
        pairs = zip(*map(jax.tree.leaves, (found[0], expected[0], p)), strict=True)
        for u, v, x in pairs:
            top = lambda x: np.abs(np.asarray(x)).reshape(STEPS, -1).max(axis=1)
            assert (top(u - v) <= 4 * eps * np.maximum(top(x), 3.0)).all()
        new, state = found[1], expected[1]
        # h is a sum of terms of both signs, which are as large as `m` has become.
        size = np.max(state.m)
        np.testing.assert_allclose(new.m, state.m, rtol=0, atol=16 * eps * size)
        np.testing.assert_allclose(
            new.v, state.v, rtol=8 * eps, atol=64 * eps * size**2
        )
        assert (abs(new.r - state.r) <= 16 * eps * (abs(was.r) + size * was.s)).all()
        eps_, s_init, number = args[1:] if args else (1e-8, 1e-6, 6)
        for x in new, state:
            scale = (s_init * x.m / number + np.maximum(x.r, 0)) / (np.sqrt(x.v) + eps_)
            np.testing.assert_allclose(x.s, scale, rtol=8 * eps)


@pytest.mark.slow
def test_keywords_reach_the_base_optimizer():
    p = jnp.ones(2)
    tx = contrib.mechanize(stepax.polyak_sgd())
    short, _ = tx.update(p, tx.init(p), p, value=0.1)
    long, _ = tx.update(p, tx.init(p), p, value=0.2)
    np.testing.assert_allclose(long, 2 * short, rtol=1e-6)
    with pytest.raises(TypeError, match="reads the keyword `value`"):
        tx.update(p, tx.init(p), p)


@pytest.mark.slow
def test_it_starts_where_the_first_step_does(x64):
    """As when parameters are loaded after `init`, or `lookahead` resets the state."""
    p = jnp.array([1.1, -2.1])
    found, wanted = [], []
    for library, out in ((stepax, found), (optax, wanted)):
        tx: Any = library.contrib.mechanize(library.sgd(0.1))
        state, q = tx.init(p - 0.1), p
        for g in (jnp.array([1.0, -0.5]), jnp.array([2.0, 0.5])):
            u, state = tx.update(g, state, q)
            q = q + u
            out.append(u)
        out.append(state.x0)
    np.testing.assert_allclose(found[-1], p)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_what_is_masked_or_missing_stays():
    p = {"w": jnp.ones(2), "b": jnp.ones(2), "none": None}
    g = {"w": jnp.ones(2), "b": jnp.ones(2), "none": None}
    tx = contrib.mechanize(stepax.freeze({"w": False, "b": True, "none": False}))
    u, state = tx.update(g, tx.init(p), p)
    assert u["none"] is None and state.x0["none"] is None
    np.testing.assert_array_equal(u["b"], 0)
    assert (u["w"] != 0).all()


def test_a_small_scale_gives_exact_updates():
    """Optax's are differences of numbers near 1, of which float32 keeps 2e-7 / 1e-6."""
    p = jnp.ones(2)
    tx = contrib.mechanize(stepax.sgd(1.0))
    u, state = tx.update(p, tx.init(p), p)
    np.testing.assert_allclose(u, -jnp.sum(state.s), rtol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtypes", [("bfloat16", "float32"), ("float16", "float16")])
def test_dtypes_of_the_state_stay(dtypes):
    p = {k: jnp.ones(2, dtype) for k, dtype in zip("ab", dtypes, strict=True)}
    tx = contrib.mechanize(stepax.adam(1.0))
    first = tx.init(p)
    _, state = tx.update(p, first, p)
    kinds = lambda state: [x.dtype for x in jax.tree.leaves(state)]
    assert kinds(state) == kinds(first)
    assert state.s.dtype == jnp.float32


def test_complex_parameters_are_pairs_of_real_ones():
    tx, z = contrib.mechanize(stepax.sgd(1.0)), jnp.array([1 + 2j, 3 - 1j], "complex64")
    split = lambda z: jnp.stack([z.real, z.imag])
    s, t = tx.init(z), tx.init(split(z))
    start = z
    for _ in range(3):
        u, s = tx.update(start * (1 - 2j), s, z)
        v, t = tx.update(split(start * (1 - 2j)), t, split(z))
        np.testing.assert_allclose(split(u), v, rtol=1e-5)
        z = z + u


def test_mistakes_are_told():
    factory: Any = stepax.sgd
    with pytest.raises(ValueError, match="`num_betas` must be >= 1, but is 0"):
        contrib.mechanize(stepax.sgd(1.0), num_betas=0)
    with pytest.raises(TypeError, match="`base_optimizer` of `mechanize` must be a"):
        contrib.mechanize(factory)
    p, tx = jnp.ones(2), contrib.mechanize(stepax.sgd(1.0))
    with pytest.raises(ValueError, match="`params` is missing"):
        tx.update(p, tx.init(p))
