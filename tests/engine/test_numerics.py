"""Counts that saturate, norms of one array that stay finite."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stepax import (
    safe_increment,
    safe_int32_increment,
    safe_norm,
    safe_root_mean_squares,
)
from stepax._engine.arrays.numerics import (
    abs_sq,
    quotient,
    safe_divide,
    safe_log,
    safe_rsqrt,
    safe_sqrt,
)


COUNTS = [
    3,
    3.0,
    2**31 - 1,
    np.int32(7),
    np.float64(2),
    jnp.int8(127),
    jnp.uint8(255),
    jnp.uint32(2**32 - 1),
    jnp.int32(2**31 - 2),
    jnp.float16(2048),
    jnp.float16(65504),
    jnp.bfloat16(256),
    jnp.float32(3.4028235e38),
    jnp.inf,
    jnp.array([127, 3], jnp.int8),
]


def same(ours, theirs):
    """Equal in dtype, shape and every bit, and as weak as Optax's or less."""
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)
    assert theirs.weak_type or not ours.weak_type


@pytest.mark.few(1)
@pytest.mark.parametrize("count", COUNTS, ids=repr)
@pytest.mark.parametrize("name", ["safe_increment", "safe_int32_increment"])
def test_counts_as_optax_does(name, count):
    ours = {"safe_increment": safe_increment}.get(name, safe_int32_increment)
    with jax.numpy_dtype_promotion("standard"):
        expected = getattr(optax, name)(count)
    same(ours(count), expected)
    same(jax.jit(ours)(count), expected)


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint16, jnp.int32, jnp.float16])
def test_a_count_stays_at_the_largest_value(dtype):
    info = jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo
    top = jnp.asarray(info(dtype).max, dtype)
    same(safe_increment(top), top)


@pytest.mark.parametrize("count", [True, 1j, jnp.array([True])], ids=repr)
def test_what_cannot_be_counted_is_refused(count):
    with pytest.raises(ValueError, match="`count` is of dtype .*, expected an integer"):
        safe_increment(count)


def test_counting_is_one_equation():
    assert len(jax.make_jaxpr(safe_increment)(jnp.int32(0)).eqns) == 1


X = np.array([[0.0, 1.5, -2.0], [3.0, 0.25, 5.0]], np.float32)
ZERO_ROW = np.array([[0.0, 0.0, 0.0], [3.0, 0.25, 5.0]], np.float32)
NORMS = [
    dict(),
    dict(keepdims=True),
    dict(axis=0),
    dict(axis=-1, keepdims=True),
    dict(axis=(0, 1)),
    dict(ord=1),
    dict(ord=2),
    dict(ord="fro"),
    dict(ord="nuc"),
    dict(ord=jnp.inf),
    dict(ord=1, axis=1),
    dict(ord=3, axis=1),
    dict(ord=-jnp.inf, axis=0, keepdims=True),
]


@pytest.mark.few(3)
@pytest.mark.parametrize("x", [X, ZERO_ROW, 0 * X, X * (1 + 2j)])
@pytest.mark.parametrize("how", NORMS, ids=repr)
@pytest.mark.parametrize("least", [1e-3, 4.0])
def test_safe_norm_is_optax_s_bit_for_bit(x, how, least):
    x = jnp.asarray(x)
    with jax.numpy_dtype_promotion("standard"):
        expected = jax.jit(lambda x: optax.safe_norm(x, least, **how))(x)
    same(jax.jit(lambda x: safe_norm(x, least, **how))(x), expected)


@pytest.mark.few(1)
@pytest.mark.parametrize("function", [safe_norm, safe_root_mean_squares])
@pytest.mark.parametrize("x", [X, 0 * X, X * (1 + 2j), X[0, 1]])
def test_derivatives_are_optax_s_and_finite(function, x):
    x = jnp.asarray(x)
    theirs = getattr(optax, function.__name__)
    with jax.numpy_dtype_promotion("standard"):
        expected = jax.jit(jax.grad(lambda x: theirs(x, 1e-3)))(x)
    found = jax.jit(jax.grad(lambda x: function(x, 1e-3)))(x)
    assert np.isfinite(found).all()
    # The two backward programs divide in different places: two roundings.
    np.testing.assert_allclose(found, expected, rtol=3e-7)


