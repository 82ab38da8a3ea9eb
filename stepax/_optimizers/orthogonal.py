"""The nearest orthogonal matrix, computed by matrix products only.

Bernstein and Newhouse, 2024, Old Optimizer, New Norm: An Anthology (arXiv:2409.20325),
appendix A, for the iteration; Jordan et al., 2024 (kellerjordan.github.io/posts/muon)
for coefficients that reach about 1 fast rather than 1 exactly; Boissin et al., 2025,
Turbo-Muon (arXiv:2512.04632) and Grishina, Smirnov and Rakhuba, 2025 (arXiv:2506.10935)
for other ways to bound the largest singular value by 1 beforehand; Ahn et al., 2025,
Dion (arXiv:2504.05295), for the coefficients "dion"; Amsel et al., 2025, The Polar
Express (arXiv:2505.16932), for coefficients that are optimal in each step, given the
steps before it; Zhang, Amsel, Chen and Dao, 2026, Gram Newton-Schulz
(dao-lab.ai/blog/2026/gram-newton-schulz), for steps on the Gram matrix with restarts.
"""

import functools as ft
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.moments import square
from .._engine.arrays.numerics import along, eps_for, in_units, safe_divide, safe_sqrt
from .._engine.xla import by_platform


Coefficients: TypeAlias = (
    tuple[rx.ArrayLike, rx.ArrayLike, rx.ArrayLike]
    | tuple[tuple[rx.ArrayLike, rx.ArrayLike, rx.ArrayLike], ...]
    | jax.Array
    | np.ndarray
    | str
)
ShapeFactor: TypeAlias = Literal["jordan", "spectral", "rms"] | None

