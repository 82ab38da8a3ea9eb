"""Outside of `jit`, optimizers that differ in numbers share what was compiled."""

import functools as ft
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ARGUMENTS, make, rows
from keywords import keywords
from runs import no_leaks
from test_budget import compilations

import stepax
from stepax._engine.step import programs


P = {"w": np.linspace(-1, 2, 6, dtype=np.float32).reshape(3, 2)}


def numbers(row) -> dict[str, float]:
    """The arguments of a factory that are floating-point numbers."""
    parameters = inspect.signature(row.factory).parameters.values()
    given = {p.name: ARGUMENTS.get(p.name, p.default) for p in parameters}
    return {k: x for k, x in given.items() if isinstance(x, float)}


def others(row, n: int) -> dict[str, float]:
    """Other values of all of them, each a little smaller, so that ranges hold."""
    return {k: x * (1 - 0.0037 * n) for k, x in numbers(row).items() if x}


def steps(tx, n: int = 2) -> list:
    state, found = tx.init(P), []
    for i in range(n):
        g = jax.tree.map(lambda p, i=i: jnp.asarray(p * 0.5 + 0.1 * i), P)
        u, state = tx.update(g, state, P, **keywords(P))
        found += jax.tree.leaves((u, state))
    return [x for x in found if not jnp.issubdtype(x.dtype, jax.dtypes.extended)]


ROWS = [q for q in rows() if others(q.values[0], 1)]


@pytest.mark.few(1)
@pytest.mark.parametrize("row", ROWS)
def test_other_numbers_compile_nothing(row, monkeypatch):
    for n in (0, 1):
        steps(make(row, **others(row, n)))
    found = []
    seen = lambda: found.append(steps(make(row, **others(row, 2))))
    assert compilations(seen) == 0
    # A program that has the numbers as its literals rounds as often.  Of a * x + b * y
    # LLVM fuses one product or the other, which is half a unit in the last place of a
    # product; two steps add up a few of these.
    monkeypatch.setattr(programs.Calls, "_run", lambda self, *a: None)
    for x, y in zip(found[0], steps(make(row, **others(row, 2))), strict=True):
        assert x.dtype == y.dtype and x.weak_type == y.weak_type
        largest = np.max(np.abs(y), initial=0)
        np.testing.assert_allclose(x, y, rtol=0, atol=4 * 2.0**-23 * largest)


@pytest.mark.slow
def test_the_bits_are_those_of_literals():
    """What XLA does with literals is done before they are taken out."""
    x = np.linspace(0.1, 3, 1000, dtype=np.float32)
    s = jnp.float32(0.77)
    formulas = {
        "quotient": lambda x, s, a, b: x / a,
        "products": lambda x, s, a, b: x * a * b,
        "product and quotient": lambda x, s, a, b: x * a / b,
        "sums": lambda x, s, a, b: x + a - b,
        "scalar": lambda x, s, a, b: (x * a) * s,
        "choice": lambda x, s, a, b: jnp.where(a > 0.5, 1.0, 1.0 - a) * x,
        "power": lambda x, s, a, b: jax.lax.pow(x, jnp.float32(3 * a)),
        "double": lambda x, s, a, b: (1 - a) * x,
        "nested": lambda x, s, a, b: jax.jit(lambda x: a * jnp.clip(x, b, 1.3))(x),
        "derivative": lambda x, s, a, b: jax.nn.softplus(a * x),
        "loop": lambda x, s, a, b: jax.lax.fori_loop(0, 3, lambda i, y: y * a, x),
    }
    for name, f in formulas.items():
        for a, b in ((0.3, 0.7), (0.31, 0.77), (1.0, -1.0)):
            g = ft.partial(f, a=a, b=b)
            found, wanted = programs.Shared(g, "", [None])(x, s), jax.jit(g)(x, s)
            assert found.tobytes() == wanted.tobytes(), name


def test_branches_on_numbers_are_taken_anew():
    for decay in (0.0, 0.1, 0.2, 0.0):
        u, _ = (tx := stepax.adamw(0.1, weight_decay=decay)).update(P, tx.init(P), P)
        other, _ = jax.jit(tx.update)(P, tx.init(P), P)
        np.testing.assert_allclose(u["w"], other["w"], rtol=1e-6)


def test_branches_may_call_functions_that_are_jitted():
    def run(a):
        sides = lambda x: jnp.sort(x), lambda x: x  # `sort` is a call in the branch
        f = lambda x, s: jax.lax.cond(s > 0, *sides, x) * a
        return programs.Shared(f, "", [None])(jnp.arange(3.0), jnp.float32(1))

    run(0.3)
    assert compilations(lambda: run(0.7)) == 0


