"""Bounds on parameters: resolving them to leaves, and enforcing them.

Bounds are given in the forms that `select.resolve` accepts for labels: a scalar for all
parameters, a tree of their structure or a prefix of it, or a mapping from path
patterns; `None` means no bound.  A bound is rounded to the dtype of its parameter, and
the rounded bound holds exactly.
"""

import functools as ft
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._engine import rules as rx
from .._engine.arrays.numerics import broadcasts_to
from .._linesearch.line import put


class Box(NamedTuple):
    """Lower and upper bounds of some leaves: lists of arrays that broadcast to them."""

    lower: list
    upper: list


def box_of(lower: Any, upper: Any, gradients: rx.Gradients, live: list[int]) -> Box:
    """The bounds of the leaves that have a gradient; NaN where traced ones cross."""
    treedef = jax.tree.structure(gradients.all_params, is_leaf=rx.is_none)
    dtypes = [jnp.result_type(gradients.params[i]) for i in live]

    def side(name, bound, nothing):
        labels = rx.selection.resolve(bound, gradients.all_params, name)
        if isinstance(gradients.all_params, rx.Packed):
            labels = _joined(labels, gradients.all_params, nothing)
        column = gradients.leaves_of(treedef.unflatten(labels), name)
        found = [nothing if column[i] is None else column[i] for i in live]
        pairs = zip(found, dtypes, strict=True)
        return [jnp.asarray(b).astype(dtype) for b, dtype in pairs]

    lows, highs = side("lower", lower, -jnp.inf), side("upper", upper, jnp.inf)
    # Others have been compared when they were given.
    if any(isinstance(x, Tracer) for x in jax.tree.leaves((lower, upper))):
        lows = [_ordered(*x) for x in zip(lows, highs, strict=True)]
    return Box(lows, highs)


@rx.promote_freely
def _ordered(low, high):
    return jnp.where(low > high, jnp.nan, low)


def _joined(labels: list, params: rx.Packed, nothing: float) -> tuple:
    """The bounds of the vectors of packed parameters."""
    outline = jax.tree.leaves(params.outline(), is_leaf=rx.is_none)
    pairs = zip(labels, outline, strict=True)
    filled = [(nothing if b is None else b, p) for b, p in pairs if p is not None]
    arrays = [jnp.broadcast_to(jnp.asarray(b, p.dtype), p.shape) for b, p in filled]
    return params.layout.pack(arrays).vectors


def clip(xs: list, box: Box) -> list:
    """Clip to the bounds, with the derivative of the identity.

    Values are clipped because rounding moved them across a bound, or because they
    started outside.  The derivative of `jnp.clip` would be 0 there, or 1/2 at a tie.
    """
    return [_clip(*row) for row in zip(xs, *box, strict=True)]


@jax.custom_jvp
def _clip(x, lower, upper):
    return jnp.minimum(jnp.maximum(x, lower), upper)


@_clip.defjvp
def _continued(primals, tangents):
    return _clip(*primals), tangents[0]


def within(f: Callable, gradients: rx.Gradients, live: list[int], box: Box) -> Callable:
    """`f`, evaluated at parameters clipped to the bounds."""

    @ft.wraps(f)
    def bounded(params, *args, **kwargs):
        leaves = gradients.leaves_of(params, "params")
        inside = clip([leaves[i] for i in live], box)
        return f(put(gradients, live, inside, leaves), *args, **kwargs)

    return bounded


def land(ps: list, starts: list, us: list, box: Box) -> list:
    """Updates that take `ps` to `starts + us`, clipped to the bounds.

    After `apply_updates` the parameters are within the bounds exactly.
    """
    return [_land(*row) for row in zip(ps, starts, us, *box, strict=True)]


@jax.jit
@rx.promote_freely
def _land(p, start, u, lower, upper):
    # Without the barriers the compiler may skip a rounding or fuse a multiply-add, and
    # the value tested here would differ from the one that is applied.
    def fixed(x):
        return jax.lax.optimization_barrier(x.astype(u.dtype))

    def moved_by(u):
        return (p + u).astype(p.dtype)

    p, start, u = jax.lax.stop_gradient((p, start, fixed(u)))
    wide, most = rx.compute_dtype(p, u), float(jnp.finfo(u.dtype).max)
    target = _clip((start + u).astype(p.dtype), lower, upper)
    way = target.astype(wide) - p.astype(wide)
    v = fixed(jnp.minimum(jnp.maximum(way, -most), most))
    # The difference is off by at most half an ulp, so that one more ulp is enough.
    v = jnp.where(moved_by(v) < lower, jnp.nextafter(v, jnp.full_like(v, jnp.inf)), v)
    v = jnp.where(moved_by(v) > upper, jnp.nextafter(v, jnp.full_like(v, -jnp.inf)), v)
    # Differences that underflow in the dtype of the update: p is inside already.
    is_out = (moved_by(fixed(v)) < lower) | (moved_by(fixed(v)) > upper)
    v = jnp.where(is_out, jnp.zeros_like(v), v)
    return fixed(jnp.where((moved_by(u) == target) & (lower < upper), u, v))


