"""Relatives of Adam against their formulas, written out for one array in NumPy.

The trajectories of the authors' code are in `test_references.py`; here are the options
that those leave out: schedules, masks, other constants, complex parameters.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import ROWS

import stepax
from stepax import contrib


SHAPES = {"w": (4, 3), "v": (5,), "s": (), "k": (2, 3, 4)}
DECAYS = {"w": True, "v": False, "s": True, "k": True}
DECAY, B1, B2, EPS = 0.2, 0.8, 0.95, 1e-3
STEPS = 12


def rate(count: Any) -> Any:
    return 0.3 / (3.0 + count)


def decay(count: Any) -> Any:
    return DECAY * (1 + 0.1 * count)


def numbers(*lead: int) -> dict:
    random = np.random.default_rng(3)
    return {k: random.normal(size=(*lead, *shape)) for k, shape in SHAPES.items()}


def gradients() -> dict:
    """Of different sizes, one of them zero."""
    gs = {k: 10.0**i * g for i, (k, g) in enumerate(numbers(STEPS).items())}
    for g in gs.values():
        g[4] = 0
    return gs


def run(tx: Any, phase: complex = 1.0) -> dict:
    """The parameters after each step; `phase` multiplies parameters and gradients."""
    params = {k: jnp.asarray(phase * p) for k, p in numbers().items()}
    gs = {k: jnp.asarray(phase * g) for k, g in gradients().items()}

    def step(carry, g):
        params, state = carry
        updates, state = tx.update(g, state, params)
        params = jax.tree.map(jnp.add, params, updates)
        return (params, state), params

    carried = lambda p, gs: jax.lax.scan(step, (p, tx.init(p)), gs)[1]
    return jax.tree.map(np.asarray, jax.jit(carried)(params, gs))


Steps = Callable[..., Iterator[Any]]


def corrected(mean: Any, decay: float, t: int) -> Any:
    return mean / (1 - decay**t)


def adam_atan2(p: Any, gs: Any, wd: Any) -> Iterator[Any]:
    m = v = 0
    for t, g in enumerate(gs, 1):
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g**2
        angle = np.arctan2(corrected(m, B1, t), 0.5 * np.sqrt(corrected(v, B2, t)))
        p = p - rate(t - 1) * (2.0 * angle + wd(t - 1) * p)
        yield p


def stable_adamw(p: Any, gs: Any, wd: Any) -> Iterator[Any]:
    m = v = 0
    for t, g in enumerate(gs, 1):
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g**2
        mean = corrected(v, B2, t)
        rms = np.sqrt(np.mean(g**2 / np.maximum(mean, EPS**2)))
        u = corrected(m, B1, t) / (np.sqrt(mean) + EPS)
        p = p - rate(t - 1) / max(1, rms) * (u + wd(t - 1) * p)
        yield p


def laprop(p: Any, gs: Any, wd: Any) -> Iterator[Any]:
    m = v = 0
    for t, g in enumerate(gs, 1):
        v = B2 * v + (1 - B2) * g**2
        m = B1 * m + (1 - B1) * g / (np.sqrt(corrected(v, B2, t)) + EPS)
        a = rate(t - 1)
        p = (p - a * corrected(m, B1, t)) * (1 - a * wd(t - 1))
        yield p


def grams(p: Any, gs: Any, wd: Any) -> Iterator[Any]:
    m = v = 0
    for t, g in enumerate(gs, 1):
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g**2
        adam = corrected(m, B1, t) / (np.sqrt(corrected(v, B2, t)) + EPS)
        p = p - rate(t - 1) * (np.sign(g) * np.abs(adam) + wd(t - 1) * p)
        yield p


def adopt(p: Any, gs: Any, wd: Any) -> Iterator[Any]:
    m, v = 0, gs[0] ** 2
    yield p
    for t, g in enumerate(gs[1:], 2):
        bound = (t - 1) ** 0.25
        x = np.clip(g / np.maximum(np.sqrt(v), EPS), -bound, bound)
        m, v = B1 * m + (1 - B1) * x, B2 * v + (1 - B2) * g**2
        p = p - rate(t - 1) * (m + wd(t - 1) * p)
        yield p


def adan(p: Any, gs: Any, wd: Any) -> Iterator[Any]:
    m = v = n = 0
    last = gs[0]
    for t, g in enumerate(gs, 1):
        d, last = g - last, g
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * d
        n = 0.9 * n + 0.1 * (g + 0.5 * d) ** 2
        u = corrected(m, B1, t) + 0.5 * corrected(v, B2, t)
        a = rate(t - 1)
        p = p - a * u / (np.sqrt(corrected(n, 0.9, t)) + EPS)
        p = p / (1 + a * wd(t - 1))
        yield p


def block_means(x: Any) -> Any:
    """Means over columns of a matrix, and over pairs of columns of a stack."""
    if x.ndim == 2:
        return np.broadcast_to(x.mean(0), x.shape)
    if x.ndim == 3:
        pairs = x.reshape(2, 3, 2, 2).mean((0, 1, 3))
        return np.broadcast_to(np.repeat(pairs, 2), x.shape)
    return x


def adam_mini(p: Any, gs: Any, wd: Any) -> Iterator[Any]:
    m = v = 0
    for t, g in enumerate(gs, 1):
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * block_means(g**2)
        u = corrected(m, B1, t) / (np.sqrt(corrected(v, B2, t)) + EPS)
        p = p - rate(t - 1) * (u + wd(t - 1) * p)
        yield p


def factored(mean: Any, x: Any, decay: float) -> tuple[Any, Any]:
    """Means over rows and columns, and the product of both that stands for all."""
    mean = [
        decay * y + (1 - decay) * x.mean(i) for y, i in zip(mean, (-1, -2), strict=True)
    ]
    row, col = mean
    return mean, row[..., None] * col[..., None, :] / row.mean(-1)[..., None, None]


def came(p: Any, gs: Any, wd: Any) -> Iterator[Any]:
    m = v = 0
    near, far = (0, 0), (0, 0)
    for t, g in enumerate(gs, 1):
        squares = g**2 + 1e-4
        if g.ndim < 2:
            v = whole = B2 * v + (1 - B2) * squares
        else:
            near, whole = factored(near, squares, B2)
        u = g / np.sqrt(whole)
        u = u / max(1, np.sqrt(np.mean(u**2)) / 0.7)
        m = u_mean = B1 * m + (1 - B1) * u
        if g.ndim > 1:
            far, distance = factored(far, (u - m) ** 2 + 1e-3, 0.9)
            u_mean = m / np.sqrt(distance)
        p = p - rate(t - 1) * (u_mean + wd(t - 1) * p)
        yield p


def adahessian(p: Any, gs: Any, wd: Any) -> Iterator[Any]:
    """Of estimates at every third step that are twice the gradient."""
    m = v = n = 0
    for t, g in enumerate(gs, 1):
        if t % 3 == 1:
            n, v = n + 1, B2 * v + (1 - B2) * (2 * g) ** 2
        m = B1 * m + (1 - B1) * g
        root = np.sqrt(corrected(v, B2, n)) ** 0.7
        p = p - rate(t - 1) * (corrected(m, B1, t) / (root + EPS) + wd(t - 1) * p)
        yield p


DECAYED: Any = {"weight_decay": decay, "weight_decay_mask": DECAYS}
BLOCKS: Any = {"w": "output", "v": "element", "s": "whole", "k": 2}
TABLE: dict[str, tuple[Any, Steps]] = {
    "adahessian": (
        contrib.adahessian(
            rate,
            B1,
            B2,
            EPS,
            **DECAYED,
            hessian_power=0.7,
            update_interval=3,
            hessian_diagonal_fn=stepax.scale(2.0),
        ),
        adahessian,
    ),
    "adam_mini": (
        contrib.adam_mini(rate, B1, B2, EPS, **DECAYED, partition=BLOCKS),
        adam_mini,
    ),
    "came": (
        contrib.came(rate, B1, B2, 0.9, (1e-4, 1e-3), 0.7, **DECAYED),
        came,
    ),
    "adam_atan2": (
        contrib.adam_atan2(rate, B1, B2, **DECAYED, a=2.0, b=0.5),
        adam_atan2,
    ),
    "adan": (
        stepax.adan(
            rate, B1, B2, 0.9, EPS, 0.0, change_factor=0.5, proximal_decay=True
        ),
        lambda p, gs, wd: adan(p, gs, lambda count: 0),
    ),
    "adan, decaying": (
        stepax.adan(
            rate,
            B1,
            B2,
            0.9,
            EPS,
            0.0,
            change_factor=0.5,
            proximal_decay=True,
            **DECAYED,
        ),
        adan,
    ),
    "adopt": (contrib.adopt(rate, B1, B2, EPS, **DECAYED), adopt),
    "grams": (contrib.grams(rate, B1, B2, EPS, **DECAYED), grams),
    "laprop": (contrib.laprop(rate, B1, B2, EPS, **DECAYED), laprop),
    "stable_adamw": (
        contrib.stable_adamw(rate, B1, B2, EPS, **DECAYED),
        stable_adamw,
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", TABLE)
def test_steps_are_those_of_the_formula(name, x64):
    tx, reference = TABLE[name]
    found, start, gs = run(tx), numbers(), gradients()
    for k in SHAPES:
        wanted = list(reference(start[k], gs[k], decay if DECAYS[k] else lambda n: 0))
        # Some thirty roundings a step, of numbers of order one.
        np.testing.assert_allclose(found[k], wanted, rtol=0, atol=1e-12)


HOLOMORPHIC = [k for k in TABLE if ROWS[k.partition(",")[0]].holomorphic]


@pytest.mark.slow
@pytest.mark.parametrize("name", HOLOMORPHIC)
def test_a_phase_of_all_numbers_is_one_of_all_steps(name, x64):
    tx, _ = TABLE[name]
    phase = np.exp(1j)
    turned, found = run(tx, phase), run(tx)
    for k in SHAPES:
        np.testing.assert_allclose(turned[k], phase * found[k], rtol=0, atol=1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize("mask", [None, DECAYS], ids=["all", "masked"])
def test_a_large_gradient_shortens_the_decay_of_stable_adamw(mask, x64):
    """The rate of an array falls by rms = sqrt(mean(g² / v)), here g / sqrt(v)."""
    tx = contrib.stable_adamw(1.0, 0.9, 0.99, 1e-9, 0.5, weight_decay_mask=mask)
    p = {k: jnp.ones(shape) for k, shape in SHAPES.items()}
    state = tx.init(p)
    ones = jax.tree.map(jnp.ones_like, p)
    updates, state = tx.update(ones, state, p)
    np.testing.assert_allclose(updates["w"], -1.5, rtol=1e-8)
    np.testing.assert_allclose(updates["v"], -1.0 if mask else -1.5, rtol=1e-8)
    u, _ = tx.update(jax.tree.map(lambda p: 1e6 * p, p), state, p)
    m, v = (0.09 + 1e5) / (1 - 0.9**2), (0.0099 + 1e10) / (1 - 0.99**2)
    wanted = -(m / np.sqrt(v) + 0.5) / (1e6 / np.sqrt(v))
    np.testing.assert_allclose(u["w"], wanted, rtol=1e-8)


ZEROS = {
    "adam_atan2": contrib.adam_atan2(0.1, b=0.0),
    "laprop": contrib.laprop(0.1, eps=0.0),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ZEROS)
def test_no_eps_is_needed_where_gradients_are_zero(name):
    tx, p = ZEROS[name], jnp.ones(2)
    step = lambda g: tx.update(g, tx.init(p), p)[0]
    np.testing.assert_array_equal(step(jnp.zeros(2)), 0)
    slope = jax.jacobian(step)(jnp.array([0.0, 1.0]))
    assert np.isfinite(np.asarray(slope)).all()


P = {"embedding": jnp.ones((4, 6)), "head": {"w": jnp.ones((4, 6)), "b": jnp.ones(6)}}

SHAPES_OF_NU = {
    "whole": ("whole", [(), (), ()]),
    "output": ("output", [(6,), (6,), (6,)]),
    "element": ("element", [(4, 6), (6,), (4, 6)]),
    "groups": (2, [(2,), (2,), (2,)]),
    "patterns": ({"b": "element", "head/w": np.int64(3), "**": "output"}, None),
    "function": (
        lambda p: {"embedding": "output", "head": {"w": 3, "b": "element"}},
        None,
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SHAPES_OF_NU)
def test_blocks_are_given_as_masks_are(name):
    partition, shapes = SHAPES_OF_NU[name]
    tx = contrib.scale_by_adam_mini(partition=partition)
    state = tx.init(P)
    _, new = tx.update(P, state, P)
    for found in (state.nu, new.nu):
        wanted = shapes or [(6,), (6,), (3,)]
        assert [x.shape for x in jax.tree.leaves(found)] == wanted


MISTAKES: dict[str, tuple[Any, str]] = {
    "name": ("row", r"\['embedding'\] is 'row', expected one of \['element', 'output'"),
    "zero": (0, r"\['embedding'\] is 0, expected one of .* or a number of blocks"),
    "boolean": ({"b": True, "**": 1}, r"\['head'\]\['b'\] is True, expected one of"),
    "divisor": (
        {"head/w": 4, "**": "whole"},
        r"\['head'\]\['w'\] is 4, but the last axis of the shape \(4, 6\) has 6 "
        "outputs: give a divisor of that number",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_blocks_that_do_not_fit_are_named(name):
    partition, message = MISTAKES[name]
    with pytest.raises(ValueError, match=f"`partition` for {message}"):
        contrib.adam_mini(partition=partition).init(P)


@pytest.mark.slow
def test_adahessian_estimates_the_diagonal_by_default():
    """Of a quadratic, where the estimate is exact."""
    curvature = jnp.array([1.0, 10.0, 100.0])
    loss = lambda p: 0.5 * jnp.sum(curvature * p**2)
    tx, p = contrib.adahessian(0.1, eps=0.0), jnp.ones(3)
    u, state = tx.update(jax.grad(loss)(p), tx.init(p), p, obj_fn=loss)
    # 1 - 0.999 in float32 is off by up to 3 parts in 10^5, and its root by half of it.
    np.testing.assert_allclose(u, -0.1, rtol=2e-5)
    assert type(state[0]) is contrib.AdaHessianState
    with pytest.raises(ValueError, match="reads the keyword `obj_fn`"):
        tx.update(p, tx.init(p), p)
    with pytest.raises(TypeError, match="`adahessian` needs real parameters"):
        tx.init(p.astype(complex))


FACTORED = {
    "came": contrib.came(0.1),
    "adam_mini": contrib.adam_mini(0.1),
    "adam_mini, outputs": contrib.adam_mini(0.1, partition="output"),
    "apollo": contrib.apollo(0.1, 2),
    "stable_adamw": contrib.stable_adamw(0.1),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,), (2, 0, 3)])
@pytest.mark.parametrize("name", FACTORED)
def test_an_empty_array_leaves_no_nan_in_the_state(name, shape):
    tx, p = FACTORED[name], jnp.ones(shape)
    u, state = tx.update(p, tx.init(p), p)
    assert u.shape == shape
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(state))
