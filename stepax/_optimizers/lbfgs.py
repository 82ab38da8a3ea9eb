"""L-BFGS: steps of Newton's kind, with the curvature seen in the last few steps.

Nocedal and Wright, 2006, Numerical Optimization, 2nd edition, Algorithms 7.4 and 7.5;
Liu and Nocedal, 1989, On the limited memory BFGS method for large scale optimization.

The initial scale of the first step, which the book leaves open, is min(1, 1 / |g|), as
in Optax: the step is no longer than 1.

Differences from Optax:

1. Inner products are computed in float32 or wider.
2. A pair of differences without curvature has no weight and is stored as zeros: one
   for which |s·y|, relative to |s| |y|, is not above the rounding error.  Optax divides
   by products that are close to 0.  The initial scale is that of the newest pair with
   a weight.
3. Negative curvature is kept, as in Optax; the book leaves such pairs out, because with
   them the updates may not descend.  `positive_only` does so.
4. Short leaves that lie on no mesh are gathered into one array of each dtype; the
   state has the pairs of each leaf by itself, as Optax's.
"""

import functools as ft
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine.arrays import precision
from .._engine.arrays.branch import branch
from .._engine.arrays.numerics import safe_divide, safe_increment, safe_sqrt
from .._engine.base.optax_types import optax_compatible
from .._engine.base.protocol import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    ScalarOrSchedule,
    transformation,
)
from .._engine.factories.ranges import AT_LEAST_1
from .._engine.factories.registry import public
from .._engine.step.gradients import Gradients, align, has_no_gradient
from .._engine.step.leafwise import require_floats
from .._engine.step.rule import zeros_like
from .._engine.trees import errors
from .._linesearch.gather import gather_short
from .._linesearch.line import choose, divided, dot, hold, put, scaled_square
from .._linesearch.zoom import scale_by_zoom_linesearch
from .._transforms.scale import scale, scale_by_learning_rate
from .._wrappers.chain import chain
from .._wrappers.partition import identity


@optax_compatible
class ScaleByLBFGSState(NamedTuple):
    """State of `scale_by_lbfgs`; n is the length of the memory.

    count: steps taken, a scalar.
    params, updates: of the last step, shaped as the parameters.
    diff_params_memory, diff_updates_memory: differences s and y of these from step to
        step, of shapes (n, ...); that from step t - 1 to t is at (t - 1) mod n.
    weights_memory: 1 / s·y, of shape (n,); 0 where a pair counts for nothing.
    """

    count: jax.Array
    params: Any
    updates: Any
    diff_params_memory: Any
    diff_updates_memory: Any
    weights_memory: jax.Array


@public(paper="DOI 10.1007/978-0-387-40065-5", ranges={"memory_size": AT_LEAST_1})
def scale_by_lbfgs(
    memory_size: int = 10,
    scale_init_precond: bool = True,
    *,
    positive_only: bool = False,
) -> GradientTransformation:
    """Multiply by an approximation of the inverse Hessian.

        H = V' H V + s s' / s·y  for the last pairs (s, y),   V = I - y s' / s·y
        u = H g,   at first H = s·y / y·y of the newest pair

    memory_size: how many pairs are remembered, at least 1.
    scale_init_precond: whether the initial H has that scale, else 1.
    positive_only: whether to leave out pairs with s·y < 0, as the book does.

    Raises a `ValueError` for a memory of no pair, and where `params` is missing.
    """

    def stack(x):
        return jnp.broadcast_to(x, (memory_size, *x.shape))

    def init(params):
        zeros = lambda: jax.tree.map(zeros_like, params)
        memory = lambda: jax.tree.map(stack, zeros())
        count, weights = jnp.zeros([], jnp.int32), jnp.zeros(memory_size)
        return ScaleByLBFGSState(count, zeros(), zeros(), memory(), memory(), weights)

    def update(updates, state, params=None, **extra_args):
        errors.require_state("scale_by_lbfgs", ScaleByLBFGSState, state)
        require_floats("scale_by_lbfgs", updates, params)
        flow = Gradients(updates, params)
        live = [i for i, g in enumerate(flow.leaves) if not has_no_gradient(g)]
        pick = lambda leaves: [leaves[i] for i in live]
        columns = {name: align(flow, getattr(state, name), name) for name in _COLUMNS}
        _check(flow, live, columns)
        old = state._replace(**{name: pick(x) for name, x in columns.items()})
        g, p = pick(flow.leaves), list(map(jnp.asarray, pick(flow.params)))
        u, new = _step(g, p, old, scale_init_precond, positive_only)
        back = {k: put(flow, live, getattr(new, k), x) for k, x in columns.items()}
        return put(flow, live, u, flow.leaves), new._replace(**back)

    return transformation(init, update)


