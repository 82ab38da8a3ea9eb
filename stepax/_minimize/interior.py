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

from .._linesearch.line import choose
from .bundle import while_loop
from .loop import RUNNING
from .pairs import times
from .result import MinimizeStatus


# Consecutive steps without progress, after which a run ends.
_PATIENCE = 15
_NEAR = 0.995


class Program(NamedTuple):
    """A quadratic program: the names of the module's docstring.

    soft: 0, or the weight of a cost of y²/2 for each row: rows may then be violated by
        that times y, the least sum of squares.
    """

    q: jax.Array
    c: jax.Array
    rows: jax.Array
    low: jax.Array
    high: jax.Array
    box_low: jax.Array
    box_high: jax.Array
    soft: jax.typing.ArrayLike = 0.0

    def values(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """The values of all rows, less their violations if soft, and the parameters."""
        return jnp.append(times(self.rows, x) - self.soft * y[: len(self.low)], x)

    def slope(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """The gradient of the Lagrangian; y has the multipliers of rows and bounds."""
        m = len(self.low)
        return times(self.q, x) + self.c + times(self.rows.T, y[:m]) + y[m:]

    @property
    def limits(self) -> tuple[jax.Array, jax.Array]:
        join = jnp.append
        return join(self.low, self.box_low), join(self.high, self.box_high)


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
    """best, error: of the program; lowest: error in this round, without progress for
    `waits` steps; soft: 1 in the second round, which looks for a feasible point.
    """

    at: _Iterate
    best: _Iterate
    error: jax.Array
    lowest: jax.Array
    waits: jax.Array
    steps: jax.Array
    code: jax.Array
    soft: jax.Array


class _Sides(NamedTuple):
    """Which sides are finite, which rows are equalities, and the limits, 0 if infinite.

    finite: (2, m + n), of inequalities only; equal: (m + n,).
    """

    finite: jax.Array
    equal: jax.Array
    limits: jax.Array


def solve(
    p: Program, tol: jax.Array, max_steps: jax.Array, x0: jax.Array | None = None
) -> Solution:
    """The solution, or the code that says why there is none."""
    scaled, unit, sizes = _scaled(p)
    sides = _sides(scaled)
    start = _start(scaled, sides, x0)
    zero = jnp.zeros([], jnp.int32)
    far = jnp.full([], jnp.inf, p.c.dtype)
    code = jnp.where(_is_indefinite(p.q), _INDEFINITE, RUNNING).astype(jnp.int32)
    is_empty = (scaled.limits[0] > scaled.limits[1]).any()
    code = jnp.where(is_empty, _INFEASIBLE, code).astype(jnp.int32)
    first = _Run(start, start, far, far, zero, zero, code, jnp.zeros_like(far))
    goes_on = lambda r: (r.code == RUNNING) & (r.steps < max_steps)
    run = while_loop(goes_on, lambda r: _step(scaled, sides, start, r, tol), first)
    best = _measured(scaled, sides, run.best)
    exact = _measured(scaled, sides, _polished(scaled, sides, run.best))
    x, y, error = choose(exact[2] <= best[2], exact, best)
    code = jnp.where((run.code == _STUCK) & (error <= tol), _DONE, run.code)
    # Almost: rounding has ended the run near a solution.
    code = jnp.where((code == _STUCK) & (error <= 10 * tol), _SMALL_STEPS, code)
    code = jnp.where((code == RUNNING) | (code == _STUCK), _LIMIT, code)
    code = jnp.where(jnp.isfinite(error) | (code != _LIMIT), code, _NOT_FINITE)
    return Solution(x, y * unit / sizes, error, run.steps, code)


def _scaled(p: Program) -> tuple[Program, jax.Array, jax.Array]:
    """The program with rows of size 1 and a cost of size 1."""
    largest = lambda x, **axes: jnp.max(jnp.abs(x), initial=0, **axes)
    cost = jnp.maximum(largest(p.c), largest(p.q))
    unit = jnp.where((cost > 0) & jnp.isfinite(cost), cost, 1)
    size = largest(p.rows, axis=1)
    size = jnp.where(size > 0, size, 1)
    rows = p.rows / size[:, None], p.low / size, p.high / size
    sizes = jnp.append(size, jnp.ones_like(p.c))
    program = Program(p.q / unit, p.c / unit, *rows, p.box_low, p.box_high)
    return program, unit, sizes


def _sides(p: Program) -> _Sides:
    limits = jnp.stack(p.limits)
    equal = limits[0] == limits[1]
    finite = jnp.isfinite(limits) & ~equal[None]
    return _Sides(finite, equal, jnp.where(jnp.isfinite(limits), limits, 0))


def _is_indefinite(q: jax.Array) -> jax.Array:
    """Whether Q has a negative eigenvalue, beyond rounding."""
    n, eps = len(q), float(jnp.finfo(q.dtype).eps)
    shift = 8 * n * eps * jnp.max(jnp.abs(q)) + float(jnp.finfo(q.dtype).tiny)
    root = jnp.linalg.cholesky(q + shift * jnp.eye(n, dtype=q.dtype))
    return jnp.isnan(root).any() & jnp.isfinite(q).all()


def _start(p: Program, sides: _Sides, x0: jax.Array | None) -> _Iterate:
    n, m = len(p.c), len(p.low)
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
    z = jnp.where(sides.finite, 1, 0).astype(dtype)
    return _Iterate(x, s, z, jnp.zeros(m + n, dtype))


def _factor(p: Program, sides: _Sides, d: jax.Array, is_on: Any = None) -> Any:
    """The system of a step, factored.

    d: z / s of rows and bounds.
    is_on: the rows and bounds to treat as equalities, instead of those that are.
    """
    n, m = len(p.c), len(p.low)
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


def _step(
    p: Program, sides: _Sides, start: _Iterate, run: _Run, tol: jax.Array
) -> _Run:
    at, m = run.at, len(p.low)
    s, z = at.s, at.z
    count = jnp.maximum(sides.finite.sum(), 1).astype(s.dtype)
    # Soft, the program asks how near to feasible it is, whatever its cost.
    p = p._replace(q=(1 - run.soft) * p.q, c=(1 - run.soft) * p.c, soft=run.soft)
    y = _multipliers(sides, at)
    a = p.values(at.x, y)
    sign = jnp.array([[1], [-1]], s.dtype)
    # Of the slacks, of equalities, and of the gradient.
    gap = jnp.where(sides.finite, sign * (a[None] - sides.limits) - s, 0)
    miss = jnp.where(sides.equal, a - sides.limits[0], 0)
    slope = p.slope(at.x, y)
    d = jnp.sum(jnp.where(sides.finite, z / s, 0), 0)
    factor = _factor(p, sides, d)
    mu = jnp.sum(s * z) / count

    def direction(target):
        """The changes for which s z becomes `target`."""
        h = jnp.where(sides.finite, (target - s * z - z * gap) / s, 0)
        h = h[1] - h[0]
        below = jnp.where(sides.equal, -miss, -h / jnp.where(d > 0, d, 1))[:m]
        dx, dy = _solve(factor, -slope - h[m:], below)
        da = p.values(dx, dy)
        ds = jnp.where(sides.finite, sign * da[None] + gap, 0)
        dz = jnp.where(sides.finite, (target - s * z - z * ds) / s, 0)
        return dx, ds, dz, jnp.append(dy, jnp.zeros_like(dx))

    _, ds, dz, _ = direction(jnp.zeros_like(s))
    t = _longest(s, ds, z, dz)
    ahead = jnp.sum((s + t * ds) * (z + t * dz)) / count
    center = (ahead / jnp.where(mu > 0, mu, 1)) ** 3 * mu
    target = jnp.where(sides.finite, center - ds * dz, 0)
    dx, ds, dz, dy = direction(target)
    t = jnp.minimum(1, _NEAR * _longest(s, ds, z, dz))
    s = jnp.where(
        sides.finite, jnp.maximum(s + t * ds, float(jnp.finfo(s.dtype).tiny)), 1
    )
    new = _Iterate(at.x + t * dx, s, z + t * dz, at.y + t * dy)
    is_fine = jnp.isfinite(new.x).all() & jnp.isfinite(new.z).all()
    new = choose(is_fine, new, at)
    error = _measured(p, sides, new)[2]
    waits = jnp.where(is_fine & (error < 0.9 * run.lowest), 0, run.waits + 1)
    is_hard = run.soft == 0
    is_best = is_hard & (error < run.error)
    run = _Run(
        new,
        choose(is_best, new, run.best),
        jnp.where(is_best, error, run.error),
        jnp.minimum(error, run.lowest),
        waits,
        run.steps + 1,
        jnp.full_like(run.code, RUNNING),
        run.soft,
    )
    is_stuck = waits >= _PATIENCE
    # Nearest to feasible, the rows are violated by y.
    is_far = jnp.max(jnp.abs(_multipliers(sides, new)[:m]), initial=0) > tol**0.5
    # It only has to tell y from 0, and rows that depend on each other limit its error.
    is_near = error <= jnp.minimum(100 * tol, 0.1 * tol**0.5)
    after = jnp.where(is_near & is_far, _INFEASIBLE, _STUCK)
    soft = jnp.where(is_near | is_stuck, after, RUNNING)
    # Along the iterate, or along a step when steps no longer help.
    is_endless = _falls_along(p, new.x) & (_largest(new.x) > _far(new.x))
    is_endless |= (waits >= _PATIENCE // 2) & _falls_along(p, dx)
    is_endless &= _excess(sides, p.values(new.x, y)) <= tol**0.5
    hard = jnp.where(is_endless, _UNBOUNDED, RUNNING)
    hard = jnp.where(error <= tol, _DONE, hard)
    code = jnp.where(is_hard, hard, soft).astype(jnp.int32)
    again = is_hard & is_stuck & (code == RUNNING)
    return run._replace(
        at=choose(again, start, new),
        lowest=jnp.where(again, jnp.inf, run.lowest),
        waits=jnp.where(again, 0, waits),
        soft=jnp.where(again, 1, run.soft).astype(run.soft.dtype),
        code=code,
    )


def _multipliers(sides: _Sides, at: _Iterate) -> jax.Array:
    return jnp.where(sides.equal, at.y, at.z[1] - at.z[0])


def _longest(s, ds, z, dz):
    """The longest step, up to 1 / _NEAR, for which nothing becomes negative."""
    reach = lambda x, dx: jnp.min(
        jnp.where(dx < 0, -x / jnp.where(dx < 0, dx, -1), 1 / _NEAR), initial=1 / _NEAR
    )
    return jnp.minimum(reach(s, ds), reach(z, dz))


def _measured(p: Program, sides: _Sides, at: _Iterate) -> tuple:
    """x; the multipliers of active sides; the largest error of the conditions."""
    is_active = sides.finite & (at.z > at.s)
    z = jnp.where(is_active, at.z, 0)
    m = len(p.low)
    y = jnp.where(sides.equal, at.y, z[1] - z[0])
    slope = p.slope(at.x, y)
    fixed = sides.equal[m:]
    y = y.at[m:].add(jnp.where(fixed, -slope, 0))
    a, (low, high) = p.values(at.x, y), p.limits
    slack = jnp.where(sides.finite, jnp.stack([a - low, high - a]), 0)
    size = 1 + jnp.maximum(
        _largest(p.c), jnp.maximum(_largest(times(p.q, at.x)), _largest(y))
    )
    value = 1 + jnp.abs(jnp.sum(at.x * (times(p.q, at.x) / 2 + p.c)))
    wrong = _largest(jnp.where(fixed, 0, slope)) / size, _excess(sides, a)
    errors = jnp.stack([*wrong, _largest(slack * z) / value])
    error = jnp.where(jnp.isnan(errors).any(), jnp.inf, errors.max())
    return at.x, y, error


def _polished(p: Program, sides: _Sides, at: _Iterate) -> _Iterate:
    """The solution if the sides that seem active are equalities, and the others not."""
    m = len(p.low)
    is_active = sides.finite & (at.z > at.s)
    is_on = is_active.any(0) | sides.equal
    limit = jnp.where(is_active[1], sides.limits[1], sides.limits[0])
    x = jnp.where(is_on[m:], limit[m:], at.x)
    y = jnp.where(sides.equal, at.y, at.z[1] - at.z[0])
    y = jnp.where(is_on, y, 0)[:m]
    factor = _factor(p, sides, jnp.zeros_like(limit), is_on)
    for _ in range(4):  # the error falls by about ρ each time
        slope = p.slope(x, jnp.append(y, jnp.zeros_like(x)))
        dx, dy = _solve(factor, -slope, limit[:m] - times(p.rows, x))
        x, y = x + dx, y + dy
    slope = p.slope(x, jnp.append(y, jnp.zeros_like(x)))
    every = jnp.append(y, jnp.where(is_on[m:], -slope, 0))
    z = jnp.where(is_active, jnp.stack([-every, every]), 0)
    # So that these sides are the active ones; a negative one is an error, below.
    s = jnp.where(is_active, -1, 1)
    wrong = jnp.where(is_active & (z < 0), jnp.nan, 0)
    return _Iterate(x + jnp.sum(wrong) * 0, s.astype(x.dtype), z, every)


def _falls_along(p: Program, v: jax.Array) -> jax.Array:
    """Whether the value falls without end in a direction, within all limits."""
    size = _largest(v)
    v = v / jnp.where(size > 0, size, 1)
    low, high = p.limits
    along = p.values(v, jnp.zeros_like(low))
    leaves = jnp.where(jnp.isfinite(low), -along, 0)
    leaves = jnp.maximum(leaves, jnp.where(jnp.isfinite(high), along, 0))
    bent = jnp.maximum(_largest(times(p.q, v)), jnp.max(leaves, initial=0))
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


def _largest(x: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(x), initial=0)


_DONE = MinimizeStatus.CONVERGED_BY_GRADIENT.value
_SMALL_STEPS = MinimizeStatus.CONVERGED_BY_STEP.value
_LIMIT = MinimizeStatus.ITERATION_LIMIT.value
_STUCK = -1
_NOT_FINITE = MinimizeStatus.NOT_FINITE.value
_UNBOUNDED = MinimizeStatus.UNBOUNDED.value
_INFEASIBLE = MinimizeStatus.INFEASIBLE.value
_INDEFINITE = MinimizeStatus.INDEFINITE.value
