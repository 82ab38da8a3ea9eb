"""Iterative dominant eigenvalue, inverse root, and nonnegative least squares.

The inverse root is the coupled Newton iteration of Higham, 2008, Functions of Matrices
(DOI:10.1137/1.9780898717778), equation 7.18, scaled as in Anil et al., 2020, Scalable
Second Order Optimization for Deep Learning (arXiv:2002.09018).  Least squares are the
fast projected gradient of Polyak, 2015, Projected gradient method for non-negative
least square (DOI:10.1090/conm/636), with the momentum of Beck and Teboulle, 2009
(DOI:10.1137/080716542).

Differences from Optax: narrow dtypes are computed in float32, and integers are
accepted; a zero matrix gives no NaN; matrices may be complex where that is meaningful;
inverse roots are correct for every p, not only for powers of 2; `nnls` is one iteration
ahead, because its momentum does not undo the first one.
"""

import functools as ft
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from .. import tree as trees
from .._engine import rules as rx
from .._engine.arrays.numerics import (
    in_units,
    nan_max_abs,
    power_of_two,
    strong_type,
    upcast,
)


HIGHEST = jax.lax.Precision.HIGHEST


@rx.explain_misuse
def power_iteration(
    matrix: ArrayLike | Callable[[Any], Any],
    *,
    v0: rx.ArrayTree = None,
    num_iters: int | jax.Array = 100,
    error_tolerance: ArrayLike = 1e-6,
    precision: jax.lax.PrecisionLike = HIGHEST,
    key: jax.Array | None = None,
) -> tuple[jax.Array, rx.ArrayTree]:
    """The eigenvalue with the largest absolute value, and its eigenvector.

        v = v / ‖v‖,   λ = ⟨v, A v⟩,   v = A v,   until ‖A v - λ v‖ <= tolerance |λ|

    matrix: A, square and diagonalizable; or a function that multiplies a tree by A.
    v0: initial v, a vector that A can multiply; sampled from [-1, 1) if `None`.
    num_iters: maximum number of iterations, >= 0.
    error_tolerance: relative tolerance at which to stop, >= 0.
    precision: precision of the matrix product.
    key: random key for the initial v; `jax.random.PRNGKey(0)` if `None`.

    Returns λ, in float32 or wider for a function, and v, with ‖v‖ = 1, or 0 if A is 0.
    Raises ValueError for shapes that do not fit, and for a function without `v0`.
    """
    if callable(matrix):
        if v0 is None:
            raise ValueError("`v0` is missing: it is needed if `matrix` is a function")
        _check_product(matrix, v0)
        v0 = jax.tree.map(lambda x: strong_type(jnp.asarray(x)), v0)
        return _power_iteration(matrix, v0, num_iters, error_tolerance)
    matrix = _square(matrix)
    dtype = _dtype(matrix)
    matrix = upcast(matrix)
    if v0 is None:
        key = jax.random.PRNGKey(0) if key is None else key
        real = matrix.real.dtype
        v0 = jax.random.uniform(key, matrix.shape[-1:], real, -1.0, 1.0)
    elif jnp.shape(v0) != matrix.shape[:1]:
        raise ValueError(
            f"`v0` has shape {jnp.shape(v0)}, expected {matrix.shape[:1]} for a matrix "
            f"of shape {matrix.shape}"
        )
    v0 = upcast(v0).astype(matrix.dtype)
    eigenvalue, v = _of_matrix(matrix, v0, num_iters, error_tolerance, precision)
    return eigenvalue.astype(dtype), v.astype(dtype)


def _square(matrix: ArrayLike) -> jax.Array:
    matrix = jnp.asarray(matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"`matrix` has shape {matrix.shape}, expected a square one; use `jax.vmap` "
            "for several matrices"
        )
    if not matrix.size:
        raise ValueError("`matrix` has shape (0, 0), expected at least one row")
    return matrix


def _check_product(matrix: Callable, v0: rx.ArrayTree) -> None:
    def leaf(x, y):
        if x.shape != y.shape:
            raise ValueError(
                f"`matrix` returns the shape {y.shape} for a vector of shape {x.shape}"
            )

    shapes = jax.eval_shape(lambda v: v, v0)
    found = jax.eval_shape(matrix, v0)
    if jax.tree.structure(found) != jax.tree.structure(shapes):
        raise rx.errors.mismatch("what `matrix` returns", found, "`v0`", shapes)
    jax.tree.map(leaf, shapes, found)


def _dtype(x: jax.Array) -> Any:
    is_inexact = jnp.issubdtype(x.dtype, jnp.inexact)
    return x.dtype if is_inexact else jnp.result_type(float)