# Of Optax's class, by which signatures are compared.
_SEARCH = GradientTransformationExtraArgs(
    *scale_by_zoom_linesearch(20, initial_guess_strategy="one")
)


@public("optimizer", paper="DOI 10.1007/978-0-387-40065-5")
def lbfgs(
    learning_rate: ScalarOrSchedule | None = None,
    memory_size: int = 10,
    scale_init_precond: bool = True,
    linesearch: GradientTransformation | None = _SEARCH,
    *,
    positive_only: bool = False,
) -> GradientTransformationExtraArgs:
    """L-BFGS with a line search: p = p - step learning_rate u, u of `scale_by_lbfgs`.

    `update` takes the keywords that the line search reads; the default one reads
    `value`, `grad` and `value_fn`, see `scale_by_zoom_linesearch`.  Its value and
    gradient can be had from `value_and_grad_from_state`.

    learning_rate: a number, or a schedule of the step, by which the updates are
        multiplied before the search; 1 if `None`.
    memory_size: how many pairs of steps and changes of g are kept, at least 1.
    scale_init_precond: whether the initial inverse Hessian has their scale, else 1.
    linesearch: a transformation that multiplies descending updates by a step; `None`
        for a step of 1.
    positive_only: whether to leave out pairs of negative curvature.
    """
    direction = scale_by_lbfgs(
        memory_size, scale_init_precond, positive_only=positive_only
    )
    is_plain = learning_rate is None
    descend = scale(-1.0) if is_plain else scale_by_learning_rate(learning_rate)
    return chain(direction, descend, identity() if linesearch is None else linesearch)


_COLUMNS = "params", "updates", "diff_params_memory", "diff_updates_memory"


def _check(flow: Gradients, live: list[int], columns: dict[str, list]) -> None:
    for name, column in columns.items():
        for i in live:
            if not hasattr(column[i], "shape"):
                raise ValueError(
                    f"`scale_by_lbfgs` has nothing in `{name}` for the gradient at "
                    f"{flow.path(i)}: there was no parameter when `init` was called"
                )
            shape = column[i].shape[1 if name.endswith("memory") else 0 :]
            flow.check_shape(i, shape, f"`{name}` in its state")


@ft.partial(jax.jit, static_argnums=(3, 4))
@precision.promote_freely
def _step(g, p, old, is_scaled, positive_only):
    """One step for lists of leaves; the fields of the state are lists, too."""
    kept = _cast(p, old.params), _cast(g, old.updates)
    memories = old.diff_params_memory, old.diff_updates_memory
    gathering = gather_short(g, *kept, *memories)
    differ = lambda new, was: _map(jnp.subtract, *map(gathering.join, (new, was)))
    s, y = differ(kept[0], old.params), differ(kept[1], old.updates)
    weight, *scale = _curvature(s, y)
    is_kept = hold((weight > 0 if positive_only else weight != 0) & (old.count > 0))
    s_rows, y_rows = [gathering.join(memory, 1) for memory in memories]
    pairs = _Pairs(old.count, s_rows, y_rows, old.weights_memory)
    pairs = pairs.remember(s, y, weight, is_kept)
    narrow = gathering.join(g)
    q = [x.astype(precision.compute_dtype(x)) for x in narrow]
    gamma = unit = jnp.ones([], weight.dtype)
    if is_scaled:
        # XLA copies a memory that is read where it is written, all of it at each step;
        # neither a branch nor the loops of the recursion are such a place.
        older = lambda: _older_scale(q, pairs, weight)
        gamma, unit = map(hold, branch(is_kept, lambda: tuple(scale), older))
    u = _cast(_direction(q, pairs, gamma, unit), narrow)
    u, s, y = map(gathering.split, (u, pairs.s, pairs.y))
    count = safe_increment(old.count)
    return u, ScaleByLBFGSState(count, *kept, s, y, pairs.weights)


