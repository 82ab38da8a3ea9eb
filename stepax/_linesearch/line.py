"""The function along a line, the conditions on a step, and the loop over trial steps.

Shared by all line searches.  The line is f(step) = value_fn(params + step u).
Nocedal and Wright, 2006, Numerical Optimization, 2nd edition, section 3.1, for the
conditions of Armijo and Wolfe; Hager and Zhang, 2006, Algorithm 851 (DOI
10.1145/1132973.1132979), equation 27, for the decrease that rounding cannot hide.

Differences from Optax:

1. A search and its state are in float32 or wider.
2. `params` may have leaves without a gradient, such as the functions of a module.
3. Outside `jit` the loop runs in Python, so that it is not recompiled at each step.
4. Searches are not differentiated: the step size is a constant in derivatives.

Small arrays that are not on a mesh are joined; joining others would take communication.
"""

import functools as ft
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from .._engine import rules as rx
from .._engine.arrays.joined import Joined
from .._engine.arrays.numerics import (
    has_dtype,
    nan_max,
    nan_max_abs,
    power_of_two,
    reduce_behind_barrier,
    reduce_scalars,
)
from ..tree import conj


# The largest number of elements of a small array: above it, a pass takes longer than
# its launch; up to it, transfers take negligible time.
SHORT = 4096


def gather_short(*columns: list) -> Joined:
    """Group small arrays that are not on a mesh by their dtypes.

    columns: lists of arrays, which may have more leading axes than the first list.
    """
    rows = list(zip(*columns, strict=True))
    kinds = [_kind(row) or i for i, row in enumerate(rows)]
    return Joined(kinds, [x.shape for x in columns[0]])


def _kind(row: tuple) -> tuple | None:
    """The key shared by arrays in one vector; `None` for arrays kept separate."""
    # Not on a mesh: a slice of a vector would not be sharded like its parameter.
    is_placed = not all(jax.typeof(x).sharding.mesh.empty for x in row)
    if is_placed or math.prod(row[0].shape) > SHORT:
        return None
    return tuple((x.dtype, rx.varying(jax.typeof(x))) for x in row)


T = TypeVar("T")


class Point(NamedTuple):
    """A point on the line; all but `grads` are scalars.

    step: the step size.
    value, slope: value and slope of the function there.
    grads: gradients with respect to the differentiable parameters, concatenated.
    """

    step: jax.Array
    value: jax.Array
    slope: jax.Array
    grads: Any = ()

    def is_finite(self) -> jax.Array:
        return jnp.isfinite(self.value) & jnp.isfinite(self.slope)

    def bare(self) -> "Point":
        return self._replace(grads=())


def search_dtype(params: Any) -> Any:
    """The dtype of steps and values: real, float32 or wider, set by the parameters."""
    trainable = filter(rx.is_trainable, jax.tree.leaves(params))
    scalars = [jnp.zeros([], jnp.result_type(x)) for x in trainable]
    return rx.real_dtype(rx.compute_dtype(*scalars))


