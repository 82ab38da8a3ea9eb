"""Codes lie as their parameters on a mesh, in checkpoints, and where ZeRO puts them."""

import contextlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import types
from inside import holds_codes
from jax.sharding import (
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec as P,
    SingleDeviceSharding,
)

import stepax
from stepax import distributed
from stepax.checkpoint import restore, save


SPECS = {
    "rows": ((256, 512), P("data")),
    "columns": ((16, 4096), P(None, "data")),
    "short columns": ((64, 768), P(None, "data")),
    "stack": ((8, 16, 512), P("data")),
    "vector": ((8192,), P("data")),
}
specs = pytest.mark.parametrize("name", SPECS)
bits = pytest.mark.parametrize("bits", [8, 4])
COLLECTIVES = re.compile(r"all-gather|all-reduce|all-to-all|collective-permute")


def mesh(kind=AxisType.Auto):
    return Mesh(np.array(jax.devices()[:8]), ("data",), axis_types=(kind,))


def params(name, kind=AxisType.Auto):
    shape, spec = SPECS[name]
    x = jax.random.normal(jax.random.key(0), shape)
    return {"w": jax.device_put(x, NamedSharding(mesh(kind), spec))}


def on_a_device(state):
    arrays = [x for x in jax.tree.leaves(state) if x.ndim]
    return max(sum(x.addressable_shards[0].data.nbytes for x in arrays), 1)


def whole(state):
    return sum(x.nbytes for x in jax.tree.leaves(state) if x.ndim)


def check(tx, p, state):
    assert holds_codes(state)
    assert on_a_device(state) <= whole(state) / 8 * 1.1
    compiled = jax.jit(tx.update, donate_argnums=1).lower(p, state, p).compile()
    assert not COLLECTIVES.findall(f"{compiled.as_text()}")
    u, new = jax.jit(tx.update)(p, state, p)
    assert types(new) == types(state)
    assert on_a_device(new) == on_a_device(state)
    alone = jax.device_put(p, jax.devices()[0])
    wanted, _ = tx.update(alone, tx.init(alone), alone)
    np.testing.assert_allclose(u["w"], wanted["w"], rtol=1e-4, atol=1e-7)


@pytest.mark.few(1)
@bits
@specs
def test_a_step_needs_no_collective_and_an_eighth_of_the_state(name, bits):
    tx, p = stepax.low_bit_states(stepax.adamw(1e-3), bits), params(name)
    check(tx, p, tx.init(p))
    check(tx, p, distributed.init_sharded(tx, p))
    check(tx, p, jax.jit(tx.init)(p))


@pytest.mark.slow
@specs
def test_explicit_axes_are_seen(name):
    p = params(name, AxisType.Explicit)
    tx = stepax.low_bit_states(stepax.adamw(1e-3))
    with jax.set_mesh(mesh(AxisType.Explicit)):
        state = jax.jit(tx.init)(p)
        assert on_a_device(state) <= whole(state) / 8 * 1.1
        u, new = jax.jit(tx.update)(p, state, p)
    assert types(new) == types(state)
    assert jnp.isfinite(u["w"]).all()


@pytest.mark.few(1)
@bits
@specs
def test_the_sharding_of_a_state_is_where_init_puts_it(name, bits):
    tx, p = stepax.low_bit_states(stepax.adamw(1e-3), bits), params(name)
    places = distributed.state_sharding(tx, p)
    state = tx.init(p)
    for x, place in zip(jax.tree.leaves(state), jax.tree.leaves(places), strict=True):
        assert x.sharding.is_equivalent_to(place, x.ndim)


@pytest.mark.slow
@bits
@pytest.mark.parametrize("shape", [(256, 512), (7, 4096)])
def test_zero_shares_codes_out(shape, bits):
    everywhere = NamedSharding(mesh(), P())
    p = {"w": jax.device_put(jnp.ones(shape), everywhere)}
    inner = stepax.low_bit_states(stepax.adamw(1e-3), bits)
    tx = distributed.zero(inner, mesh())
    for state in tx.init(p), jax.jit(tx.init)(p):
        assert on_a_device(state) <= whole(state) / 8 * 1.1
        u, new = jax.jit(tx.update)(p, state, p)
        assert types(new) == types(state)
        assert on_a_device(new) == on_a_device(state)
        wanted, _ = stepax.adamw(1e-3).update(p, stepax.adamw(1e-3).init(p), p)
        np.testing.assert_allclose(u["w"], wanted["w"], rtol=1e-4)


AXIS_KINDS = {
    "automatic": (AxisType.Auto, False),
    "explicit": (AxisType.Explicit, False),
    "explicit, set": (AxisType.Explicit, True),
}
PLACES = {
    "whole": P(None, None),
    "first axis": P(("data", "model"), None),
    "last axis": P(None, ("data", "model")),
    "both": P("data", "model"),
}