def _curvature(s, y):
    """1 / s·y, and s·y / y·y as a number that is divided by a power of two.

    The former is 0 where rounding hides the sign of s·y, or there is no such number.
    """
    sy, ss = dot(s, y), dot(s, s)
    unit, yy = scaled_square(y, sy.dtype)
    limits = jnp.finfo(sy.dtype)
    size = jnp.abs(sy)
    is_curved = (size / unit > limits.eps * safe_sqrt(ss) * safe_sqrt(yy)) | (
        ss == jnp.inf
    )
    exists = (jnp.minimum(size, yy) > limits.tiny) & (jnp.maximum(size, yy) < jnp.inf)
    inverse = safe_divide(jnp.ones_like(sy), jnp.where(exists, sy, 1))
    weight = jnp.where(is_curved & exists, inverse, 0)
    return weight, sy / unit / jnp.where(exists, yy, 1), unit


class _Pairs(NamedTuple):
    """The pairs s and y, gathered, and 1 / s·y, as in the state; the newest has age 0.

    count: steps before this one.
    """

    count: jax.Array
    s: list
    y: list
    weights: jax.Array

    def remember(self, s, y, weight, is_kept):
        """With the newest pair in the place of the oldest one."""
        at = (self.count - 1) % self.weights.size

        def write(memory, x):
            return _write(memory, jnp.where(is_kept, x, jnp.zeros_like(x)), at)

        s, y = _map(write, self.s, s), _map(write, self.y, y)
        return _Pairs(self.count, s, y, write(self.weights, weight))

    def of(self, age):
        """Where the pair of an age is, and what is there."""
        at = (self.count - 1 - age) % self.weights.size
        row = lambda x: _read(x, at)
        return at, list(map(row, self.s)), list(map(row, self.y)), row(self.weights)

    def newest(self):
        """The age of the newest pair with a weight; that of the oldest if none has."""
        size = self.weights.size
        ages = (self.count - 1 - jnp.arange(size, dtype=self.count.dtype)) % size
        return jnp.min(jnp.where(self.weights != 0, ages, size - 1))


def _direction(q, pairs, gamma, unit):
    """Algorithm 7.4: from the newest pair to the oldest one, and back."""
    size = pairs.weights.size

    def down(age, carry):
        q, alphas = carry
        at, s, y, weight = pairs.of(age)
        alpha = weight * dot(s, q)
        return _add(q, -alpha, y), _write(alphas, alpha, at)

    def up(i, r):
        at, s, y, weight = pairs.of(size - 1 - i)
        return _add(r, _read(alphas, at) - weight * dot(y, r), s)

    none = jnp.zeros(size, jnp.result_type(pairs.weights, dot(q, q)))
    q, alphas = jax.lax.fori_loop(0, size, down, (q, none))
    return jax.lax.fori_loop(0, size, up, [_times(gamma, x) for x in divided(q, unit)])


def _older_scale(g, pairs, like):
    """That of the newest pair with a weight; without one, so that the step is at most
    1."""
    _, s, y, weight = pairs.of(pairs.newest())
    is_curved = hold(weight != 0)
    unit, square = scaled_square(choose(is_curved, _cast(y, g), g), like.dtype)
    curved = dot(s, y).astype(like.dtype) / unit / jnp.where(is_curved, square, 1)
    return jnp.where(
        is_curved, curved, 1 / jnp.maximum(safe_sqrt(square), 1 / unit)
    ), unit


def _read(memory, at):
    return jax.lax.dynamic_index_in_dim(memory, at, 0, keepdims=False)


def _write(memory, x, at):
    return jax.lax.dynamic_update_index_in_dim(memory, x.astype(memory.dtype), at, 0)


def _map(f, *lists):
    return [f(*xs) for xs in zip(*lists, strict=True)]


def _cast(xs, like):
    return _map(lambda x, y: x.astype(y.dtype), xs, like)


def _times(a, x):
    return a.astype(precision.real_dtype(x.dtype)) * x


def _add(xs, a, ys):
    return _map(lambda x, y: x + _times(a, y.astype(x.dtype)), xs, ys)
