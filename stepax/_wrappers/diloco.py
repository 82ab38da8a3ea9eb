"""Little communication: workers take steps of their own, and average now and then.

DiLoCo, Douillard et al., 2023, DiLoCo: Distributed Low-Communication Training of
Language Models (arXiv:2311.08105), Algorithm 1; with Muon as the inner optimizer it is
MuLoCo, Thérien, Huang, Rish and Belilovsky, 2025 (arXiv:2505.23725), and with
`sgd(1.0)` as the outer one it is local SGD, Stich, 2019, Local SGD Converges Fast and
Communicates Little (arXiv:1805.09767).  Fragments, delay, blend and the exchange in 4
bits are those of Streaming DiLoCo, Douillard et al., 2025 (arXiv:2501.18512), Algorithm
2, whose alpha is 1 - `blend`; the delayed mean is computed when it is sent, and waits
in the state.  Unlike there, all workers round to multiples of a common unit, so that
their sum is exact in as many bits, and is one all-reduce; what a worker rounds off
goes into its next exchange (error feedback: Seide et al., 2014; Karimireddy et al.,
2019, arXiv:1901.09847).
"""

import functools as ft
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.numerics import safe_increment, upcast
from .._engine.factories.ranges import EVERY, whole_number
from .._engine.step.array_split import require_axes
from .sam import own


class DiLoCoState(NamedTuple):
    """State of `diloco`.

    count: inner steps since the last outer step, or since a round of fragments began, a
        scalar.
    anchor: the parameters after the last outer step.
    outer_state: state of the outer optimizer; like the anchor, the same on all workers.
        Of several fragments, a tuple of one for each.
    inner_state: state of the inner transformation, which differs between workers.
    """

    count: jax.Array
    anchor: rx.Params
    outer_state: rx.OptState
    inner_state: rx.OptState


class StreamingDiLoCoState(NamedTuple):
    """State of `diloco` with a delay, or with an exchange in fewer bits.

    count, anchor, outer_state, inner_state: as in `DiLoCoState`.
    pending: means that wait for the end of `delay`, shaped as the parameters, the same
        on all workers; `None` without a delay.
    residual: what a worker has rounded off in exchanges, shaped as the parameters;
        `None` for `exchange="float32"`.
    """

    count: jax.Array
    anchor: rx.Params
    outer_state: rx.OptState
    inner_state: rx.OptState
    pending: rx.Params
    residual: rx.Params


_State: TypeAlias = DiLoCoState | StreamingDiLoCoState


class _Far(NamedTuple):
    """How workers meet: the arguments of `diloco` of the same names.

    is_always: whether they do in each call.
    """

    tx: rx.GradientTransformationExtraArgs
    every: int
    axis_name: rx.AxisName
    delay: int
    blend: float
    exchange: str
    is_always: bool


