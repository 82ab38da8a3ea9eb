"""`lookahead` lets slow parameters follow, and begins again from them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import types
from runs import compare

import stepax
from stepax import LookaheadParams


lookahead: Any = stepax.lookahead
STEPS = 200


def start(dtype=jnp.float32):
    random = np.random.default_rng(0)
    return {
        "w": jnp.asarray(random.normal(size=(3, 2)), dtype),
        "b": jnp.asarray(random.normal(size=2), dtype),
    }


def gradient(p, i):
    """Of a quadratic, and noise of a kind."""
    return jax.tree.map(lambda x: x + jnp.cos(jnp.asarray(i, x.dtype)), p)


def drive(tx, params, steps=STEPS):
    """The parameters of all steps, and the last state."""

    def step(carry, i):
        params, state = carry
        u, state = tx.update(gradient(params.fast, i), state, params)
        params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, u)
        return (params, state), params

    (_, state), found = jax.lax.scan(step, (params, tx.init(params)), jnp.arange(steps))
    return found, state


def reference(p, k, part, rate, decay):
    """Algorithm 1 around momentum, for one array, in NumPy."""
    fast = slow = p
    trace, out = 0.0, []
    for i in range(STEPS):
        trace = fast + np.cos(i) + decay * trace
        fast = fast - rate * trace
        if (i + 1) % k == 0:
            slow = slow + part * (fast - slow)
            fast = slow
        out.append((fast, slow))
    return out


@pytest.mark.few(1)
@pytest.mark.parametrize(("k", "part"), [(1, 0.3), (5, 0.5), (6, 1.0)])
def test_steps_are_those_of_the_paper(k, part, x64):
    p = start(jnp.float64)
    found, _ = drive(
        lookahead(stepax.sgd(0.1, 0.9), k, part), LookaheadParams.init_synced(p)
    )
    for name, x in p.items():
        wanted = zip(*reference(np.asarray(x), k, part, 0.1, 0.9), strict=True)
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours[name], theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize(("dtype", "reset"), [("float32", True), ("float64", False)])
def test_parameters_are_optax_s(dtype, reset):
    with jax.enable_x64(dtype == "float64"):
        ours = lookahead(stepax.adam(0.1), 3, 0.5, reset)
        found = drive(ours, LookaheadParams.init_synced(start(dtype)))
        with jax.numpy_dtype_promotion("standard"):
            theirs = optax.lookahead(optax.adam(0.1), 3, 0.5, reset)
            wanted = drive(theirs, optax.LookaheadParams.init_synced(start(dtype)))
        assert types(found) == types(wanted)
        # We round where the slow parameters arrive, Optax where the fast ones do: an
        # ulp of numbers below 2 for each of the steps that Adam remembers.
        eps = 16 * float(jnp.finfo(dtype).eps)
        for x, y in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=eps)


@pytest.mark.slow
def test_every_way_to_run_it_gives_the_same():
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=3e-6, atol=1e-7)
    tx, p = lookahead(stepax.adam(0.1), 2, 0.5, reset_state=True), start()
    params = LookaheadParams.init_synced(p)
    wanted, last = drive(tx, params, 5)
    state, step = tx.init(params), jax.jit(tx.update)
    first = types(state)
    for i in range(5):
        g = gradient(params.fast, i)
        u, new = tx.update(g, state, params)
        v, state = step(g, state, params)
        assert types((u, new)) == types((v, state))
        assert types(state) == first
        compare(close, u, v)
        params = stepax.apply_updates(params, v)
        compare(close, params, jax.tree.map(lambda x, i=i: x[i], wanted))
    assert int(state.steps_since_sync) == int(last.steps_since_sync) == 1


def test_fast_and_slow_meet_to_an_ulp():
    """Or to the rounding of the way between them, four steps of Adam, below 1/2."""
    tx = lookahead(stepax.adam(0.1), 4, 0.3)
    (fast, slow), _ = drive(tx, LookaheadParams.init_synced(start()))
    close = np.testing.assert_allclose
    met = lambda x, y: close(x[3::4], y[3::4], rtol=2.0**-23, atol=2.0**-25)
    jax.tree.map(met, fast, slow)


@pytest.mark.slow
def test_the_fast_optimizer_begins_anew_if_asked():
    params = LookaheadParams.init_synced(start())
    for reset, count in ((True, 1), (False, 7)):
        tx = lookahead(stepax.adam(0.1), 3, 0.5, reset)
        _, state = drive(tx, params, 7)
        assert int(stepax.tree.get(state, "count")) == count


def test_pairs_of_optax_stay_pairs_of_optax():
    tx, theirs = lookahead(stepax.sgd(0.1), 1, 0.5), optax.LookaheadParams
    params = theirs.init_synced(start())
    u, _ = tx.update(params.fast, tx.init(params), params)
    assert type(u) is theirs
    assert isinstance(LookaheadParams(1, 2), theirs)


def test_synced_parameters_can_be_donated():
    tx = lookahead(stepax.adam(0.1), 2, 0.5)
    params = LookaheadParams.init_synced(start())
    state = tx.init(params)

    def step(params, state):
        u, state = tx.update(params.fast, state, params)
        return stepax.apply_updates(params, u), state

    wanted = jax.jit(step)(params, state)
    found = jax.jit(step, donate_argnums=(0, 1))(params, state)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_leaves_without_gradients_stay():
    p = {"w": jnp.ones(2), "n": jnp.arange(2), "f": jnp.tanh, "still": jnp.ones(1)}
    g = {"w": jnp.ones(2), "n": np.zeros(2, jax.dtypes.float0), "f": None}
    g["still"] = None
    params = LookaheadParams.init_synced(p)
    tx = lookahead(stepax.sgd(0.5), 1, 0.5)
    u, _ = tx.update(g, tx.init(params), params)
    moved = stepax.apply_updates(params, u)
    for part in moved:
        assert part["w"].tolist() == [0.75, 0.75]
        assert part["n"] is p["n"] or part["n"].tolist() == [0, 1]
        assert part["f"] is jnp.tanh
        assert part["still"].tolist() == [1.0]


def test_narrow_parameters_are_moved_in_float32():
    p = {"w": jnp.full(1, 1.0, jnp.bfloat16)}
    params = LookaheadParams(p, {"w": jnp.full(1, 0.5, jnp.bfloat16)})
    tx = lookahead(stepax.identity(), 1, 0.125)
    u, _ = tx.update({"w": jnp.full(1, 2.0**-9)}, tx.init(params), params)
    assert u.slow["w"].tolist() == [0.125 * (0.5 + 2.0**-9)]  # 1 + 2^-9 is no bfloat16
    assert u.slow["w"].dtype == jnp.float32


def test_keywords_reach_the_fast_optimizer():
    tx = lookahead(stepax.polyak_sgd(), 2, 0.5)
    params = LookaheadParams.init_synced(start())
    u, _ = tx.update(params.fast, tx.init(params), params, value=jnp.float32(0.0))
    assert not any(x.any() for x in jax.tree.leaves(u))
    checked = stepax.strict_keywords(tx)
    with pytest.raises(TypeError, match="did you mean `value`"):
        checked.update(params.fast, tx.init(params), params, vlaue=1.0)


def test_errors_say_what_is_expected():
    tx, p = lookahead(stepax.sgd(0.1), 2, 0.5), start()
    for params, found in ((None, "`None`"), (p, "a dict of 2")):
        with pytest.raises(TypeError, match=f"`params` is {found}.*init_synced"):
            tx.update(p, tx.init(p), params)
    with pytest.raises(ValueError, match="`lookahead`: `sync_period` must be >= 1"):
        lookahead(stepax.sgd(0.1), 0, 0.5)
    with pytest.raises(TypeError, match=r"`fast_optimizer` of `lookahead` .*`sgd\("):
        lookahead(stepax.sgd, 2, 0.5)