class Line:
    """The function along the updates; start: the point at step 0; dtype: of numbers."""

    def __init__(
        self, name: str, updates: Any, state: Any, params: Any, extra: dict[str, Any]
    ):
        value, grad, self._value_fn, self._keywords = _keywords(name, extra)
        self._name = name
        self._gradients = gradients = rx.Gradients(updates, params)
        self._live, pick = gradients.live()
        # The step size is a constant in derivatives: a while loop has no reverse mode.
        frozen = jax.lax.stop_gradient
        self._stored = (
            gradients.leaves_of(state.grad, "grad") if state.grad is not None else []
        )
        grads = gradients.leaves_of(grad, "grad")
        for i in self._live:
            gradients.check_shape(i, jnp.shape(grads[i]), "the keyword `grad`")
        columns = [pick(gradients.params), pick(gradients.leaves), pick(grads)]
        columns = frozen([list(map(jnp.asarray, column)) for column in columns])
        kept = pick(self._stored) if self._stored else columns[2]
        self._gathering = gather_short(*columns, kept)
        self._kept = self._gathering.first(kept)
        self._params, self._updates, grads = map(self._gathering.join, columns)
        numbers = [x for x in (state.value, value) if has_dtype(x)]
        self.dtype = rx.compute_dtype(*numbers)
        zero = jnp.zeros([], self.dtype)
        slope = self._slope(grads)
        self.start = Point(zero, self._number(frozen(value)), slope, self._keep(grads))

    def at(self, step: jax.Array) -> Point:
        found = jax.value_and_grad(self._value)(self._moved(step))
        value, grads = jax.lax.stop_gradient(found)  # for closed-over values
        grads = self._gathering.join(grads)
        return Point(step, hold(value), self._slope(grads), self._keep(grads))

    def value_at(self, step: jax.Array) -> Point:
        """The point after a step, without slope and gradients."""
        value = jax.lax.stop_gradient(self._value(self._moved(step)))
        return Point(step, value, jnp.zeros([], self.dtype))

    def updates(self, step: jax.Array) -> Any:
        scaled = [_times(u, step) for u in self._updates]
        return self._tree(scaled, self._gradients.leaves)

    def gradient(self, point: Point) -> Any:
        return self._tree(point.grads, self._stored)

    def numbers(self, settings: T) -> T:
        """A tree of numbers in the dtype of the search."""
        return jax.tree.map(lambda x: jnp.asarray(x).astype(self.dtype), settings)

    def report(self, end: Point, count: jax.Array, **misses: jax.Array) -> None:
        """Print how a search misses its conditions, if it does, once it is known."""
        name = self._name  # a callback must not keep the line, which holds tracers

        def show(start, end, count, missed):
            if all(x == 0 for x in missed):
                return
            print(
                f"{name}: after {count} steps from the value {start.value} with "
                f"the slope {start.slope}"
            )
            print(f"  takes the step {end.step} to the value {end.value}")
            for what, x in zip(misses, missed, strict=True):
                print(f"  misses the {what} by {x}")
            if start.slope >= 0:
                print(
                    "  because the slope is not negative: these updates do not descend"
                )

        missed = tuple(misses.values())
        jax.debug.callback(show, self.start.bare(), end.bare(), count, missed)

    def _tree(self, vectors, leaves):
        """The tree of concatenated arrays, sharded like these leaves."""
        pairs = zip(self._live, self._gathering.split(vectors), strict=True)
        placed = [rx.with_sharding_of(leaves[i], x) for i, x in pairs]
        return put(self._gradients, self._live, placed, leaves)

    def _moved(self, step):
        pairs = zip(self._params, self._updates, strict=True)
        return self._gathering.split([_add(p, _times(u, step)) for p, u in pairs])

    def _value(self, moved):
        params = put(self._gradients, self._live, moved, self._gradients.params)
        found = self._value_fn(params, **self._keywords)
        is_pair = isinstance(found, tuple) and len(found) == 2  # with an `aux`
        return self._number(found[0] if is_pair else found)

    def _number(self, value):
        if jnp.shape(value) != ():
            raise ValueError(
                f"`value_fn` and `value` have shape {jnp.shape(value)}, expected a "
                "scalar"
            )
        return jnp.asarray(value).astype(self.dtype)

    def _slope(self, grads):
        # JAX's gradient with respect to a complex parameter is the conjugate of the
        # ascent direction, so the slope is the real part of Σ u g.
        return dot(conj(self._updates), grads).astype(self.dtype)

    def _keep(self, grads):
        """The gradients in the dtypes of the state, if it stores any."""
        return rx.keep_dtypes(grads, self._kept) if self._stored else ()


def put(gradients: rx.Gradients, live: list[int], new: list, leaves: list) -> Any:
    """The tree of some leaves, with those at `live` replaced."""
    leaves = list(leaves)
    for i, x in zip(live, new, strict=True):
        leaves[i] = x
    return gradients.treedef.unflatten(leaves)


@jax.jit
@rx.promote_freely
def _times(u, step):
    wide = rx.compute_dtype(u)
    return (u.astype(wide) * step.astype(rx.real_dtype(wide))).astype(u.dtype)


@jax.jit
@rx.promote_freely
def _add(p, u):
    return (p + u).astype(p.dtype)


def _keywords(name: str, extra: dict[str, Any]) -> tuple[Any, Any, Callable, dict]:
    """The keywords of a search, and those that it passes on to `value_fn`."""
    rest = dict(extra)
    wanted = "value", "grad", "value_fn"
    missing = [f"`{key}`" for key in wanted if rest.get(key) is None]
    if missing:
        raise rx.errors.of_step(
            f"`{name}` needs the keywords `value`, `grad` and `value_fn`, but "
            f"{', '.join(missing)} {'are' if missing[1:] else 'is'} missing: call "
            "`update(updates, state, params, value=..., grad=..., value_fn=...)`",
            TypeError,
        )
    value, grad, value_fn = map(rest.pop, wanted)
    if not callable(value_fn):
        raise TypeError(f"`value_fn` is a `{type(value_fn).__name__}`, not a function")
    unknown = [key for key in rest if not _takes(value_fn, key)]
    if unknown:
        raise TypeError(
            f"Unexpected keyword arguments of `update`: `value_fn`, to which `{name}` "
            f"passes them, does not accept {', '.join(f'`{key}`' for key in unknown)}"
        )
    return value, grad, value_fn, rest


def _takes(f: Callable, key: str) -> bool:
    """Whether a function of the parameters takes a keyword, as far as is known."""
    try:
        bind = inspect.signature(f).bind_partial
    except (ValueError, TypeError):
        return True
    try:
        bind(None, **{key: None})
    except TypeError:
        return False
    return True


