"""Arithmetic that must not fail: counts that saturate, norms of one array."""

import functools as ft
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..functions.calls import explain_misuse


def is_numeric(x: Any) -> bool:
    """Whether `x` may be computed with; float0 arrays and random keys may not."""
    dtype = getattr(x, "dtype", None)
    return dtype is None or not (
        dtype == jax.dtypes.float0 or jnp.issubdtype(dtype, jax.dtypes.extended)
    )


def upcast(x: ArrayLike, whole: type = float) -> jax.Array:
    """`x` in float32 or wider; integers become the default dtype of kind `whole`."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x.astype(jnp.result_type(whole))
    return x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x


def strong_type(x: jax.Array) -> jax.Array:
    """`x` without a weak type, which would make a second trace of the next step."""
    return x.astype(x.dtype)


@jax.custom_jvp
def safe_sqrt(x: jax.Array) -> jax.Array:
    """sqrt(x) for x >= 0, with derivative 0 at 0."""
    return jnp.sqrt(x)


@safe_sqrt.defjvp
def _root_and_slope(primals, tangents):
    (x,), (dx,) = primals, tangents
    y = safe_sqrt(x)
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
    is_steep = x < float(jnp.finfo(x.dtype).tiny) ** (2 / 3)
    return y, jnp.where(is_steep, 0, -0.5 * y / jnp.where(is_steep, 1, x) * dx)


@jax.custom_jvp
def _inverse(x):
    """1 / x; where that overflows 0, which is its derivative there."""
    is_tiny = jnp.abs(x) < jnp.finfo(x.dtype).tiny
    return jnp.where(is_tiny, 0, 1 / jnp.where(is_tiny, 1, x))


@_inverse.defjvp
def _inverse_and_slope(primals, tangents):
    (x,), (dx,) = primals, tangents
    y = _inverse(x)
    return y, -y * (y * dx)


@jax.custom_jvp
def safe_divide(x: jax.Array, y: jax.Array) -> jax.Array:
    """x / y, of which no derivative divides by y², which may underflow to 0."""
    return x / y


@safe_divide.defjvp
def _quotient_and_slope(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    ratio = safe_divide(x, y)
    return ratio, _inverse(y) * (dx - ratio * dy)


@jax.custom_jvp
def safe_log(x: jax.Array) -> jax.Array:
    """log x, of which no derivative divides by x², which may underflow to 0."""
    return jnp.log(x)


@safe_log.defjvp
def _logarithm_and_slope(primals, tangents):
    (x,), (dx,) = primals, tangents
    return safe_log(x), _inverse(x) * dx


def norm2(
    x: jax.Array,
    axis: tuple[int, ...] | int | None = None,
    keepdims: bool = False,
    over: Callable = jnp.sum,
) -> jax.Array:
    """sqrt(Σ |x|²), with derivative 0 at 0, also where squares overflow.

    over: the sum, or a mean in its place.

    It takes two sums, which the compiler joins in one pass on GPUs alone, so that
    optimizers do without.
    """
    sizes = {"axis": axis, "keepdims": keepdims}
    squares = over(abs_sq(x), **sizes)
    unit = 2.0 ** (jnp.finfo(x.dtype).maxexp * 5 // 8)
    far = over(abs_sq(x / unit), **sizes)
    return jnp.where(squares < jnp.inf, safe_sqrt(squares), unit * safe_sqrt(far))


def power_of_two(x: jax.Array) -> jax.Array:
    """One next to x >= 0; neither it nor its inverse is subnormal, or infinite.

    It is constant but for jumps; JAX would take it for x, and overflow in 1 / x².
    """
    limits, x = jnp.finfo(x.dtype), jax.lax.stop_gradient(x)
    x = jax.lax.clamp(
        jnp.asarray(4 * limits.tiny, x.dtype), x, jnp.asarray(limits.max / 4, x.dtype)
    )
    return jax.lax.reduce_precision(x, limits.nexp, 0)


def reduce_scalars(parts: list, pair: Callable, whole: Callable) -> jax.Array:
    """`pair` of numbers in their order, or, of many, `held` by `whole`."""
    return (
        ft.reduce(pair, parts)
        if len(parts) < 32
        else reduce_behind_barrier(parts, whole)
    )


def reduce_behind_barrier(parts: list, whole: Callable) -> jax.Array:
    """`whole`, a reduction, of numbers as a vector, for a result that many arrays need.

    XLA copies a chain of scalar operations into each loop over an array that needs the
    result, and compiles it there again: minutes for 400 arrays.  It does not copy a
    reduction, nor see through the barrier that there is none.
    """
    return whole(jax.lax.optimization_barrier(jnp.stack(parts)), 0)


def every_finite(x: jax.Array) -> jax.Array:
    """Whether all numbers of an inexact array are finite."""
    # XLA's CPU compiler reads an array once for a sum of differences, but writes out
    # what `jnp.all` is of, also a constant; and its `max` loses a NaN beside an inf.
    return jnp.sum(x - x) == 0


def nan_max(x: jax.Array, axis: Any = None, **options: Any) -> jax.Array:
    """The maximum, NaN where there is one: XLA's on CPUs loses it beside an infinity,
    in arrays that are shared out among threads."""
    return _or_nan(x, axis, jnp.max(x, axis, **options), options)


def nan_min(x: jax.Array, axis: Any = None, **options: Any) -> jax.Array:
    """The minimum, alike."""
    return _or_nan(x, axis, jnp.min(x, axis, **options), options)


def _or_nan(x, axis, found, options):
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return found
    # The sign of an infinity is finite.
    seen = jnp.sum(jnp.sign(x), axis, keepdims=options.get("keepdims", False))
    # A constant NaN would stop programs that run with `jax_debug_nans`.
    return jnp.where(jnp.isnan(seen), seen.astype(found.dtype), found)


def any_nan(x: jax.Array) -> jax.Array:
    """Whether there is a NaN in an inexact array."""
    # Else a GPU sums in the kernel that writes the step, which then takes longer than
    # both apart.
    x = jax.lax.optimization_barrier(x)
    parts = (x.real, x.imag) if jnp.iscomplexobj(x) else (x,)
    # The sign of an infinity is finite; otherwise as in `every_finite`.
    found = [jnp.isnan(jnp.sum(jnp.sign(part))) for part in parts]
    return ft.reduce(jnp.logical_or, found)


def abs_sq(x: ArrayLike) -> jax.Array:
    """|x|², elementwise and real also for complex x."""
    x = jnp.asarray(x)
    if jnp.iscomplexobj(x):
        return jnp.square(x.real) + jnp.square(x.imag)
    return jnp.square(x)


@explain_misuse
def safe_increment(count: ArrayLike) -> jax.Array:
    """Count one up, and stay at the largest value that the dtype holds.

    count + 1   where count < max(dtype)
    max(dtype)  otherwise

    count: a real number or an array of them; the dtype is kept.

    Raises ValueError for other dtypes.
    """
    return _increment(count)


@jax.jit
def _increment(count):
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
    """Count one up as `safe_increment` does, which is its name for all dtypes.

    count: a real number or an array of them; the dtype is kept.
    """
    return safe_increment(count)


def _floored(
    measure: Callable, x: jax.Array, least: ArrayLike, dropped: Any = None
) -> jax.Array:
    """max(measure(x), least), with derivative 0 in x where `least` holds.

    dropped: the axes that the result of `measure` lacks; `None` if it is one number
        or has the rank of `x`.
    """
    with jax.numpy_dtype_promotion("standard"):
        is_small = measure(x) <= least
        here = is_small if dropped is None else jnp.expand_dims(is_small, dropped)
        # Measured again where it counts: at 0 the derivative of a norm is NaN, which
        # the outer `where` alone would multiply by 0 and keep.
        kept = jnp.where(here, jnp.ones_like(x), x)
        return strong_type(jnp.where(is_small, least, measure(kept)))


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
    vector, may not exist in a narrow dtype.
    """
    sizes = {"axis": axis, "keepdims": keepdims}

    def norm(x):
        return _or_nan(jnp.abs(x), axis, jnp.linalg.norm(x, ord, **sizes), sizes)

    if ord is None:
        norm = ft.partial(norm2, axis=axis, keepdims=keepdims)
    return _floored(norm, upcast(x), min_norm, None if keepdims else axis)


@explain_misuse
def safe_root_mean_squares(x: ArrayLike, min_rms: ArrayLike) -> jax.Array:
    """A root mean square that is at least `min_rms`, with a derivative everywhere.

    max(sqrt(mean |x|²), min_rms);  the derivative in x is 0 where `min_rms` holds

    x: an array; for an empty one the result is `min_rms`.
    min_rms: lower bound, > 0 where the result is to be divided by.

    Computed and returned in float32 or wider.
    """
    return _floored(ft.partial(norm2, over=_mean), upcast(x), min_rms)


def _mean(x, axis=None, keepdims=False):
    return jnp.sum(x, axis, keepdims=keepdims) / max(x.size, 1)
