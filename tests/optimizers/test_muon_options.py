"""Muon as others write it: their means, coefficients, factors and decay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import newton_schulz

import stepax
from stepax.contrib import muon, scale_by_muon


SHAPES = {"tall": (5, 3), "wide": (2, 6)}
RATE, BETA, DECAY = 0.1, 0.8, 0.3


def singular(x, rows, safety=1.0):
    """The polynomials a s + b s³ + c s⁵ of singular values, one for each row."""
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    s = s / (safety * np.sqrt(np.sum(s**2)))
    for a, b, c in rows:
        s = a * s + b * s**3 + c * s**5
    return u * s @ vt


JORDAN = [(3.4445, -4.7750, 2.0315)]
EXPRESS = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
]
LONG = [
    (8.2051, -22.9019, 16.4607),
    (4.0664, -2.8612, 0.5184),
    (3.9096, -2.8234, 0.5250),
    (3.2856, -2.4153, 0.4853),
    (2.2779, -1.6198, 0.3985),
    (1.8726, -1.2307, 0.3585),
    (1.8564, -1.2132, 0.3568),
    (1.8750, -1.2500, 0.3750),
]
ITERATIONS = {
    ("muon", 5): (JORDAN * 5, 1),
    ("polar_express", 5): (EXPRESS, 1.02),
    ("polar_express", 2): (EXPRESS[:2], 1.02),
    ("polar_express", 7): (EXPRESS + EXPRESS[-1:] * 2, 1.02),
    ("polar_express_long", 3): (LONG[:3], 1),
    ("polar_express_long", 12): (LONG + LONG[-1:] * 4, 1),
    ("polar_express_long", 0): ([], 1),
}
FACTORS = {
    "jordan": lambda i, o: max(1, o / i) ** 0.5,
    "spectral": lambda i, o: (o / i) ** 0.5,
    "rms": lambda i, o: 0.2 * max(i, o) ** 0.5,
    None: lambda i, o: 1,
}


# Rounding grows by at most the product of the first coefficients, 8.2 · 4.1 · 3.9 · ...
# < 4e3, on its way through the iteration.
@pytest.mark.few(1)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("steps", ITERATIONS, ids=lambda x: f"{x[0]}, {x[1]}")
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_an_iteration_applies_one_polynomial_a_step(shape, steps):
    x = np.random.default_rng(0).normal(size=shape)
    found = jax.jit(newton_schulz(steps[0], steps[1], 0.0))(jnp.asarray(x))
    np.testing.assert_allclose(found, singular(x, *ITERATIONS[steps]), atol=1e-11)


def path(tx, start, gs):
    p, out = {k: jnp.asarray(x) for k, x in start.items()}, []
    state = tx.init(p)
    for t in range(len(next(iter(gs.values())))):
        g = {k: jnp.asarray(x[t]) for k, x in gs.items()}
        updates, state = jax.jit(tx.update)(g, state, p)
        p = stepax.apply_updates(p, updates)
        out.append(p)
    return out


def written_out(start, gs, factor, nesterov, cautious):
    """p - rate (f O(w) + decay p), with Jordan's mean, which is not corrected."""
    p, m = np.array(start), np.zeros_like(start)
    for g in gs:
        m = BETA * m + (1 - BETA) * g
        w = BETA * m + (1 - BETA) * g if nesterov else m
        u = factor(*p.shape) * singular(w, JORDAN * 5)
        decaying = np.where(u * p >= 0, p, 0) if cautious else p
        p = p - RATE * (u + DECAY * decaying)
        yield p


OPTIONS = [(f, n, c) for f in FACTORS for n in (False, True) for c in (False, True)]


# 20 steps of the rounding of the iterations above.
@pytest.mark.few(1)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("factor", "nesterov", "cautious"), OPTIONS)
def test_steps_are_those_of_jordan_with_any_factor_and_decay(
    factor, nesterov, cautious
):
    random = np.random.default_rng(1)
    start = {k: random.normal(size=shape) for k, shape in SHAPES.items()}
    gs = {k: random.normal(size=(6, *shape)) for k, shape in SHAPES.items()}
    decay = lambda count: DECAY
    tx = muon(
        RATE,
        beta=BETA,
        eps=0.0,
        weight_decay=stepax.weight_decay(decay, "cautious") if cautious else decay,
        nesterov=nesterov,
        bias_correction=False,
        shape_factor=factor,
    )
    found = path(tx, start, gs)
    for k in SHAPES:
        expected = written_out(start[k], gs[k], FACTORS[factor], nesterov, cautious)
        for p, q in zip(found, expected, strict=True):
            np.testing.assert_allclose(p[k], q, atol=1e-10)


@pytest.mark.slow
def test_adam_has_an_eps_and_a_momentum_of_its_own():
    p = {"b": jnp.asarray([1.0, -2.0])}
    g = {"b": jnp.asarray([[0.5, 1.0], [1.0, -0.25]])}
    for eps, nesterov in ((None, None), (0.1, None), (None, False), (0.1, False)):
        tx = muon(RATE, eps=1e-3, adam_eps=eps, adam_nesterov=nesterov)
        adam = stepax.adamw(
            RATE,
            eps=1e-3 if eps is None else eps,
            weight_decay=0.0,
            nesterov=nesterov is None,
        )
        for x, y in zip(path(tx, p, g), path(adam, p, g), strict=True):
            np.testing.assert_array_equal(x["b"], y["b"])


def test_a_vector_gets_a_mean_that_is_not_corrected():
    tx = scale_by_muon(beta=0.5, bias_correction=False, nesterov=False)
    p = {"b": jnp.zeros(2)}
    found, _ = tx.update({"b": jnp.asarray([1.0, -4.0])}, tx.init(p))
    np.testing.assert_array_equal(found["b"], [0.5, -2.0])


DECAYS = {"number": 0.5, "schedule": lambda count: 0.5}


@pytest.mark.parametrize("name", DECAYS)
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_what_the_step_makes_smaller_decays(name, dtype):
    p = np.asarray([2.0, 2.0, -2.0, -2.0, 2.0, 0.0], dtype)
    u = np.asarray([1.0, -1.0, 1.0, -1.0, 0.0, 1.0], dtype)
    if dtype == np.complex64:
        p, u = p * 1j, u * (1 + 1j)  # the angle between them counts: 45 or 135 degrees
    tree = {"a": jnp.asarray(u), "b": jnp.asarray(u)}
    params = {"a": jnp.asarray(p), "b": jnp.asarray(p)}
    decay = stepax.weight_decay(DECAYS[name], "cautious", mask={"a": True, "b": False})
    tx = stepax.with_weight_decay(stepax.scale(-1.0), decay, 1.0)
    found, _ = tx.update(tree, tx.init(params), params)
    found = jax.tree.map(jnp.negative, found)
    decays = np.where(np.real(u * p.conj()) >= 0, p, 0)
    assert 0 < np.count_nonzero(decays) < np.count_nonzero(p)
    np.testing.assert_allclose(found["a"], u + np.asarray(0.5, dtype) * decays)
    np.testing.assert_array_equal(found["b"], u)
