"""The step of L-BFGS-B: minimize a quadratic model within bounds.

Byrd, Lu, Nocedal and Zhu, 1995, A limited memory algorithm for bound constrained
optimization (DOI 10.1137/0916069): equation 3.2 for the matrix, Algorithm CP for the
generalized Cauchy point, the direct primal method of section 5.1 for the subspace;
Morales and Nocedal, 2011, Remark on Algorithm 778 (DOI 10.1145/2049662.2049669), for
the projection at its end.

All leaves are concatenated into one vector of n elements, because their breakpoints are
sorted together; m is the number of stored pairs of differences.

Differences from the papers:

1. The search for the Cauchy point processes breakpoints in blocks, with cumulative sums
   in each.  If all of 1e3 variables reach their bounds this takes 0.7 ms on two cores,
   against 1.6 ms one at a time; for 1e5 variables, 200 against 260 ms.  Cumulative sums
   over all variables would waste work, since the first few usually decide.
2. The matrix M^-1 is scaled to a diagonal of 1 and -1 before the solve: pairs of early
   steps are many orders of magnitude larger than late ones.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._engine.arrays.numerics import nan_min


BLOCK = 64


class Model(NamedTuple):
    """The matrix B = theta I - w' M w, where w is the transpose of the paper's W.

    theta: a scalar.
    w: rows y and theta s of each pair, scaled, of shape (2 m, n); 0 for missing pairs.
    middle: M^-1, of shape (2 m, 2 m).
    """

    theta: jax.Array
    w: jax.Array
    middle: jax.Array

    def solve(self, x: jax.Array) -> jax.Array:
        """M x."""
        wide = x.astype(self.middle.dtype)
        return jnp.linalg.solve(self.middle, wide).astype(x.dtype)


class Sums(NamedTuple):
    """Sums over variables along the projected gradient path.

    p: w d of the direction d, of shape (2 m,).
    c: w z, where z is the displacement of the variables that have reached their bounds.
    size: d'd.
    """

    p: jax.Array
    c: jax.Array
    size: jax.Array


def compact(theta, s, y, ss, sy, age) -> Model:
    """The model from pairs s, y, of shape (m, n), and their inner products.

    ss, sy: s_i·s_j and s_i·y_j, of shape (m, m).
    age: age of each pair, 0 for the newest; negative for missing ones.
    """
    exists = age >= 0
    both = exists[:, None] & exists[None]
    ss, sy = jnp.where(both, ss, 0), jnp.where(both, sy, 0)
    L = jnp.where(age[:, None] < age[None], sy, 0)
    middle = jnp.block([[-jnp.diag(jnp.diag(sy)), L.T], [L, theta * ss]])
    size = jnp.sqrt(jnp.abs(jnp.diag(middle)))
    scale = jnp.where(size > 0, 1 / jnp.where(size > 0, size, 1), 0)
    middle = middle * jnp.outer(scale, scale)
    signs = jnp.diag(jnp.repeat(jnp.array([-1, 1], middle.dtype), age.size))
    middle = jnp.where(signs == 0, middle, signs)
    theta = theta.astype(s.dtype)
    rows = jnp.concatenate([y, theta * s])
    # The slots of missing pairs may hold stale values.
    w = jnp.where(scale[:, None] > 0, scale.astype(s.dtype)[:, None] * rows, 0)
    return Model(theta, w, middle)


def minimize(model: Model, x, g, lower, upper) -> jax.Array:
    """The approximate minimum of g'd + d'Bd / 2 for x + d within bounds, as in the
    papers."""
    if not x.size:
        return x
    cauchy = cauchy_point(model, x, g, lower, upper)
    return subspace_minimum(model, x, g, cauchy, lower, upper)


def cauchy_point(model: Model, x, g, lower, upper) -> jax.Array:
    """The first local minimum along the projected path x - t g."""
    bound = jnp.where(g < 0, upper, lower)
    moves = g != 0
    t = jnp.where(moves, (x - bound) / jnp.where(moves, g, 1), jnp.inf)
    last = _first_minimum(model, t, jnp.where(t > 0, g, 0))
    return jnp.where(t <= last, bound, jnp.clip(x - last * g, lower, upper))


def _first_minimum(model: Model, t, g) -> jax.Array:
    """The t of that minimum; `t` are the breakpoints, and g is 0 where they are 0."""
    n = t.size
    # Index n is a dummy variable with a row of zeros; it pads the breakpoints before
    # the first and after the last.
    more = -(n + 1) % BLOCK
    order = jnp.argsort(t)
    index = jnp.concatenate([jnp.array([n]), order, jnp.full(more, n)])
    infinite = jnp.full(more + 1, jnp.inf, t.dtype)
    time = jnp.concatenate([jnp.zeros(1, t.dtype), t[order], infinite])
    M = model.solve(jnp.eye(model.middle.shape[0], dtype=t.dtype))
    size = g @ g
    first = Sums(-model.w @ g, jnp.zeros(M.shape[0], t.dtype), size)
    least = jnp.finfo(t.dtype).eps * model.theta * size

    def block(carry):
        start, sums, _, _ = carry

        def part(x, shift=0):
            return jax.lax.dynamic_slice(x, (start + shift,), (BLOCK,))

        at, now, later = part(index), part(time), part(time, 1)
        passed = jnp.where(jnp.isfinite(now), now, 0)
        row = {"mode": "fill", "fill_value": 0}
        g_at = g.at[at].get(**row)[None]
        row_at = model.w.at[:, at].get(**row) * g_at
        # Cumulative sums as a matrix product: compiles in 1.0 s instead of 1.4 s.
        parts = [row_at, -row_at * passed[None], -jnp.square(g_at)]
        parts = jnp.concatenate(parts) @ jnp.triu(jnp.ones((BLOCK, BLOCK), g.dtype))
        p, c, size = jnp.split(parts, [M.shape[0], 2 * M.shape[0]])
        p, c = sums.p[:, None] + p, sums.c[:, None] + c
        size = sums.size + size[0]
        # Derivatives of the model with respect to t, at the start of each interval.
        Mp, z = M @ p, c + passed[None] * p
        slope = (model.theta * passed - 1) * size - jnp.sum(Mp * z, 0)
        curvature = jnp.maximum(model.theta * size - jnp.sum(Mp * p, 0), least)
        best = jnp.where(slope < 0, passed - slope / curvature, passed)
        is_end = (now < later) & (best <= later)
        end = Sums(p[:, -1], c[:, -1], size[-1])
        return start + BLOCK, end, is_end.any(), best[jnp.argmax(is_end)]

    start = jnp.zeros([], jnp.int32), first, jnp.zeros([], bool), jnp.zeros([], t.dtype)
    _, _, is_found, last = jax.lax.while_loop(
        lambda carry: (carry[0] < index.size) & ~carry[2], block, start
    )
    return jnp.where(is_found, last, 0)


def subspace_minimum(model: Model, x, g, cauchy, lower, upper) -> jax.Array:
    """The minimum over the variables that are free at the Cauchy point."""
    theta, w = model.theta, model.w
    is_free = (cauchy > lower) & (cauchy < upper)
    z = cauchy - x
    r = jnp.where(is_free, g + theta * z - model.solve(w @ z) @ w, 0)
    w = jnp.where(is_free[None], w, 0)
    gram = (w @ w.T).astype(model.middle.dtype)
    inner = model._replace(middle=model.middle - gram / theta.astype(gram.dtype))
    d = -(r + inner.solve(w @ r) @ w / theta) / theta

    # Projected if that descends, otherwise truncated.
    full = jnp.clip(cauchy + d, lower, upper)
    longest = jnp.minimum(room(cauchy, d, lower, upper), 1)
    short = jnp.clip(cauchy + longest * d, lower, upper)
    return jnp.where(g @ (full - x) < 0, full, short)


def room(x, d, lower, upper) -> jax.Array:
    """The largest step along d that stays within the bounds."""
    moves = d != 0
    gap = jnp.where(d < 0, lower, upper) - x
    steps = jnp.where(moves, gap / jnp.where(moves, d, 1), jnp.inf)
    return nan_min(steps, initial=jnp.inf)
