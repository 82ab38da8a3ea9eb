"""Factors of the axes of an array: products, bases, merged axes."""

import itertools as it
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stepax._optimizers import factors


SHAPES = ((5,), (4, 4), (5, 2), (2, 5), (3, 4, 2), (2, 1, 3, 2))
DTYPES = "float32", "complex64"
AXES = [(s, axis) for s in SHAPES for axis in range(len(s))]
TINY, HUGE = 1e-30, 1e30


@pytest.fixture(autouse=True)
def _promotion_as_in_the_engine():
    with jax.numpy_dtype_promotion("standard"):
        yield


def _draw(shape, dtype="float32", seed=0) -> Any:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    return jnp.asarray(x + 1j * rng.normal(size=shape) if "c" in dtype else x, dtype)


def _unfolded(x, axis):
    return np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)


def _near(x, y, rtol=1e-5):
    np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * np.abs(y).max(initial=0))


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype, at", list(it.product(DTYPES, AXES)))
def test_products_are_those_of_unfoldings(dtype, at):
    shape, axis = at
    x, m = _draw(shape, dtype), _draw((3, shape[axis]), dtype, 1)
    g = _unfolded(np.asarray(x), axis)
    _near(factors.gram(x, axis), g @ np.conj(g).T)
    _near(_unfolded(np.asarray(factors.on_axis(x, m, axis)), axis), m @ g)


@pytest.mark.slow
@pytest.mark.parametrize("dtype, shape", list(it.product(DTYPES, SHAPES)))
def test_coordinates_in_bases_are_undone_by_them(dtype, shape):
    axes = [i for i, n in enumerate(shape) if n > 1]
    x = _draw(shape, dtype)
    bases = [factors.eigenbasis(factors.gram(x, i)) for i in axes]
    y = factors.to_bases(x, bases, axes)
    _near(factors.on_axes(y, bases, axes), x)
    # In its own eigenbasis an array has diagonal statistics, the largest first.
    for i in axes:
        gram = np.asarray(factors.gram(y, i))
        values = np.real(np.diag(gram))
        _near(gram, np.diag(values).astype(dtype))
        assert (np.diff(values) <= 1e-5 * values[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_power_steps_turn_to_the_eigenbasis_in_its_order(dtype):
    x = _draw((4, 9), dtype) * jnp.array([[8], [4], [2], [1]], jnp.float32)
    gram = factors.gram(x, 0)
    basis = jnp.eye(4, dtype=dtype)[:, ::-1]
    assert factors.ordered_power_step(gram, basis)[0].tolist() == [3, 2, 1, 0]
    for _ in range(60):
        basis = factors.power_step(gram, basis)
    overlap = np.abs(np.conj(factors.eigenbasis(gram)).T @ np.asarray(basis))
    _near(overlap, np.eye(4), 1e-4)


MATRICES = {
    "zero": np.zeros((4, 4)),
    "rank 1": np.ones((4, 4)),
    "identity": np.eye(4),
    "tiny": TINY * np.eye(4)[::-1] @ np.diag([1, 2, 3, 4]),
    "huge": HUGE * np.diag([1, 2, 3, 4]),
    "one large entry": np.diag([HUGE, 1, TINY, 0]),
    "empty": np.zeros((0, 0)),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MATRICES)
def test_bases_of_singular_and_extreme_statistics_are_orthonormal(name):
    m = jnp.asarray(MATRICES[name], jnp.float32)
    eye = jnp.eye(len(m))
    start, step = jax.jit(factors.eigenbasis)(m), jax.jit(factors.power_step)
    for basis in (start, step(m, start), step(m, eye)):
        np.testing.assert_allclose(basis.T @ basis, eye, atol=1e-5)
    order, _ = jax.jit(factors.ordered_power_step)(m, start)
    assert sorted(order.tolist()) == list(range(len(m)))


@pytest.mark.parametrize("size", (0.0, TINY, 1.0, 1e18, HUGE, 3e38))
def test_statistics_of_finite_arrays_are_finite(size):
    found = factors.gram(jnp.full((4, 8), size), 0)
    assert np.isfinite(found).all()
    if size == 1:
        _near(found, np.full((4, 4), 8.0))
    if size >= 1e18:
        assert (found > 1e35).all()


@pytest.mark.slow
def test_a_basis_is_a_constant_to_derivatives():
    x = jnp.eye(3)  # all eigenvalues coincide

    def f(x):
        bases = [factors.eigenbasis(x), factors.power_step(x, x)]
        return factors.on_axes(x, bases, (0, 1)).sum()

    assert np.isfinite(jax.grad(f)(x)).all()


# By the rule of section 2 of the references: what fits is multiplied up.
MERGED = {
    ((4, 3, 3, 3), 9): (4, 9, 3),
    ((4, 3, 3, 3), 8): (4, 3, 3, 3),
    ((4, 3, 3, 3), 12): (12, 9),
    ((2, 3), 100): (6,),
    ((20, 3), 9): (20, 3),
    ((20, 30), 9): (20, 30),
    ((1, 1), 9): (1,),
    ((), 9): (1,),
}


@pytest.mark.parametrize("shape, most", MERGED)
def test_neighbouring_axes_are_merged_as_long_as_they_fit(shape, most):
    assert factors.merged(shape, most) == MERGED[shape, most]
