"""Parts of the records of modded-nanogpt's third track, as their logs define them.

Each is compared with a transcription in NumPy.  In float32 the bound is 1e-5, relative
to the parameters: some ten operations of 6e-8 each, and norms of a dozen numbers.
"""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from stepax import contrib


DRAW = np.random.default_rng(0)
# The scales of the gradients lengthen and shorten parameters by a part of their norm.
START = DRAW.normal(size=(4, 3))
GS = [DRAW.normal(size=START.shape) * size for size in (0.1, 1, 3, 0.01, 1, 2)]
GS[2] = START / 2  # towards the origin
GS[4][:, 1] = 0
RATE = 0.2
near = ft.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


def run(tx):
    """The parameters after each step, and the last state."""
    p = jnp.asarray(START, jnp.float32)
    state, update, found = tx.init(p), jax.jit(tx.update), []
    for g in GS:
        u, state = update(jnp.asarray(g, jnp.float32), state, p)
        p = stepax.apply_updates(p, u)
        found.append(p)
    return np.asarray(found), state


def braked(outward, inward):
    p = START
    for g in GS:
        q = p - RATE * g
        was, now = np.linalg.norm(p), np.linalg.norm(q)
        kept = outward if now > was else inward
        p = q / now * (was + kept * (now - was))
        yield p


@pytest.mark.parametrize("parts", [(0.5, 1.0), (1.0, 0.25), (0.0, 0.0), (1.0, 1.0)])
def test_a_brake_keeps_a_part_of_the_change_of_the_norm(parts):
    found, _ = run(stepax.chain(stepax.sgd(RATE), contrib.radial_brake(*parts)))
    near(found, list(braked(*parts)))


def test_a_brake_that_is_off_changes_no_bit():
    braked, _ = run(stepax.chain(stepax.sgd(RATE), contrib.radial_brake(1.0)))
    np.testing.assert_array_equal(braked, run(stepax.sgd(RATE))[0])


def test_a_brake_at_the_origin_is_finite():
    p = jnp.asarray([3.0, -4.0])
    tx = contrib.radial_brake()
    u, _ = tx.update(-p, tx.init(p), p)
    np.testing.assert_array_equal(p + u, 0)
    u, _ = tx.update(jnp.zeros(2), tx.init(p), 0 * p)
    np.testing.assert_array_equal(u, 0)


def floored(ratio, axis):
    p = START
    for g in GS:
        parts = [np.s_[...]] if axis is None else [(np.s_[:], i) for i in range(3)]
        parts = [(i,) for i in range(4)] if axis == 0 else parts
        u = g.copy()
        for at in parts:
            least, length = ratio * np.linalg.norm(p[at]), np.linalg.norm(g[at])
            if 0 < length < least:
                u[at] = g[at] / length * least
        p = p - RATE * u
        yield p


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("ratio", [0.0, 0.3825, 2.0])
def test_updates_below_a_floor_are_lengthened(ratio, axis):
    found, _ = run(stepax.chain(contrib.floor_updates(ratio, axis), stepax.sgd(RATE)))
    near(found, list(floored(ratio, axis)))


def test_vectors_have_one_floor():
    p, g = jnp.asarray([3.0, 4.0]), jnp.asarray([1e-3, 0.0])
    tx = contrib.floor_updates(0.5, 0)
    np.testing.assert_allclose(tx.update(g, tx.init(p), p)[0], [2.5, 0.0])


def blended(tau, start, blend):
    p = ema = START
    for t, g in enumerate(GS, 1):
        p = p - RATE * g
        ema = p if t <= start else ema + (p - ema) / tau
    return (1 - blend) * p + blend * ema


@pytest.mark.parametrize("blend", [0.0, 0.6, 1.0])
def test_a_blend_lies_between_the_parameters_and_their_average(blend):
    tau, start = 3, 2
    average = {"debias": False, "start": start}
    tx = stepax.averages(stepax.sgd(RATE), 1 - 1 / tau, **average)
    found, state = run(tx)
    mixed = stepax.eval_params(state, jnp.asarray(found[-1]), blend=blend)
    near(mixed, blended(tau, start, blend))


def test_a_blend_keeps_dtypes_and_what_is_not_averaged():
    p = {"w": jnp.ones(2, jnp.bfloat16), "n": jnp.arange(2), "none": None}
    state = stepax.averages(stepax.identity()).init(p)
    mixed = stepax.eval_params(state, p | {"w": 3 * p["w"]}, blend=0.5)
    assert mixed["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(mixed["w"], [2, 2])
    np.testing.assert_array_equal(mixed["n"], p["n"])


@pytest.mark.parametrize("floor, power", [(0.0, 1.2), (0.017, 1.5)])
def test_a_cooldown_by_a_power_is_a_polynomial_schedule(floor, power):
    # 2026-06-09 with t_end = 2900 and no floor.
    peak, end = 0.0375, 2900
    schedule = stepax.polynomial_schedule(peak, floor * peak, power, end)
    t = np.array([0, 1, 1450, 2899, 2900, 3125])
    left = np.clip((end - t) / end, 0, 1) ** power
    wanted = peak * (floor + (1 - floor) * left)
    # Near the end 1 - t / end has lost the digits of end.
    np.testing.assert_allclose(schedule(jnp.asarray(t)), wanted, rtol=1e-5, atol=1e-9)


def whitened(gs, b1, b2, eps):
    """SOAP's directions, of Algorithm 3, with bases that are renewed in each step."""
    first, *rest = gs
    rows, columns = (1 - b2) * first @ first.T, (1 - b2) * first.T @ first
    left, right = (np.linalg.eigh(x)[1][:, ::-1] for x in (rows, columns))
    mu = nu = 0
    yield 0 * first
    for t, g in enumerate(rest, 1):
        mu, x = b1 * mu + (1 - b1) * g, left.T @ g @ right
        nu = b2 * nu + (1 - b2) * x**2
        m, root = left.T @ mu @ right / (1 - b1**t), np.sqrt(1 - b2**t)
        yield left @ (m * root / (np.sqrt(nu) + eps)) @ right.T
        rows, columns = (
            b2 * rows + (1 - b2) * g @ g.T,
            b2 * columns + (1 - b2) * g.T @ g,
        )
        (left, i), (right, j) = renewed(rows, left), renewed(columns, right)
        nu = nu[i][:, j]


def renewed(statistic, basis):
    product = statistic @ basis
    order = np.argsort(-np.sum(basis * product, 0))
    return np.linalg.qr(product[:, order])[0], order


def orthogonal(m, steps=5, a=3.4445, b=-4.775, c=2.0315):
    x = m / (np.linalg.norm(m) + 1e-8)
    tall = len(x) > len(x.T)
    x = x.T if tall else x
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if tall else x


def test_soap_in_front_of_an_orthogonalizer_is_a_chain(x64):
    soap = contrib.scale_by_soap(0.9, 0.8, precondition_frequency=1)
    muon = contrib.scale_by_muon(beta=0.0, nesterov=False)
    tx, p = stepax.chain(soap, muon), jnp.asarray(START)
    state = tx.init(p)
    for g, wanted in zip(GS, whitened(GS, 0.9, 0.8, 1e-8), strict=True):
        u, state = jax.jit(tx.update)(jnp.asarray(g), state, p)
        near(u, orthogonal(wanted))
