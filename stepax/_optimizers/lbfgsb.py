"""L-BFGS-B: L-BFGS with bounds on the parameters.

Byrd, Lu, Nocedal and Zhu, 1995, A limited memory algorithm for bound constrained
optimization (DOI 10.1137/0916069); Morales and Nocedal, 2011, Remark on Algorithm 778
(DOI 10.1145/2049662.2049669).

Differences from the papers:

1. The line search is `scale_by_zoom_linesearch`.  As in the authors' code, it tries the
   minimum of the model first, and never goes beyond the nearest bound.
2. A pair of differences is kept if s·y is positive beyond rounding error.
3. All pairs are dropped after a search that did not move, as they are when the minimum
   of the model is not a descent direction; the next direction is then the projected
   gradient.
"""

import functools as ft
import itertools as it
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays import precision
from .._engine.arrays.numerics import norm2, safe_increment, safe_sqrt, zero_count
from .._linesearch.line import put
from .._linesearch.zoom import scale_by_zoom_linesearch
from .._wrappers.partition import identity
from . import bounds
from .bounded_model import compact, minimize, room
from .lbfgs import COLUMNS, cast, first_columns


class LBFGSBState(NamedTuple):
    """State of `lbfgsb`; m is the length of the memory.

    count: steps taken, a scalar.
    params, updates: the parameters and updates of the last step, shaped like the
        parameters.
    diff_params_memory, diff_updates_memory: their differences s and y, of shapes
        (m, ...); the newest is at index (pairs - 1) mod m.
    pairs: number of pairs stored since the memory was last cleared, a scalar.
    theta: y·y / s·y of the newest pair, a scalar.
    products, curvatures: s_i·s_j and s_i·y_j, of shape (m, m).
    linesearch: state of the line search, with `value` and `grad` at the new parameters.
    """

    count: jax.Array
    params: rx.Params
    updates: rx.Updates
    diff_params_memory: rx.ArrayTree
    diff_updates_memory: rx.Updates
    pairs: jax.Array
    theta: jax.Array
    products: jax.Array
    curvatures: jax.Array
    linesearch: rx.OptState


_zoom = ft.partial(
    scale_by_zoom_linesearch, 20, increase_factor=5.0, initial_guess_strategy="one"
)
_SEARCH = rx.GradientTransformationExtraArgs(*_zoom())


@rx.public(
    "optimizer",
    paper="DOI 10.1137/0916069",
    holomorphic=False,
    ranges={"memory_size": rx.AT_LEAST_1},
)
def lbfgsb(
    lower: Any = None,
    upper: Any = None,
    memory_size: int = 10,
    *,
    linesearch: rx.TransformationLike | None = _SEARCH,
    project: bool = False,
) -> rx.GradientTransformationExtraArgs:
    """L-BFGS with a line search and bounds on the parameters
    (Byrd et al., 1995, doi:10.1137/0916069).

        x = the minimum of g'd + d'Bd / 2 within the bounds, where d = x - p
        p = p + step (x - p)

    B approximates the Hessian from the last pairs of differences.  `update` takes the
    keywords of the line search; the default one needs `value`, `grad` and `value_fn`,
    see `scale_by_zoom_linesearch`.  `value_and_grad_from_state` reuses the value and
    gradient that it computed.  `value_fn` is only evaluated within the bounds, and
    parameters after `apply_updates` are within them exactly.

    lower, upper: a scalar, or labels as in `partition` whose leaves are scalars or
        arrays that broadcast to the parameters; `None` for no bound.  They are rounded
        to the dtype of the parameter.  Where they are equal, the parameter is fixed.
    memory_size: number of pairs to keep, at least 1.
    linesearch: a transformation that multiplies descent updates by a step size; `None`
        for a step size of 1.  The default one stops at the nearest bound.
    project: whether to clip initial parameters to the bounds, at the cost of one more
        evaluation, instead of raising an error in `init`.

    Raises a `ValueError` for bounds that cross, are NaN or do not fit the parameters,
    and a `TypeError` for complex parameters and missing keywords.
    """
    bounds.check_sides(lower, upper)
    search = identity() if linesearch is None else linesearch
    search = rx.with_keywords(search, "`linesearch`")

    def init(params):
        bounds.check(lower, upper, params, project)
        return _first_state(memory_size, params, search.init(params))

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state("lbfgsb", LBFGSBState, state)
        rx.require_floats("lbfgsb", updates, params)
        gradients = rx.Gradients(updates, params)
        live, pick = gradients.live()
        p, g = list(map(jnp.asarray, pick(gradients.params))), pick(gradients.leaves)
        rx.check_gradients(updates, params=state.params)
        box = bounds.box_of(lower, upper, gradients, live)
        start = bounds.clip(p, box)
        if project:
            g, extra_args = _at_start(gradients, live, p, start, g, extra_args)
        if callable(f := extra_args.get("value_fn")):
            extra_args["value_fn"] = bounds.within(f, gradients, live, box)
        trees = state._asdict()
        columns = {k: gradients.leaves_of(trees[k], k) for k in COLUMNS}
        old = {k: pick(x) for k, x in columns.items()}
        d, most, new = _step(g, start, box, state._replace(**old, linesearch=()))
        line = _zoom(max_learning_rate=most) if linesearch is _SEARCH else search
        d = put(gradients, live, d, gradients.leaves)
        here = put(gradients, live, start, gradients.params)
        u, found = line.update(d, state.linesearch, here, **extra_args)
        u = bounds.land(p, start, pick(gradients.leaves_of(u, "updates")), box)
        made = new._asdict()
        back = {k: put(gradients, live, made[k], x) for k, x in columns.items()}
        new = new._replace(**back, linesearch=found)
        return put(gradients, live, u, gradients.leaves), new

    return rx.transformation(init, update, inner={"linesearch": search})


