"""The nearest orthogonal matrix, computed by matrix products only.

Bernstein and Newhouse, 2024, Old Optimizer, New Norm: An Anthology (arXiv:2409.20325),
appendix A, for the iteration; Jordan et al., 2024 (kellerjordan.github.io/posts/muon)
for coefficients that reach about 1 fast rather than 1 exactly; Boissin et al., 2025,
Turbo-Muon (arXiv:2512.04632) and Grishina, Smirnov and Rakhuba, 2025 (arXiv:2506.10935)
for other ways to bound the largest singular value by 1 beforehand.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from .._engine.arrays.moments import square
from .._engine.arrays.numerics import safe_sqrt


def orthogonalize(
    x: jax.Array,
    coefficients: jax.Array,
    precondition: Callable,
    eps: ArrayLike,
    dtype: DTypeLike | None = None,
) -> jax.Array:
    """Approximate U Vᴴ for x = U S Vᴴ by the Newton-Schulz iteration.

        x = x / (‖x‖ + eps)
        x = a x + b (x xᴴ) x + c (x xᴴ)² x   for each (a, b, c)

    x: a stack of matrices, (..., rows, columns).
    coefficients: shape (steps, 3), the a, b and c of each step.
    precondition: maps the matrices to their norms; one of `NORMS`.
    eps: added to the norm, at least 0.
    dtype: dtype of the iteration; that of `x` if `None`.
    """
    if x.size == 0:
        return x
    # Transpose tall matrices: x xᴴ is then the smaller of the two Gram matrices.
    is_tall = x.shape[-2] > x.shape[-1]
    x = _adjoint(x) if is_tall else x
    norm = precondition(x) + eps
    x = x / jnp.where(norm == 0, 1, norm).astype(x.dtype)
    x = x if dtype is None else x.astype(dtype)

    # A rolled loop: code size and memory are those of one step.
    def step(x, abc):
        a, b, c = abc.astype(x.dtype)
        gram = x @ _adjoint(x)
        return a * x + (b * gram + c * gram @ gram) @ x, None

    x, _ = jax.lax.scan(step, x, coefficients)
    return _adjoint(x) if is_tall else x


def _adjoint(x):
    return jnp.conj(x.mT)


def _frobenius(x):
    return safe_sqrt(jnp.sum(square(x), (-2, -1), keepdims=True))


def _spectral(x):
    return jnp.linalg.norm(x, ord=2, axis=(-2, -1), keepdims=True)


def _schatten(x):
    """The Schatten 4-norm: (Σ s⁴)^(1/4) over the singular values s."""
    return safe_sqrt(_frobenius(x @ _adjoint(x)))


def _aol(x):
    """One factor per row, from the sum of its inner products with all rows."""
    products = safe_sqrt(square(x @ _adjoint(x)))
    return safe_sqrt(jnp.sum(products, -1, keepdims=True))


NORMS = {
    "frobenius": _frobenius,
    "spectral": _spectral,
    "aol": _aol,
    "schatten": _schatten,
}