@ft.partial(jax.jit, static_argnames="precision")
def _of_matrix(matrix, v0, num_iters, error_tolerance, precision):
    product = ft.partial(jnp.matmul, matrix, precision=precision)
    return _power_iteration(product, v0, num_iters, error_tolerance)


def _power_iteration(product, v0, num_iters, error_tolerance):
    def multiply(v):
        return jax.tree.map(lambda x, y: y.astype(x.dtype), v, product(v))

    def step(carry):
        i, z, _, _ = carry
        v = _normalized(z)
        z = multiply(v)
        eigenvalue = strong_type(jnp.asarray(trees.vdot(v, z)))
        rest = jax.tree.map(lambda z, v: z - eigenvalue.astype(z.dtype) * v, z, v)
        size, error = jnp.abs(eigenvalue), trees.norm(rest)
        goes_on = error > jnp.asarray(error_tolerance).astype(size.dtype) * size
        return i + 1, z, eigenvalue, goes_on

    def is_going(carry):
        i, _, _, goes_on = carry
        return goes_on & (i < num_iters)

    z = multiply(_normalized(v0))
    nothing = jnp.zeros_like(trees.vdot(z, z))
    start = jnp.zeros([], jnp.int32), z, nothing, jnp.ones([], bool)
    _, z, eigenvalue, _ = jax.lax.while_loop(is_going, step, start)
    return eigenvalue, _normalized(z)


def _normalized(v):
    """v / ‖v‖, or 0 for v = 0."""
    most = trees.norm(v, ord="inf")
    unit = power_of_two(jnp.where(most == 0, 1, most))  # no square underflows
    v = jax.tree.map(lambda x: x / unit.astype(x.dtype), v)
    norm = trees.norm(v)
    norm = jnp.where(norm == 0, 1, norm)
    return jax.tree.map(lambda x: x / norm.astype(x.dtype), v)


class _Newton(NamedTuple):
    """i: iterations.  M, H: M = A H^p, which tends to 1.  error: max |M - 1|."""

    i: jax.Array
    M: jax.Array
    H: jax.Array
    error: jax.Array
    is_better: jax.Array


@rx.explain_misuse
def matrix_inverse_pth_root(
    matrix: ArrayLike,
    p: int | jax.Array,
    num_iters: int | jax.Array = 100,
    ridge_epsilon: ArrayLike = 1e-6,
    error_tolerance: ArrayLike = 1e-6,
    precision: jax.lax.PrecisionLike = HIGHEST,
) -> tuple[jax.Array, jax.Array]:
    """The inverse root A^(-1/p) of a positive semi-definite matrix.

        A = matrix + ridge_epsilon λ 1,   λ the largest eigenvalue of `matrix`
        z = (1 + p) / (2 ‖A‖),   M = z A,   H = z^(1/p) 1
        T = (1 + 1/p) 1 - M / p,   M = T^p M,   H = H T,   until M = 1

    matrix: symmetric or Hermitian.
    p: an integer, >= 1.
    num_iters: maximum number of iterations, >= 0.
    ridge_epsilon: relative ridge that makes the matrix positive definite, >= 0; for a
        zero matrix, λ counts as 1.
    error_tolerance: max |M - 1| at which to stop, >= 0.
    precision: precision of the matrix products.

    Returns the root, and max |M - 1| in float32 or wider.  Raises ValueError for a
    matrix that is not square, and for p below 1.
    """
    matrix = _square(matrix)
    if not isinstance(p, Tracer) and p < 1:
        raise ValueError(f"`p` is {p}, expected at least 1")
    find = _inverse_root if isinstance(p, int) else _inverse_root_of_any_p
    with jax.numpy_dtype_promotion("standard"):
        root, error = find(
            upcast(matrix), p, num_iters, ridge_epsilon, error_tolerance, precision
        )
    return root.astype(_dtype(matrix)), error


def _scaled_root(A, p, num_iters, ridge_epsilon, error_tolerance, precision):
    A, unit = in_units(A)  # no square underflows
    eye = jnp.eye(len(A), dtype=A.dtype)
    largest, _ = power_iteration(A, precision=precision)
    largest = jnp.where(largest == 0, jnp.ones_like(largest), largest).real
    A = A + ridge_epsilon * largest * eye
    H, error = _root(A, eye, p, num_iters, error_tolerance, precision)
    return H * unit ** (-1 / p), error


_inverse_root = jax.jit(_scaled_root, static_argnames=("p", "precision"))
_inverse_root_of_any_p = jax.jit(_scaled_root, static_argnames="precision")