def _first_state(
    memory_size: int, params: rx.Params, linesearch: rx.TransformationLike
) -> LBFGSBState:
    trees = first_columns(memory_size, params)
    small = jnp.result_type(float)  # for the linear solves
    a, b = (jnp.zeros((memory_size, memory_size), small) for _ in range(2))
    scalars = zero_count(), jnp.ones([], small), a, b
    return LBFGSBState(zero_count(), *trees, *scalars, linesearch)


def _at_start(gradients, live, p, start, g, extra):
    """Gradients and keywords at `start`, recomputed if it differs from `p`."""
    rest = dict(extra)
    value, grad, f = (rest.pop(key, None) for key in ("value", "grad", "value_fn"))
    if value is None or grad is None or not callable(f):
        return g, extra  # the search raises if it needs a missing keyword

    def value_of(leaves):
        return f(put(gradients, live, leaves, gradients.params), **rest)

    known = jnp.asarray(value), g
    known = rx.keep_dtypes(known, known)

    def compute():
        return rx.keep_dtypes(jax.value_and_grad(value_of)(start), known)

    pairs = zip(p, start, strict=True)
    is_moved = jnp.any(jnp.array([jnp.any(x != y) for x, y in pairs], bool))
    value, moved = rx.branch(is_moved, compute, lambda: known)
    grad = gradients.leaves_of(grad, "grad")
    for i, x in zip(live, moved, strict=True):
        grad[i] = jnp.where(is_moved, x, grad[i]).astype(jnp.result_type(grad[i]))
    return moved, extra | {"value": value, "grad": gradients.treedef.unflatten(grad)}


# Full precision: by default accelerators round the factors of a product, and s·y could
# lose its sign.
@jax.jit
@precision.promote_freely
@jax.default_matmul_precision("highest")
def _step(g, p, box, old):
    """The step to the model's minimizer, for lists of leaves, and the new state."""
    g, p, box, old = jax.lax.stop_gradient((g, p, box, old))
    dtype = precision.compute_dtype(*p, *g)
    new = _remember(old, p, g, dtype)
    pairs = (zip(side, p, strict=True) for side in box)
    wide = ([jnp.broadcast_to(b, x.shape) for b, x in pair] for pair in pairs)
    lower, upper = (_flat(side, dtype) for side in wide)
    x, slope = _flat(p, dtype), _flat(g, dtype)
    d = minimize(_model(new, dtype), x, slope, lower, upper) - x
    plain = jnp.clip(x - slope, lower, upper) - x
    descends = slope @ d < 0  # False for the NaN of a singular matrix
    d = jnp.where(descends, d, plain)
    new = new._replace(pairs=jnp.where(descends, new.pairs, 0))
    # Without a pair the scale is unknown: limit the first step to length 1, unless all
    # bounds are finite, which sets a scale, and the search has not failed there.
    is_boxed = jnp.isfinite(lower).all() & jnp.isfinite(upper).all()
    stood = (old.count > 0) & jnp.all(x == _flat(old.params, dtype))
    is_short = (new.pairs == 0) & (stood | ~is_boxed)
    d = jnp.where(is_short, d / jnp.maximum(norm2(d), 1), d)
    return _leaves(d, g), room(x, d, lower, upper), new


