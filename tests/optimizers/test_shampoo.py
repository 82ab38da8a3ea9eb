"""Shampoo is what its equations say, for every option, and stays finite."""

import itertools as it
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from stepax.contrib import scale_by_shampoo, shampoo


SHAPES = {"m": (4, 3), "v": (3,), "t": (2, 3, 4), "s": (), "one": (1, 3)}


def _gradients(steps, shapes=SHAPES):
    rng = np.random.default_rng(5)
    sizes = dict(zip(shapes, 10.0 ** rng.integers(-2, 2, len(shapes)), strict=True))
    gs = {k: sizes[k] * (1 + rng.normal(size=(steps, *s))) for k, s in shapes.items()}
    gs[next(iter(shapes))][2] = 0  # one that is exactly zero
    return gs


# --- the equations, in NumPy ----------------------------------------------------------


def _on(r, x, k):
    return np.moveaxis(np.tensordot(r, x, (1, k)), 0, k)


def _root(matrix, eps, exponent):
    values, vectors = np.linalg.eigh(matrix)
    values = values + eps - min(0, values.min())
    return vectors @ np.diag(values**-exponent) @ vectors.T


def _direction(
    gs,
    *,
    freq=1,
    start=-1,
    b1=0.9,
    b2=1.0,
    b3=None,
    eps=1e-6,
    graft=None,
    graft_b2=0.999,
    graft_eps=1e-8,
    correct=True,
    powers=None,
    kl=False,
):
    """The directions of one array."""
    n = gs[0].ndim
    b3, start = b1 if b3 is None else b3, freq if start == -1 else start
    L = [np.zeros((d, d)) for d in gs[0].shape]
    R = [np.eye(d) for d in gs[0].shape]
    m, A, out = 0 * gs[0], 0 * gs[0], []
    for t, g in enumerate(gs, 1):
        for k in range(n):
            x = g
            for j in range(n):
                x = _on(R[j], x, j) if kl and j != k else x
            x = np.moveaxis(x, k, 0).reshape(x.shape[k], -1)
            L[k] = L[k] + x @ x.T if b2 == 1 else b2 * L[k] + (1 - b2) * x @ x.T
        if (t % freq == 0 and t > start) or t == start:
            c = 1 - b2**t if correct and b2 < 1 else 1
            power = (powers or {}).get(n, 1 / (2 * n))
            R = [_root(x / c, eps, power) for x in L]
        f = b3 * m + (1 - b3) * g
        f = f / (1 - b3 * b1 ** (t - 1)) if correct else f
        f = g if b1 == 0 else f
        m = b1 * m + (1 - b1) * g
        s = f
        for k in range(n):
            s = _on(R[k], s, k)
        if graft:
            A = A + g**2 if graft == "adagrad" else graft_b2 * A + (1 - graft_b2) * g**2
            hat = A / (1 - graft_b2**t) if graft == "adam" else A
            like = f if graft == "sgd" else f / (np.sqrt(hat) + graft_eps)
            s = s * np.linalg.norm(like) / (np.linalg.norm(s) + 1e-16)
            s = like if t < start else s
        out.append(s)
    return np.stack(out)


def _numpy(gs, p, lr=0.1, decay=0.0, momentum=0.0, nesterov=False, block=99, **options):
    """The parameters after each step."""
    shape = p.shape or (1,)
    gs, p, us = gs.reshape(-1, *shape), p.reshape(shape), np.zeros((len(gs), *shape))
    for corner in it.product(*(range(0, n, block) for n in shape)):
        at = tuple(slice(i, i + block) for i in corner)
        us[(slice(None), *at)] = _direction(gs[(slice(None), *at)], **options)
    M, out = 0 * p, []
    for u in us:
        s = u + decay * p
        M = momentum * M + s
        p = p - lr * (s + momentum * M if nesterov else M)
        out.append(p)
    return np.stack(out)


# Arguments of Stepax and of the equations.
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": ({}, {}),
    "means": ({"b2": 0.9}, {"b2": 0.9}),
    "no mean": ({"b1": 0.0}, {"b1": 0.0}),
    "two means": ({"b1": 0.9, "b3": 0.6}, {"b3": 0.6}),
    "uncorrected": (
        {"b2": 0.9, "bias_correction": False},
        {"b2": 0.9, "correct": False},
    ),
    "every third": ({"precondition_frequency": 3}, {"freq": 3}),
    "from the fifth": (
        {
            "precondition_frequency": 2,
            "start_preconditioning_step": 5,
            "grafting": "adam",
        },
        {"freq": 2, "start": 5, "graft": "adam"},
    ),
    "late": ({"start_preconditioning_step": 3}, {"start": 3}),
    "exponents": (
        {"inverse_exponents": {1: 1.0, 2: 0.5}},
        {"powers": {1: 1.0, 2: 0.5}},
    ),
    "kl": (
        {"statistics": "kl", "b2": 0.9, "precondition_frequency": 2},
        {"kl": True, "b2": 0.9, "freq": 2},
    ),
    "momentum": (
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.9, "decay": 0.1},
    ),
    "nesterov": (
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True, "decay": 0.1},
    ),
    "blocks": ({"block_size": 2}, {"block": 2}),
    "blocks of a kind": (
        {"block_size": 3, "grafting": "sgd"},
        {"block": 3, "graft": "sgd"},
    ),
} | {
    f"grafting {kind}": (
        {"grafting": kind, "grafting_b2": 0.8, "grafting_eps": 1e-3},
        {"graft": kind, "graft_b2": 0.8, "graft_eps": 1e-3},
    )
    for kind in ("sgd", "adagrad", "rmsprop", "adam")
}


