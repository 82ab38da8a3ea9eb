"""A learning rate of 0, and a schedule that starts there, keep every state finite."""

import jax
import jax.numpy as jnp
import pytest
from cases import make, rows
from inside import BY_PATH
from keywords import keywords
from test_zero_gradients import all_finite

import stepax


STEPS = 5


def after(zeros):
    return lambda count: jnp.where(count < zeros, 0.0, 0.1)


RATES = {
    "0": 0.0,
    "0, then 0.1": after(1),
    "0 in three steps": after(3),
    "0 for some": {"w": 0.0, "**": after(1)},
}


def cases():
    for name in BY_PATH:
        for row in rows(takes=name):
            yield pytest.param(row.values[0], name, id=f"{row.id}-{name}")


@pytest.mark.few(2)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(("row", "name"), list(cases()))
def test_a_rate_of_zero_leaves_all_finite(row, name, rate):
    try:
        tx = stepax.with_extra_args_support(make(row, **{name: RATES[rate]}))
    except TypeError:
        pytest.skip(f"`{name}` is a number for all parameters")
    p = {"w": jnp.linspace(-1, 1, 12).reshape(4, 3), "b": jnp.ones(3)}

    def step(carry, i):
        p, state = carry
        g = jax.tree.map(lambda x: x + 0.1 * i, p)
        u, state = tx.update(g, state, p, **keywords(g))
        return (stepax.apply_updates(p, u), state), u

    first = p, tx.init(p)
    found = jax.jit(lambda c: jax.lax.scan(step, c, jnp.arange(STEPS * 1.0)))(first)
    assert all_finite(found)


@pytest.mark.parametrize("immediate", [False, True])
def test_rprop_takes_its_steps_once_the_rate_is_not_zero(immediate):
    """As with a constant 1 as learning rate, times the schedule."""
    gs = jnp.asarray([[1.0, -2], [3, -1], [2, 1], [1, 1]])
    p, by_one = jnp.zeros(2), stepax.rprop(1.0, immediate=immediate)
    tx = stepax.rprop(after(2), immediate=immediate)
    one, state = by_one.init(p), tx.init(p)
    for rate, g in zip([0.0, 0.0, 0.1, 0.1], gs, strict=True):
        wanted, one = by_one.update(g, one, p)
        found, state = tx.update(g, state, p)
        assert jnp.allclose(found, rate * wanted, rtol=1e-6)
