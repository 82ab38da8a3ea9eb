"""L-BFGS: quasi-Newton steps from the curvature seen in the last few steps.

Nocedal and Wright, 2006, Numerical Optimization, 2nd edition, Algorithms 7.4 and 7.5;
Liu and Nocedal, 1989, On the limited memory BFGS method for large scale optimization.

The scale of the first step, which the book leaves open, is min(1, 1 / |g|), as in
Optax, so that the first step has a norm of at most 1.

Differences from Optax:

1. Inner products are computed in float32 or wider.
2. A pair without curvature, that is, with |s·y| / (|s| |y|) within rounding error, is
   ignored: it is stored as zeros with weight 0.  Optax divides by products that are
   close to 0.  The initial scale is that of the newest pair with a nonzero weight.
3. Pairs with negative curvature are kept, as in Optax.  The book skips them, since the
   updates may then not descend; so does `positive_only`.
4. Small unsharded leaves are concatenated into one array per dtype for the computation;
   the state holds the pairs of each leaf separately, as in Optax.
"""

import functools as ft
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays import numerics, precision
from .._engine.arrays.numerics import safe_divide, safe_increment, safe_sqrt
from .._linesearch.line import (
    choose,
    divided,
    dot,
    gather_short,
    hold,
    put,
    scaled_square,
)
from .._linesearch.zoom import scale_by_zoom_linesearch
from .._transforms.scale import scale, scale_by_learning_rate
from .._wrappers.chain import chain
from .._wrappers.partition import identity


@rx.optax_compatible
class ScaleByLBFGSState(rx.optax.ScaleByLBFGSState):
    """State of `scale_by_lbfgs`; n is the length of the memory.

    count: steps taken, a scalar.
    params, updates: the parameters and updates of the last step, shaped like the
        parameters.
    diff_params_memory, diff_updates_memory: their differences s and y between steps, of
        shapes (n, ...); the pair from step t - 1 to t is at index (t - 1) mod n.
    weights_memory: 1 / s·y, of shape (n,); 0 for pairs that are ignored.
    """

    count: jax.Array
    params: rx.Params
    updates: rx.Updates
    diff_params_memory: rx.ArrayTree
    diff_updates_memory: rx.Updates
    weights_memory: jax.Array


@rx.traits("normalizes")
@rx.public(paper="DOI 10.1007/978-0-387-40065-5", ranges={"memory_size": rx.AT_LEAST_1})
def scale_by_lbfgs(
    memory_size: int = 10,
    scale_init_precond: bool = True,
    *,
    positive_only: bool = False,
) -> rx.GradientTransformation:
    """Multiply by an L-BFGS approximation of the inverse Hessian.

        H = V' H V + s s' / s·y  for the last pairs (s, y),   V = I - y s' / s·y
        u = H g,   at first H = s·y / y·y of the newest pair

    memory_size: number of pairs (change of p, change of g) to keep, at least 1.
    scale_init_precond: whether to scale the initial inverse Hessian by the newest pair;
        otherwise it is the identity.
    positive_only: whether to skip pairs with negative curvature.

    Raises a `ValueError` if `memory_size` is below 1, or if `params` is missing.
    """

    def init(params):
        trees = first_columns(memory_size, params)
        return ScaleByLBFGSState(numerics.zero_count(), *trees, jnp.zeros(memory_size))

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state("scale_by_lbfgs", ScaleByLBFGSState, state)
        rx.require_floats("scale_by_lbfgs", updates, params)
        gradients = rx.Gradients(updates, params)
        live, pick = gradients.live()
        trees = state._asdict()
        columns = {k: gradients.leaves_of(trees[k], k) for k in COLUMNS}
        _check(gradients, live, columns)
        old = state._replace(**{name: pick(x) for name, x in columns.items()})
        g, p = pick(gradients.leaves), list(map(jnp.asarray, pick(gradients.params)))
        u, new = _step(g, p, old, scale_init_precond, positive_only)
        found = new._asdict()
        back = {k: put(gradients, live, found[k], x) for k, x in columns.items()}
        return put(gradients, live, u, gradients.leaves), new._replace(**back)

    return rx.transformation(init, update)


# An instance of Optax's class, because tests compare signatures with Optax's.
_SEARCH = rx.GradientTransformationExtraArgs(
    *scale_by_zoom_linesearch(20, initial_guess_strategy="one")
)


_ONE = {"learning_rate": "the line search steps along one direction"}


@rx.public("optimizer", paper="DOI 10.1007/978-0-387-40065-5", shared=_ONE)
def lbfgs(
    learning_rate: rx.ScalarOrSchedule | None = None,
    memory_size: int = 10,
    scale_init_precond: bool = True,
    linesearch: rx.TransformationLike | None = _SEARCH,
    *,
    positive_only: bool = False,
) -> rx.GradientTransformationExtraArgs:
    """L-BFGS with a line search: p = p - step learning_rate u
    with u the output of `scale_by_lbfgs`
    (Nocedal and Wright, 2006, doi:10.1007/978-0-387-40065-5).

    `update` takes the keywords of the line search; the default one needs `value`,
    `grad` and `value_fn`, see `scale_by_zoom_linesearch`.  `value_and_grad_from_state`
    reuses the value and gradient that it computed.

    learning_rate: factor of the updates before the search, a scalar or a schedule; 1 if
        `None`.
    linesearch: a transformation that multiplies descent updates by a step size; `None`
        for a step size of 1.
    Other arguments: those of `scale_by_lbfgs`.

    >>> tx, f = stepax.lbfgs(), lambda p: jnp.sum(p["w"] ** 2)
    >>> known = {"value": f(params), "grad": jax.grad(f)(params), "value_fn": f}
    >>> updates, state = tx.update(known["grad"], tx.init(params), params, **known)
    """
    direction = scale_by_lbfgs(
        memory_size, scale_init_precond, positive_only=positive_only
    )
    is_plain = learning_rate is None
    descend = scale(-1.0) if is_plain else scale_by_learning_rate(learning_rate)
    return chain(direction, descend, identity() if linesearch is None else linesearch)


