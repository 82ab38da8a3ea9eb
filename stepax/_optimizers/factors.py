"""One matrix for each axis of an array: shared by Kronecker-factored preconditioners.

G_(k) is the unfolding of an array g along axis k: the matrix whose rows are indexed by
that axis, and whose columns by all others.  Axes without a factor are not transformed,
so functions of several factors take the axes to which these belong.

Everything here is computed in the precision of its arguments, which the engine has
widened to float32 or more.  Matrices are scaled to entries of about 1 before they are
decomposed, as LAPACK and cuSOLVER return NaN or lose digits if squares over- or
underflow.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.numerics import has_dtype, in_units
from .._engine.step.turns import cubes


Shape = tuple[int, ...]


def factor_slot(
    start: Callable[..., jax.Array],
    sides: Callable[[Shape], Sequence],
    dtype: rx.DTypeLike | None = None,
) -> rx.Slot:
    """A slot of a batched stage with one array for each of some sides of an array.

    start: maps a side and a dtype to the initial value, such as `jnp.eye`.
    sides: maps the shape of a parameter to the lengths of the sides; may be empty.
    dtype: storage dtype for real floating-point parameters; see `wide_dtype` for
        others.

    Raises a `TypeError` if the dtype is not a real floating-point one.
    """
    if dtype is not None:
        rx.require_floating("factor_dtype", dtype)

    def make(p):
        kind = wide_dtype(p)
        if dtype is not None and jnp.issubdtype(kind, jnp.floating):
            kind = dtype
        return tuple(start(n, dtype=kind) for n in sides(jnp.shape(p)))

    return rx.Slot(make, alike=False, in_leaf=False)


def factored_rule(
    apply: Callable,
    State: type,
    slots: Mapping[str, rx.Slot],
    prepare: Callable,
    renewal: rx.Renewal,
    sides: Callable[[Shape], Sequence[int]],
    axis_name: rx.AxisName,
) -> rx.Rule:
    """A rule that consists of a stage on whole arrays, which has all of its slots.

    apply: as in `Batched`.
    prepare: maps the step, which begins at 1, to the context.
    renewal: when factors are renewed; the context starts with that of `renewal`.
    sides: maps the shape of an array to the sides of the matrices that are decomposed.
    """
    stage = rx.Batched(
        apply,
        lambda g: g.size > 0,
        tuple(slots),
        split=rx.ArraySplit(axis_name),
        at_turn=renewal.at_turn,
        cost=lambda shape: cubes(sides(shape)),
    )
    return rx.Rule(
        rx.unchanged, State, slots, rx.COUNT, rx.from_step(prepare), batched=stage
    )


def wide_dtype(p: rx.ArrayLike) -> rx.DTypeLike:
    """The storage dtype of means for which half precision is too coarse.

    Integers keep their dtype: they have slots, but are not trained.
    """
    if not has_dtype(p):  # Python's numbers
        return jnp.result_type(p, jnp.float32)
    kind = jnp.result_type(p)
    is_inexact = jnp.issubdtype(kind, jnp.inexact)
    return rx.compute_dtype(jax.ShapeDtypeStruct((), kind)) if is_inexact else kind


def zero_square(n: int, dtype: rx.DTypeLike) -> jax.Array:
    return jnp.zeros((n, n), dtype)


def gram(x: jax.Array, axis: int) -> jax.Array:
    """G_(k) G_(k)ᴴ for one axis of an array, (n, n); finite for all finite arrays."""
    if not x.size:
        return jnp.zeros((x.shape[axis],) * 2, x.dtype)
    others = [i for i in range(x.ndim) if i != axis]
    # Larger entries are clipped to this: otherwise sums would overflow.
    y = _clipped(x, math.sqrt(float(jnp.finfo(x.dtype).max) / (8 * x.size)))
    return jnp.tensordot(y, jnp.conj(y), (others, others))


def _clipped(x, most):
    if jnp.iscomplexobj(x):
        return jax.lax.complex(_clipped(x.real, most), _clipped(x.imag, most))
    return jnp.clip(x, -most, most)


def on_axis(x: jax.Array, matrix: jax.Array, axis: int) -> jax.Array:
    """`matrix` times each column of an array along one axis."""
    if axis == 0:
        return jnp.tensordot(matrix, x, (1, 0))
    return jnp.moveaxis(jnp.tensordot(x, matrix, (axis, 1)), -1, axis)


def on_axes(
    x: jax.Array, matrices: Sequence[jax.Array], axes: Sequence[int]
) -> jax.Array:
    for matrix, axis in zip(matrices, axes, strict=True):
        x = on_axis(x, matrix, axis)
    return x


def to_bases(
    x: jax.Array, bases: Sequence[jax.Array], axes: Sequence[int]
) -> jax.Array:
    """The coordinates of an array in one orthonormal basis for each axis, Qᴴ x."""
    return on_axes(x, [jnp.conj(q.T) for q in bases], axes)


def along(vector: jax.Array, axis: int, ndim: int) -> jax.Array:
    """A vector as an array of `ndim` axes, all but one of length 1."""
    return vector.reshape([-1 if i == axis else 1 for i in range(ndim)])


def not_0(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, 1, x)


def eigenbasis(matrix: jax.Array) -> jax.Array:
    """The eigenvectors of a Hermitian matrix as columns, largest eigenvalue first.

    Derivatives treat it as a constant: that of eigenvectors is infinite where
    eigenvalues coincide.
    """
    matrix = jax.lax.stop_gradient(matrix)
    return jnp.linalg.eigh(in_units(matrix)[0])[1][:, ::-1]


def power_step(matrix: jax.Array, basis: jax.Array) -> jax.Array:
    """The Q of QR(matrix basis), orthogonal iteration; a constant to derivatives."""
    return jnp.linalg.qr(_product(matrix, basis))[0]


def ordered_power_step(
    matrix: jax.Array, basis: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The order of columns q by qᴴ matrix q, largest first; `power_step` in it."""
    product = _product(matrix, basis)
    values = jnp.sum((jnp.conj(jax.lax.stop_gradient(basis)) * product).real, 0)
    order = jnp.argsort(-values)
    return order, jnp.linalg.qr(product[:, order])[0]


def _product(matrix, basis):
    matrix, basis = jax.lax.stop_gradient((matrix, basis))
    return in_units(matrix)[0] @ basis


def merged(shape: Shape, most: float) -> Shape:
    """A shape whose neighbouring axes are merged from the left up to a product."""
    return tuple(_merged(shape, most)) or (1,)


def _merged(shape: Shape, most: float) -> Iterator[int]:
    run = 1
    for n in shape:
        if run * n <= most:
            run *= n
        elif run > 1:
            yield run
            run = n
        else:
            yield n
    if run > 1:
        yield run