@rx.public(
    "wrapper",
    paper="arXiv:2311.08105",
    ranges={
        "every": EVERY,
        "delay": rx.Range(0, hint="; it is in steps"),
        "blend": rx.Range(0, 1, excludes_least=True),
    },
    shared={"decay": "its outer steps return to where the inner ones began"},
    static=("every",),
)
def diloco(
    inner: rx.TransformationLike,
    outer_optimizer: rx.TransformationLike,
    every: int = 30,
    axis_name: str | tuple[str, ...] | None = None,
    *,
    fragments: int | Mapping[str, int] = 1,
    delay: int = 0,
    blend: float = 1.0,
    exchange: Literal["float32", "bfloat16", "int8", "int4"] = "float32",
) -> rx.GradientTransformationExtraArgs:
    """Take an outer step along the change from inner steps, averaged over workers.

        p = p + inner(g)                    each step, on each worker
        d = a - mean of p over workers,
        a = a + outer(d),   p = a           after every `every` steps

    The paper has `diloco(adamw(...), sgd(0.7, 0.9, nesterov=True), 30, "workers")`.
    Workers communicate in outer steps only.  p returns to a up to one rounding error,
    which the next d contains.  With `every=1` and `sgd(1.0)` this is `inner`, bit for
    bit.

    inner: takes the inner steps; receives the keywords of `update`.
    outer_optimizer: takes the outer steps; its gradient is d, its parameters are a.
    every: inner steps per outer step, at least 1.
    axis_name: mesh axis, or axes, of the workers, inside `shard_map`.  There `count`,
        `anchor`, `outer_state` and `pending` are the same on all workers: their specs
        must not contain this axis.
    fragments: parts that meet at different steps, at most `every`: a number, or numbers
        by patterns of paths, where the rest is one more.
    delay: steps between d and the outer step, below `every / fragments`.
    blend: p moves this share of the way to a, above 0.
    exchange: the form of d when it is averaged; what it lacks is in the next d.

    `update` raises a `ValueError` without `params`, or for an axis that the mesh does
    not have.
    """
    inner = rx.with_keywords(inner, "`inner` of `diloco`")
    tx = rx.with_keywords(outer_optimizer, "`outer_optimizer` of `diloco`")
    rx.errors.require_one_of("exchange", exchange, EXCHANGES)
    is_always = every == 1 and not rx.node_of(inner).may_idle
    far = _Far(tx, every, axis_name, delay, blend, exchange, is_always)

    is_plain = not delay and exchange == "float32"
    kind = DiLoCoState if is_plain else StreamingDiLoCoState

    def init(params):
        parts = _turns(far, fragments, params)
        states = tuple(tx.init(only(part, params)) for part in parts)
        first = (
            jnp.zeros([], jnp.int32),
            jax.tree.map(own, params),
            states if len(parts) > 1 else tx.init(params),
            inner.init(params),
        )
        if kind is DiLoCoState:
            return DiLoCoState(*first)
        # Made twice, as both may be donated.
        pending = jax.tree.map(jnp.zeros_like, params) if delay else None
        residual = jax.tree.map(upcast, jax.tree.map(jnp.zeros_like, params))
        is_exact = exchange == "float32"
        return StreamingDiLoCoState(*first, pending, None if is_exact else residual)

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state("diloco", kind, state)
        _check(params, state, axis_name)
        u, new = inner.update(updates, state.inner_state, params, **extra_args)
        like = rx.like_updates(updates, inner)
        u = rx.map_gradients(lambda g, x: x.astype(g.dtype), like, u=u)
        new = rx.keep_dtypes(new, state.inner_state)
        did = rx.node_of(inner).was_step(state.inner_state, new, extra_args)
        was, n = state.count, safe_increment(state.count)
        # Nothing is due after 0 steps.
        n = n if did is True else jnp.where(did, n, 0)
        parts = _turns(far, fragments, params)
        state = state._replace(count=n, inner_state=new)
        for i, part in enumerate(parts):
            u, state = _turn(far, u, state, params, part, i, len(parts))
        n = jnp.where(n >= every, jnp.zeros_like(n), n)
        return u, state._replace(count=n if did is True else jnp.where(did, n, was))

    members = {"inner_state": inner, "outer_state": tx}
    return rx.transformation(init, update, inner=members, hands_on="inner_state")


def _turns(far: _Far, fragments: Any, params: rx.Params) -> list:
    parts = parts_of(fragments, params)
    if len(parts) > far.every or far.delay >= far.every // max(len(parts), 1):
        raise ValueError(
            f"`diloco` cannot send {len(parts)} fragments in {far.every} steps, each "
            f"{far.delay} steps ahead: use a larger `every`, or fewer or less"
        )
    return parts


def _turn(far: _Far, u, state: _State, params, part: Any, i: int, turns: int) -> tuple:
    """The update and the state after one fragment has met, if it is its turn."""
    due, n = far.every * (i + 1) // turns, state.count
    outer_state = state.outer_state[i] if turns > 1 else state.outer_state
    kept = state._asdict()
    trees = (u, params, *(kept.get(k) for k in ("anchor", "pending", "residual")))
    mine = [None if x is None else only(part, x) for x in trees]
    u_, params_, anchor_, pending_, residual_ = mine
    if far.delay:
        pending_, residual_ = rx.branch(
            n == due - far.delay,
            lambda: _sent(far, u_, params_, anchor_, residual_)[1:],
            lambda: (pending_, residual_),
        )

    def meet():
        if far.delay:
            mean, d, left = None, pending_, residual_
        else:
            mean, d, left = _sent(far, u_, params_, anchor_, residual_)
        back, anchor, new = _met(far, u_, params_, anchor_, outer_state, mean, d)
        return back, anchor, new, left

    def go_on():
        return u_, anchor_, outer_state, residual_

    is_due = far.is_always or (n == due if turns > 1 else n >= due)
    back, anchor, new, residual_ = rx.branch(is_due, meet, go_on)
    states = state.outer_state
    states = (*states[:i], new, *states[i + 1 :]) if turns > 1 else new
    found = {"anchor": anchor, "pending": pending_, "residual": residual_}
    for name, new in found.items():
        if kept.get(name) is not None:
            state = state._replace(**{name: replaced(part, kept[name], new)})
    return replaced(part, u, back), state._replace(outer_state=states)


