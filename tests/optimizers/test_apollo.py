"""APOLLO against its formula, written out in NumPy, with every option."""

import itertools as it
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from stepax import contrib


RATE, DECAY, B1, B2, EPS, LIMIT, GAP = 0.1, 0.3, 0.8, 0.9, 1e-3, 1.2, 3
STEPS = 8
SHAPES = {"tall": (5, 3), "wide": (3, 5), "vector": (4,), "stack": (2, 3, 4)}
KEY = 7


def numbers(*lead: int) -> dict:
    random = np.random.default_rng(0)
    return {k: random.normal(size=(*lead, *shape)) for k, shape in SHAPES.items()}


def run(phase: complex = 1.0, **options: Any) -> dict:
    options = {"key": KEY, "update_proj_gap": GAP, "norm_growth_limit": LIMIT} | options
    tx = contrib.apollo(RATE, 2, B1, B2, EPS, DECAY, **options)
    params = {k: jnp.asarray(phase * p) for k, p in numbers().items()}
    gs = {k: jnp.asarray(phase * g) for k, g in numbers(STEPS).items()}

    def step(carry, g):
        params, state = carry
        updates, state = tx.update(g, state, params)
        params = jax.tree.map(jnp.add, params, updates)
        return (params, state), params

    found = jax.lax.scan(step, (params, tx.init(params)), gs)[1]
    return jax.tree.map(np.asarray, found)


def projection(shape: tuple[int, ...], t: int) -> np.ndarray:
    key = jax.random.fold_in(jax.random.key(KEY), (t - 1) // GAP)
    return np.asarray(jax.random.normal(key, shape, jnp.float64)) / 2**0.5


def length(x: np.ndarray, axis: int | None = None) -> Any:
    return np.sqrt(np.sum(x**2, axis, keepdims=axis is not None))


def matrix(g, t, d, low, last, kind, scale, is_front):
    """The step of a matrix but for the bias corrections, and its norm."""
    axis = None if kind == "tensor" else 1 if g.shape[0] >= g.shape[1] else 0
    u = g * length(d, axis) / (length(low, axis) + 1e-8)
    u = np.sqrt(scale) * u if is_front else u
    if t > 1:
        u = u / (max(length(u) / (last + 1e-8), LIMIT) / LIMIT)
    last = length(u)
    return u if is_front else np.sqrt(scale) * u, last


def formula(p, gs, kind, scale, is_front):
    m = v = last = 0
    for t, g in enumerate(gs, 1):
        low = g
        if g.ndim == 2 and g.shape[0] >= g.shape[1]:
            low = g @ projection((2, g.shape[1]), t).T
        elif g.ndim == 2:
            low = projection((g.shape[0], 2), t).T @ g
        m, v = B1 * m + (1 - B1) * low, B2 * v + (1 - B2) * low**2
        u = m / (np.sqrt(v) + EPS)
        if g.ndim == 2:
            u, last = matrix(g, t, u, low, last, kind, scale, is_front)
        p = p - RATE * np.sqrt(1 - B2**t) / (1 - B1**t) * u
        p = p * (1 - RATE * DECAY)
        yield p


OPTIONS = [*it.product(["channel", "tensor"], [False, True])]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "is_front"), OPTIONS)
def test_steps_are_those_of_the_formula(kind, is_front, x64):
    options = {"scale_type": kind, "scale_front": is_front, "scale": 4.0}
    found, start, gs = run(**options), numbers(), numbers(STEPS)
    for k in SHAPES:
        wanted = list(formula(start[k], gs[k], kind, 4.0, is_front))
        # Some forty roundings a step, of numbers of order one.
        np.testing.assert_allclose(found[k], wanted, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_a_phase_of_all_numbers_is_one_of_all_steps(x64):
    phase = np.exp(1j)
    turned, found = run(phase), run()
    for k in SHAPES:
        np.testing.assert_allclose(turned[k], phase * found[k], rtol=0, atol=1e-13)


@pytest.mark.slow
def test_the_limit_may_be_infinite():
    """Then a matrix moves after a gradient of zero; with a limit it does not."""
    p, g = jnp.ones((3, 2)), jnp.ones((3, 2))
    for limit in (np.inf, 1.01):
        tx = contrib.scale_by_apollo(2, norm_growth_limit=limit)
        _, state = tx.update(jnp.zeros((3, 2)), tx.init(p))
        u, _ = tx.update(g, state)
        assert jnp.isfinite(u).all()
        assert (jnp.abs(u).max() > 0.1) == (limit == np.inf)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 2, 30])
def test_the_state_is_small_unless_the_rank_is_large(rank):
    p = {"tall": jnp.ones((5, 3)), "wide": jnp.ones((3, 5)), "b": jnp.ones(4)}
    tx = contrib.scale_by_apollo(rank)
    first = tx.init(p)
    u, state = tx.update(p, first, p)
    for found in (first.mu, first.nu, state.mu, state.nu):
        shapes = {k: x.shape for k, x in found.items()}
        assert shapes == {"tall": (5, rank), "wide": (rank, 5), "b": (4,)}
    assert all(jnp.isfinite(x).all() for x in u.values())


def test_channels_keep_their_direction():
    g = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)
    tx = contrib.scale_by_apollo(1)
    u, _ = tx.update(g, tx.init(g))
    ratio = np.asarray(u / g)
    # Two quotients of rounded products in float32.
    np.testing.assert_allclose(ratio, ratio[:, :1] * np.ones(3), rtol=1e-6)


def test_another_scale_type_is_refused():
    with pytest.raises(
        ValueError, match="`scale_type` is 'row', expected one of .'channel'"
    ):
        contrib.apollo(scale_type="row")  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_the_key_may_be_a_seed_or_a_key():
    p = jnp.ones((3, 2))
    g = jnp.arange(6.0).reshape(3, 2)

    def step(key):
        tx = contrib.apollo(0.1, 1, key=key)
        return tx.update(g, tx.init(p), p)[0]

    np.testing.assert_array_equal(step(None), step(0))
    np.testing.assert_array_equal(step(3), step(jax.random.key(3)))
    np.testing.assert_array_equal(step(3), step(jax.random.PRNGKey(3)))
    assert not np.array_equal(step(3), step(0))
    assert stepax.contrib.apollo(0.1, key=3) == stepax.contrib.apollo(0.1, key=3)
