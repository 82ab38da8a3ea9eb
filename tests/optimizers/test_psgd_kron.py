"""PSGD Kron is what its equations say, for every option, and stays finite."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import waves

from stepax.contrib import psgd_kron, scale_by_psgd_kron


SHAPES = {"m": (4, 3), "w": (3, 4), "v": (3,), "t": (2, 3, 4), "s": (), "one": (1, 3)}


def _gradients(steps, shapes=SHAPES):
    rng = np.random.default_rng(5)
    sizes = dict(zip(shapes, 10.0 ** rng.integers(-3, 3, len(shapes)), strict=True))
    gs = {k: sizes[k] * (1 + rng.normal(size=(steps, *s))) for k, s in shapes.items()}
    gs["m"][2] = 0  # one that is exactly zero
    return gs


# --- the equations, in NumPy ----------------------------------------------------------


def _sides(shape, merge_dims):
    if not merge_dims or len(shape) < 3:
        return shape or (1,)
    tall = (math.prod(shape[:-1]), shape[-1])
    wide = (shape[0], math.prod(shape[1:]))
    return tall if tall[1] - tall[0] <= wide[1] - wide[0] else wide


def _full(sides, mode=None, max_size=8192, min_ndim=2):
    full = [n != 1 and n <= max_size and len(sides) >= min_ndim for n in sides]
    at = max(range(len(sides)), key=lambda i: (sides[i], i))
    others = [n for i, n in enumerate(sides) if i != at]
    if (
        mode == "one_diag"
        or mode == "smart_one_diag"
        and all(n < sides[at] for n in others)
    ):
        full[at] = False
    return [False] * len(sides) if mode == "all_diag" else full


def _on(q, x, k):
    q = np.diag(q) if q.ndim == 1 else q
    return np.moveaxis(np.tensordot(q, x, (1, k)), 0, k)


def _bound(s):
    top = np.abs(s).max()
    s = s / top
    x = s[:, np.argmax(np.linalg.norm(s, axis=0))] @ s
    return np.linalg.norm(s @ (x / np.linalg.norm(x))) * top


def _fit(qs, x, v, lr):
    a, b = x, v
    for k, q in enumerate(qs):
        a = _on(q, a, k)
        b = _on(1 / q if q.ndim == 1 else np.linalg.inv(q).T, b, k)
    new = []
    for k, q in enumerate(qs):
        aa, bb = (np.moveaxis(x, k, 0).reshape(x.shape[k], -1) for x in (a, b))
        aa, bb = aa @ aa.T, bb @ bb.T
        if q.ndim == 1:
            aa, bb = np.diag(aa), np.diag(bb)
            new.append(q - lr * (aa - bb) * q / np.max(aa + bb))
        else:
            new.append(q - lr * np.triu(aa - bb) @ q / _bound(aa + bb))
    return new


def _usual(n):
    return max(0.03, min(1, math.exp(-0.001 * (n - 500))))


def _numpy(
    gs, b1=0.9, probability: Any = _usual, mean=True, lr=0.1, scale=1.0, **options
):
    """The updates of one array, and its last factors."""
    merge_dims = options.pop("merge_dims", True)
    sides = _sides(gs.shape[1:], merge_dims)
    full = _full(sides, **options)
    root = scale ** (1 / len(sides))
    qs = [
        root * (np.eye(n) if f else np.ones(n))
        for n, f in zip(sides, full, strict=True)
    ]
    mu, since, renewals, out = np.zeros(sides), 0, 0, []
    for t, g in enumerate(gs.reshape(-1, *sides), 1):
        mu = b1 * mu + (1 - b1) * g
        m = mu / (1 - b1**t)
        since += 1
        now: Any = probability(t - 1) if callable(probability) else probability
        if since >= 1 / now:
            v = np.asarray(waves(None, sides, jnp.float64))
            x = m if mean else g
            x = x + np.sqrt(2.0**-23) * np.mean(np.abs(x)) * v
            qs, m, since = _fit(qs, x, v, lr), x if mean else m, 0
            renewals += 1
            if renewals % 100 == 0:
                sizes = [np.abs(q).max() for q in qs]
                middle = np.prod(sizes) ** (1 / len(qs))
                qs = [q * middle / n for q, n in zip(qs, sizes, strict=True)]
        u = m
        for k, q in enumerate(qs):
            q = np.diag(q) if q.ndim == 1 else q
            u = _on(q.T @ q, u, k)
        u = u * min(1, 1.1 / (np.sqrt(np.mean(u**2)) + 1e-12))
        out.append(u.reshape(gs.shape[1:]))
    return np.stack(out), qs


# --- the comparison -------------------------------------------------------------------

# Arguments of Stepax and of the equations.
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": ({}, {}),
    "no mean": ({"b1": 0.0}, {"b1": 0.0}),
    "one_diag": ({"memory_save_mode": "one_diag"}, {"mode": "one_diag"}),
    "smart_one_diag": (
        {"memory_save_mode": "smart_one_diag"},
        {"mode": "smart_one_diag"},
    ),
    "all_diag": ({"memory_save_mode": "all_diag"}, {"mode": "all_diag"}),
    "of gradients": ({"momentum_into_precond_update": False}, {"mean": False}),
    "every axis": ({"merge_dims": False}, {"merge_dims": False}),
    "short": ({"max_size_triangular": 3}, {"max_size": 3}),
    "vectors": ({"min_ndim_triangular": 1}, {"min_ndim": 1}),
    "no matrices": ({"min_ndim_triangular": 3}, {"min_ndim": 3}),
    "every third": (
        {"preconditioner_update_probability": 1 / 3},
        {"probability": 1 / 3},
    ),
    "fading": (
        {"preconditioner_update_probability": lambda n: 1 / (1 + 0.4 * n)},
        {"probability": lambda n: 1 / (1 + 0.4 * n)},
    ),
    "step and scale": (
        {"precond_lr": 0.3, "precond_init_scale": 0.25},
        {"lr": 0.3, "scale": 0.25},
    ),
}


def _run(tx, gs):
    """The updates of all steps, and the last state."""
    gs = {k: jnp.asarray(g) for k, g in gs.items()}
    params = {k: jnp.ones_like(g[0]) for k, g in gs.items()}

    def step(state, g):
        u, state = tx.update(g, state, params)
        return state, u

    state, us = jax.jit(lambda gs: jax.lax.scan(step, tx.init(params), gs))(gs)
    return us, state


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_it_does_what_the_equations_say(name):
    arguments, options = SETTINGS[name]
    gs = _gradients(8)
    with jax.enable_x64(True):
        us, state = _run(scale_by_psgd_kron(sampler=waves, **arguments), gs)
        for k, g in gs.items():
            wanted, qs = _numpy(g, **options)
            np.testing.assert_allclose(us[k], wanted, rtol=1e-9, atol=1e-12)
            for q, other in zip(state.factors[k], qs, strict=True):
                np.testing.assert_allclose(q, other, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_factors_are_balanced_every_hundred_updates():
    gs = _gradients(101, {"m": (3, 2)})
    with jax.enable_x64(True):
        tx = scale_by_psgd_kron(sampler=waves, momentum_into_precond_update=False)
        for n in (99, 100, 101):
            us, state = _run(tx, {"m": gs["m"][:n]})
            wanted, qs = _numpy(gs["m"][:n], mean=False)
            np.testing.assert_allclose(us["m"], wanted, rtol=1e-7, atol=1e-10)
            sizes = [float(jnp.max(jnp.abs(q))) for q in state.factors["m"]]
            assert (sizes[0] == pytest.approx(sizes[1], rel=1e-9)) == (n == 100)


def test_the_usual_probability_falls_after_500_steps():
    tx = scale_by_psgd_kron()
    p = {"v": jnp.ones(2)}

    def step(state, _):
        _, state = tx.update(p, state, p)
        return state, state.renewals

    _, renewals = jax.lax.scan(step, tx.init(p), length=1300)
    due = np.flatnonzero(np.diff(renewals, prepend=0))
    since, wanted = 0, []
    for n in range(1300):
        since += 1
        if since >= 1 / _usual(n):
            wanted, since = [*wanted, n], 0
    assert list(due) == wanted
    assert len(due) < 900


@pytest.mark.slow
def test_what_is_drawn_depends_on_the_key_and_on_the_step():
    p = {"m": jnp.ones((4, 3)), "n": jnp.ones((4, 3))}
    _, first = _run(psgd_kron(), {k: x[None] for k, x in p.items()})
    for key in (jax.random.key(1), 1):
        _, state = _run(psgd_kron(key=key), {k: x[None] for k, x in p.items()})
        assert not jnp.allclose(state[0].factors["m"][0], first[0].factors["m"][0])
    seen = []

    def sampler(key, shape, dtype):
        jax.debug.callback(
            lambda data: seen.append(bytes(np.asarray(data))), jax.random.key_data(key)
        )
        return jax.random.normal(key, shape, dtype)

    gs = {k: jnp.ones((3, *x.shape)) for k, x in p.items()}
    _run(psgd_kron(sampler=sampler), gs)
    jax.effects_barrier()
    assert len(set(seen)) == 3


@pytest.mark.slow
def test_only_matrices_decay():
    p = {"m": jnp.ones((2, 2)), "v": jnp.ones(2)}
    zeros = jax.tree.map(jnp.zeros_like, p)
    for mask, wanted in ((None, (0.9, 1.0)), ({"m": False, "v": True}, (1.0, 1.0))):
        tx = psgd_kron(0.5, weight_decay=0.2, weight_decay_mask=mask)
        u, _ = tx.update(zeros, tx.init(p), p)
        for k, x in zip("mv", wanted, strict=True):
            np.testing.assert_allclose(p[k] + u[k], x, rtol=1e-6)


@pytest.mark.slow
def test_an_array_without_gradients_keeps_finite_factors():
    # Without a bound they would grow by a tenth at each update.
    gs = {"m": jnp.zeros((1200, 2, 2)), "v": jnp.zeros((1200, 2))}
    gs = {k: g.at[-1].set(1e-3) for k, g in gs.items()}
    us, state = _run(scale_by_psgd_kron(preconditioner_update_probability=1.0), gs)
    for x in jax.tree.leaves((us, state.factors)):
        assert jnp.isfinite(x).all()
    assert all(jnp.all(u[-1] != 0) for u in us.values())


@pytest.mark.slow
def test_factors_are_stored_as_asked():
    p = {"m": jnp.ones((4, 3), jnp.bfloat16)}
    for given, wanted in ((None, "float32"), ("bfloat16", "bfloat16")):
        tx = scale_by_psgd_kron(factor_dtype=given, mu_dtype="float32")
        state = tx.init(p)
        assert {q.dtype for q in state.factors["m"]} == {jnp.dtype(wanted)}
        _, state = tx.update(p, state, p)
        assert {q.dtype for q in state.factors["m"]} == {jnp.dtype(wanted)}
        assert state.mu["m"].dtype == jnp.float32


WRONG: dict[str, dict[str, Any]] = {
    "`memory_save_mode` is 'diag', expected one of": {"memory_save_mode": "diag"},
    "`preconditioner_update_probability` must be in (0, 1], but is 0; 1 updates the "
    "factors at every step": {"preconditioner_update_probability": 0},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_argument_is_refused(message):
    with pytest.raises(ValueError) as error:
        psgd_kron(**WRONG[message])
    assert message in str(error.value)
