"""Codes of 8 and 4 bits: what is promised of reading and storing them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stepax._engine.arrays.coding import (
    Form,
    block_within,
    coded_as,
    coded_zeros,
    decode,
    encode,
)


TINY = np.finfo(np.float32).tiny
FORMS = {
    f"{bits} bits {'signed' if signed else 'positive'}": Form(bits, signed, 64)
    for bits in (8, 4)
    for signed in (True, False)
}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def normal(rng):
    return rng.normal(size=(6, 128))


def sparse(rng):
    return rng.normal(size=(6, 128)) * (rng.random((6, 128)) < 0.02)


def spread(rng):
    """Elements of a block from the smallest float to the largest."""
    return rng.choice([-1, 1], (6, 128)) * 10.0 ** rng.uniform(-45, 38, (6, 128))


def small(rng):
    return rng.normal(size=(6, 128)) * 10.0 ** rng.uniform(-40, -30, (6, 1))


def broken(rng):
    x = spread(rng)
    x[rng.random(x.shape) < 0.05] = np.nan
    x[rng.random(x.shape) < 0.05] = np.inf
    x[rng.random(x.shape) < 0.05] = -np.inf
    return x


DATA = [normal, sparse, spread, small, broken]
data = pytest.mark.parametrize("data", DATA, ids=lambda f: f.__name__)
read = jax.jit(decode)
store = jax.jit(encode, static_argnums=1)


def drawn(data, form):
    x = data(np.random.default_rng(0)).astype(np.float32)
    return x if form.is_signed else np.abs(x)


def largest(x):
    return np.abs(x).reshape(-1, 64).max(1)


@pytest.mark.slow
@forms
@data
def test_storing_what_was_read_changes_no_bit(data, form):
    first = store(drawn(data, form), form)
    for again in (store(read(first), form), encode(decode(first), form)):
        np.testing.assert_array_equal(again.codes, first.codes)
        np.testing.assert_array_equal(again.scales, first.scales)


@pytest.mark.few(6)
@forms
@data
def test_the_largest_of_a_block_is_exact_and_what_is_positive_stays_so(data, form):
    x = drawn(data, form)
    y = np.asarray(read(store(x, form)))
    normal = np.isfinite(largest(x)) & (largest(x) >= TINY)
    np.testing.assert_array_equal(largest(y)[normal], largest(x)[normal])
    at = (np.abs(x) == largest(x).repeat(64).reshape(x.shape)) & (np.abs(x) >= TINY)
    np.testing.assert_array_equal(y[at & np.isfinite(x)], x[at & np.isfinite(x)])
    assert (y[x == 0] == 0).all()
    if not form.is_signed:
        assert not (y[x > 0] <= 0).any()
    assert not np.isfinite(y[~np.isfinite(x)]).any()


def plain(x, form):
    """The table of the design, in NumPy."""
    x = np.float64(x).reshape(-1, form.block)
    s = np.abs(x).max(1, keepdims=True)
    if form.is_signed:
        n = 127 if form.bits == 8 else 7
        c = np.round(n * np.sign(x) * np.sqrt(np.abs(x) / s))
        return c, np.sign(c) * (c / n) ** 2 * s
    n = 255 if form.bits == 8 else 15
    c = np.maximum(np.round(n * (x / s) ** 0.25), x > 0)
    return c, (c / n) ** 4 * s


@forms
def test_codes_are_those_of_the_equations(form):
    x = drawn(normal, form)
    found, (codes, value) = store(x, form), plain(x, form)
    stored = np.asarray(found.codes).reshape(len(codes), -1)
    if form.bits == 8 and not form.is_signed:
        # One of both neighbours in the upper half, which is found by the next test.
        near = np.abs(stored - codes) <= (codes > 127)
        assert near.all() and (stored != codes).any()
        largest = np.float64(x).reshape(-1, 64).max(1, keepdims=True)
        codes, value = stored, (stored / 255) ** 4 * largest
    np.testing.assert_allclose(read(found).reshape(-1, 64), value, rtol=1e-6)
    if form.bits == 4:
        first, second = np.split(codes + (8 if form.is_signed else 0), 2, axis=1)
        np.testing.assert_array_equal(stored & 15, first)
        np.testing.assert_array_equal(stored >> 4, second)
        assert stored.dtype == np.uint8
        return
    np.testing.assert_array_equal(stored, codes)
    assert stored.dtype == (np.int8 if form.is_signed else np.uint8)


@pytest.mark.parametrize("code", [128.5, 191.1, 254.9])
def test_mean_squares_are_right_on_average(code):
    form = Form(8, is_signed=False, block=64)
    noise = np.random.default_rng(0).uniform(-1e-3, 1e-3, (2000, 64))
    x = (code / 255) ** 4 * (1 + noise)
    x[:, 0] = 1.0
    found = np.asarray(read(store(x.astype(np.float32), form)))
    # A standard error is below 6e-5, and the distance of two codes 1.6 to 3 %.
    assert abs(np.mean(found[:, 1:] / x[:, 1:]) - 1) < 3e-4


@pytest.mark.few(1)
@forms
def test_zeros_are_made_as_they_would_be_stored(form):
    wanted = store(jnp.zeros((3, 128)), form)
    arrays = [
        jnp.full(shape, x, kind) for shape, kind, x in coded_zeros((3, 128), form)
    ]
    made = coded_as(form, *arrays)
    for x, y in zip(jax.tree.leaves(made), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype
    assert made.shape == wanted.shape == (3, 128)


@pytest.mark.slow
@forms
def test_stacks_and_lengths_are_as_those_of_rows(form):
    x = drawn(normal, form).reshape(2, 3, 128)
    wanted = store(x, form)
    found = jax.vmap(lambda x: encode(x, form))(x)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(jax.vmap(decode)(found), read(wanted))


@pytest.mark.parametrize(
    "length, block, bits, wanted",
    [
        (4096, 256, 8, 256),
        (768, 256, 8, 256),
        (96, 256, 8, 96),
        (100, 256, 8, 100),
        (63, 256, 8, None),
        (64, 256, 8, 64),
        (131, 128, 8, None),
        (131 * 3, 128, 4, None),
        (4096, 128, 4, 128),
        (90, 64, 4, 30),
        (99, 64, 8, 33),
        (99, 64, 4, None),
        (0, 64, 8, None),
    ],
)
def test_the_block_is_the_largest_that_divides(length, block, bits, wanted):
    assert block_within(length, block, bits) == wanted
