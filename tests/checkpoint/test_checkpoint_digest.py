"""The digest of an array: the formula, on every sharding, and what it notices."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from stepax._checkpoint import delta, digest


KINDS = ["float32", "float16", "bfloat16", "int8", "bool", "complex64", "int4"]
SPECS = [P(), P("a"), P(None, "b"), P("a", "b"), P("b", "a"), P(("a", "b"))]


def array_of(dtype, shape):
    x = np.random.default_rng(0).normal(size=shape) * 4
    return jnp.asarray(x > 0 if dtype == "bool" else x.clip(-7, 7)).astype(dtype)


def words_of(x):
    """The words of an array, and those of which the upper half counts."""
    if x.dtype.name == "int4":
        x = x.astype(np.int32)
    size = min(x.dtype.itemsize, 4)
    words = [int(w) for w in np.ravel(x).view(f"uint{8 * size}")]
    return words, [w >> 16 for w in words] if size == 4 else words


def reference(x):
    low = high = 0
    for i, (w, v) in enumerate(zip(*words_of(x), strict=True)):
        m = 2654435761 * (i + 1) % 2**32 | 1
        low, high = (low + w * m) % 2**32, (high + v * m * m) % 2**32
    return low + (high << 32)


def on_another_device(x):
    """As a device that is no CPU computes it."""
    low, high = map(int, delta._sums(x))
    return low + (high << 32)


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", KINDS)
def test_a_digest_is_the_sum_of_its_formula_on_every_sharding(dtype):
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    x = array_of(dtype, (16, 8))
    wanted = reference(np.asarray(x))
    assert digest.digest(x) == digest.digest(np.asarray(x)) == wanted
    if delta._is_plain(x):
        assert on_another_device(x) == wanted
    for spec in SPECS:
        y = jax.device_put(x, NamedSharding(mesh, spec))
        assert digest.digest(y) == wanted, spec


def test_digests_of_shapes_and_blocks_are_those_of_the_formula(monkeypatch):
    for block in 7, 2**15:
        monkeypatch.setattr(digest, "BLOCK", block)
        for shape in (), (0,), (3, 0, 2), (1,), (5, 3, 7), (2,) * 6, (400,):
            for kind in "float64", "float32", "complex128", "uint16":
                x = np.asarray(np.random.default_rng(1).normal(size=shape) * 9 + 50)
                x = np.asarray(x.astype(kind))
                assert digest.digest(x) == reference(x), (shape, kind)
                if x.ndim == 3:
                    assert digest.digest(x.T) == reference(np.ascontiguousarray(x.T))


def test_parts_add_up_to_the_digest():
    parts = [2**32 - 1, 5 + (2**32 - 1 << 32), 3 << 32]
    assert digest.total(parts) == 4 + (2 << 32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "float64"])
def test_each_flipped_bit_and_pairs_of_signs_are_noticed(dtype):
    x = np.random.default_rng(0).normal(size=20).astype(dtype)
    wanted, bits = digest.digest(x), x.view(np.uint8)
    for i in range(bits.size):
        for k in range(8):
            bits[i] ^= 1 << k
            assert digest.digest(x) != wanted
            bits[i] ^= 1 << k
    assert digest.digest(x) == wanted
    if dtype != "uint8":
        for i in range(1, 20):
            y = x.copy()
            y[[0, i]] *= -1
            assert digest.digest(y) != wanted


# The dtypes of at most 16 bits, and how many they have.
NARROW = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4} | {
    "int8": 8, "uint8": 8, "float8_e3m4": 8, "float8_e4m3": 8, "float8_e4m3fn": 8,
    "float8_e4m3b11fnuz": 8, "float8_e4m3fnuz": 8, "float8_e5m2": 8,
    "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8,
    "float16": 16, "bfloat16": 16, "int16": 16, "uint16": 16,
}  # fmt: skip


@pytest.mark.parametrize("dtype", NARROW)
def test_each_pattern_of_bits_has_its_digest(dtype):
    number, kind = 2 ** NARROW[dtype], jnp.dtype(dtype)
    patterns = np.arange(number).astype(f"uint{8 * kind.itemsize}")
    is_integer = jnp.issubdtype(kind, jnp.integer)
    x = patterns.astype(kind) if is_integer else patterns.view(kind)
    some = range(0, number, max(1, number // 256))
    found = {digest.digest(x[i : i + 1]) for i in some}
    assert len(found) == len(some)
    for i in range(0, number, max(1, number // 16)):
        y = jnp.asarray(x[i : i + 1])
        if delta._is_plain(y):
            assert on_another_device(y) == digest.digest(x[i : i + 1]), i


def test_a_digest_needs_little_memory():
    x = np.ones(2**21, np.float32)
    digest.digest(x)
    tracemalloc.start()
    try:
        digest.digest(x)
        assert tracemalloc.get_traced_memory()[1] < x.nbytes / 8
    finally:
        tracemalloc.stop()
