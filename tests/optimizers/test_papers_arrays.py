"""Optimizers that look at arrays as a whole, against their papers, in NumPy.

A reference takes the gradients of all steps, and the parameters if it reads them, and
yields the update of each; see `test_papers.py` for those that see single entries.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stepax import (
    adafactor,
    fromage,
    lamb,
    lars,
    novograd,
    polyak_sgd,
    rprop,
    scale_by_factored_rms,
    scale_by_novograd,
    scale_by_polyak,
    scale_by_sm3,
    sm3,
)


norm = np.linalg.norm
ADAM = {"b1": 0.8, "b2": 0.95, "eps": 1e-3}


def novograd_paper(gs, p, b1, b2, eps, weight_decay):
    """Ginsburg et al., 2019, Algorithm 1, for one layer."""
    v, m = norm(gs[0]) ** 2, 0
    for t, g in enumerate(gs, 1):
        v = v if t == 1 else b2 * v + (1 - b2) * norm(g) ** 2
        m = b1 * m + (g / (np.sqrt(v) + eps) + weight_decay * p)
        yield -m


def sm3_paper(gs, p, eps):
    """Anil et al., 2019, SM3-II, for rows and columns, entry by entry."""
    n, k = p.shape
    rows, columns = np.zeros(n), np.zeros(k)
    for g in gs:
        u, new_rows, new_columns = np.zeros_like(g), np.zeros(n), np.zeros(k)
        for i in range(n):
            for j in range(k):
                nu = min(rows[i], columns[j]) + g[i, j] ** 2
                u[i, j] = g[i, j] / np.sqrt(nu + eps)
                new_rows[i] = max(new_rows[i], nu)
                new_columns[j] = max(new_columns[j], nu)
        rows, columns = new_rows, new_columns
        yield u


def fromage_paper(gs, p, learning_rate):
    """Bernstein et al., 2020, Algorithm 1, for one layer."""
    for g in gs:
        new = p - learning_rate * norm(p) / norm(g) * g
        yield new / np.sqrt(1 + learning_rate**2) - p


def lamb_paper(gs, p, learning_rate, b1, b2, eps, weight_decay):
    """You et al., 2020, Algorithm 2, for one layer, with the identity for phi."""
    m, v = 0, 0
    for t, g in enumerate(gs, 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        r = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
        d = r + weight_decay * p
        yield -learning_rate * norm(p) / norm(d) * d


def lars_paper(gs, p, learning_rate, weight_decay, trust, momentum):
    """You et al., 2017, Algorithm 1, with the norm of the sum that LAMB later took."""
    v = 0
    for g in gs:
        d = g + weight_decay * p
        v = momentum * v + learning_rate * trust * norm(p) / norm(d) * d
        yield -v


def adafactor_paper(gs, p, learning_rate, clip, eps):
    """Shazeer and Stern, 2018, Algorithm 4, with their decay of section 7.2."""
    rms = lambda x: np.sqrt(np.mean(x**2))
    rows, columns = np.zeros(p.shape[0]), np.zeros(p.shape[1])
    for t, g in enumerate(gs, 1):
        beta = 1 - t**-0.8
        rows = beta * rows + (1 - beta) * np.sum(g**2 + eps, axis=1)
        columns = beta * columns + (1 - beta) * np.sum(g**2 + eps, axis=0)
        u = g / np.sqrt(np.outer(rows, columns) / np.sum(rows))
        u = u / max(1, rms(u) / clip)
        yield -learning_rate * max(1e-3, rms(p)) * u


LAMB: dict[str, Any] = {"learning_rate": 0.1, **ADAM, "weight_decay": 0.2}
NOVOGRAD: dict[str, Any] = {"b1": 0.8, "b2": 0.3, "eps": 1e-3, "weight_decay": 0.2}

TABLE = {
    "NovoGrad": (novograd(1.0, **NOVOGRAD), novograd_paper, NOVOGRAD),
    "SM3": (scale_by_sm3(b1=0.0, eps=1e-3), sm3_paper, {"eps": 1e-3}),
    "Fromage": (fromage(0.1), fromage_paper, {"learning_rate": 0.1}),
    "LAMB": (lamb(**LAMB), lamb_paper, LAMB),
    "LARS": (
        lars(0.1, 0.2, trust_coefficient=0.01, momentum=0.8),
        lars_paper,
        {"learning_rate": 0.1, "weight_decay": 0.2, "trust": 0.01, "momentum": 0.8},
    ),
    "Adafactor": (
        adafactor(0.1, 2, clipping_threshold=1.1, eps=1e-3),
        adafactor_paper,
        {"learning_rate": 0.1, "clip": 1.1, "eps": 1e-3},
    ),
}


def problem(steps=30):
    random = np.random.default_rng(0)
    gs = random.normal(size=(steps, 3, 4)) * np.array([0.01, 0.3, 1.0, 30.0])
    return gs, random.normal(size=(3, 4))


def updates_of(tx, gs, params):
    params = jnp.asarray(params)

    def step(state, g):
        updates, state = tx.update(g, state, params)
        return state, updates

    return np.asarray(jax.lax.scan(step, tx.init(params), jnp.asarray(gs))[1])


# As in `test_papers.py`: 200 eps of the largest update of a row and column.  Adafactor
# has its decay in float32.
@pytest.mark.few(1)
@pytest.mark.parametrize("name", TABLE)
def test_updates_are_those_of_the_paper(name, x64):
    tx, reference, options = TABLE[name]
    gs, p = problem()
    expected = np.stack(list(reference(gs, p, **options)))
    found = updates_of(tx, gs, p)
    assert found.dtype == np.float64
    bound = 200 * (2.0**-23 if name == "Adafactor" else 2.0**-52)
    assert (np.abs(found - expected) <= bound * np.abs(expected).max(axis=0)).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("name", TABLE)
def test_narrow_gradients_of_zero_give_finite_updates(name, dtype):
    """Zero, a number whose square is one of float16, and the smallest."""
    tx, _, _ = TABLE[name]
    gs = jnp.asarray([0.0, 0.0, 2e2, jnp.finfo(dtype).tiny, 0.0], dtype)
    gs = jnp.broadcast_to(gs[:, None, None], (5, 2, 2))
    updates = updates_of(tx, gs, jnp.ones((2, 2), dtype))
    assert updates.dtype == dtype
    assert np.isfinite(updates).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("name", TABLE)
def test_scalars_and_empty_arrays_are_arrays(name):
    tx, _, _ = TABLE[name]
    params = {"none": jnp.zeros((0, 3)), "scalar": jnp.asarray(2.0), "x": jnp.ones(2)}
    _, state = tx.update(params, tx.init(params), params)
    updates, _ = tx.update(params, state, params)
    assert jax.tree.map(jnp.shape, updates) == jax.tree.map(jnp.shape, params)
    assert all(np.isfinite(u).all() for u in jax.tree.leaves(updates))


def test_polyak_reaches_the_minimum_along_the_gradient():
    """For f(x) = ‖x‖² half of the step size that would reach it; equation 3."""
    tx = polyak_sgd(max_learning_rate=10.0)
    x = jnp.asarray([3.0, -4.0])
    updates, _ = tx.update(2 * x, tx.init(x), x, value=jnp.sum(x**2))
    np.testing.assert_allclose(updates, -x / 2, rtol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("variant", "value", "step_size"),
    [("sps", 1.5, 0.25), ("sps", 9.0, 0.7), ("sps", 0.0, -0.125), ("sps+", 0.0, 0.0)],
)
def test_polyak_step_sizes_are_bounded(variant, value, step_size):
    """The gap to 0.5, divided by 4; at most 0.7; and its positive part."""
    tx = scale_by_polyak(0.5, 0.7, eps=2.0, variant=variant)
    g = {"a": jnp.asarray([1.0]), "b": jnp.asarray(1.0)}
    updates, _ = tx.update(g, tx.init(g), g, value=value)
    np.testing.assert_allclose(updates["a"], [step_size], rtol=1e-6)


def test_polyak_stays_where_the_gradient_is_zero():
    tx = scale_by_polyak()
    g = jnp.zeros(2)
    updates, _ = tx.update(g, tx.init(g), g, value=1.0)
    np.testing.assert_array_equal(updates, g)


def test_polyak_names_what_it_lacks():
    g = jnp.ones(2)
    tx = scale_by_polyak()
    with pytest.raises(TypeError, match="`scale_by_polyak` reads the keyword `value`"):
        tx.update(g, tx.init(g), g)
    with pytest.raises(
        ValueError, match="`variant` is 'x', expected one of .'sps', 'sps"
    ):
        scale_by_polyak(variant="x")  # pyright: ignore[reportArgumentType]


def test_adafactor_counts_steps_before_its_offset_as_the_first():
    """Optax raises a negative number to a power there, which is NaN."""
    gs, p = problem(4)
    found = updates_of(scale_by_factored_rms(step_offset=3), gs.astype("f"), p)
    first = [updates_of(scale_by_factored_rms(), g[None].astype("f"), p) for g in gs]
    np.testing.assert_array_equal(found, np.concatenate(first))


def test_adafactor_factors_the_two_longest_axes():
    tx = scale_by_factored_rms(min_dim_size_to_factor=3)
    params = {"cube": jnp.ones((4, 2, 3)), "flat": jnp.ones((4, 2))}
    state = tx.init(params)
    shapes = jax.tree.map(jnp.shape, state._asdict())
    assert shapes["v_row"] == {"cube": (2, 3), "flat": (1,)}
    assert shapes["v_col"] == {"cube": (4, 2), "flat": (1,)}
    assert shapes["v"] == {"cube": (1,), "flat": (4, 2)}


@pytest.mark.slow
def test_schedules_are_followed_where_optax_takes_numbers():
    gs, p = problem(3)
    rate = lambda count: 0.5 / (count + 1.0)
    factors = np.array([1, 1 / 2, 1 / 3])[:, None, None]
    for plain, scheduled in [
        (sm3(0.5), sm3(rate)),
        (rprop(0.5), rprop(rate)),
    ]:
        expected = updates_of(plain, gs.astype("f"), p) * factors
        found = updates_of(scheduled, gs.astype("f"), p)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_novograd_decays_by_a_schedule():
    p = jnp.ones(2)
    tx = scale_by_novograd(b1=0.0, weight_decay=lambda count: 0.25 * (count + 1.0))
    updates = updates_of(tx, jnp.zeros((3, 2)), p)
    np.testing.assert_array_equal(updates[:, 0], [0.25, 0.5, 0.75])