def _sent(far: _Far, u, params, anchor, residual) -> tuple:
    """The mean over workers, its distance from the anchor, and what rounding left."""
    here = _here(u, params)
    if far.exchange == "float32":

        def over(x):
            return jax.lax.pmean(upcast(x), far.axis_name)

        mean = here if far.axis_name is None else rx.map_gradients(over, here)
        return mean, rx.map_gradients(_distance, u, anchor=anchor, mean=mean), residual

    def rounded(u, a, x, left):
        change = upcast(a) - upcast(x) + left
        mean, left = averaged(change, far.axis_name, far.exchange)
        return mean.astype(a.dtype), left

    def idle(u, a, x, left):
        return u, left

    others = {"anchor": anchor, "here": here, "residual": residual}
    both = rx.map_gradients(rounded, u, idle=idle, **others)
    treedef = jax.tree.structure(u, is_leaf=rx.is_none)
    rows = treedef.flatten_up_to(both)
    d, left = (treedef.unflatten([row[i] for row in rows]) for i in (0, 1))
    return None, d, left


def _here(u, params):
    # A product in u and this sum must not be fused into one operation, which would
    # round unlike `apply_updates` outside.
    u = rx.map_gradients(jax.lax.optimization_barrier, u)
    return rx.map_gradients(lambda u, p: p, u, p=rx.apply_updates(params, u))


def _met(far: _Far, u, params, anchor, state, mean, d) -> tuple:
    """The updates back to the new anchor, the anchor, and the outer state."""
    if mean is None:
        mean = rx.map_gradients(
            lambda u, a, d: upcast(a) - upcast(d), u, anchor=anchor, d=d
        )
    v, new = far.tx.update(d, state, anchor)
    anchor = rx.map_gradients(
        _moved, u, idle=lambda u, a, *_: a, anchor=anchor, mean=mean, d=d, v=v
    )
    here = _here(u, params)
    is_whole = not isinstance(far.blend, jax.Array) and far.blend == 1
    way = _back if is_whole else ft.partial(_part_of_the_way, far.blend)
    back = rx.map_gradients(way, u, anchor=anchor, here=here, params=params)
    return back, anchor, rx.keep_dtypes(new, state)


def _distance(u, a, mean):
    return (upcast(a) - upcast(mean)).astype(a.dtype)


def _moved(u, a, mean, d, v):
    """a + v, as the mean and the difference from it, which is 0 if v is -d."""
    return (upcast(mean) + (upcast(d) + upcast(v))).astype(a.dtype)


def _back(u, a, here, p):
    """The update from `p` to the anchor: `u` itself where that leads there."""
    return jnp.where(a == here, u, (upcast(a) - upcast(p)).astype(u.dtype))


def _part_of_the_way(blend, u, a, here, p):
    whole = upcast(a) - upcast(here)
    way = upcast(here) + jnp.asarray(blend, whole.dtype) * whole
    return (way - upcast(p)).astype(u.dtype)


def _check(params: rx.Params, state: _State, axis_name: Any) -> None:
    rx.errors.require_params("diloco", params)
    if axis_name is None:
        return
    require_axes(axis_name)
    names = {axis_name} if isinstance(axis_name, str) else {*axis_name}
    # Workers that disagree on when to communicate would wait for each other forever.
    if apart := names & rx.varying(jax.typeof(state.count)):
        raise ValueError(
            f"`count` in the state of `diloco` may differ along {sorted(apart)}: give "
            "`count`, `anchor` and `outer_state` specs without that axis, as in "
            "`DiLoCoState(P(), P(), P(), P('workers'))`"
        )


EXCHANGES = ("float32", "bfloat16", "int8", "int4")
# The largest sum of the codes of all workers.
_MOST = {"int8": 127, "int4": 7}


