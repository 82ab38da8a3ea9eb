"""A delta holds the bits that changed; applied to the old tree it gives the new."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from stepax.checkpoint import Delta, apply_delta, delta


DTYPES = [
    "bool", "int4", "int8", "uint16", "int32", "int64", "float4_e2m1fn",
    "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128",
]  # fmt: skip
# How many of the 24 entries change, and whether indices are given.
NUMBERS = {0: None, 1: True, 5: True, 23: False, 24: False}


def raw(x):
    return np.ascontiguousarray(x).reshape(-1, 1).view(np.uint8)


def same_bits(x, y):
    return x.dtype == y.dtype and x.shape == y.shape and (raw(x) == raw(y)).all()


def assert_same_bits(found, wanted):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    assert all(same_bits(np.asarray(x), np.asarray(y)) for x, y in pairs)


def random_bits(dtype, seed, shape=(2, 3, 4)):
    """Numbers of any bits, among them NaNs with payloads, and -0.0."""
    kind, rng = jnp.dtype(dtype), np.random.default_rng(seed)
    small = {"bool": 2, "int4": 16, "float4_e2m1fn": 16}.get(dtype)
    if small:
        values = rng.integers(0, small, shape).astype(np.uint8)
        return (values - 8).astype(np.int8).astype(kind) if small == 16 else values > 0
    bits = rng.integers(0, 256, (*shape, kind.itemsize), dtype=np.uint8)
    return bits.view(kind)[..., 0]


def pair(dtype, number):
    old = random_bits(dtype, 0)
    new, other = old.copy().reshape(-1), random_bits(dtype, 1).reshape(-1)
    at = np.random.default_rng(2).permutation(old.size)
    at = [i for i in at if (raw(new[i : i + 1]) != raw(other[i : i + 1])).any()]
    new[at[:number]] = other[at[:number]]
    return old, new.reshape(old.shape)


@pytest.mark.thinned
@pytest.mark.parametrize("kind", ["numpy", "jax"])
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_are_those_of_the_new_tree(dtype, number, kind, tmp_path):
    with jax.enable_x64(True):
        put = jnp.asarray if kind == "jax" else np.asarray
        old, new = ({"a": {"w": put(x)}} for x in pair(dtype, number))
        assert_same_bits(new["a"]["w"], pair(dtype, number)[1])  # `put` kept them
        found = delta(old, new)
        changed = (raw(old["a"]["w"]) != raw(new["a"]["w"])).any(-1).sum()
        assert list(found.arrays) == ["a/w"] * bool(changed)
        for block in (b for x in found.arrays.values() for b in x.blocks):
            assert len(block.values) == (24 if block.indices is None else changed)
            cost = changed * (old["a"]["w"].dtype.itemsize + 4)
            assert (block.indices is None) == (cost > old["a"]["w"].nbytes)
        assert_same_bits(apply_delta(old, found), new)
        found.to_safetensors(tmp_path / "delta")
        again = Delta.from_safetensors(tmp_path / "delta")
        assert again.nbytes == found.nbytes
        assert_same_bits(apply_delta(old, again), new)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float32"])
def test_few_changes_of_an_array_of_jax_are_found_and_made_on_its_device(dtype):
    """For a number of changes that is a power of two, and one that is not."""
    for number in 3, 4:
        old, new = map(jnp.asarray, pair(dtype, number))
        found = delta(old, new)
        (block,) = found.arrays[""].blocks
        assert block.indices is not None and len(block.values) == number
        assert_same_bits(apply_delta(old, found), new)


def meshes():
    mesh = jax.make_mesh((4, 2), ("x", "y"), (jax.sharding.AxisType.Auto,) * 2)
    spec = jax.sharding.PartitionSpec
    specs = [spec("x", "y"), spec(("x", "y")), spec(None, "y"), spec()]
    return [jax.sharding.NamedSharding(mesh, x) for x in specs]


@pytest.mark.few(1)
@pytest.mark.parametrize("most", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("dtype", ["bfloat16", "complex64"])
def test_shards_are_compared_and_changed_where_they_are(dtype, most):
    """Also with a delta of another sharding, of which each shard takes its part."""
    old = random_bits(dtype, 0, (8, 6))
    new = np.where(np.random.default_rng(3).random((8, 6)) < 0.3, old[::-1], old)
    deltas = []
    for sharding in meshes():
        x, y = (jax.device_put(z, sharding) for z in (old, new))
        deltas.append(delta(x, y, most=most))
        blocks = deltas[-1].arrays[""].blocks
        assert len(blocks) <= len({str(s.index) for s in x.addressable_shards})
        assert {b.shape for b in blocks} == {sharding.shard_shape((8, 6))}
    for sharding in meshes():
        for found in deltas:
            z = apply_delta(jax.device_put(old, sharding), found)
            assert z.sharding == sharding
            assert_same_bits(z, new)


def test_leaves_without_numbers_are_left_alone():
    old = {"f": jnp.tanh, "n": None, "e": jnp.zeros((0, 3)), "s": jnp.float32(1.0)}
    new = {**old, "s": jnp.float32(-0.0)}
    found = delta(old, new)
    assert list(found.arrays) == ["s"]
    again = apply_delta(old, found)
    assert again["f"] is jnp.tanh and again["n"] is None
    assert np.signbit(again["s"])


W = jnp.zeros((2, 3))
REFUSED: Any = {
    "differ in structure": lambda: delta({"w": W}, {"v": W}),
    "`new` has shape .* at w, expected": lambda: delta({"w": W}, {"w": W[0]}),
    "and dtype int32 at w": lambda: delta({"w": W}, {"w": W.astype(int)}),
    "where `old` has no array": lambda: apply_delta(
        {"v": W}, delta({"w": W}, {"w": W + 1})
    ),
    "`changes` has shape .* at w, expected": lambda: apply_delta(
        {"w": W[0]}, delta({"w": W}, {"w": W + 1})
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_trees_that_differ_are_refused(words):
    with pytest.raises(ValueError, match=words):
        REFUSED[words]()


# --- updates that are rounded away ----------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_lost_update_is_a_nonzero_one_that_changes_no_bits(dtype):
    random = np.random.default_rng(0)
    draw = lambda: jnp.asarray(random.normal(size=(16, 8)), dtype)
    p = {"a": {"w": draw()}, "b": draw()[0], "n": None}
    g = {"a": {"w": draw().at[0].set(0)}, "b": draw()[0], "n": None}
    rate = float(jnp.finfo(dtype).eps) / 3
    metric = {"lost": stepax.metrics.lost_updates()}
    tx = stepax.observe(stepax.sgd(rate), metric)
    u, state = jax.jit(tx.update)(g, tx.init(p), p)
    found, new = stepax.tree.get(state, "lost"), stepax.apply_updates(p, u)
    rows = {"a/w": (p["a"]["w"], new["a"]["w"], u["a"]["w"])}
    rows["b"] = p["b"], new["b"], u["b"]
    for name, (x, y, step) in rows.items():
        lost = np.mean((np.asarray(x) == np.asarray(y)) & (np.asarray(step) != 0))
        assert 0 < lost < 1
        np.testing.assert_allclose(found[name], lost, rtol=1e-6)