@pytest.mark.few(1)
@pytest.mark.parametrize("x", [X, 0 * X, X * (1 + 2j), X[0, 1]])
@pytest.mark.parametrize("least", [1e-3, 4.0, np.float32(4)])
def test_safe_root_mean_squares_is_optax_s_bit_for_bit(x, least):
    x = jnp.asarray(x)
    with jax.numpy_dtype_promotion("standard"):
        expected = jax.jit(lambda x: optax.safe_root_mean_squares(x, least))(x)
    same(jax.jit(lambda x: safe_root_mean_squares(x, least))(x), expected)


@pytest.mark.parametrize("function", [safe_norm, safe_root_mean_squares])
def test_sixty_four_bits_are_kept(function, x64):
    x = jnp.asarray(X, jnp.float64)
    theirs = getattr(optax, function.__name__)
    with jax.numpy_dtype_promotion("standard"):
        expected = jax.jit(lambda x: theirs(x, 1e-12))(x)
    same(jax.jit(lambda x: function(x, 1e-12))(x), expected)


@pytest.mark.few(1)
@pytest.mark.parametrize("function", [safe_norm, safe_root_mean_squares])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float8_e4m3fn])
def test_narrow_arrays_are_measured_in_float32(function, dtype):
    x = jnp.full(10_000, 300, dtype)
    found = function(x, 1e-12)
    exact = np.full(10_000, float(x[0]))
    exact = np.linalg.norm(exact) if function is safe_norm else exact[0]
    assert found.dtype == jnp.float32
    # A float32 sum of 10,000 equal terms: well within 1,000 roundings of 6e-8.
    np.testing.assert_allclose(found, exact, rtol=6e-5)


@pytest.mark.parametrize("function", [safe_norm, safe_root_mean_squares])
def test_a_bound_that_float16_lacks_holds_for_float16(function):
    assert function(jnp.zeros(3, jnp.float16), 1e-12) == np.float32(1e-12)


def test_the_bound_may_have_the_shape_of_the_norm():
    least = jnp.array([1.0, 10.0])
    found = safe_norm(jnp.asarray(X), least, axis=1)
    np.testing.assert_array_equal(found, jnp.array([2.5, 10.0]))
    column = safe_norm(jnp.asarray(X), least[:, None], axis=1, keepdims=True)
    np.testing.assert_array_equal(column, found[:, None])


def test_the_derivative_in_the_bound_is_one_where_it_holds():
    slope = jax.grad(lambda least: safe_norm(jnp.asarray(X), least))
    assert slope(100.0) == 1
    assert slope(1e-3) == 0


def test_an_empty_array_has_the_least_norm():
    empty = jnp.zeros((0, 3))
    assert safe_norm(empty, 0.5) == 0.5
    assert safe_root_mean_squares(empty, 0.5) == 0.5  # the mean of nothing is NaN


@pytest.mark.parametrize("x", [X, X * (1 - 3j), 2, 1 - 2j], ids=["x", "c", "int", "1c"])
def test_abs_sq_is_real(x):
    found = abs_sq(x)
    assert jnp.isrealobj(found)
    # |1 - 2j|² by way of a square root takes two roundings more in NumPy.
    np.testing.assert_allclose(found, np.abs(x) ** 2, rtol=3e-7)


def slopes(function, x, y):
    """The value, the first two derivatives in each argument, and the mixed one."""
    first = jax.jacfwd(function, argnums=(0, 1))
    return function(x, y), first(x, y), jax.jacfwd(first, argnums=(0, 1))(x, y)


def test_derivatives_are_those_of_the_plain_formula():
    pairs = {
        "sqrt": (lambda x, y: safe_sqrt(x * y), lambda x, y: jnp.sqrt(x * y)),
        "rsqrt": (lambda x, y: safe_rsqrt(x * y), lambda x, y: (x * y) ** -0.5),
        "divide": (safe_divide, lambda x, y: x / y),
        "quotient": (quotient, lambda x, y: x / y),
        "log": (lambda x, y: safe_log(x + y), lambda x, y: jnp.log(x + y)),
    }
    found, wanted = jax.jit(
        lambda x, y: [
            {name: slopes(pair[i], x, y) for name, pair in pairs.items()}
            for i in (0, 1)
        ]
    )(jnp.float32(3), jnp.float32(0.7))
    for name in pairs:
        for a, b in zip(
            *map(jax.tree.leaves, (found[name], wanted[name])), strict=True
        ):
            # A dozen operations, each rounded by half an ulp, without cancellation.
            np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=name)
