"""`quadratic_program`: the minimum of a convex quadratic function within linear limits.

`interior.py` has the method.  The result has derivatives by the implicit function
theorem, as that of `minimize` with constraints: the limits that have a multiplier at
the solution remain active.
"""

import functools as ft
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from ..._engine import rules as rx
from . import interior
from .call import read_limit
from .constraints import are_pairs
from .implicit import attach
from .loop import Inputs
from .pairs import times
from .result import Code, Result
from .words import QUADRATIC, answering


@answering(QUADRATIC)
def quadratic_program(
    Q: ArrayLike,
    c: ArrayLike,
    *,
    equality: tuple[Any, Any] | None = None,
    inequality: tuple[Any, Any, Any] | None = None,
    bounds: tuple[Any, Any] | None = None,
    x0: ArrayLike | None = None,
    tol: ArrayLike | None = None,
    max_steps: ArrayLike = 200,
) -> Result:
    """Minimize x·Q x / 2 + c·x within linear limits, for up to about 1,000 variables.

        A x = b,   lower <= G x <= upper,   and bounds of x

    Q: shape (n, n), with no negative eigenvalue; its symmetric part is used.
    c: shape (n,).
    equality: (A, b), of shapes (k, n) and (k,).
    inequality: (G, lower, upper), of shapes (m, n), (m,) and (m,); `None` or an
        infinite limit for no limit, a scalar for all.
    bounds: (lower, upper), each `None`, a scalar, or of shape (n,).
    x0: a start of shape (n,), which need not be feasible.
    tol: the error of the optimality conditions at which to stop, relative to the sizes
        of their terms, > 0; by default 4e-10 in float64, 7e-5 in float32.
    max_steps: maximum number of steps, >= 0.

    The `multipliers` of the result are a dict with "equality", "inequality" and
    "bounds", those that are given: Q x + c + A' y + G' z + w = 0.  Its `grad_norm` is
    the largest element of that sum.  It is differentiable in all arrays.

    Without a solution the status is INFEASIBLE, UNBOUNDED or INDEFINITE.  Raises a
    `TypeError` or a `ValueError` for bad arguments.
    """
    given, dtype = _opened(Q, c, equality, inequality, bounds)
    n, limit = len(given["c"]), read_limit(max_steps)
    start = None if x0 is None else _array(x0, "`x0`", (n,)).astype(dtype)
    number = jnp.asarray(_tolerance(tol, dtype), dtype)
    found = _solved(*jax.lax.stop_gradient((given, number, limit, start)))
    found = attach(_both, Inputs([], given, None, None, None), found)
    return found._replace(params=found.params[0])


def _opened(Q: Any, c: Any, equality: Any, inequality: Any, bounds: Any) -> tuple:
    """The arrays by name, limits as triples (G, lower, upper), and their dtype."""
    c = _array(c, "`c`", (None,))
    n = len(c)
    if n == 0:
        raise ValueError("`c` is empty, expected one element for each variable")
    found: dict[str, Any] = {"Q": _array(Q, "`Q`", (n, n)), "c": c}
    if equality is not None:
        a, b = _tuple(equality, "equality", "A, b")
        a = _array(a, "`A` of `equality`", (None, n))
        b = _side(b, "`b` of `equality`", len(a), None)
        found["equality"] = a, b, b
    if inequality is not None:
        g, *sides = _tuple(inequality, "inequality", "G, lower, upper")
        g = _array(g, "`G` of `inequality`", (None, n))
        found["inequality"] = g, *_sides(sides, "inequality", len(g))
    if bounds is not None:
        if are_pairs(bounds) and all(isinstance(x, tuple) for x in bounds):
            raise ValueError(
                f"`bounds` is {bounds!r}, which may be (lower, upper), or a pair for "
                "each variable, as in SciPy; expected arrays: `bounds=(lower, upper)`"
            )
        sides = _tuple(bounds, "bounds", "lower, upper")
        found["bounds"] = None, *_sides(sides, "bounds", n)
    # That of the cost: limits are often written as Python numbers.
    is_float = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    kinds = list(map(rx.compute_dtype, filter(is_float, (found["Q"], c))))
    dtype = ft.reduce(jnp.promote_types, kinds) if kinds else jnp.zeros([]).dtype
    return jax.tree.map(lambda x: x.astype(dtype), found), dtype


def _tuple(given: Any, name: str, parts: str) -> Any:
    count = parts.count(",") + 1
    if not isinstance(given, tuple | list) or len(given) != count:
        raise TypeError(
            f"`{name}` is {rx.errors.describe(given)}, expected a tuple ({parts})"
        )
    return given