def _run(tx, gs, p=None):
    """The parameters after each step, and the last state."""
    gs = {k: jnp.asarray(g) for k, g in gs.items()}
    p = {k: jnp.ones_like(g[0]) for k, g in gs.items()} if p is None else p

    def step(carry, g):
        p, state = carry
        u, state = tx.update(g, state, p)
        p = stepax.apply_updates(p, u)
        return (p, state), p

    (_, state), ps = jax.jit(lambda gs: jax.lax.scan(step, (p, tx.init(p)), gs))(gs)
    return ps, state


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SETTINGS)
def test_it_does_what_the_equations_say(name):
    arguments, options = SETTINGS[name]
    gs = _gradients(7)
    with jax.enable_x64(True):
        ps, _ = _run(shampoo(0.1, eps=1e-6, **arguments), gs)
        for k, g in gs.items():
            wanted = _numpy(g, np.ones(g.shape[1:]), **options).reshape(g.shape)
            # Singular statistics amplify what is rounded: by 1e6, the inverse of `eps`,
            # and with "kl", which puts roots into statistics, by more.
            np.testing.assert_allclose(ps[k], wanted, rtol=1e-7, atol=1e-8)


@pytest.mark.slow
def test_numbers_may_be_injected():
    gs = _gradients(4, {"m": (4, 3)})
    for b1, b2 in ((0.0, 1.0), (0.9, 0.8)):
        given = {"b1": b1, "b2": b2, "momentum": 0.5, "precondition_frequency": 2}
        with jax.enable_x64(True):
            wanted, _ = _run(shampoo(0.1, eps=1e-6, **given), gs)
            tx = stepax.inject_hyperparams(shampoo)(0.1, eps=1e-6, **given)
            found, _ = _run(tx, gs)
        np.testing.assert_allclose(found["m"], wanted["m"], rtol=1e-9)


def test_state_that_is_not_needed_is_not_kept():
    p = {"m": jnp.ones((4, 3))}
    state = scale_by_shampoo(b1=0.0).init(p)
    assert (state.mu, state.nu) == ({"m": ()}, {"m": ()})
    assert [x.shape for x in state.roots["m"]] == [(1, 4, 4), (1, 3, 3)]
    state = scale_by_shampoo(grafting="adam", block_size=2).init(p)
    assert [x.shape for x in state.statistics["m"]] == [
        *[(2, 2, 2), (2, 2, 2)],
        *[(2, 2, 2), (2, 1, 1)],
    ]
    assert state.mu["m"].shape == state.nu["m"].shape == (4, 3)


HARD = {
    "zeros": np.zeros((4, 3)),
    "rank 1": np.ones((4, 3)),
    "large": 1e30 * np.ones((4, 3)),
    "largest": 1e38 * np.eye(4, 3),  # of which two can be added
    "small": 1e-30 * np.ones((4, 3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e3])
@pytest.mark.parametrize("statistics", ["classic", "kl"])
@pytest.mark.parametrize("name", HARD)
def test_everything_stays_finite(name, statistics, eps):
    g = np.stack([np.ones((4, 3)), *[HARD[name]] * 3, np.eye(4, 3)])
    cases: list[tuple[float, Any]] = [(1.0, None), (0.9, "adagrad")]
    for b2, grafting in cases:
        tx = scale_by_shampoo(
            b2=b2, grafting=grafting, eps=eps, statistics=statistics, b1=0.5
        )
        ps, state = _run(tx, {"m": jnp.asarray(g, jnp.float32)})
        for x in jax.tree.leaves(state):
            assert jnp.isfinite(x).all()
        assert jnp.isfinite(ps["m"][0]).all()


WRONG: dict[str, dict[str, Any]] = {
    "`grafting` is 'lion', expected one of": {"grafting": "lion"},
    "`statistics` is 'k', expected one of": {"statistics": "k"},
    "`block_size` must be >= 1, but is 0": {"block_size": 0},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_argument_is_refused(message):
    with pytest.raises(ValueError) as error:
        shampoo(**WRONG[message])
    assert message in str(error.value)
