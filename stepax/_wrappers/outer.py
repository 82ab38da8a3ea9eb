"""Little communication: islands take steps of their own, and average now and then.

DiLoCo, Douillard et al., 2023, DiLoCo: Distributed Low-Communication Training of
Language Models (arXiv:2311.08105), Algorithm 1; with Muon as the inner optimizer it is
MuLoCo, Thérien, Huang, Rish and Belilovsky, 2025 (arXiv:2505.23725), and with
`sgd(1.0)` as the outer one it is local SGD, Stich, 2019, Local SGD Converges Fast and
Communicates Little (arXiv:1805.09767).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine.arrays.numerics import safe_increment, upcast
from .._engine.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    require_transformation,
    transformation,
    with_extra_args_support,
)
from .._engine.factories.ranges import EVERY
from .._engine.factories.registry import public
from .._engine.step.array_split import require_axes
from .._engine.step.leafwise import keep_dtypes, map_gradients
from .._engine.trees import errors
from .._engine.trees.apply import apply_updates
from .._engine.xla.branch import branch, varying
from .sam import own


class OuterState(NamedTuple):
    """State of `outer`.

    count: inner steps since the last outer step, a scalar.
    anchor: the parameters after the last outer step.
    outer_state: state of the outer optimizer; like the anchor, the same on all islands.
    inner_state: state of the inner transformation, which differs between islands.
    """

    count: jax.Array
    anchor: Params
    outer_state: OptState
    inner_state: OptState


@public(
    "wrapper",
    paper="arXiv:2311.08105",
    ranges={"every": EVERY},
    shared={"decay": "its outer steps return to where the inner ones began"},
)
def outer(
    inner: GradientTransformation,
    outer_optimizer: GradientTransformation,
    every: int = 30,
    axis_name: str | tuple[str, ...] | None = None,
) -> GradientTransformationExtraArgs:
    """Take an outer step along the change from inner steps, averaged over islands.

        p = p + inner(g)                    each step, on each island
        d = a - mean of p over islands,
        a = a + outer(d),   p = a           after every `every` steps

    DiLoCo is `outer(adamw(...), sgd(0.7, momentum=0.9, nesterov=True), 30, "islands")`.
    Islands communicate in outer steps only.  p returns to a up to one rounding error,
    which the next d contains.  With `every=1` and `sgd(1.0)` this is `inner`, bit for
    bit.

    inner: takes the inner steps; receives the keywords of `update`.
    outer_optimizer: takes the outer steps; its gradient is d, its parameters are a.
    every: inner steps per outer step, at least 1.
    axis_name: mesh axis, or axes, of the islands, inside `shard_map`.  There `count`,
        `anchor` and `outer_state` are the same on all islands: their specs must not
        contain this axis.

    `update` raises a `ValueError` without `params`, or for an axis that the mesh does
    not have.
    """
    require_transformation(inner, "`inner` of `outer`")
    require_transformation(outer_optimizer, "`outer_optimizer` of `outer`")
    inner = with_extra_args_support(inner)
    far = with_extra_args_support(outer_optimizer)

    def init(params):
        anchor = jax.tree.map(own, params)
        n = jnp.zeros([], jnp.int32)
        return OuterState(n, anchor, far.init(params), inner.init(params))

    def update(updates, state, params=None, **extra_args):
        errors.require_state("outer", OuterState, state)
        _check(params, state, axis_name)
        u, new = inner.update(updates, state.inner_state, params, **extra_args)
        u = map_gradients(lambda g, x: x.astype(g.dtype), updates, u=u)
        new = keep_dtypes(new, state.inner_state)
        n = safe_increment(state.count)

        def meet():
            back, anchor, outer_state = _met(far, u, state, params, axis_name)
            return back, anchor, outer_state, jnp.zeros_like(n)

        def go_on():
            return u, state.anchor, state.outer_state, n

        is_due = every == 1 or n >= every  # for 1 this is a Python bool
        u, anchor, outer_state, n = branch(is_due, meet, go_on)
        return u, OuterState(n, anchor, outer_state, new)

    members = {"inner_state": inner, "outer_state": far}
    return transformation(init, update, inner=members, hands_on="inner_state")


def _met(far: Any, u: Any, state: OuterState, params: Params, axis_name: Any) -> tuple:
    """The updates back to the new anchor, the anchor, and the outer state."""
    # A product in u and this sum must not be fused into one operation, which would
    # round unlike `apply_updates` outside.
    u = map_gradients(jax.lax.optimization_barrier, u)
    here = map_gradients(lambda u, p: p, u, p=apply_updates(params, u))

    def over(x):
        return jax.lax.pmean(upcast(x), axis_name)

    mean = here if axis_name is None else map_gradients(over, here)
    d = map_gradients(_distance, u, anchor=state.anchor, mean=mean)
    v, new = far.update(d, state.outer_state, state.anchor)
    anchor = map_gradients(
        _moved, u, idle=lambda u, a, *_: a, anchor=state.anchor, mean=mean, d=d, v=v
    )
    back = map_gradients(_back, u, anchor=anchor, here=here, params=params)
    return back, anchor, keep_dtypes(new, state.outer_state)


def _distance(u, a, mean):
    return (upcast(a) - upcast(mean)).astype(a.dtype)


def _moved(u, a, mean, d, v):
    """a + v, as the mean and the difference from it, which is 0 if v is -d."""
    return (upcast(mean) + (upcast(d) + upcast(v))).astype(a.dtype)


def _back(u, a, here, p):
    """The update from `p` to the anchor: `u` itself where that leads there."""
    return jnp.where(a == here, u, (upcast(a) - upcast(p)).astype(u.dtype))


def _check(params: Params, state: OuterState, axis_name: Any) -> None:
    if params is None:
        raise ValueError(
            "`outer` reads the parameters, but `params` is missing: call "
            "`update(updates, state, params)`"
        )
    if axis_name is None:
        return
    require_axes(axis_name)
    names = {axis_name} if isinstance(axis_name, str) else {*axis_name}
    # Islands that disagree on when to communicate would wait for each other forever.
    if apart := names & varying(jax.typeof(state.count)):
        raise ValueError(
            f"`count` in the state of `outer` may differ along {sorted(apart)}: give "
            "`count`, `anchor` and `outer_state` specs without that axis, as in "
            "`OuterState(P(), P(), P(), P('islands'))`"
        )
