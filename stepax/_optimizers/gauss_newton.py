"""Damped Gauss-Newton for networks, by products or in the space of samples.

For a loss L(f(p)) with outputs f, their Jacobian J, and H, the Hessian of L with
respect to them, the step minimizes a model of the loss,

    m(d) = g·d + d·J'HJ d / 2,   plus   λ/2 |d - momentum d_last|²

by conjugate gradients on products with J'HJ (Martens, 2010, Deep learning via
Hessian-free optimization), or exactly, by a matrix with a row for each parameter, or
for each output where these are fewer:

    d = d_0 - J' (H J J' + λ)^-1 (dL + H J d_0),   d_0 = momentum d_last

as MinSR (Chen and Heyl, 2024, arXiv:2302.01941) and, with momentum, SPRING
(Goldshlager, Abrahamsen and Lin, 2024, arXiv:2401.10190), here for any convex L.

The damping λ follows the ratio of the decrease of the loss to that of the model, as in
Levenberg (1944) and Marquardt (1963): it falls where that is near 1, and rises where it
is small.  A step that raises the loss is not taken.

With `geodesic`, the step is d + a / 2 where the outputs are bent along d,

    a = -J' (H J J' + λ)^-1 H f'',   f'' the second derivative of f along d

if |a| is at most |d| / 2: the geodesic acceleration of Transtrum and Sethna (2012,
arXiv:1201.5885).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import tree
from .._engine import rules as rx
from .._linesearch.line import search_dtype
from .sophia import moved_params, nothing, require_real, with_fixed


# The ratios of decreases below and above which the damping changes, by these factors.
_POOR, _GOOD, _RAISE, _LOWER = 0.25, 0.75, 4.0, 1 / 3


class GaussNewtonState(NamedTuple):
    """count: steps taken.

    damping: λ of the next step; ratio: the last ratio of decreases, 1 before any step.
    last: the last step, shaped as the parameters; `None` without momentum.
    """

    count: jax.Array
    damping: jax.Array
    ratio: jax.Array
    last: rx.ArrayTree


class _Model(NamedTuple):
    """The loss near the parameters.

    outputs, slope: f and dL there.
    push, pull: products with J and its transpose; `bend`: with H.
    """

    outputs: rx.ArrayTree
    slope: rx.ArrayTree
    push: Callable
    pull: Callable
    bend: Callable


@rx.public(
    "functional",
    paper="arXiv:2401.10190",
    holomorphic=False,
    ranges={"damping": rx.AT_LEAST_0, "momentum": rx.AT_LEAST_0},
)
def gauss_newton(
    damping: rx.ArrayLike = 1e-3,
    solve: str = "cg",
    steps: int = 10,
    momentum: rx.ArrayLike = 0.0,
    *,
    adapt: bool = True,
    geodesic: bool = False,
) -> rx.GradientTransformationExtraArgs:
    """Damped Gauss-Newton: a whole optimizer, which needs no learning rate.

        d = argmin  g·d + d·J'HJ d / 2 + λ/2 |d - momentum d_last|²
        p = p + d              if the loss falls
        λ = 4 λ, λ, λ/3        for a ratio of decreases up to 1/4, between, from 3/4

    `update` takes the keywords `outputs_fn`, a function of the parameters that returns
    a tree, such as residuals or logits, and `loss_fn`, a function of that tree that
    returns a scalar and is convex in it.  The gradient is that of both, so that the
    updates only say which parameters move.

    `jacobian_fn`, of the parameters, returns the Jacobian of the outputs as
    `jax.jacobian` does, for "samples".  Without it, each output costs a pass through
    all outputs; where each depends on one example, `jax.vmap(jax.grad(one), (None, 0))`
    takes one for all of them.

    damping: λ of the first step, above 0.
    solve: "cg", at most `steps` products with J'HJ; or "samples", exactly, by a matrix
        with a row for each output or parameter, whichever are fewer, for up to a few
        thousand of these.
    steps: maximum number of steps of conjugate gradients, at least 1.
    momentum: the part of the last step around which the next one is damped, in [0, 1].
    adapt: whether to adapt λ, for one more evaluation of the outputs, and to refuse
        steps that raise the loss.
    geodesic: whether to correct d by the curvature of the outputs along it, a second
        derivative and one more system with the same matrix; for residuals near 0.

    Raises a `ValueError` for another `solve`, and if a function or `params` is missing;
    a `TypeError` for complex parameters.
    """
    rx.require_one_of("solve", solve, ("cg", "samples"))
    # As an option of the tree, since 0 may be a number or a schedule's first value.
    remembers = not isinstance(momentum, int | float) or momentum != 0

    def init(params):
        require_real("gauss_newton", params, "see `contrib.split_real_and_imaginary`")
        one = jnp.ones([], search_dtype(params))
        last = jax.tree.map(rx.zeros_like, params) if remembers else None
        return GaussNewtonState(
            jnp.zeros([], jnp.int32), jnp.asarray(damping * one), one, last
        )

    def update(
        updates: rx.Updates,
        state: rx.OptState,
        params: rx.Params = None,
        outputs_fn: Any = None,
        loss_fn: Any = None,
        jacobian_fn: Callable | None = None,
        **extra_args: Any,
    ):
        rx.errors.require_state("gauss_newton", GaussNewtonState, state)
        _require(outputs_fn, loss_fn, params)
        moved = moved_params(updates, params)

        def outputs_at(x):
            return outputs_fn(with_fixed(x, params))

        model = _linearized(outputs_at, loss_fn, moved)
        start = _start(momentum, updates, state.last, moved)
        if solve == "cg":
            inverse = _by_products(model, state.damping, steps)
        else:
            jacobian = None if jacobian_fn is None else jacobian_fn(params)
            inverse = _exactly(model, moved, state.damping, jacobian)
        right = _plus(model.slope, 1.0, model.bend(model.push(start)))
        straight = _plus(start, -1.0, inverse(right))
        d = _bent(model, outputs_at, moved, straight, inverse) if geodesic else straight
        judged = _judged(model, outputs_at, loss_fn, moved, straight, d, state, adapt)
        taken, new, ratio = judged
        u = rx.map_gradients(lambda g, x: x.astype(g.dtype), updates, d=taken)
        last = _remembered(updates, d, state.last) if remembers else None
        found = GaussNewtonState(state.count + 1, new, ratio, last)
        return u, rx.keep_dtypes(found, state)

    return rx.transformation(init, update)


def _linearized(outputs_at: Callable, loss_fn: Callable, moved: rx.Params) -> _Model:
    outputs, push = jax.linearize(outputs_at, moved)
    slope, bend = jax.linearize(jax.grad(loss_fn), outputs)
    pull = jax.linear_transpose(push, moved)
    return _Model(outputs, slope, push, lambda r: pull(r)[0], bend)


def _start(
    momentum: rx.ArrayLike, updates: rx.Updates, last: rx.Params, moved: rx.Params
) -> rx.Params:
    """A part of the last step, if it is kept."""
    if last is None:
        return tree.zeros_like(moved)
    return rx.map_gradients(lambda g, x: momentum * x, updates, idle=nothing, last=last)


def _remembered(updates: rx.Updates, d: rx.Params, last: rx.Params) -> rx.Params:
    """The last step, with the one before where there is no gradient."""
    return rx.map_gradients(
        lambda g, d, last: d, updates, idle=lambda g, d, last: last, d=d, last=last
    )


def _by_products(model: _Model, damping: jax.Array, steps: int) -> Callable:
    """(J'HJ + λ)^-1 J', by conjugate gradients."""

    def times(v):
        return _plus(model.pull(model.bend(model.push(v))), damping, v)

    eps = float(jnp.finfo(damping.dtype).eps)
    cg = jax.scipy.sparse.linalg.cg
    return lambda r: cg(times, model.pull(r), tol=eps, maxiter=steps)[0]


def _exactly(
    model: _Model, moved: rx.Params, damping: jax.Array, jacobian: rx.ArrayTree | None
) -> Callable:
    """(J'HJ + λ)^-1 J', by a matrix for the outputs or the parameters."""
    rows = _rows(model, moved, jacobian)
    if sum(x.shape[1] for x in rows) < len(rows[0]):
        return _by_parameters(model, moved, jnp.concatenate(rows, 1), damping)
    return _by_samples(model, rows, damping)


def _by_samples(model: _Model, rows: list, damping: jax.Array) -> Callable:
    """As J' (H J J' + λ)^-1."""
    tie, untie = _flattened(model.outputs)
    gram = sum(_times(x, x.T) for x in rows)
    bent = jax.vmap(lambda k: tie(model.bend(untie(k))), 1, 1)(gram)
    factors = jax.scipy.linalg.lu_factor(_damped(bent, damping))
    solve = jax.scipy.linalg.lu_solve
    return lambda r: model.pull(untie(solve(factors, tie(r))))


def _by_parameters(
    model: _Model, moved: rx.Params, rows: jax.Array, damping: jax.Array
) -> Callable:
    tie, untie = _flattened(model.outputs)
    _, whole = _flattened(moved)
    bent = jax.vmap(lambda x: tie(model.bend(untie(x))), 1, 1)(rows)
    factor = jax.scipy.linalg.cho_factor(_damped(_times(rows.T, bent), damping))
    solve = jax.scipy.linalg.cho_solve

    def inverse(r):
        x = solve(factor, _times(tie(r), rows))
        # NaN if rounding has made the matrix indefinite: no step, and more damping.
        return whole(jnp.where(jnp.isfinite(x).all(), x, 0))

    return inverse


def _damped(matrix: jax.Array, damping: jax.Array) -> jax.Array:
    return matrix + damping.astype(matrix.dtype) * jnp.eye(
        len(matrix), dtype=matrix.dtype
    )


def _bent(
    model: _Model,
    outputs_at: Callable,
    moved: rx.Params,
    d: rx.Updates,
    inverse: Callable,
) -> rx.Updates:
    """The step along a geodesic: d + a / 2, if a is at most half as long as d."""
    along = lambda x: jax.jvp(outputs_at, (x,), (d,))[1]
    curved = jax.jvp(along, (moved,), (d,))[1]
    a = tree.scale(-1.0, inverse(model.bend(curved)))
    is_short = tree.norm(a) <= 0.5 * tree.norm(d)
    # Not by a factor of 0, which would keep NaN.
    return jax.tree.map(lambda x, y: jnp.where(is_short, x, y), _plus(d, 0.5, a), d)


def _rows(
    model: _Model, moved: rx.Params, jacobian: rx.ArrayTree | None
) -> list[jax.Array]:
    """The Jacobian: a matrix for each parameter, with a row for each output."""
    tie, untie = _flattened(model.outputs)
    dtype = tie(model.outputs).dtype
    if jacobian is None:
        unit = jnp.eye(tie(model.outputs).size, dtype=dtype)
        found = jax.tree.leaves(jax.vmap(lambda e: model.pull(untie(e)))(unit))
        return [x.reshape(len(x), -1).astype(dtype) for x in found]
    outputs, treedef = jax.tree.flatten(model.outputs)
    blocks = [
        [x.reshape(out.size, -1).astype(dtype) for x in _block(block, out, moved)]
        for block, out in zip(treedef.flatten_up_to(jacobian), outputs, strict=True)
    ]
    return [jnp.concatenate(x) for x in zip(*blocks, strict=True)]


def _block(block: rx.ArrayTree, out: jax.Array, moved: rx.Params) -> list[jax.Array]:
    """The derivatives of one array of outputs, of the parameters that are moved."""

    def checked(path, p, x):
        if p is not None and jnp.shape(x) != out.shape + p.shape:
            raise ValueError(
                f"`jacobian_fn` returns an array of shape {jnp.shape(x)} for outputs "
                f"of shape {out.shape} and the parameter at "
                f"{jax.tree_util.keystr(path) or 'the root'} of shape {p.shape}: "
                "expected the one shape after the other, as `jax.jacobian` returns it"
            )
        return None if p is None else x

    at = jax.tree_util.tree_map_with_path
    return jax.tree.leaves(at(checked, moved, block, is_leaf=rx.is_none))


def _times(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _judged(
    model: _Model,
    outputs_at: Callable,
    loss_fn: Callable,
    moved: rx.Params,
    straight: rx.Updates,
    d: rx.Updates,
    state: GaussNewtonState,
    adapt: bool,
) -> tuple[rx.Updates, jax.Array, jax.Array]:
    """The step, or none if it raises the loss; the next damping; the ratio.

    straight: the step of the model.
    """
    if not adapt:
        return d, state.damping, state.ratio
    dtype = state.damping.dtype
    before, after = (
        jnp.asarray(loss_fn(x)).astype(dtype)
        for x in (model.outputs, outputs_at(tree.add(moved, d)))
    )
    pushed = model.push(straight)
    linear = tree.vdot(model.slope, pushed)
    square = tree.vdot(pushed, model.bend(pushed))
    predicted = -jnp.asarray(linear + square / 2).astype(dtype)
    # Where rounding hides the decrease, the step is as good as any.
    noise = 8 * float(jnp.finfo(dtype).eps) * jnp.abs(before)
    is_good = predicted > 0
    ratio = (before - after + noise) / (jnp.where(is_good, predicted, 1) + noise)
    ratio = jnp.where(is_good & jnp.isfinite(after), ratio, -1)
    factor = jnp.where(ratio <= _POOR, _RAISE, jnp.where(ratio >= _GOOD, _LOWER, 1))
    taken = jax.tree.map(lambda x: jnp.where(ratio > 0, x, jnp.zeros_like(x)), d)
    limits = jnp.finfo(dtype)
    new = jnp.clip(state.damping * factor, limits.tiny, limits.max)
    return taken, new, ratio


def _flattened(outputs: rx.ArrayTree) -> tuple[Callable, Callable]:
    """Functions from a tree like the outputs to one vector, and back."""
    leaves, treedef = jax.tree.flatten(outputs)
    dtype = rx.real_dtype(jnp.result_type(*[x.dtype for x in leaves]))
    ends = [sum(x.size for x in leaves[: i + 1]) for i in range(len(leaves))]

    def tie(like):
        flat = [x.reshape(-1).astype(dtype) for x in jax.tree.leaves(like)]
        return jnp.concatenate(flat)

    def untie(v):
        rows = zip(jnp.split(v, ends[:-1]), leaves, strict=True)
        return treedef.unflatten(
            [x.reshape(like.shape).astype(like.dtype) for x, like in rows]
        )

    return tie, untie


def _plus(x: rx.ArrayTree, scale: rx.ArrayLike, y: rx.ArrayTree) -> rx.ArrayTree:
    scale = jnp.asarray(scale)
    return jax.tree.map(
        lambda x, y: x + scale.astype(x.dtype) * y.astype(x.dtype), x, y
    )


def _require(outputs_fn: object, loss_fn: object, params: rx.Params) -> None:
    for name, given, what in (
        ("outputs_fn", outputs_fn, "the outputs as a function of the parameters"),
        ("loss_fn", loss_fn, "the loss as a function of the outputs"),
        ("params", params, "the parameters"),
    ):
        if given is None:
            raise ValueError(
                f"`gauss_newton` reads `{name}`, {what}: call `update(updates, state, "
                "params, outputs_fn=..., loss_fn=...)`"
            )