# Except for the first preset, coefficients differ from step to step.
_PRESETS = {
    "muon": (3.4445, -4.7750, 2.0315),
    "dion": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    "polar_express": (
        (8.156554524902461, -22.48329292557795, 15.878769915207462),
        (4.042929935166739, -2.808917465908714, 0.5000178451051316),
        (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
        (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
        (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
    ),
    "polar_express_long": (
        (8.2051, -22.9019, 16.4607),
        (4.0664, -2.8612, 0.5184),
        (3.9096, -2.8234, 0.5250),
        (3.2856, -2.4153, 0.4853),
        (2.2779, -1.6198, 0.3985),
        (1.8726, -1.2307, 0.3585),
        (1.8564, -1.2132, 0.3568),
        (1.8750, -1.2500, 0.3750),
    ),
}
# Its coefficients assume singular values that stay below 1 after rounding.
_SAFETY = {"polar_express": 1.02}


def coefficients(given: Any, steps: rx.Whole) -> Any:
    """The coefficients of the iteration, (3,) for all steps, or one row for each.

    given: the name of a preset, or numbers.
    steps: the number of rows of Polar Express; its last row is repeated.

    Raises a `ValueError` for other names and shapes.
    """
    if isinstance(given, str):
        if given not in _PRESETS:
            raise ValueError(
                f"`ns_coeffs` is {given!r}, expected one of {list(_PRESETS)}, "
                "or numbers"
            )
        rows = _PRESETS[given]
        if not given.startswith("polar_express"):
            return rows
        return np.reshape([rows[min(i, len(rows) - 1)] for i in range(steps)], (-1, 3))
    shape = np.shape(given)
    if len(shape) not in (1, 2) or shape[-1] != 3:
        raise ValueError(f"`ns_coeffs` has shape {shape}, expected (3,) or (n, 3)")
    return given


def rows_of(abc: jax.Array, steps: rx.Whole) -> jax.Array:
    return jnp.broadcast_to(abc, (steps, 3)) if abc.ndim == 1 else abc


def divisor(given: Any, norm: str = "frobenius") -> Callable:
    """The function from matrices to their divisor, one of `NORMS`.

    given: as for `coefficients`; the preset "polar_express" divides by more.
    """
    factor = _SAFETY.get(given) if isinstance(given, str) else None
    return NORMS[norm] if factor is None else lambda x: factor * NORMS[norm](x)


def newton_schulz(given: Any, steps: int, eps: rx.ArrayLike) -> Callable:
    """`orthogonalize` with these coefficients, as a function of matrices."""
    # As an array of the default float dtype, which is cast down to that of the
    # matrices.
    numbers = coefficients(given, steps)
    return lambda x: orthogonalize(
        x, rows_of(jnp.asarray(numbers, float), steps), divisor(given), eps
    )


def shape_factor(
    shape: tuple[int, ...], kind: ShapeFactor, rms: rx.ArrayLike = 0.2
) -> Any:
    """The factor of orthogonal matrices of a shape, (inputs, outputs).

    "jordan"    sqrt(max(1, outputs / inputs))
    "spectral"  sqrt(outputs / inputs)
    "rms"       rms sqrt(max(inputs, outputs))
    `None`      1
    """
    inputs, outputs = shape
    ratio = outputs / max(inputs, 1)
    if kind == "rms":
        return max(inputs, outputs) ** 0.5 * rms
    if kind == "jordan":
        return max(1, ratio) ** 0.5
    return 1 if kind is None else ratio**0.5


def check_shape_factor(kind: ShapeFactor) -> None:
    rx.require_one_of("shape_factor", kind, ("jordan", "spectral", "rms", None))


def orthogonalize(
    x: jax.Array,
    coefficients: jax.Array,
    precondition: Callable,
    eps: rx.ArrayLike,
    dtype: rx.DTypeLike | None = None,
) -> jax.Array:
    """Approximate U Vᴴ for x = U S Vᴴ by the Newton-Schulz iteration.

        x = x / (‖x‖ + eps)
        x = a x + b (x xᴴ) x + c (x xᴴ)² x   for each (a, b, c)

    x: a stack of matrices, (..., rows, columns).
    coefficients: shape (steps, 3), the a, b and c of each step.
    precondition: maps the matrices to their norms; one of `NORMS`.
    eps: added to the norm, at least 0; if it is at most 2^-23, it is relative for a
        small `x`, so that the result does not depend on the scale of `x`.
    dtype: dtype of the iteration; that of `x` if `None`.

    If one side is at least twice the other, and products are in float32 or wider, the
    same steps are taken on the Gram matrix, with 0.67 of the work for sides of 1 to 4.
    """
    if x.size == 0:
        return x
    # Transpose tall matrices: x xᴴ is then the smaller of the two Gram matrices.
    is_tall = x.shape[-2] > x.shape[-1]
    x = adjoint(x) if is_tall else x
    norm = precondition(x)
    norm = norm + eps_for(norm, eps)
    x = safe_divide(x, jnp.where(norm == 0, 1, norm).astype(x.dtype))
    x = x if dtype is None else x.astype(dtype)

    is_narrow = jnp.finfo(x.dtype).bits < 32
    abc = coefficients.astype(jnp.float32 if is_narrow else x.dtype)
    # On a Gram matrix steps take less work from a ratio of 1.5 on, and from 2 on so
    # much less that it justifies the longer program.
    is_long = x.shape[-1] >= 2 * x.shape[-2] and len(abc) > 1

    # Rolled loops: code size and memory are those of one iteration.
    def by_steps(x):
        return jax.lax.scan(_one_step, x, abc)[0]

    def by_groups(x):
        return jax.lax.scan(_on_gram, x, _groups(abc))[0]

    if is_long and _is_exact(x.dtype):
        x = by_groups(x)
    elif is_long and not is_narrow:
        x = by_platform(by_steps, x, cpu=by_groups)
    else:
        x = by_steps(x)
    return adjoint(x) if is_tall else x


# By name, because the type of `jax.config` does not list its attributes.
_precision = attrgetter("jax_default_matmul_precision")


def _is_exact(dtype):
    """Whether products in a dtype are computed in float32 or wider on any platform.

    Gram matrices lose singular values below the square root of the rounding error.  In
    bfloat16 and TF32, which accelerators use for float32, these matter.
    """
    bits = jnp.finfo(dtype).bits
    is_asked = _precision(jax.config) in ("highest", "float32")
    return bits > 32 or bits == 32 and is_asked


def _one_step(x, abc):
    """A step in the dtype of `x`; sums are in that of the coefficients."""
    a, b, c = abc
    product = ft.partial(jnp.matmul, preferred_element_type=a.dtype)
    gram = product(x, adjoint(x))
    squared = product((c * gram).astype(x.dtype), gram.astype(x.dtype))
    factor = (b * gram + squared).astype(x.dtype)
    return (a * x.astype(a.dtype) + product(factor, x)).astype(x.dtype), None


def _groups(coefficients):
    """Rows of two or three steps, (groups, 3, 3), and whether there are three."""
    # After at most three steps the Gram matrix is computed again: its small eigenvalues
    # are lost in the rounding errors of large ones, which grow by a² in a step.
    n = len(coefficients)
    number = -(-n // 3)
    is_three = np.arange(number) < n - 2 * number
    sizes = 2 + is_three
    first = np.cumsum(sizes) - sizes
    rows = np.minimum(first[:, None] + np.arange(3), n - 1)
    return coefficients[rows], is_three


def _on_gram(x, group):
    """Two or three steps, in which only the first and last products involve x itself.

    All factors are polynomials of one Gram matrix, so they commute: after steps that
    multiply x by q, the Gram matrix is q gram q.
    """
    rows, is_three = group
    # This also holds if a program that is traced on a CPU runs elsewhere.
    product = ft.partial(jnp.matmul, precision="highest")
    one = jnp.eye(x.shape[-2], dtype=x.dtype)

    def factor(gram, abc):
        a, b, c = abc
        ones = jnp.broadcast_to(one, gram.shape)
        return a * ones + b * gram + product(c * gram, gram)

    def after(factor, gram):
        return product(factor, product(gram, factor))

    gram = product(x, adjoint(x))
    first = factor(gram, rows[0])
    gram = after(first, gram)
    second = factor(gram, rows[1])
    q = product(second, first)

    def third():
        return product(factor(after(second, gram), rows[2]), q)

    return product(jax.lax.cond(is_three, third, lambda: q), x), None


def adjoint(x):
    return jnp.conj(x.mT)


def norm_of(x: jax.Array) -> jax.Array:
    """The norm of each matrix of a stack, (..., 1, 1)."""
    return safe_sqrt(jnp.sum(square(x), (-2, -1), keepdims=True))


@jax.custom_jvp
def _frobenius(x):
    """As `norm_of`, also where squares over- or underflow: 1e-30 to 1e30 in float32."""
    # Powers of two round nothing, and leave no gap in which squares of x unit overflow
    # and those of x / unit underflow.
    unit = 2.0 ** (jnp.finfo(x.dtype).maxexp * 2 // 5)
    units = np.reshape([unit, 1 / unit], (2, *[1] * x.ndim)).astype(x.dtype)
    total = ft.partial(jnp.sum, axis=(-2, -1), keepdims=True)

    # Both are one reduction, as compilers do not compute two in one pass.
    def stacked(x):
        return tuple(total(square(x[None] * units)))

    def complex_sum(x):
        squares = total(jax.lax.complex(square(x * unit), square(x / unit)))
        return squares.real, squares.imag

    small, large = by_platform(stacked, x, gpu=complex_sum)
    is_small = small < jnp.inf
    scale = jnp.where(is_small, 1 / unit, unit)
    return scale * jnp.sqrt(jnp.where(is_small, small, large))


@_frobenius.defjvp
def _frobenius_and_slope(primals, tangents):
    (x,), (dx,) = primals, tangents
    norm = _frobenius(x)
    return norm, jnp.sum(along(x, norm, dx), (-2, -1), keepdims=True)


def _aol(x):
    """One factor per row, from the sum of its inner products with all rows."""
    products = safe_sqrt(square(x @ adjoint(x)))
    return safe_sqrt(jnp.sum(products, -1, keepdims=True))


def _schatten(x):
    """The Schatten 4-norm: (Σ s⁴)^(1/4) over the singular values s."""
    return safe_sqrt(norm_of(x @ adjoint(x)))


def _in_units(norm: Callable) -> Callable:
    """The norm of `x` of any scale, by products of elements that stay in range."""

    def scaled(x):
        x, unit = in_units(x, (-2, -1))
        return norm(x) * unit

    return scaled


NORMS = {
    "frobenius": _frobenius,
    "spectral": _in_units(lambda x: jnp.linalg.norm(x, 2, (-2, -1), keepdims=True)),
    "aol": _in_units(_aol),
    "schatten": _in_units(_schatten),
}
