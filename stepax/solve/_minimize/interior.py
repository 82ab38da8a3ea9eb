"""A primal-dual interior point method for convex quadratic programs.

    minimize x·Q x / 2 + c·x   where   l <= R x <= u  and  b <= x <= t

Mehrotra, 1992, On the Implementation of a Primal-Dual Interior Point Method (DOI
10.1137/0802028), from any start.  With slacks s and multipliers z of all finite sides,
each step solves one symmetric system twice, for a predictor and a corrector:

    [ Q + D_box + ρ     R'  ] [dx]
    [ R          -1/D - ρ   ] [dy]       D = sum of z / s over the sides of a row

where rows with equal limits have 1/D = 0, and ρ keeps redundant rows and directions
without curvature from making it singular.  At the end the same system, with the active
sides as equalities, gives a solution to rounding (Stellato et al., 2020, OSQP, DOI
10.1007/s12532-020-00179-2, section 4), if it is one.

If that does not converge, a second round minimizes y·y / 2 where l <= R x - y <= u: if
y is not 0, no point satisfies all.  Points that grow along a direction without
curvature, in which the value falls, show that there is no minimum.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..._linesearch.line import choose
from .bundle import while_loop
from .pairs import times
from .result import Code
from .scaling import Program as Program, equilibrated, greatest


# Consecutive steps without progress, after which a run ends.
_PATIENCE = 15
_NEAR = 0.995
# How often the active sides are guessed at the end.
_POLISHES = 4


class Solution(NamedTuple):
    """x; y, the multipliers of rows and bounds; the worst error of the conditions."""

    x: jax.Array
    y: jax.Array
    error: jax.Array
    steps: jax.Array
    code: jax.Array


class _Iterate(NamedTuple):
    """s, z: slacks and multipliers of the lower and the upper sides, (2, m + n).

    y: the multipliers of rows with equal limits.
    """

    x: jax.Array
    s: jax.Array
    z: jax.Array
    y: jax.Array


class _Run(NamedTuple):
    """best, error: of the program; now, lowest: errors in this round, without progress
    for `waits` steps; soft: 1 in the second round, which looks for a feasible point.
    """

    at: _Iterate
    best: _Iterate
    error: jax.Array
    now: jax.Array
    lowest: jax.Array
    waits: jax.Array
    steps: jax.Array
    code: jax.Array
    soft: jax.Array


class _Sides(NamedTuple):
    """Which sides are finite, which rows are equalities, and the limits, 0 if infinite.

    finite: (2, m + n), of inequalities only; equal: (m + n,).
    is_definite: whether Q is positive definite where equalities hold, so that there is
        a minimum.
    """

    finite: jax.Array
    equal: jax.Array
    limits: jax.Array
    is_definite: jax.Array


def solve(p, tol, max_steps, x0=None) -> Solution:
    """The solution, or the code that says why there is none."""
    scaled, columns, sizes = equilibrated(p)
    sides = _sides(scaled)
    start = _start(scaled, sides, None if x0 is None else x0 / columns)
    zero = jnp.zeros([], jnp.int32)
    far = jnp.full([], jnp.inf, p.c.dtype)
    is_indefinite = ~_is_above(p.q, -1) & jnp.isfinite(p.q).all()
    code = jnp.where(is_indefinite, Code.INDEFINITE, Code.RUNNING)
    is_empty = (scaled.limits[0] > scaled.limits[1]).any()
    code = jnp.where(is_empty, Code.INFEASIBLE, code)
    first = _Run(start, start, far, far, far, zero, zero, code, jnp.zeros_like(far))
    goes_on = lambda r: (r.code == Code.RUNNING) & (r.steps < max_steps)
    run = while_loop(goes_on, lambda r: _step(scaled, sides, start, r, tol), first)

    def polish(_, last):
        at = _polished(scaled, sides, last[0])
        exact = _measured(scaled, sides, at)
        return at, choose(exact[2] <= last[1][2], exact, last[1])

    best = run.best, _measured(scaled, sides, run.best)
    _, (x, y, error) = jax.lax.fori_loop(0, _POLISHES, polish, best)
    # What meets the conditions is a solution, also where the second round, which is
    # less exact, found none.
    is_open = (run.code == Code.STUCK) | (run.code == Code.INFEASIBLE)
    code = jnp.where(is_open & (error <= tol), Code.GRADIENT, run.code)
    # Almost: rounding has ended the run near a solution.
    code = jnp.where((code == Code.STUCK) & (error <= 10 * tol), Code.STEP, code)
    is_open = (code == Code.RUNNING) | (code == Code.STUCK)
    code = jnp.where(code == Code.RUNNING, Code.LIMIT, code)
    code = jnp.where(is_open & ~jnp.isfinite(error), Code.NOT_FINITE, code)
    return Solution(x * columns, y * sizes, error, run.steps, code)


def _sides(p: Program) -> _Sides:
    limits = jnp.stack(p.limits)
    equal = limits[0] == limits[1]
    finite = jnp.isfinite(limits) & ~equal[None]
    rows = jnp.where(equal[: len(p.rows), None], p.rows, 0)
    fixed = jnp.diag(equal[len(p.rows) :].astype(p.q.dtype))
    q = p.q + times(rows.T, rows) + fixed
    root = jnp.sqrt(jnp.maximum(jnp.diag(q), float(jnp.finfo(q.dtype).tiny)))
    is_definite = _is_above(q / root[:, None] / root[None], 1)
    limits = jnp.where(jnp.isfinite(limits), limits, 0)
    return _Sides(finite, equal, limits, is_definite)


def _is_above(q: jax.Array, sign: int) -> jax.Array:
    """Whether all eigenvalues are above what rounding makes of 0, times a sign."""
    n, eps = len(q), float(jnp.finfo(q.dtype).eps)
    shift = 8 * n * eps * jnp.max(jnp.abs(q)) + float(jnp.finfo(q.dtype).tiny)
    root = jnp.linalg.cholesky(q - sign * shift * jnp.eye(n, dtype=q.dtype))
    return ~jnp.isnan(root).any()


def _start(p: Program, sides: _Sides, x0: jax.Array | None) -> _Iterate:
    n, m = len(p.c), len(p.rows)
    dtype = p.c.dtype
    low, high = p.limits
    if x0 is None:
        # The minimum of the cost plus squared distances to the limits.
        target = jnp.clip(jnp.zeros(m + n, dtype), low, high)
        one = jnp.where(sides.finite.any(0) | sides.equal, 1.0, 0.0).astype(dtype)
        right = -p.c + one[m:] * target[m:]
        x, _ = _solve(_factor(p, sides, one), right, target[:m])
    else:
        x = x0
    x = jnp.where(sides.equal[m:], sides.limits[0, m:], x)
    a = p.values(x, jnp.zeros_like(low))
    s = jnp.stack([a - low, high - a])
    s = jnp.where(sides.finite, jnp.maximum(s, 1), 1)
    # The products s z are not large, so that a limit that is far away does not bind; in
    # float32 all are alike.
    far = (2.0**-23 / float(jnp.finfo(dtype).eps)) ** 0.5
    z = jnp.where(sides.finite, jnp.minimum(1, far / s), 0)
    return _Iterate(x, s, z, jnp.zeros(m + n, dtype))


def _factor(p: Program, sides: _Sides, d: jax.Array, is_on: Any = None) -> Any:
    """The system of a step, factored.

    d: z / s of rows and bounds.
    is_on: the rows and bounds to treat as equalities, instead of those that are.
    """
    n, m = len(p.c), len(p.rows)
    rho = float(jnp.finfo(p.c.dtype).eps) ** 0.55
    equal = sides.equal if is_on is None else is_on
    is_row = (equal | (d > 0))[:m]
    is_free = ~equal[m:]
    rows = jnp.where(is_row[:, None] & is_free[None], p.rows, 0)
    # Rows without limits have no multiplier: their equation is dy = 0.
    inverse = jnp.where(equal[:m], 0, 1 / jnp.where(d[:m] > 0, d[:m], 1))
    both = is_free[:, None] & is_free[None]
    corner = jnp.where(both, p.q + jnp.diag(d[m:]), jnp.eye(n, dtype=p.c.dtype))
    top = jnp.concatenate([corner, rows.T], 1)
    below = jnp.concatenate([rows, -jnp.diag(inverse + p.soft)], 1)
    system = jnp.concatenate([top, below])
    sign = jnp.append(jnp.ones(n, p.c.dtype), -jnp.ones(m, p.c.dtype))
    lu = jax.scipy.linalg.lu_factor(system + rho * jnp.diag(sign))
    return system, lu, is_free, is_row


def _solve(factor: Any, right: jax.Array, below: jax.Array) -> tuple:
    system, lu, is_free, is_row = factor
    both = jnp.append(jnp.where(is_free, right, 0), jnp.where(is_row, below, 0))
    found = jax.scipy.linalg.lu_solve(lu, both)
    # Refined once, which takes away most of what ρ and rounding have added.
    found += jax.scipy.linalg.lu_solve(lu, both - times(system, found))
    return found[: len(right)], found[len(right) :]


def _step(p, sides, start, run, tol) -> _Run:
    # Soft, the program asks how near to feasible it is, whatever its cost.
    hard = 1 - run.soft
    soft = jnp.where(run.soft > 0, run.soft, p.soft)
    p = p._replace(q=hard * p.q, c=hard * p.c, soft=soft)
    new, dx = _moved(p, sides, run.at)
    is_fine = jnp.isfinite(new.x).all() & jnp.isfinite(new.z).all()
    run = _taken(p, sides, run, choose(is_fine, new, run.at), is_fine)
    code = _judged(p, sides, run, dx, tol)
    # The second round, if the first one is stuck.
    again = (run.soft == 0) & (run.waits >= _PATIENCE) & (code == Code.RUNNING)
    return run._replace(
        at=choose(again, start, run.at),
        lowest=jnp.where(again, jnp.inf, run.lowest),
        waits=jnp.where(again, 0, run.waits),
        soft=jnp.where(again, 1, run.soft).astype(run.soft.dtype),
        code=code,
    )


def _moved(p: Program, sides: _Sides, at: _Iterate) -> tuple[_Iterate, jax.Array]:
    """The next iterate, by a predictor and a corrector; its direction."""
    s, z = at.s, at.z
    count = jnp.maximum(sides.finite.sum(), 1).astype(s.dtype)
    conditions = _linearized(p, sides, at)
    _, ds, dz, _ = _direction(p, sides, at, conditions, jnp.zeros_like(s))
    t = _longest(s, ds, z, dz)
    mu, ahead = jnp.sum(s * z) / count, jnp.sum((s + t * ds) * (z + t * dz)) / count
    center = (ahead / jnp.where(mu > 0, mu, 1)) ** 3 * mu
    target = jnp.where(sides.finite, center - ds * dz, 0)
    dx, ds, dz, dy = _direction(p, sides, at, conditions, target)
    t = jnp.minimum(1, _NEAR * _longest(s, ds, z, dz))
    least = float(jnp.finfo(s.dtype).tiny)
    s = jnp.where(sides.finite, jnp.maximum(s + t * ds, least), 1)
    return _Iterate(at.x + t * dx, s, z + t * dz, at.y + t * dy), dx


def _linearized(p: Program, sides: _Sides, at: _Iterate) -> tuple:
    """The conditions of optimality at an iterate, linearized.

    Returns the errors of the slacks, of the equalities, and of the gradient; z / s of
    rows and bounds; the factored system.
    """
    y = _multipliers(sides, at)
    a = p.values(at.x, y)
    low, high = sides.limits
    gap = jnp.where(sides.finite, jnp.stack([a - low, high - a]) - at.s, 0)
    miss = jnp.where(sides.equal, a - low, 0)
    d = jnp.sum(jnp.where(sides.finite, at.z / at.s, 0), 0)
    return gap, miss, p.slope(at.x, y), d, _factor(p, sides, d)


def _direction(p, sides, at, now, target) -> tuple:
    """The changes of x, s, z and y for which s z becomes `target`."""
    (gap, miss, slope, d, factor), m, s, z = now, len(p.rows), at.s, at.z
    h = jnp.where(sides.finite, (target - s * z - z * gap) / s, 0)
    h = h[1] - h[0]
    below = jnp.where(sides.equal, -miss, -h / jnp.where(d > 0, d, 1))
    dx, dy = _solve(factor, -slope - h[m:], below[:m])
    da = p.values(dx, dy)
    ds = jnp.where(sides.finite, jnp.stack([da, -da]) + gap, 0)
    dz = jnp.where(sides.finite, (target - s * z - z * ds) / s, 0)
    return dx, ds, dz, jnp.append(dy, jnp.zeros_like(dx))


def _taken(p, sides, run, new, is_fine) -> _Run:
    """The run at its next iterate; is_fine: whether that is finite, and so another."""
    error = _measured(p, sides, new)[2]
    is_best = (run.soft == 0) & (error < run.error)
    return run._replace(
        at=new,
        best=choose(is_best, new, run.best),
        error=jnp.where(is_best, error, run.error),
        now=error,
        lowest=jnp.minimum(error, run.lowest),
        waits=jnp.where(is_fine & (error < 0.9 * run.lowest), 0, run.waits + 1),
        steps=run.steps + 1,
    )


def _judged(p, sides, run, dx, tol) -> jax.Array:
    """The code after a step along `dx`."""
    x, y = run.at.x, _multipliers(sides, run.at)
    # Along the iterate, or along a step when steps no longer help.
    is_endless = _falls_along(p, x) & (greatest(x) > _far(x))
    is_endless |= (run.waits >= _PATIENCE // 2) & _falls_along(p, dx)
    is_endless &= ~sides.is_definite
    is_endless &= _excess(sides, p.values(x, y)) <= tol**0.5
    hard = jnp.where(is_endless, Code.UNBOUNDED, Code.RUNNING)
    hard = jnp.where(run.now <= tol, Code.GRADIENT, hard)
    # Rounding alone is no proof.
    tol = jnp.maximum(tol, float(jnp.finfo(x.dtype).eps) ** 0.6)
    # Nearest to feasible, the rows are violated by y.
    is_far = greatest(y[: len(p.rows)]) > tol**0.5
    # It only has to tell y from 0, and rows that depend on each other limit its error.
    is_near = run.now <= jnp.minimum(100 * tol, 0.1 * tol**0.5)
    after = jnp.where(is_near & is_far, Code.INFEASIBLE, Code.STUCK)
    soft = jnp.where(is_near | (run.waits >= _PATIENCE), after, Code.RUNNING)
    return jnp.where(run.soft == 0, hard, soft)


def _multipliers(sides: _Sides, at: _Iterate) -> jax.Array:
    return jnp.where(sides.equal, at.y, at.z[1] - at.z[0])


def _longest(s, ds, z, dz):
    """The longest step, up to 1 / _NEAR, for which nothing becomes negative."""

    def reach(x, dx):
        steps = jnp.where(dx < 0, -x / jnp.where(dx < 0, dx, -1), 1 / _NEAR)
        return jnp.min(steps, initial=1 / _NEAR)

    return jnp.minimum(reach(s, ds), reach(z, dz))


def _measured(p: Program, sides: _Sides, at: _Iterate) -> tuple:
    """x; the multipliers of active sides; the largest error of the conditions."""
    is_active = sides.finite & (at.z > at.s)
    z, m = jnp.where(is_active, at.z, 0), len(p.rows)
    y = _multipliers(sides, at._replace(z=z))
    slope = p.slope(at.x, y)
    fixed = sides.equal[m:]
    y = y.at[m:].add(jnp.where(fixed, -slope, 0))
    a, (low, high) = p.values(at.x, y), p.limits
    slack = jnp.where(sides.finite, jnp.stack([a - low, high - a]), 0)
    size = 1 + jnp.maximum(
        greatest(p.c), jnp.maximum(greatest(times(p.q, at.x)), greatest(y))
    )
    value = 1 + jnp.abs(jnp.sum(at.x * (times(p.q, at.x) / 2 + p.c)))
    wrong = greatest(jnp.where(fixed, 0, slope)) / size, _excess(sides, a)
    errors = jnp.stack([*wrong, greatest(slack * z) / value])
    error = jnp.where(jnp.isnan(errors).any(), jnp.inf, errors.max())
    return at.x, y, error


def _polished(p: Program, sides: _Sides, at: _Iterate) -> _Iterate:
    """The solution if the sides that seem active are equalities, and the others not."""
    m = len(p.rows)
    is_active = sides.finite & (at.z > at.s)
    is_on = is_active.any(0) | sides.equal
    limit = jnp.where(is_active[1], sides.limits[1], sides.limits[0])
    x = jnp.where(is_on[m:], limit[m:], at.x)
    y = jnp.where(is_on, _multipliers(sides, at), 0)[:m]
    factor = _factor(p, sides, jnp.zeros_like(limit), is_on)
    for _ in range(4):  # the error falls by about ρ each time
        every = jnp.append(y, jnp.zeros_like(x))
        slope = p.slope(x, every)
        dx, dy = _solve(factor, -slope, (limit - p.values(x, every))[:m])
        x, y = x + dx, y + dy
    slope = p.slope(x, jnp.append(y, jnp.zeros_like(x)))
    every = jnp.append(y, jnp.where(is_on[m:], -slope, 0))
    # What is negative becomes an error of the slope, and is inactive the next time.
    z = jnp.where(is_active, jnp.maximum(jnp.stack([-every, every]), 0), 0)
    s = jnp.where(z > 0, -1, 1)
    return _Iterate(x, s.astype(x.dtype), z, every)


def correction(p: Program, is_on: jax.Array, gap: jax.Array) -> jax.Array:
    """The shortest step, as Q measures it, by which active rows change by `gap`.

    is_on: the rows and the bounds that are active; these parameters stay.
    """
    factor = _factor(p, _sides(p), jnp.zeros(is_on.shape, p.c.dtype), is_on)
    return _solve(factor, jnp.zeros_like(p.c), gap)[0]


def _falls_along(p: Program, v: jax.Array) -> jax.Array:
    """Whether the value falls without end in a direction, within all limits."""
    size = greatest(v)
    v = v / jnp.where(size > 0, size, 1)
    low, high = p.limits
    along = p.values(v, jnp.zeros_like(low))
    leaves = jnp.where(jnp.isfinite(low), -along, 0)
    leaves = jnp.maximum(leaves, jnp.where(jnp.isfinite(high), along, 0))
    bent = jnp.maximum(greatest(times(p.q, v)), jnp.max(leaves, initial=0))
    falls = -jnp.sum(p.c * v)
    return (falls > 0) & (_far(v) * bent < falls)


def _far(x: jax.Array) -> float:
    return float(jnp.finfo(x.dtype).eps) ** -0.4


def _excess(sides: _Sides, a: jax.Array) -> jax.Array:
    """How far the values of rows are beyond limits, relative to limits above 1."""
    low, high = sides.limits
    is_low, is_high = sides.finite | sides.equal[None]
    below = jnp.where(is_low, low - a, 0) / jnp.maximum(1, jnp.abs(low))
    above = jnp.where(is_high, a - high, 0) / jnp.maximum(1, jnp.abs(high))
    return jnp.max(jnp.maximum(below, above), initial=0)
