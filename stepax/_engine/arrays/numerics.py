"""Safe arithmetic for one array: saturating counts, norms, derivatives at 0."""

import functools as ft
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from ..functions.calls import explain_misuse


Axes: TypeAlias = tuple[int, ...] | int | None


def dtype_of(x: object, default: Any = None) -> Any:
    """The dtype of an array, or of what describes one; `default` for anything else."""
    return getattr(x, "dtype", default)


def has_dtype(x: object) -> bool:
    """Whether `x` is an array, or describes one: not a number of Python."""
    return hasattr(x, "dtype")


def is_numeric(x: Any) -> bool:
    """Whether arithmetic on `x` makes sense; not for float0 arrays and random keys."""
    dtype = dtype_of(x)
    return dtype is None or not (
        dtype == jax.dtypes.float0 or jnp.issubdtype(dtype, jax.dtypes.extended)
    )


def broadcasts_to(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether an array of a shape broadcasts to another shape."""
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(n in (1, m) for n, m in pairs)


def upcast(x: ArrayLike, whole: type = float) -> jax.Array:
    """`x` in float32 or wider; integers become the default dtype of kind `whole`."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x.astype(jnp.result_type(whole))
    return x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x


def strong_type(x: jax.Array) -> jax.Array:
    """`x` without a weak type."""
    # A state that turns from weak to strong after one step would be traced twice.
    return x.astype(x.dtype)


def agreement(x: jax.Array, y: jax.Array) -> jax.Array:
    """The sign of x y, elementwise, even where the product would underflow.

    For complex numbers it has the sign of the real part of conj(x) y.
    """
    return jnp.real(jnp.conj(jnp.sign(x)) * jnp.sign(y))


@jax.custom_jvp
def safe_sqrt(x: jax.Array) -> jax.Array:
    """sqrt(x) for x >= 0, with derivative 0 at 0."""
    return jnp.sqrt(x)


@safe_sqrt.defjvp
def _root_and_slope(primals, tangents):
    (x,), (dx,) = primals, tangents
    y = safe_sqrt(x)
    # The inner `where` keeps 0 out of the quotient: inf * 0 in the unused branch would
    # still be NaN once this is differentiated again.
    is_zero = y == 0
    return y, jnp.where(is_zero, 0, 0.5 / jnp.where(is_zero, 1, y) * dx)


@jax.custom_jvp
def safe_rsqrt(x: jax.Array) -> jax.Array:
    """1 / sqrt(x) for x > 0, with derivative 0 where that would overflow."""
    return x**-0.5


@safe_rsqrt.defjvp
def _inverse_root_and_slope(primals, tangents):
    (x,), (dx,) = primals, tangents
    y = safe_rsqrt(x)
    # The slope is x^-3/2 / 2, which overflows below about tiny^(2/3).
    is_steep = x < float(jnp.finfo(x.dtype).tiny) ** (2 / 3)
    return y, jnp.where(is_steep, 0, -0.5 * y / jnp.where(is_steep, 1, x) * dx)


@jax.custom_jvp
def safe_divide(x: ArrayLike, y: ArrayLike) -> Any:
    """x / y, with derivatives that do not divide by y², which may underflow to 0."""
    return x / y


@safe_divide.defjvp
def _quotient_and_slope(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    ratio = safe_divide(x, y)
    return ratio, quotient(jnp.ones_like(y), y) * (dx - ratio * dy)


@jax.custom_jvp
def quotient(x: Any, y: Any) -> jax.Array:
    """x / y, or 0 where y is 0."""
    is_zero = y == 0
    return jnp.where(is_zero, 0, x / jnp.where(is_zero, 1, y))


@quotient.defjvp
def _quotient_or_0_and_slope(primals, tangents):
    # JAX's own rule divides by y², which underflows for a small y.
    (x, y), (dx, dy) = primals, tangents
    q = quotient(x, y)
    return q, quotient(dx - q * dy, y)


def over_root(x: jax.Array, squares: jax.Array, eps: ArrayLike) -> jax.Array:
    """x / (sqrt(squares) + eps), or x where that is 0."""
    divisor = safe_sqrt(squares) + eps
    return x / jnp.where(divisor == 0, 1, divisor)


@jax.custom_jvp
def safe_log(x: jax.Array) -> jax.Array:
    """log x, with derivatives that do not divide by x², which may underflow to 0."""
    return jnp.log(x)


@safe_log.defjvp
def _logarithm_and_slope(primals, tangents):
    (x,), (dx,) = primals, tangents
    return safe_log(x), quotient(jnp.ones_like(x), x) * dx


def norm2(
    x: jax.Array,
    axis: tuple[int, ...] | int | None = None,
    keepdims: bool = False,
    over: Callable = jnp.sum,
) -> jax.Array:
    """sqrt(Σ |x|²), with derivative 0 at 0, even where squares over- or underflow.

    over: the sum, or a mean to use instead.

    It reads x twice, so optimizers do not use it.
    """
    found = _norm2(x, axis, over)
    return found if keepdims else jnp.squeeze(found, axis)


@ft.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _norm2(x, axis, over):
    y, unit = in_units(x, tuple(range(x.ndim)) if axis is None else axis)
    return unit * safe_sqrt(over(abs_sq(y), axis=axis, keepdims=True))


@_norm2.defjvp
def _norm2_and_slope(axis, over, primals, tangents):
    (x,), (dx,) = primals, tangents
    norm = _norm2(x, axis, over)
    return norm, over(along(x, norm, dx), axis=axis, keepdims=True)


def at_length(x: jax.Array, length: ArrayLike, norm: jax.Array) -> jax.Array:
    """(length / norm) x, for a norm of x that is not 0.

    Its derivative has no quotient by the square of the norm, which may overflow.
    """
    return _at_length(x, jnp.asarray(length, norm.dtype), norm)


@jax.custom_jvp
def _at_length(x, length, norm):
    # A product, because XLA does not duplicate divisions into consumers of the result:
    # it would write a copy of x to memory.
    return (length / norm).astype(x.dtype) * x


@_at_length.defjvp
def _at_length_and_slope(primals, tangents):
    (x, length, norm), (dx, *changes) = primals, tangents
    unit = safe_divide(x, norm.astype(x.dtype))
    factor, dl, dn = (y.astype(x.dtype) for y in (safe_divide(length, norm), *changes))
    return _at_length(*primals), factor * (dx - unit * dn) + unit * dl


def along(x: jax.Array, norm: jax.Array, dx: jax.Array) -> jax.Array:
    """The terms of <x / ‖x‖, dx>, the derivative of a norm; 0 for a norm of 0."""
    return jnp.real(jnp.conj(quotient(x, norm.astype(x.dtype))) * dx)


def fitting_factor(squares: jax.Array) -> jax.Array:
    """1 where a sum of squares fits; otherwise a power of two, to scale exactly by."""
    exponent = jnp.finfo(squares.dtype).maxexp
    unit = 2.0 ** (exponent * 25 // 32)
    is_few = squares <= 2.0 ** -(exponent * 5 // 8)
    factor = jnp.where(squares == jnp.inf, 1 / unit, jnp.ones_like(squares))
    return jnp.where(is_few, unit, factor)


def power_of_two(x: jax.Array) -> jax.Array:
    """A power of two near x >= 0; it and its inverse are normal and finite."""
    # Piecewise constant, so its derivative is 0; JAX would differentiate
    # `reduce_precision` as the identity, and overflow in 1 / x² further on.
    limits, x = jnp.finfo(x.dtype), jax.lax.stop_gradient(x)
    x = jax.lax.clamp(
        jnp.asarray(4 * limits.tiny, x.dtype), x, jnp.asarray(limits.max / 4, x.dtype)
    )
    # No mantissa bits are left: rounding to a power of two without a logarithm.
    return jax.lax.reduce_precision(x, limits.nexp, 0)


def in_units(x: jax.Array, axis: Axes = None) -> tuple[jax.Array, jax.Array]:
    """An array divided by a power of two near its largest element, and that power.

    axis: axes over which entries are compared, and which the power keeps; with `None`
        it is a scalar.
    """
    # Empty arrays have no largest entry.
    top = jnp.max(jnp.abs(x), axis, keepdims=axis is not None, initial=0)
    # Not the smallest power for zeros: the derivative there would be infinite.
    unit = power_of_two(jnp.where(top == 0, 1, top))
    # Not x / unit: XLA may turn (y / c) / unit into y / (c unit), and c unit underflows
    # where y is 0.
    return x * (1 / unit).astype(x.dtype), unit


def eps_for(size: jax.Array, eps: Any) -> Any:
    """`eps`, to be added to a divisor of this size; a tiny one is at most 128 size eps.

    Up to 2^-23, float32's rounding error beside 1, it only keeps divisors from being 0,
    and must not make results depend on the scale of gradients.  A larger one matters.
    """
    return jnp.where(eps <= 2.0**-23, jnp.minimum(eps, 128 * eps * size), eps)


def reduce_scalars(parts: list, pair: Callable, whole: Callable) -> jax.Array:
    """A few scalars reduced by `pair` in order, many by `whole` behind a barrier."""
    # A chain is cheaper to trace, and adds in Optax's order; from some 32 scalars on,
    # the time that XLA takes to compile it dominates.
    if len(parts) < 32:
        return ft.reduce(pair, parts)
    return reduce_behind_barrier(parts, whole)


def reduce_behind_barrier(parts: list, whole: Callable) -> jax.Array:
    """`whole`, a reduction, of scalars stacked into a vector.

    XLA duplicates a chain of scalar operations into every fused loop that uses the
    result, and compiles it there again: minutes for 400 arrays.  It does not duplicate
    a reduction, and the barrier keeps it from turning the reduction into a chain.
    """
    return whole(jax.lax.optimization_barrier(jnp.stack(parts)), 0)


def every_finite(x: jax.Array) -> jax.Array:
    # x - x is 0 if x is finite and NaN otherwise.  XLA's CPU compiler fuses it with the
    # sum, but materializes the operand of `jnp.all`; its `max` may lose a NaN.
    return jnp.sum(x - x) == 0


def nan_max(x: jax.Array, axis: Axes = None, **options: Any) -> jax.Array:
    """The maximum, or NaN if there is one.

    On CPUs XLA's maximum loses a NaN beside an infinity in arrays that are large enough
    to be split among threads.
    """
    return _or_nan(x, axis, jnp.max(x, axis, **options), options)


def nan_min(x: jax.Array, axis: Axes = None, **options: Any) -> jax.Array:
    """The minimum, or NaN if there is one; see `nan_max`."""
    return _or_nan(x, axis, jnp.min(x, axis, **options), options)


def nan_max_abs(x: jax.Array, axis: Axes = None, **options: Any) -> jax.Array:
    """The largest absolute value, or NaN if there is one; see `nan_max`."""
    # Signs of `x` itself: XLA's CPU compiler would write |x| to memory if two sums and
    # maxima read it, which takes twice as long.
    signed = jnp.abs(x) if jnp.iscomplexobj(x) else x
    return _or_nan(signed, axis, jnp.max(jnp.abs(x), axis, **options), options)


def _or_nan(x, axis, found, options):
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return found
    # A NaN survives any sum.  Infinities of both signs would make one, so the signs are
    # added, which are finite.
    seen = jnp.sum(jnp.sign(x), axis, keepdims=options.get("keepdims", False))
    # A constant NaN would stop programs that run with `jax_debug_nans`.
    return jnp.where(jnp.isnan(seen), seen.astype(found.dtype), found)


def any_nan(x: jax.Array) -> jax.Array:
    parts = (x.real, x.imag) if jnp.iscomplexobj(x) else (x,)
    # Squares, so that infinities cannot cancel to a NaN.  Overflow does not make a NaN,
    # and XLA sums squares in less than half the time of signs.
    found = [jnp.isnan(jnp.sum(jnp.square(part))) for part in parts]
    return ft.reduce(jnp.logical_or, found)


def abs_sq(x: ArrayLike) -> jax.Array:
    """|x|², elementwise; real even for complex x."""
    x = jnp.asarray(x)
    if jnp.iscomplexobj(x):
        return jnp.square(x.real) + jnp.square(x.imag)
    return jnp.square(x)


def is_known(x: ArrayLike) -> bool:
    """Whether the values are concrete and addressable."""
    return not isinstance(x, Tracer) and getattr(x, "is_fully_addressable", True)


def zero_count(params: object = None) -> jax.Array:
    """The first value of a count, also as a scalar of a rule."""
    return jnp.zeros([], jnp.int32)


@explain_misuse
def safe_increment(count: ArrayLike) -> jax.Array:
    """Increment a count, which saturates at the largest value of its dtype.

    count + 1   where count < max(dtype)
    max(dtype)  otherwise

    count: a real number or an array of them; the dtype is kept.

    Raises ValueError for other dtypes.
    """
    return increment(count)  # jitted: one dispatch outside of `jit`, not three


@jax.jit
def increment(count):
    if jnp.issubdtype(count.dtype, jnp.integer):
        top = jnp.iinfo(count.dtype).max
    elif jnp.issubdtype(count.dtype, jnp.floating):
        top = jnp.finfo(count.dtype).max
    else:
        raise ValueError(
            f"`count` is of dtype {count.dtype}, expected an integer or a real number"
        )
    top = jnp.asarray(top, count.dtype)
    return jnp.where(count < top, count + jnp.ones([], count.dtype), top)


@explain_misuse
def safe_int32_increment(count: ArrayLike) -> jax.Array:
    """The former name of `safe_increment`, which accepts every dtype.

    count: a real number or an array of them; the dtype is kept.
    """
    return safe_increment(count)


def at_least(least: ArrayLike, measured: jax.Array) -> jax.Array:
    """The larger of both; the derivative of the measure must be finite."""
    with jax.numpy_dtype_promotion("standard"):
        return strong_type(jnp.where(measured <= least, least, measured))


@explain_misuse
def safe_norm(
    x: ArrayLike,
    min_norm: ArrayLike,
    ord: int | float | str | None = None,
    axis: None | tuple[int, ...] | int = None,
    keepdims: bool = False,
) -> jax.Array:
    """A norm that is at least `min_norm`, and has a derivative everywhere.

    max(‖x‖, min_norm);  the derivative in x is 0 where ‖x‖ <= min_norm

    x: an array.
    min_norm: lower bound, > 0 where the result is to be divided by; shaped as the
        result, or a number.
    ord, axis, keepdims: as in `numpy.linalg.norm`.

    Computed and returned in float32 or wider: a small bound, and the norm of a long
    vector, may not be representable in a 16-bit dtype.
    """
    x, sizes = upcast(x), {"axis": axis, "keepdims": keepdims}
    is_vector = x.ndim == 1 or isinstance(axis, int)
    is_matrix = not isinstance(axis, int) and len(axis or x.shape) == 2
    # Of a matrix 2 is the spectral norm.
    if ord is None or (ord == 2 and is_vector) or (ord == "fro" and is_matrix):
        return at_least(min_norm, norm2(x, axis, keepdims))

    def norm(x):
        return _or_nan(jnp.abs(x), axis, jnp.linalg.norm(x, ord, **sizes), sizes)

    with jax.numpy_dtype_promotion("standard"):
        is_small = norm(x) <= min_norm
        here = is_small if keepdims or axis is None else jnp.expand_dims(is_small, axis)
        # Measured again, with ones where it is small: at 0 the derivative of a norm may
        # be NaN, and a `where` alone would multiply that by 0 and keep it.
        kept = norm(jnp.where(here, jnp.ones_like(x), x))
        return strong_type(jnp.where(is_small, min_norm, kept))


@explain_misuse
def safe_root_mean_squares(x: ArrayLike, min_rms: ArrayLike) -> jax.Array:
    """A root mean square that is at least `min_rms`, with a derivative everywhere.

    max(sqrt(mean |x|²), min_rms);  the derivative in x is 0 where `min_rms` holds

    x: an array; for an empty one the result is `min_rms`.
    min_rms: lower bound, > 0 where the result is to be divided by.

    Computed and returned in float32 or wider.
    """
    return at_least(min_rms, norm2(upcast(x), over=_mean))


def _mean(x, axis=None, keepdims=False):
    # Not `jnp.mean`, which is NaN for an empty array.
    return jnp.sum(x, axis, keepdims=keepdims) / max(x.size, 1)