def _remember(old, p, g, dtype):
    """The state, with the newest pair in place of the oldest if it has curvature."""
    p, g = cast(p, old.params), cast(g, old.updates)
    s = [x - was for x, was in zip(p, old.params, strict=True)]
    y = [x - was for x, was in zip(g, old.updates, strict=True)]
    flat_s, flat_y = _flat(s, dtype), _flat(y, dtype)
    ss, sy, yy = flat_s @ flat_s, flat_s @ flat_y, flat_y @ flat_y
    is_later = old.count > 0
    limits = jnp.finfo(sy.dtype)
    # s·y is positive beyond rounding error, and all products are finite.
    exists = (jnp.minimum(ss, sy) > limits.tiny) & (jnp.maximum(ss, yy) < jnp.inf)
    is_curved = exists & (sy > limits.eps * safe_sqrt(ss) * safe_sqrt(yy))
    fits = is_later & is_curved
    pairs = jnp.where(is_later & (ss == 0), 0, old.pairs)
    size = old.products.shape[0]
    at = pairs % size

    def write(memory, x):
        return memory.at[at].set(jnp.where(fits, x, memory[at]))

    S = list(map(write, old.diff_params_memory, s))
    Y = list(map(write, old.diff_updates_memory, y))
    Ss, Sy, Ys = (
        (_rows(a, dtype, size) @ b).astype(old.products.dtype)
        for a, b in ((S, flat_s), (S, flat_y), (Y, flat_s))
    )
    theta = jnp.where(pairs == 0, 1, old.theta)
    theta = jnp.where(fits, yy / jnp.where(fits, sy, 1), theta).astype(old.theta.dtype)
    products = old.products.at[at].set(Ss).at[:, at].set(Ss)
    curvatures = old.curvatures.at[at].set(Ys).at[:, at].set(Sy)
    return old._replace(
        count=safe_increment(old.count),
        # All are read whole, from which XLA would conclude that they are replicated.
        params=list(map(rx.with_sharding_of, old.params, p)),
        updates=list(map(rx.with_sharding_of, old.updates, g)),
        diff_params_memory=list(map(rx.with_sharding_of, old.diff_params_memory, S)),
        diff_updates_memory=list(map(rx.with_sharding_of, old.diff_updates_memory, Y)),
        pairs=pairs + fits,
        theta=theta,
        products=jnp.where(fits, products, old.products),
        curvatures=jnp.where(fits, curvatures, old.curvatures),
    )


def _model(new, dtype):
    size = new.products.shape[0]
    place = jnp.arange(size)
    age = jnp.where(place < new.pairs, (new.pairs - 1 - place) % size, -1)
    s = _rows(new.diff_params_memory, dtype, size)
    y = _rows(new.diff_updates_memory, dtype, size)
    return compact(new.theta, s, y, new.products, new.curvatures, age)


def _flat(xs, dtype):
    parts = [rx.whole_on_mesh_of(x, x).astype(dtype).ravel() for x in xs]
    return jnp.concatenate([jnp.zeros(0, dtype), *parts])


def _rows(xs, dtype, number):
    """`_flat` for each row of the memories."""
    xs = [rx.whole_on_mesh_of(x, x).astype(dtype) for x in xs]
    parts = [x.reshape(number, math.prod(x.shape[1:])) for x in xs]
    return jnp.concatenate([jnp.zeros((number, 0), dtype), *parts], 1)


def _leaves(x, like):
    """Split a vector into leaves with the shapes and dtypes of `like`."""
    x = rx.whole_on_mesh_of(x, x)  # otherwise XLA shards all parts like one of them
    ends = it.accumulate((y.size for y in like), initial=0)
    places = zip(it.pairwise(ends), like, strict=True)
    parts = [(y, x[a:b].reshape(y.shape)) for (a, b), y in places]
    return [rx.with_sharding_of(y, part).astype(y.dtype) for y, part in parts]