# The fields of the state with a leaf for each parameter, also in `lbfgsb`.
COLUMNS = "params", "updates", "diff_params_memory", "diff_updates_memory"


def first_columns(
    memory_size: int, params: rx.Params
) -> tuple[rx.ArrayTree, rx.ArrayTree, rx.ArrayTree, rx.ArrayTree]:
    """Their values before the first step, with an empty memory."""

    def stack(x):
        return jnp.broadcast_to(x, (memory_size, *x.shape))

    p, u, s, y = (jax.tree.map(rx.zeros_like, params) for _ in range(4))
    return p, u, jax.tree.map(stack, s), jax.tree.map(stack, y)


def _check(gradients: rx.Gradients, live: list[int], columns: dict[str, list]) -> None:
    for name, column in columns.items():
        for i in live:
            if not numerics.has_dtype(column[i]):
                raise ValueError(
                    f"`scale_by_lbfgs` has nothing in `{name}` for the gradient at "
                    f"{gradients.path(i)}: the parameter did not exist when `init` was "
                    "called"
                )
            shape = column[i].shape[1 if name.endswith("memory") else 0 :]
            gradients.check_shape(i, shape, f"`{name}` in its state")


@ft.partial(jax.jit, static_argnums=(3, 4))
@precision.promote_freely
def _step(g, p, old, is_scaled, positive_only):
    """One step for lists of leaves; the fields of the state are lists, too."""
    kept = cast(p, old.params), cast(g, old.updates)
    memories = old.diff_params_memory, old.diff_updates_memory
    gathering = gather_short(g, *kept, *memories)
    pairs = zip(kept, (old.params, old.updates), strict=True)
    s, y = (_map(jnp.subtract, *map(gathering.join, pair)) for pair in pairs)
    weight, *scale = _curvature(s, y)
    is_kept = hold((weight > 0 if positive_only else weight != 0) & (old.count > 0))
    s_rows, y_rows = [gathering.join(memory, 1) for memory in memories]
    pairs = _Pairs(old.count, s_rows, y_rows, old.weights_memory)
    pairs = pairs.remember(s, y, weight, is_kept)
    narrow = gathering.join(g)
    q = [x.astype(precision.compute_dtype(x)) for x in narrow]
    gamma = unit = jnp.ones([], weight.dtype)
    if is_scaled:
        # Read the memory inside the branch and the loops: where it is read next to its
        # in-place write, XLA copies all of it at each step.
        def older():
            return _older_scale(q, pairs, weight)

        gamma, unit = map(hold, rx.branch(is_kept, lambda: tuple(scale), older))
    u = cast(_direction(q, pairs, gamma, unit), narrow)
    u, s, y = map(gathering.split, (u, pairs.s, pairs.y))
    count = safe_increment(old.count)
    return u, ScaleByLBFGSState(count, *kept, s, y, pairs.weights)


def _curvature(s, y):
    """1 / s·y, and s·y / y·y as a scaled value and its power-of-two divisor.

    The former is 0 where rounding hides the sign of s·y, or 1 / s·y is not finite.
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
    """The pairs s and y, concatenated, and 1 / s·y, stored as in the state.

    count: steps before this one.  The newest pair has age 0.
    """

    count: jax.Array
    s: list
    y: list
    weights: jax.Array

    def remember(self, s, y, weight, is_kept):
        """Overwrite the oldest pair with the newest."""
        at = (self.count - 1) % self.weights.size

        def write(memory, x):
            return _write(memory, jnp.where(is_kept, x, jnp.zeros_like(x)), at)

        s, y = _map(write, self.s, s), _map(write, self.y, y)
        return _Pairs(self.count, s, y, write(self.weights, weight))

    def of(self, age):
        """The index of the pair of a given age, and the pair with its weight."""
        at = (self.count - 1 - age) % self.weights.size

        def row(x):
            return _read(x, at)

        return at, list(map(row, self.s)), list(map(row, self.y)), row(self.weights)

    def newest(self):
        """The age of the newest pair with a nonzero weight, or else the oldest age."""
        size = self.weights.size
        ages = (self.count - 1 - jnp.arange(size, dtype=self.count.dtype)) % size
        return jnp.min(jnp.where(self.weights != 0, ages, size - 1))


def _direction(q, pairs, gamma, unit):
    """Algorithm 7.4, the two-loop recursion."""
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
    """The initial scale from the newest pair with a nonzero weight; without one, the
    scale that limits the norm of the step to 1."""
    _, s, y, weight = pairs.of(pairs.newest())
    is_curved = hold(weight != 0)
    unit, square = scaled_square(choose(is_curved, cast(y, g), g), like.dtype)
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


def cast(xs: list, like: list) -> list:
    """Arrays in the dtypes of others."""
    return _map(lambda x, y: x.astype(y.dtype), xs, like)


def _times(a, x):
    return a.astype(precision.real_dtype(x.dtype)) * x


def _add(xs, a, ys):
    return _map(lambda x, y: x + _times(a, y.astype(x.dtype)), xs, ys)
