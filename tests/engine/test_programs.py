"""Outside of `jit`, optimizers that differ in numbers share what was compiled."""

import inspect
import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ARGUMENTS, make, rows
from inside import programs
from keywords import keywords
from runs import no_leaks
from test_budget import compilations

import stepax
from stepax._engine.base.call import Call


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
    # With literals XLA rounds differently: it computes x / a as x * (1 / a), x * a * b
    # as x * (a * b), and fuses one product of a * x + b * y or the other.
    # And it computes 1 - b of a literal in float64, of an argument in float32.
    monkeypatch.setattr(programs.Shared, "_fitting", lambda self, *a: self.jitted)
    decay = max((x for x in others(row, 2).values() if x < 1), default=0)
    rtol = max(3e-6, 2.0**-24 / (1 - decay))
    for x, y in zip(found[0], steps(make(row, **others(row, 2))), strict=True):
        assert x.dtype == y.dtype and x.weak_type == y.weak_type
        largest = np.max(np.abs(y), initial=0)
        np.testing.assert_allclose(x, y, rtol=0, atol=rtol * largest)


@pytest.mark.slow
def test_numbers_act_as_literals_do():
    """Arithmetic, branches, and functions that want a number of Python."""
    x = np.linspace(0.1, 3, 1000, dtype=np.float32)
    formulas = {
        "quotient": lambda a, b: lambda x: x / a,
        "products": lambda a, b: lambda x: x * a * b,
        "sums": lambda a, b: lambda x: -a + x - abs(b),
        "double": lambda a, b: lambda x: (1 - a) * x + (a - 1) ** 2 / b,
        "choice": lambda a, b: lambda x: x * (b if a > 0.5 else 1 - b),
        "nonzero": lambda a, b: lambda x: x * (2 * a if a != 1 else 3),
        "where": lambda a, b: lambda x: jnp.where(x > a, b, x),
        "largest": lambda a, b: lambda x: jnp.maximum(x, max(a, b)),
        "power": lambda a, b: lambda x: x**a + b**x,
        "logarithm": lambda a, b: lambda x: x * math.log(a),
        "jitted": lambda a, b: lambda x: jax.jit(lambda x: a * jnp.clip(x, b, 2.0))(x),
        "loop": lambda a, b: lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y * a, x),
        "branch": lambda a, b: (
            lambda x: jax.lax.cond(x[0] > 0, lambda x: jnp.sort(x) * a, lambda x: x, x)
        ),
    }
    for name, factory in formulas.items():
        for a, b in ((0.3, 0.7), (0.31, 0.77), (1.0, -1.0), (0.3, 0.77)):
            run = shared(factory, a, b)
            found, wanted = run(x), jax.jit(factory(a, b))(x)
            assert run.run is not run.jitted, name
            np.testing.assert_allclose(
                found, wanted, rtol=3e-7, atol=3e-7, err_msg=name
            )


def shared(factory, *numbers):
    """A function that a factory makes of numbers, as the function of a leaf is run."""
    call = inspect.signature(factory).bind(*numbers)
    origin = Call(factory, factory, call, checked=call)
    rule: Any = SimpleNamespace(origin=origin, f=factory(*numbers))
    return programs.Shared(_first, [rule], "formula")


def test_arrays_of_another_shape_may_need_other_numbers():
    def by_size(a, b):
        return lambda x: x * a if x.size > 3 else x - (2 - b if b > 0.5 else b)

    large, small = jnp.arange(6.0), jnp.arange(2.0)

    def check(*numbers, arrays=(large, small)):
        run = shared(by_size, *numbers)
        for x in (*arrays, *arrays):
            wanted = by_size(*numbers)(x)
            np.testing.assert_allclose(run(x), wanted, rtol=1e-6)
        assert run.run is not run.jitted

    check(0.3, 0.7)
    check(0.4, 0.2, arrays=(small, large))
    # Both branches on b are known by now, whichever array comes first.
    assert compilations(lambda: check(0.5, 0.8, arrays=(small, large))) == 0
    assert compilations(lambda: check(0.6, 0.1)) == 0


def _first(rules, x):
    (one,) = rules
    return getattr(one, "f", one)(x)


def test_branches_on_numbers_are_taken_anew():
    for decay in (0.0, 0.1, 0.2, 0.0):
        u, _ = (tx := stepax.adamw(0.1, weight_decay=decay)).update(P, tx.init(P), P)
        other, _ = jax.jit(tx.update)(P, tx.init(P), P)
        np.testing.assert_allclose(u["w"], other["w"], rtol=1e-6)


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
    with no_leaks():
        inside, _ = jax.jit(lambda x: tx.update(P, state, P))(0.0)
    outside, _ = tx.update(P, state, P)
    np.testing.assert_allclose(inside["w"], outside["w"], rtol=1e-6)


def vectors(n: int) -> dict[str, jax.Array]:
    return {f"{i:03}": jnp.arange(1.0 + i, i + 7) for i in range(n)}


def test_another_number_of_gradients_compiles_nothing():
    p, tx = vectors(40), stepax.adamw(0.01)
    state = tx.init(p)
    tx.update(p, state, p)

    def others():
        for n in (1, 7, 16, 17, 39):
            g = {k: x if int(k) < n else None for k, x in p.items()}
            tx.update(g, state, p)

    assert compilations(others) == 0


FACTOR = SimpleNamespace(now=2.0)


@stepax.rules.rule()
def scaled_by_what_changes():
    factor = FACTOR.now
    return stepax.rules.Rule(lambda g, p, ctx: (factor * g,))


def test_a_rule_of_a_user_may_read_what_changes(monkeypatch):
    for x in (2.0, 3.0):
        monkeypatch.setattr(FACTOR, "now", x)
        tx = scaled_by_what_changes()
        updates, _ = tx.update(P, tx.init(P), P)
        np.testing.assert_array_equal(updates["w"], x * P["w"])
