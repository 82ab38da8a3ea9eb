"""Slots of a stage on whole matrices: trees of arrays, which devices share."""

import itertools as it
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import ArraySplit
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import stepax
import stepax.testing
from stepax.distributed import audit, init_sharded, state_sharding, zero


KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
SPECS = {"rows": P("data"), "columns": P(None, "data"), "whole": P()}


class SidesState(NamedTuple):
    """count: steps taken.  mu: mean of g.  sides: mean of g gᵀ, for each axis."""

    count: Any
    mu: Any
    sides: Any


def _apply(g, refresh, mu, sides):
    mu = 0.9 * mu + 0.1 * g
    new = tuple(
        0.9 * side + 0.1 * jnp.tensordot(g, g, (rest, rest))
        for i, side in enumerate(sides)
        for rest in [[j for j in range(g.ndim) if j != i]]
    )
    u = mu
    for side in sides:
        u = jnp.tensordot(u, side, (0, 0))
    return u, mu, jax.lax.cond(refresh, lambda: new, lambda: sides)


@stepax.rules.rule()
def two_sided(every: int = 2, axis_name: Any = None, apply: Any = _apply):
    eyes = lambda p: tuple(jnp.eye(n) for n in p.shape if p.ndim > 1)
    split = ArraySplit(axis_name)
    names = ("mu", "sides")
    slots = {
        "mu": stepax.rules.Slot(in_leaf=False),
        "sides": stepax.rules.Slot(eyes, alike=False, in_leaf=False),
    }
    return stepax.rules.Rule(
        lambda g, p, ctx: (g,),
        SidesState,
        slots,
        stepax.rules.COUNT,
        stepax.rules.from_step(lambda t: t % every == 0),
        batched=stepax.rules.Batched(apply, lambda u: True, names, split=split),
    )


def _params(n=16, shape=(32, 16)):
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    return {f"w{i}": draw(*shape) for i in range(n)}


def _steps(tx, p, steps=3):
    u, state, update = p, tx.init(p), jax.jit(tx.update)
    for _ in range(steps):
        u, state = update(p, state, p)
    return u, state


def _near(x, y):
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 * np.abs(y).max())


def test_a_slot_may_be_a_tree_and_empty():
    p = {"m": jnp.ones((2, 3)), "v": jnp.ones(3), "t": jnp.ones((2, 3, 4))}
    state = two_sided().init(p)
    shapes = jax.tree.map(jnp.shape, stepax.tree.get(state, "sides"))
    assert shapes == {"m": ((2, 2), (3, 3)), "v": (), "t": ((2, 2), (3, 3), (4, 4))}
    for tx in (two_sided(), stepax.MultiSteps(two_sided(), 2)):
        _, new = _steps(tx, p)
        same = lambda x, y: x.shape == y.shape and x.dtype == y.dtype
        assert jax.tree.all(jax.tree.map(same, tx.init(p), new))


def test_another_tree_than_the_stored_one_is_an_error():
    tx = two_sided(apply=lambda g, ctx, mu, sides: (g, mu, sides[:1]))
    p = {"m": jnp.ones((2, 3))}
    with pytest.raises(ValueError, match=r"`two_sided` made `sides` .*\['m'\]"):
        tx.update(p, tx.init(p), p)


def test_an_array_is_gathered_along_the_axis_over_which_it_is_split():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = jnp.arange(16.0).reshape(2, 8)
    columns = P(None, "data")
    whole = ArraySplit(columns).whole
    gather = jax.shard_map(whole, mesh=mesh, in_specs=columns, out_specs=P())
    np.testing.assert_array_equal(jax.jit(gather)(x), x)


@pytest.mark.slow
def test_a_stage_s_own_rule_is_a_good_transformation():
    stepax.testing.check(two_sided)


@pytest.mark.slow
@pytest.mark.parametrize("kind, spec", list(it.product(KINDS, SPECS)))
def test_devices_share_the_state_and_the_work(kind, spec):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(KINDS[kind],))
    p, place = _params(8), NamedSharding(mesh, SPECS[spec])
    there = jax.device_put(p, place)
    with jax.set_mesh(mesh):
        u, state = _steps(two_sided(), there)
        found = audit(two_sided(), there)
    v, usual = _steps(two_sided(), p)
    jax.tree.map(_near, (u, state), (v, usual))
    for x in jax.tree.leaves((state.mu, state.sides)):
        assert x.addressable_shards[0].data.size * 8 == x.size
    assert sum(x.count for x in found.collectives) <= 4
    assert found.share <= 1.25


def _decomposed(g, refresh, mu, sides):
    q = jax.lax.cond(refresh, lambda: jnp.linalg.qr(g)[0], lambda: g)
    return q, jnp.linalg.eigh(mu + g @ g.T)[1], sides


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_devices_decompose_their_matrices_without_messages_in_between(kind):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(KINDS[kind],))
    p, tx = _params(8, (8, 8)), two_sided(apply=_decomposed)
    there = jax.device_put(p, NamedSharding(mesh, P("data")))
    with jax.set_mesh(mesh):
        found = _steps(tx, there, 2)
        seen = audit(tx, there)
    # A factor of an ill-conditioned matrix has few digits.
    near = lambda x, y: np.testing.assert_allclose(x, y, atol=1e-3)
    jax.tree.map(near, found, _steps(tx, p, 2))
    assert sum(x.count for x in seen.collectives) <= 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrap", [lambda tx, mesh: tx, zero], ids=["fsdp", "zero"])
def test_a_state_is_made_in_parts(kind, wrap):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(KINDS[kind],))
    p = jax.device_put(_params(4), NamedSharding(mesh, P()))
    tx = wrap(two_sided(), mesh)
    with jax.set_mesh(mesh):
        states = tx.init(p), jax.jit(tx.init)(p), init_sharded(tx, p)
    where = state_sharding(tx, p)
    for state in states:
        for x, to in zip(jax.tree.leaves(state), jax.tree.leaves(where), strict=True):
            assert x.sharding.is_equivalent_to(to, x.ndim)
        assert all(
            x.addressable_shards[0].data.size * 8 == x.size
            for x in jax.tree.leaves((state.mu, state.sides))
        )


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_inside_of_shard_map_few_collectives_move_all(spec):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    p, spec = _params(8), SPECS[spec]
    tx = two_sided(axis_name=spec)
    state = two_sided().init(p)
    specs = SidesState(
        P(), {k: spec for k in p}, jax.tree.map(lambda x: P(), state.sides)
    )
    step = jax.jit(
        jax.shard_map(
            tx.update, mesh=mesh, in_specs=(spec, specs), out_specs=(spec, specs)
        )
    )
    text = step.lower(p, state).compile().as_text() or ""
    assert len(re.findall(r"= \S+ (?:all-|collective)[\w-]*\(", text)) <= 4
    jax.tree.map(_near, step(p, state), _steps(two_sided(), p, 1))