def grid(n, kind):
    devices = np.array(jax.devices()[:n]).reshape(n // 2, 2)
    return Mesh(devices, ("data", "model"), axis_types=(kind,) * 2)


def places(kind):
    """Where each state may be, and then be restored to."""
    eight, four = grid(8, kind), grid(4, kind)
    found = {k: NamedSharding(eight, spec) for k, spec in PLACES.items()}
    found["last axis of four"] = NamedSharding(four, PLACES["last axis"])
    return found | {"one device": SingleDeviceSharding(jax.devices()[0])}


def made(tx, p, where):
    """The state, made in every way."""
    alone = jax.device_put(p, jax.devices()[0])
    yield tx.init(p)
    yield jax.jit(tx.init)(p)
    if not isinstance(where, NamedSharding):
        return
    yield distributed.init_sharded(tx, p)
    yield jax.device_put(tx.init(alone), distributed.state_sharding(tx, p))
    if where.is_fully_replicated:
        shared = distributed.zero(tx, where.mesh)
        yield shared.init(p)
        yield jax.jit(shared.init)(p)


@pytest.mark.slow
@pytest.mark.parametrize("axes", AXIS_KINDS)
def test_a_state_is_the_same_however_it_is_made_and_restored(axes, tmp_path):
    (kind, is_set), turn = AXIS_KINDS[axes], list(AXIS_KINDS).index(axes)
    tx = stepax.low_bit_states(stepax.scale_by_adam(), {"mu": 8, "nu": 4})
    x = np.float32(jax.random.normal(jax.random.key(0), (16, 512)))
    wanted = types(jax.eval_shape(tx.init, {"w": x}))
    _, after = tx.update({"w": x}, tx.init({"w": x}), {"w": x})
    found = places(kind)
    for i, (place, where) in enumerate(found.items()):
        p = jax.device_put({"w": x}, where)
        mesh: Any = where.mesh if isinstance(where, NamedSharding) else None
        with jax.set_mesh(mesh) if is_set and mesh else contextlib.nullcontext():
            for n, one in enumerate(made(tx, p, where)):
                assert types(one) == wanted, (place, n)
            _, state = jax.jit(tx.update)(p, tx.init(p), p)
            assert types(state) == wanted, place
            save(tmp_path / place, 0, p, state)
        # A third of the pairs of places in each of the cases.
        for to in list(found)[(turn - i) % 3 :: 3]:
            template = jax.device_put({"w": x}, found[to])
            back = restore(tmp_path / place, tx, template).state
            assert types(back) == wanted
            where_to = back.mu["w"].codes.sharding
            assert where_to.is_equivalent_to(found[to], 2), (place, to)
            jax.tree.map(np.testing.assert_array_equal, back, state)
        # Other devices may fuse otherwise, and round next to the middle of two codes.
        assert_close(state, after)


def assert_close(state, wanted):
    pair = stepax.tree.dequantize(state), stepax.tree.dequantize(wanted)
    for a, b in zip(*map(jax.tree.leaves, pair), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.linalg.norm(a - b) <= 1e-2 * np.linalg.norm(b)


def trained(tx, p, state):
    for _ in range(3):
        u, state = jax.jit(tx.update)(p, state, p)
        p = stepax.apply_updates(p, u)
    return p, state


@pytest.mark.slow
@bits
def test_a_checkpoint_has_the_same_bits_and_the_same_next_step(bits, tmp_path):
    p = {"a": {"w": params("rows")["w"]}, "b": jnp.ones(8)}
    tx = stepax.low_bit_states(stepax.adamw(1e-3), bits)
    p, state = trained(tx, p, tx.init(p))
    save(tmp_path, 3, p, state)
    found = restore(tmp_path, tx, p)
    assert types(found.state) == types(state)
    for x, y in zip(jax.tree.leaves(found.state), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
    again, _ = trained(tx, found.params, found.state)
    wanted, _ = trained(tx, p, state)
    jax.tree.map(np.testing.assert_array_equal, again, wanted)
    moved = {"c": p["a"], "b": p["b"]}
    renamed = restore(tmp_path, tx, moved, renamed={"a": "c"})
    found = renamed.state[0].nu["c"]["w"].codes
    np.testing.assert_array_equal(found, state[0].nu["a"]["w"].codes)


@pytest.mark.slow
def test_a_checkpoint_of_codes_says_how_to_read_it(tmp_path):
    inner, p = stepax.adamw(1e-3), params("rows")
    tx = stepax.low_bit_states(inner)
    save(tmp_path / "codes", 0, p, tx.init(p))
    save(tmp_path / "full", 0, p, inner.init(p))
    match = r"mu/w/codes.* `stepax.tree.quantize` convert a restored state"
    with pytest.raises(ValueError, match=match):
        restore(tmp_path / "codes", inner, p)
    with pytest.raises(ValueError, match=match):
        restore(tmp_path / "full", tx, p)
    full = restore(tmp_path / "full", inner, p).state
    state = stepax.tree.quantize(full, jax.eval_shape(tx.init, p))
    assert types(state) == types(tx.init(p))