@pytest.mark.parametrize(
    "make", [lambda: lambda t: 0.1, lambda: lambda t, b=0.1: b / (t + 1)]
)
def test_equal_functions_compile_once(make):
    def run():
        tx = stepax.adamw(make(), mask=lambda p: jax.tree.map(lambda x: True, p))
        steps(tx)

    run()
    assert compilations(run) == 0


def test_few_programs_are_kept():
    assert 16 <= (programs._compiled.cache_info().maxsize or 0) <= 512


def whole(params):
    return jax.tree.map(lambda p: True, params)


def test_a_tracer_in_a_default_does_not_leak():
    @jax.jit
    def step(x):
        tx = stepax.adamw(lambda t, b=x: b, mask=lambda p, b=x: whole(p))
        return tx.update(P, tx.init(P), P)

    with no_leaks():
        u, _ = step(jnp.float32(0.1))
    np.testing.assert_allclose(jnp.abs(u["w"]), 0.1, rtol=1e-3)


def test_constants_in_a_trace_leave_nothing_behind():
    tx = stepax.chain(stepax.clip_by_global_norm(0.3), stepax.adamw(0.0123))
    state = tx.init(P)
    programs._joins.cache_clear()
    with no_leaks():
        inside, _ = jax.jit(lambda x: tx.update(P, state, P))(0.0)
    outside, _ = tx.update(P, state, P)
    np.testing.assert_allclose(inside["w"], outside["w"], rtol=1e-6)


N = programs.TOGETHER


def vectors(n: int, size: int = 6) -> dict[str, jax.Array]:
    return {f"{i:03}": jnp.arange(1.0 + i, size + i + 1) for i in range(n)}


def sizes_of_runs(monkeypatch) -> list[int]:
    """How many calls each program takes, in a list that grows."""
    found, once = [], programs._Run.__call__

    def count(self, common, rows, arrays):
        found.append(len(rows))
        return once(self, common, rows, arrays)

    monkeypatch.setattr(programs._Run, "__call__", count)
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["update", "step"])
def test_small_arrays_of_one_shape_run_together(how, monkeypatch):
    p = {**vectors(2 * N + 2), "other": jnp.ones((2, 3)), "none": None}
    g = jax.tree.map(lambda x: 0.1 * x, p)
    tx = stepax.chain(stepax.clip_by_block_rms(1.0), stepax.adamw(1e-2))
    state = tx.init(p)
    take = ft.partial(stepax.step, tx) if how == "step" else tx.update
    found = sizes_of_runs(monkeypatch)
    together = take(g, state, p)
    assert sorted(found) == [1, 1, 1, N, N]
    assert compilations(lambda: take(g, together[1], p)) == 0
    monkeypatch.setattr(programs, "TOGETHER", 10**6)
    found.clear()
    alone = take(g, state, p)
    assert found == [1] * (2 * N + 3)
    for x, y in zip(*map(jax.tree.leaves, (together, alone)), strict=True):
        # LLVM may contract another product with a sum in a longer program.
        np.testing.assert_allclose(x, y, rtol=2 * 2.0**-23)


def test_statistics_of_leaves_run_together(monkeypatch):
    p, tx = vectors(N), stepax.contrib.prodigy()
    found = sizes_of_runs(monkeypatch)
    tx.update(p, tx.init(p), p)
    assert found == [N, N]


def test_what_is_large_or_on_another_device_runs_by_itself(monkeypatch):
    monkeypatch.setattr(programs, "SMALL", 8)
    tx, found = stepax.sgd(0.1), sizes_of_runs(monkeypatch)
    large = vectors(N, size=9)
    tx.update(large, tx.init(large), large)
    assert found == [1] * N
    found.clear()
    devices = jax.devices()[:2]
    p = {k: jax.device_put(x, devices[int(k) % 2]) for k, x in vectors(N).items()}
    u, _ = tx.update(p, tx.init(p), p)
    assert found == [1] * N
    assert all(u[k].device == p[k].device and u[k].committed for k in p)


def test_another_number_of_gradients_compiles_nothing():
    p, tx = vectors(40), stepax.adamw(0.01)
    state = tx.init(p)
    tx.update(p, state, p)

    def others():
        for n in (1, 7, 16, 17, 39):
            g = {k: x if int(k) < n else None for k, x in p.items()}
            tx.update(g, state, p)

    assert compilations(others) == 0
