"""SOAP, KL-Shampoo and SPlus with options that no golden has."""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from stepax import contrib


RATE, STEPS = 0.1, 6
# No axis is longer than the product of the others: its statistics would be singular.
SHAPES = {"square": (4, 4), "stack": (3, 4, 4), "vector": (3,), "scalar": ()}


def _draws(seed, shapes=SHAPES):
    rng = np.random.default_rng(seed)
    return {k: rng.normal(size=shape) for k, shape in shapes.items()}


def _run(tx, shapes=SHAPES):
    p = jax.tree.map(jnp.asarray, _draws(0, shapes))
    state, update, found = tx.init(p), jax.jit(tx.update), []
    for t in range(STEPS):
        u, state = update(jax.tree.map(jnp.asarray, _draws(t + 1, shapes)), state, p)
        p = stepax.apply_updates(p, u)
        found.append(p)
    return found


def _along(x, matrix, axis):
    return np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)


def _turn(x, bases, inverse=False):
    for axis, q in bases.items():
        x = _along(x, q if inverse else q.T, axis)
    return x


def _gram(g, axis):
    m = np.moveaxis(g, axis, 0).reshape(g.shape[axis], -1)
    return m @ m.T


def _vectors(x):
    return np.linalg.eigh(x)[1][:, ::-1]


def _rms(x):
    return np.sqrt(np.mean(x**2))


def soap_path(
    p,
    grads,
    axes,
    b1=0.95,
    b2=0.95,
    b3=None,
    eps=1e-8,
    every=10,
    decay=0.01,
    normalize=False,
    correct=True,
    rate=lambda t: RATE,
):
    """The parameters after each step, from section 3 of the paper."""
    b3, m, v = b2 if b3 is None else b3, np.zeros_like(p), np.zeros_like(p)
    stats = {i: (1 - b3) * _gram(grads[0], i) for i in axes}
    bases, path = {i: _vectors(x) for i, x in stats.items()}, [p]
    for k, g in enumerate(grads[1:], 1):
        x = _turn(g, bases)
        m, v = b1 * m + (1 - b1) * x, b2 * v + (1 - b2) * x**2
        u = _turn(m / (np.sqrt(v) + eps), bases, inverse=True)
        u = u / _rms(u) if normalize else u
        u = u * (np.sqrt(1 - b2**k) / (1 - b1**k) if correct else 1)
        p = (p - rate(k) * u) * (1 - rate(k) * decay)
        path.append(p)
        stats = {i: b3 * s + (1 - b3) * _gram(g, i) for i, s in stats.items()}
        if k % every == 0:
            m = _turn(m, bases, inverse=True)
            for i, s in stats.items():
                order = np.argsort(-np.diag(bases[i].T @ s @ bases[i]))
                v = np.take(v, order, i)
                bases[i] = np.linalg.qr(s @ bases[i][:, order])[0]
            m = _turn(m, bases)
    return path


