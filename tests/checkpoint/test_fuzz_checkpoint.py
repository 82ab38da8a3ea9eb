"""Random trees, saved, damaged in one place, and restored: the same bits or an error.

A sixth as many as programs beside Optax, as each takes longer.
"""

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz.examples import EXAMPLES, SEED
from hypothesis import HealthCheck, given, settings, strategies as st
from saved import plain_bytes
from test_checkpoint_values import NARROW, NUMPY, extremes

import stepax
from stepax.checkpoint import restore, save, to_safetensors


def fuzzed(check):
    how = settings(
        max_examples=max(1, EXAMPLES // 6),
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    return hypothesis.seed(SEED)(how(check))


# When one array cannot be read, Orbax lets go of those it still waits for, noisily.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


class Pair(NamedTuple):
    first: Any
    second: Any


# Not every byte is a number of these.
PARTIAL = ("bool", "int2", "uint2", "int4", "uint4", "float4_e2m1fn")
SHAPES = [(), (1,), (0,), (3,), (2, 3), (3, 0), (40, 30)]


@st.composite
def arrays(draw):
    """NumPy's of any bits, those of JAX, and numbers of Python."""
    name = draw(st.sampled_from([*NUMPY, *NARROW]))
    shape = draw(st.sampled_from(SHAPES))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = extremes(name).dtype
    if name in PARTIAL:
        found = random.choice(extremes(name), shape)
    else:
        size = int(np.prod(shape)) * dtype.itemsize
        found = np.frombuffer(random.bytes(size), dtype).reshape(shape)
    kind = draw(st.sampled_from(["numpy", "jax", "scalar"]))
    if kind == "jax" and name not in ("int64", "uint64", "float64", "complex128"):
        return jnp.asarray(found)
    return found[()] if kind == "scalar" else found


NUMBERS = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.complex_numbers()
)
KEYS = st.builds(
    lambda seed, n: jax.random.split(jax.random.key(seed), n),
    st.integers(0, 2**31 - 1),
    st.integers(0, 3),
)
LEAVES = st.one_of(arrays(), NUMBERS, KEYS, st.none())
NAMES = st.text("abc.é ²0", min_size=1, max_size=3)


def nodes(children):
    return st.one_of(
        st.dictionaries(NAMES, children, max_size=3),
        st.lists(children, max_size=3),
        st.tuples(children, children),
        st.builds(Pair, children, children),
    )


STATES = st.recursive(LEAVES, nodes, max_leaves=6)
PARAMS = st.recursive(LEAVES | st.just(jnp.tanh), nodes, max_leaves=6)


def bits(tree):
    """All that may not change: structure, dtypes, shapes, and every bit."""
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [_bits(x) for x in leaves]


def _bits(x):
    if callable(x):
        return x
    found = np.asarray(_data(x))
    return found.dtype, found.shape, found.tobytes()


def flipped(at, many):
    """A bit, or the same one at several places, as of signs."""

    def change(data):
        data = bytearray(data)
        for i in range(many):
            data[(int(at * len(data)) + 4 * i) % len(data)] ^= 128
        return bytes(data)

    return change


DAMAGES = st.one_of(
    st.builds(flipped, st.floats(0, 0.999), st.sampled_from([1, 2, 4])),
    st.builds(lambda at: lambda x: x[: int(at * len(x))], st.floats(0, 0.999)),
    st.builds(lambda more: lambda x: x + more, st.binary(min_size=1, max_size=9)),
    st.builds(lambda at: lambda x: x[int(at * len(x)) :] + x, st.floats(0, 1)),
    st.just(lambda x: bytes(len(x))),
    st.just(lambda x: x[::-1]),
    st.none(),
)


@pytest.mark.slow
@fuzzed
@given(PARAMS, STATES, st.floats(0, 0.999), DAMAGES)
def test_what_is_damaged_is_restored_with_the_same_bits_or_not_at_all(
    params, state, which, damage
):
    tx: Any = stepax.GradientTransformation(
        lambda params: state, lambda u, s, p=None: (u, s)
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(folder, 3, params, state)
        found = restore(folder, tx, params)
        assert bits(found.params) == bits(params)
        assert bits(found.state) == bits(state)
        files = sorted(x for x in (folder / "3").rglob("*") if x.is_file())
        file = files[int(which * len(files))]
        before = file.read_bytes()
        if damage is None:
            file.unlink()
        else:
            file.write_bytes(damage(before))
        is_changed = not file.exists() or file.read_bytes() != before
        try:
            again = restore(folder, tx, params, step=3)
        except ValueError as error:
            assert f"step 3 in `{folder}` is damaged" in str(error)
            assert is_changed
        else:
            assert not is_changed
            assert bits(again) == bits(found)


@fuzzed
@given(PARAMS)
def test_a_plain_file_has_the_same_bits(tree):
    with tempfile.TemporaryDirectory() as name:
        try:
            to_safetensors(Path(name) / "a", tree)
        except ValueError as error:  # a dtype that the format lacks, or equal names
            assert "dtypes: " in str(error) or "would have the name" in str(error)
            return
        found = plain_bytes(Path(name) / "a")
    kept = [_rows(_data(x)) for x in jax.tree.leaves(tree) if not callable(x)]
    assert sorted(kept) == sorted(found.values())


def _rows(x):
    found = np.asarray(x)
    return found.shape, found.tobytes()


def _data(x):
    is_key = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x