@jax.jit
@rx.promote_freely
def dot(xs: list, ys: list) -> jax.Array:
    """The real inner product of two lists of arrays, in float32 or wider."""
    parts = [_inner(x, y) for x, y in zip(xs, ys, strict=True)]
    dtype = jnp.result_type(jnp.float32, *parts)
    parts = [x.astype(dtype) for x in parts] or [jnp.zeros([], dtype)]
    return reduce_scalars(parts, jnp.add, jnp.sum)


@jax.jit
@rx.promote_freely
def _inner(x, y):
    wide = rx.compute_dtype(x, y)
    x, y = jnp.conj(x).astype(wide), y.astype(wide)
    if any(jax.typeof(x).sharding.spec) or any(jax.typeof(y).sharding.spec):
        return jnp.real(jnp.sum(x * y))  # `tensordot` would need an output sharding
    # A dot product takes half the time of a sum on a busy processor; over all axes,
    # because raveling a sharded array would gather it.
    axes, most = tuple(range(x.ndim)), jax.lax.Precision.HIGHEST
    product = jax.lax.dot_general(x, y, ((axes, axes), ((), ())), precision=most)
    return jnp.real(product)


def largest(xs: list, dtype: Any) -> jax.Array:
    """max |x| over all elements of a list of arrays; NaN if any is NaN."""
    sizes = [_largest(x) for x in xs if x.size]
    wide = [x.astype(dtype) for x in sizes] or [jnp.zeros([], dtype)]
    return reduce_scalars(wide, jnp.maximum, nan_max)


@jax.jit
def _largest(x):
    return nan_max_abs(x).astype(rx.real_dtype(rx.compute_dtype(x)))


def scaled_square(xs: list, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """A power of two, and |x / it|², which does not overflow where |x|² does."""
    unit = power_of_two(largest(xs, dtype))
    short = divided(xs, unit)
    return unit, dot(short, short).astype(dtype)


def divided(xs: list, unit: jax.Array) -> list:
    """Arrays divided by a power of two, in float32 or wider."""
    # Also as wide as the power, which may be 0 or infinite in single.
    wide = [x.astype(rx.compute_dtype(x, unit)) for x in xs]
    return [x / unit.astype(rx.real_dtype(x.dtype)) for x in wide]


def hold(x: jax.Array) -> jax.Array:
    """Keep XLA from recomputing `x`, a scalar that many arrays use."""
    reduce = jnp.any if x.dtype == bool else jnp.sum
    return reduce_behind_barrier([x, jnp.zeros_like(x)], reduce)


def decrease_error(
    point: Point,
    start: Point,
    slope_rtol: ArrayLike,
    rtol: ArrayLike = 0.0,
    approx_rtol: ArrayLike | None = None,
) -> jax.Array:
    """The amount by which the value misses the sufficient decrease; inf if not finite.

    f(step) <= (1 + rtol) f(0) + slope_rtol step f'(0)                 (Armijo)
    or  f'(step) <= (2 slope_rtol - 1) f'(0)                  (Hager and Zhang)
        and f(step) <= f(0) + approx_rtol |f(0)|,  unless that is `None`
    """
    allowed = start.value + rtol * start.value + slope_rtol * point.step * start.slope
    error = point.value - allowed
    if approx_rtol is not None:
        steepness = point.slope - (2 * slope_rtol - 1) * start.slope
        rise = point.value - (start.value + approx_rtol * jnp.abs(start.value))
        error = jnp.minimum(error, jnp.maximum(steepness, rise))
    return jnp.where(point.is_finite(), jnp.maximum(error, 0), jnp.inf)


def choose(pred: jax.Array, x: T, y: T) -> T:
    return jax.tree.map(ft.partial(jnp.where, pred), x, y)


def repeat(goes_on: Callable[[T], Any], step: Callable[[T], T], state: T) -> T:
    """Repeat a step while a condition holds; in Python while its value is concrete.

    A `while_loop` called from Python would be recompiled for each new function.
    """
    while not any(isinstance(x, Tracer) for x in jax.tree.leaves(state)):
        if not goes_on(state):
            return state
        state = step(state)
    return jax.lax.while_loop(goes_on, step, state)


def first_state(kind: Any, info: Any, params: Any, stores_grad: bool = True) -> Any:
    """The state before the first search; kind, info: its class, that of diagnostics."""
    dtype = search_dtype(params)
    far, *misses = (jnp.full([], jnp.inf, dtype) for _ in info._fields)
    grad = jax.tree.map(rx.zeros_like, params) if stores_grad else None
    count = jnp.zeros([], jnp.int32)
    return kind(jnp.ones([], dtype), far, grad, info(count, *misses))