def check_sides(lower: Any, upper: Any) -> None:
    """Raise for bounds that are NaN or cross, if that is known without parameters."""
    flat = {"lower": lower, "upper": upper}
    flat = {k: jax.tree.flatten(b, is_leaf=rx.is_none) for k, b in flat.items()}

    def path(i):
        return rx.errors.paths(lower)[i]

    if flat["lower"][1] == flat["upper"][1]:
        pairs = zip(flat["lower"][0], flat["upper"][0], strict=True)
        for i, (l, u) in enumerate(pairs):
            _check_order(_known(l, -np.inf), _known(u, np.inf), ft.partial(path, i))


def check(lower: Any, upper: Any, params: rx.Params, may_start_outside: bool) -> None:
    """Raise for bounds that do not fit the parameters, and for parameters outside.

    Values are checked where they are concrete, that is, outside `jit`.
    """
    params = params.unpack() if isinstance(params, rx.Packed) else params
    leaves = jax.tree.leaves(params, is_leaf=rx.is_none)
    sides = [rx.selection.resolve(b, params, k) for k, b in _sides(lower, upper)]
    for i, (p, l, u) in enumerate(zip(leaves, *sides, strict=True)):
        if not rx.is_trainable(p):
            continue
        dtype = jnp.result_type(p)
        if not jnp.issubdtype(dtype, jnp.inexact):
            continue  # like leaves without a gradient
        path = ft.partial(lambda i: rx.errors.paths(params)[i], i)
        _check_kinds(p, l, u, path)
        low, high = _known(l, -np.inf, dtype), _known(u, np.inf, dtype)
        _check_order(low, high, path)
        if not may_start_outside:
            _check_start(_known(p, None), low, high, path)


def _sides(lower, upper):
    return ("lower", lower), ("upper", upper)


def _known(x, nothing, dtype=None):
    """The values of a bound in a dtype; `None` if they are traced."""
    is_known = x is None or (rx.is_array(x) and not isinstance(x, jax.ShapeDtypeStruct))
    if not is_known or isinstance(x, Tracer):
        return None
    return np.asarray(nothing if x is None else x, dtype)


def _check_kinds(p, lower, upper, path):
    if jnp.issubdtype(jnp.result_type(p), jnp.complexfloating):
        raise TypeError(
            f"the parameter at {path()} is complex, but bounds need an order; optimize "
            "its real and imaginary parts"
        )
    for name, b in _sides(lower, upper):
        if b is not None and not rx.is_array(b):
            raise TypeError(
                f"`{name}` holds {rx.errors.describe(b)} for {path()}, expected a "
                "number, an array, or `None` for no bound"
            )
        shape = () if b is None else jnp.shape(b)
        if not broadcasts_to(shape, jnp.shape(p)):
            raise ValueError(
                f"`{name}` has shape {shape} for {path()}, expected one that "
                f"broadcasts to {jnp.shape(p)}"
            )


def _check_order(low, high, path):
    for name, b in _sides(low, high):
        if b is not None and np.isnan(b).any():
            raise ValueError(
                f"`{name}` is NaN for {path()}; give `None` or an infinity where there "
                "is no bound"
            )
    if low is None or high is None:
        return
    low, high = np.broadcast_arrays(low, high)
    if (low > high).any():
        at = np.argmax(low > high)
        raise ValueError(
            f"the bounds at {path()} cross: `lower` is {low.flat[at]}, `upper` is "
            f"{high.flat[at]}; exchange them"
        )


def _check_start(p, low, high, path):
    if p is None or low is None or high is None:
        return
    p, low, high = np.broadcast_arrays(p, low, high)
    is_out = (p < low) | (p > high)
    if is_out.any():
        at = np.argmax(is_out)
        raise ValueError(
            f"the parameter at {path()} starts outside of its bounds: {p.flat[at]} is "
            f"not in [{low.flat[at]}, {high.flat[at]}]; start within them, or pass "
            "`project=True`"
        )