def averaged(x: jax.Array, axis_name: rx.AxisName, exchange: str) -> tuple:
    """The mean of `x` over workers, and what this worker has rounded off.

    axis_name: mesh axis, or axes, of the workers; `None` for a single one.
    exchange: of `EXCHANGES`; complex numbers are exchanged whole.

    Raises a `ValueError` for more workers than the codes can be summed over.
    """
    workers = 1 if axis_name is None else int(jax.lax.psum(1, axis_name))
    total = (lambda y: y) if axis_name is None else lambda y: jax.lax.psum(y, axis_name)
    if exchange == "float32" or jnp.iscomplexobj(x):
        return total(x) / workers, jnp.zeros_like(x)
    if exchange == "bfloat16":
        code = x.astype(jnp.bfloat16)
        return (upcast(total(code)) / workers).astype(x.dtype), x - code.astype(x.dtype)
    most = _MOST[exchange] // workers
    if not most:
        raise ValueError(
            f"`exchange={exchange!r}` has sums of {_MOST[exchange]} workers at most, "
            f"but there are {workers}: use 'int8' or 'bfloat16'"
        )
    unit = _unit(x, most, axis_name)
    code = jnp.round(x / jnp.where(unit == 0, jnp.ones_like(unit), unit))
    whole = code.astype(jnp.int8)
    if exchange == "int8":
        summed = total(whole)
    else:
        summed = _unpacked(total(_packed(whole + most)), x.shape) - most * workers
    mean = summed.astype(x.dtype) * unit / workers
    return mean, x - code * unit


def _unit(x, most, axis_name):
    """One for each row: the largest element on any worker has the code `most`."""
    largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True) if x.ndim else jnp.abs(x)
    if axis_name is not None:
        largest = jax.lax.pmax(largest, axis_name)
    return largest / most


def _packed(codes):
    """Two codes of 0 to 15 in a byte; a sum of bytes is then that of both."""
    flat = codes.reshape(codes.shape or (1,)).astype(jnp.uint8)
    flat = jnp.pad(flat, [(0, 0)] * (flat.ndim - 1) + [(0, flat.shape[-1] % 2)])
    return flat[..., ::2] + flat[..., 1::2] * jnp.uint8(16)


def _unpacked(codes, shape):
    pair = jnp.stack([codes % jnp.uint8(16), codes // jnp.uint8(16)], -1)
    row = pair.reshape(*codes.shape[:-1], -1)[..., : (shape or (1,))[-1]]
    return row.reshape(shape).astype(jnp.int8)


Part: TypeAlias = rx.ArrayTree  # a boolean for each leaf, `None` included


def parts_of(fragments: int | Mapping[str, int], params: rx.Params) -> list[Part]:
    """The leaves in each fragment: of neighbours, with about as many elements.

    Patterns of paths have fragments of their own, and so does the rest, which is one.

    Raises a `ValueError` for a pattern that matches nothing, and for fewer arrays than
    fragments.
    """
    leaves, treedef = jax.tree.flatten(params, is_leaf=rx.is_none)
    if isinstance(fragments, Mapping):
        counts = [whole_number("fragments", n) for n in fragments.values()] + [1]
        found = rx.selection.resolve_patterns([*fragments], params, "fragments", True)
    else:
        counts, found = [whole_number("fragments", fragments)], [0] * len(leaves)
    parts = []
    for i, count in enumerate(counts):
        inside = [j for j, x in enumerate(leaves) if found[j] == i and x is not None]
        if count > 1 and len(inside) < count:
            raise ValueError(
                f"`fragments` asks for {count} parts of {len(inside)} arrays: use fewer"
            )
        parts += _split([int(np.size(leaves[j])) for j in inside], inside, count)
    found = ([j in part for j in range(len(leaves))] for part in parts)
    return [*map(treedef.unflatten, found)]


def _split(sizes: list[int], inside: list[int], count: int) -> list[list[int]]:
    """Neighbours together; an array goes where its middle lies."""
    sizes = [max(size, 1) for size in sizes]  # the middle of an empty one is inside
    ends, parts = [*accumulate(sizes)], [[] for _ in range(count)]
    for j, size, end in zip(inside, sizes, ends, strict=True):
        parts[int((end - size / 2) / ends[-1] * count)].append(j)
    return [part for part in parts if part]


def only(part: Part, tree: rx.ArrayTree) -> rx.ArrayTree:
    """The tree with `None` for leaves outside of the part."""
    return jax.tree.map(lambda inside, x: x if inside else None, part, tree)


def replaced(part: Part, tree: rx.ArrayTree, new: rx.ArrayTree) -> rx.ArrayTree:
    """The tree with the leaves of `new` inside of the part."""
    return jax.tree.map(lambda inside, x, y: y if inside else x, part, tree, new)
