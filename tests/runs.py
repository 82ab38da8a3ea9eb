"""A transformation run over some gradients, in each way that programs run one."""

import contextlib
import functools as ft
import gc
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TREES, gradients
from compare import array

import stepax


K = 3  # gradients to a step, in most tests

# A branch of a program is fused by itself, so that a product and a sum that are one
# operation in the one program may be two in the other: two ulps a step, of moments that
# are carried on, and updates that are differences of larger numbers.
close = ft.partial(np.testing.assert_allclose, rtol=3e-6, atol=1e-9)
equal = np.testing.assert_array_equal


def compare(check, x, y):
    """Check each leaf of one tree against that of the other."""
    x, y = jax.tree.leaves(x), jax.tree.leaves(y)
    assert len(x) == len(y)
    for a, b in zip(x, y, strict=True):
        check(array(a), array(b))


def eager(tx, gs, p, state=None, **extra) -> Any:
    """All updates, and the last state."""
    state, out = tx.init(p) if state is None else state, []
    for g in gs:
        u, state = tx.update(g, state, p, **extra)
        out.append(u)
    return jax.tree.map(lambda *x: jnp.stack(x), *out), state


def jitted(tx, gs, p, **extra) -> Any:
    step = jax.jit(lambda g, s, p: tx.update(g, s, p, **extra))
    return eager(stepax.GradientTransformation(tx.init, step), gs, p)


def scanned(tx, gs, p, **extra) -> Any:
    def step(state, g):
        u, state = tx.update(g, state, p, **extra)
        return state, u

    gs = jax.tree.map(lambda *x: jnp.stack(x), *gs)
    return jax.jit(lambda gs, p: jax.lax.scan(step, tx.init(p), gs)[::-1])(gs, p)


def traced(tx, gs, p, state=None, **extra) -> Any:
    """All updates, and the last state, of a step that is traced once.

    The steps run operation by operation: each operation is compiled once for all
    tests, but each program by itself, which takes most of the time of a test.  A state
    that is a carry of `scan` and compiles once is one that does not trace again.
    """
    traces, out = [], []

    @jax.jit
    def step(g, s, p):
        traces.append(None)
        return tx.update(g, s, p, **extra)

    state = tx.init(p) if state is None else state
    for g in gs:
        step.trace(g, state, p)
        with jax.disable_jit():
            u, state = tx.update(g, state, p, **extra)
        out.append(u)
    step.trace(gs[-1], state, p)
    assert len(traces) == 1, "the type of the state changed"
    return jax.tree.map(lambda *x: jnp.stack(x), *out), state


def mapped(tx, gs, p, **extra) -> Any:
    two = lambda t: jax.tree.map(lambda x: jnp.stack([x, x]), t)
    both = jax.vmap(lambda gs, p: eager(tx, gs, p, **extra))(two(gs), two(p))
    return jax.tree.map(lambda x: x[1], both)


RUNS = {"eager": eager, "jit": jitted, "scan": scanned, "vmap": mapped}
everyhow = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


def parameters():
    return TREES["dict"]()


def many(n):
    """Gradients, different at each step."""
    return [gradients(parameters(), i) for i in range(n)]


def with_value(gs, at, value):
    """The gradients, one number of one of them replaced."""
    bad = {**gs[at], "w": gs[at]["w"].at[0, 1].set(value)}
    return [*gs[:at], bad, *gs[at + 1 :]]


@contextlib.contextmanager
def compilations():
    """A list that grows with each compilation."""
    found = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "backend_compile" in event:
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@contextlib.contextmanager
def no_leaks() -> Iterator[None]:
    """An error if a tracer outlives its trace.

    JAX then asks which of all objects refer to it: those that were there before are
    kept out of that search, which takes a second of each where tests have run.
    """
    gc.freeze()
    try:
        with jax.checking_leaks():
            yield
    finally:
        gc.unfreeze()