def _array(x: Any, name: str, shape: tuple) -> jax.Array:
    """An array of real numbers of a shape, in which `None` is any size."""
    try:
        found = np.asarray(x) if isinstance(x, list | tuple) else x
        found = jnp.asarray(found) if rx.is_array(found) else None
    except (TypeError, ValueError):
        found = None
    if found is None or jnp.iscomplexobj(found) or found.dtype == bool:
        raise TypeError(f"{name} is {rx.errors.describe(x)}, expected real numbers")
    pairs = zip(found.shape, shape, strict=False)
    if len(found.shape) != len(shape) or any(b not in (None, a) for a, b in pairs):
        wanted = ", ".join("any" if s is None else str(s) for s in shape)
        wanted += "," if len(shape) == 1 else ""
        raise ValueError(
            f"{name} has shape {found.shape}, expected ({wanted}); for a batch, use "
            "`jax.vmap`"
        )
    return found


def _sides(pair: Any, name: str, size: int) -> tuple[jax.Array, jax.Array]:
    lower = _side(pair[0], f"`lower` of `{name}`", size, -jnp.inf)
    return lower, _side(pair[1], f"`upper` of `{name}`", size, jnp.inf)


def _side(given: Any, name: str, size: int, otherwise: float | None) -> jax.Array:
    given = otherwise if given is None and otherwise is not None else given
    is_scalar = rx.is_array(given) and jnp.ndim(given) == 0
    x = _array(given, name, () if is_scalar else (size,))
    if not isinstance(given, Tracer) and np.isnan(np.asarray(given, float)).any():
        raise ValueError(f"{name} is NaN, expected numbers")
    return jnp.broadcast_to(x, (size,))


def _tolerance(tol: Any, dtype: Any) -> Any:
    if tol is None:
        return float(jnp.finfo(dtype).eps) ** 0.6
    x = _array(tol, "`tol`", ())
    if not isinstance(tol, Tracer) and not np.asarray(tol) > 0:
        raise ValueError(f"`tol` is {tol!r}, expected a number > 0")
    return x


@jax.jit
def _solved(given: dict, tol: Any, limit: Any, start: Any) -> Result:
    """The result; `params` is a list of one array."""
    q, c = given["Q"], given["c"]
    none = jnp.zeros((0, len(c)), c.dtype), c[:0], c[:0]
    equal, rows = given.get("equality", none), given.get("inequality", none)
    far = jnp.full_like(c, jnp.inf)
    box = given.get("bounds", (None, -far, far))
    g, *sides = map(jnp.concatenate, zip(equal, rows, strict=True))
    low, high = map(jnp.append, sides, box[1:])
    p = interior.Program((q + q.T) / 2, c, g, (low, high))
    found = interior.solve(p, tol, limit, start)
    a = p.values(found.x, found.y)
    # A limit alone excludes all numbers.
    is_empty = ((low > high) | (low == jnp.inf) | (high == -jnp.inf)).any()
    code = jnp.where(is_empty, Code.INFEASIBLE, found.code)
    code = jnp.where(_is_broken(p, start), Code.NOT_FINITE, code)
    k, m = len(equal[1]), len(g)
    y = {"equality": found.y[:k], "inequality": found.y[k:m], "bounds": found.y[m:]}
    slope = jnp.max(jnp.abs(p.slope(found.x, found.y)))
    beyond = jnp.max(jnp.maximum(low - a, a - high), initial=0)
    return Result(
        [found.x],
        _both([found.x], given)[0],
        slope,
        found.steps,
        found.steps,
        code,
        multipliers={k: x for k, x in y.items() if k in given},
        violation=beyond,
    )


def _is_broken(p: interior.Program, start: jax.Array | None) -> jax.Array:
    """Whether an array has NaN, or an infinite element that is not a limit."""
    arrays = [p.q, p.c, p.rows, *([] if start is None else [start])]
    is_fine = [jnp.isfinite(x).all() for x in arrays]
    is_fine += [~jnp.isnan(x).any() for x in p.limits]
    return ~jnp.stack(is_fine).all()


def _both(xs: list, given: dict) -> tuple[jax.Array, Any]:
    """The value; the values and limits of all rows, as `Opened.values` has them."""
    (x,) = xs
    value = jnp.sum(x * (times(given["Q"], x) / 2 + given["c"]))
    limits = {k: given[k] for k in ("equality", "inequality", "bounds") if k in given}
    rows = {k: x if g is None else times(g, x) for k, (g, _, _) in limits.items()}
    low, high = ({k: r[i] for k, r in limits.items()} for i in (1, 2))
    return value, (None, (rows, low, high))