OPTIONS = {
    "default": ({}, {}),
    "every 2": ({"precondition_frequency": 2}, {"every": 2}),
    "beta": (
        {"shampoo_beta": 0.8, "b1": 0.9, "b2": 0.99},
        dict(b3=0.8, b1=0.9, b2=0.99),
    ),
    "normalized": ({"normalize_grads": True}, {"normalize": True}),
    "uncorrected": (
        {"bias_correction": False, "eps": 0.1},
        dict(correct=False, eps=0.1),
    ),
    "rate falls": (
        {"learning_rate": lambda count: RATE / (1 + count)},
        {"rate": lambda k: RATE / (1 + k)},
    ),
    "decay": ({"weight_decay": 0.5}, {"decay": 0.5}),
    "short axes": ({"max_precond_dim": 3, "precondition_frequency": 1}, {"every": 1}),
    "everything": (
        {
            "precondition_frequency": 1,
            "normalize_grads": True,
            "max_precond_dim": np.inf,
        },
        {"every": 1, "normalize": True},
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("leaf", SHAPES)
@pytest.mark.parametrize("name", OPTIONS)
def test_soap_follows_its_equations(name, leaf):
    ours, theirs = OPTIONS[name]
    shape = SHAPES[leaf]
    fits = lambda n: n <= ours.get("max_precond_dim", 10000)
    axes = [i for i, n in enumerate(shape) if len(shape) > 1 and fits(n)]
    with jax.enable_x64(True):
        found = _run(contrib.soap(**{"learning_rate": RATE, **ours}), {leaf: shape})
    draws = [_draws(t, {leaf: shape})[leaf] for t in range(STEPS + 1)]
    for x, y in zip(found, soap_path(draws[0], draws[1:], axes, **theirs), strict=True):
        np.testing.assert_allclose(x[leaf], y, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_vectors_have_a_basis_if_they_are_asked_to():
    # The statistics of one vector are singular, so that the first two steps are equal
    # for any basis of the rest: of length 2 there is but one, up to signs.
    with jax.enable_x64(True):
        tx = contrib.soap(RATE, precondition_1d=True, precondition_frequency=1)
        found = _run(tx, {"v": (2,)})
    draws = [_draws(t, {"v": (2,)})["v"] for t in range(STEPS + 1)]
    for x, y in zip(found, soap_path(draws[0], draws[1:], [0], every=1), strict=True):
        np.testing.assert_allclose(x["v"], y, rtol=1e-9, atol=1e-9)


MERGES = {"two": ((2, 2, 4), 4, (4, 4)), "none": ((3, 4, 4), 5, (3, 4, 4))}


@pytest.mark.slow
@pytest.mark.parametrize("name", MERGES)
def test_merged_axes_are_one_axis(name):
    shape, most, merged = MERGES[name]
    with jax.enable_x64(True):
        make = ft.partial(contrib.soap, RATE, precondition_frequency=1)
        found = _run(make(merge_dims=True, max_precond_dim=most), {"x": shape})
        draws = [_draws(t, {"x": shape})["x"].reshape(merged) for t in range(STEPS + 1)]
    wanted = soap_path(draws[0], draws[1:], range(len(merged)), every=1)
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x["x"].reshape(merged), y, rtol=1e-9, atol=1e-9)


def kl_path(p, grads, soap, eps=1e-8, every=10, damped=False, first=0.1, most=4000):
    """The same of KL-Shampoo and KL-SOAP for a matrix."""
    b1, b2, decay, d = 0.9, 0.98, 0.01, p.shape
    stats = [(1 - b2) * n / p.size * _gram(grads[0], i) for i, n in enumerate(d)]
    bases = {i: _vectors(s) for i, s in enumerate(stats)}
    roots = [np.full(n, first**-0.5) for n in d]
    m, v, path = np.zeros(d), np.zeros(d), [p]
    for k, g in enumerate(grads[1:], 1):
        y = _turn(g, bases)
        m, v = b1 * m + (1 - b1) * y, b2 * v + (1 - b2) * y**2
        r = np.outer(*roots)
        u = m / (np.sqrt(v) + eps) if soap else m * r / (1 + eps * r)
        p = (p - RATE * _turn(u, bases, inverse=True)) * (1 - RATE * decay)
        path.append(p)
        w = [g @ bases[1] * roots[1], roots[0][:, None] * (bases[0].T @ g)]
        values = [np.mean((y * roots[1]) ** 2, 1), np.mean((y.T * roots[0]) ** 2, 1)]
        if damped:
            values = [
                x + eps * np.mean(roots[1 - i] ** 2) for i, x in enumerate(values)
            ]
        for i, n in enumerate(d):
            stats[i] = b2 * stats[i] + (1 - b2) * n / p.size * _gram(w[i], i)
            value = b2 * roots[i] ** -2 + (1 - b2) * values[i]
            roots[i] = np.minimum(value**-0.5, max(10, min(n, most)))
        if k % every == 0:
            m = _turn(m, bases, inverse=True)
            bases = {i: np.linalg.qr(s @ bases[i])[0] for i, s in enumerate(stats)}
            m = _turn(m, bases)
    return path


KL_OPTIONS = {
    "default": ({}, {}),
    "every 2": ({"precondition_frequency": 2}, {"every": 2}),
    "damped": (
        {"damped_statistics": True, "eps": 0.1, "precondition_frequency": 1},
        {"damped": True, "eps": 0.1, "every": 1},
    ),
    "small roots": (
        {"init_factor": 1e-4, "max_inverse_root": 2},
        dict(first=1e-4, most=2),
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("is_soap", [False, True])
@pytest.mark.parametrize("name", KL_OPTIONS)
def test_kl_shampoo_and_soap_follow_their_equations(name, is_soap):
    ours, theirs = KL_OPTIONS[name]
    make = contrib.kl_soap if is_soap else contrib.kl_shampoo
    shapes = {"x": (4, 4)}
    with jax.enable_x64(True):
        found = _run(make(RATE, **ours), shapes)
    draws = [_draws(t, shapes)["x"] for t in range(STEPS + 1)]
    wanted = kl_path(draws[0], draws[1:], is_soap, **theirs)
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x["x"], y, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_splus_averages_before_it_decays_and_only_where_the_mask_says():
    shapes = {"w": (4, 4), "b": (3,)}
    with jax.enable_x64(True):
        tx = contrib.splus(
            RATE,
            ema_rate=0.5,
            weight_decay=0.5,
            weight_decay_mask={"w": True, "b": False},
        )
        p = jax.tree.map(jnp.asarray, _draws(0, shapes))
        g = jax.tree.map(jnp.asarray, _draws(1, shapes))
        u, state = tx.update(g, tx.init(p), p)
        at = stepax.eval_params(state, p)
        assert jax.tree.all(
            jax.tree.map(np.array_equal, stepax.eval_params(tx.init(p), p), p)
        )
    factors = {"w": RATE * 2 / 8, "b": RATE * 0.001}
    for k, x in _draws(0, shapes).items():
        after = x - factors[k] * np.sign(np.asarray(g[k]))
        np.testing.assert_allclose(at[k], after, rtol=1e-12)
        decay = factors[k] * 0.5 if k == "w" else 0
        np.testing.assert_allclose(
            x + np.asarray(u[k]), after * (1 - decay), rtol=1e-12
        )