def _root(A, eye, p, num_iters, error_tolerance, precision):
    """A^(-1/p) and its error."""
    if A.shape == (1, 1):
        return A ** (-1 / p), jnp.zeros([], A.real.dtype)
    product = ft.partial(jnp.matmul, precision=precision)

    def error(M):
        return nan_max_abs(M - eye)

    def step(was):
        T = (1 + 1 / p) * eye - was.M / p
        M, H = product(_power(T, p, eye, product), was.M), product(was.H, T)
        found = error(M)
        is_better = found < 1.2 * was.error

        def keep(new, old):
            return jnp.where(is_better, new.astype(old.dtype), old)

        M, H, found = map(keep, (M, H, found), (was.M, was.H, was.error))
        return _Newton(was.i + 1, M, H, found, is_better)

    def is_going(at):
        return at.is_better & (at.error > error_tolerance) & (at.i < num_iters)

    z = (1 + p) / (2 * trees.norm(A))
    M, H = (A * z).astype(A.dtype), (eye * z ** (1 / p)).astype(A.dtype)
    start = _Newton(jnp.zeros([], jnp.int32), M, H, error(M), jnp.ones([], bool))
    found = jax.lax.while_loop(is_going, step, start)
    return found.H, found.error


def _power(T, p, eye, product):
    """T^p by repeated squaring; p may be traced."""
    if isinstance(p, int):
        half = T if p < 2 else _power(product(T, T), p // 2, eye, product)
        return half if p % 2 == 0 or p == 1 else product(half, T)

    def step(carry):
        p, square, found = carry
        found = jnp.where(p % 2 == 1, product(found, square), found)
        return p // 2, product(square, square), found

    return jax.lax.while_loop(lambda carry: carry[0] > 0, step, (p, T, eye))[2]


@rx.explain_misuse
def nnls(
    A: ArrayLike,
    b: ArrayLike,
    iters: int,
    unroll: int | bool = 1,
    L: ArrayLike | None = None,
) -> jax.Array:
    """The nonnegative x that minimizes ‖A x - b‖².

        x = max(y - Aᵀ (A y - b) / L, 0),   y = x + (t - 1) (x - x') / t'
        t' = (1 + sqrt(1 + 4 t²)) / 2,      starting at x = 0 and t = 1

    A: a matrix of shape (M, N).
    b: a vector of shape (M,), or several as the columns of a matrix (M, K).
    iters: number of iterations, >= 0.
    unroll: number of iterations to unroll in the loop.
    L: an upper bound of the largest eigenvalue of AᵀA, above 0; its norm if `None`.

    Returns x, of shape (N,) or (N, K).  Raises ValueError for shapes that do not fit,
    and for complex arrays.
    """
    A, b = jnp.asarray(A), jnp.asarray(b)
    _check_system(A, b)
    dtype = jnp.promote_types(_dtype(A), _dtype(b))
    A, b = upcast(A), upcast(b)
    wide = jnp.promote_types(A.dtype, b.dtype)
    A, b = A.astype(wide), b.astype(wide)
    L = None if L is None else jnp.asarray(L).astype(wide)
    return _descend(A, b, L, iters, unroll).astype(dtype)


@ft.partial(jax.jit, static_argnames=("iters", "unroll"))
def _descend(A, b, L, iters, unroll):
    A, unit = in_units(A)  # no square overflows
    gram, target = A.T @ A, A.T @ b
    L = trees.norm(gram) if L is None else L / unit / unit
    L = jnp.where(L == 0, jnp.ones_like(L), L)  # A is 0, and so is the gradient

    def step(carry, _):
        x, y, t = carry
        new = jax.nn.relu(y - (gram @ y - target) / L)
        next_t = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
        y = new + (t - 1) / next_t * (new - x)
        return (new, y, next_t), None

    zeros = jnp.zeros_like(target)
    start = zeros, zeros, jnp.ones([], A.dtype)
    (x, _, _), _ = jax.lax.scan(step, start, length=iters, unroll=unroll)
    return x / unit


def _check_system(A, b):
    for name, x in {"A": A, "b": b}.items():
        if jnp.iscomplexobj(x):
            raise ValueError(f"`{name}` is complex, expected real numbers")
    if A.ndim != 2:
        raise ValueError(f"`A` has shape {A.shape}, expected a matrix")
    if b.ndim not in (1, 2) or b.shape[0] != A.shape[0]:
        raise ValueError(
            f"`b` has shape {b.shape}, expected ({A.shape[0]},) or ({A.shape[0]}, K) "
            f"for `A` of shape {A.shape}"
        )
