"""QK-clip: shrink the weights of queries and keys whose attention logits are large.

Kimi Team, 2025, Kimi K2: Open Agentic Intelligence (arXiv:2507.20534), section 2.1,
MuonClip.  As in the paper for parts that heads share, a key that several query heads
use is unchanged, and the queries take the whole factor.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import tree_flatten_with_path

from .._engine import rules as rx
from .._engine.arrays.stacked import Axes, joined
from .._engine.trees import stacks


@rx.recorded
def qk_clip(
    threshold: rx.ArrayLike,
    pairs: Mapping[str, str],
    *,
    head_axis: int | Sequence[int] | None = None,
) -> rx.GradientTransformationExtraArgs:
    """Clip attention logits by shrinking the weights of queries and keys.

        γ = min(1, threshold / S),   S = largest |logit| of a head
        W_q = √γ (W_q + u_q),   W_k = √γ (W_k + u_k)

    Place it last, after the learning rate: it changes the updates so that
    `apply_updates` gives these weights.  It has no state.

    threshold: bound of the logits, above 0; 100 in Kimi K2.
    pairs: a dict from path patterns of queries to path patterns of their keys.  Both
        must match equally many arrays, which are paired in the order of the tree.
    head_axis: the axis, or axes, of the weights along which heads are arranged, such as
        `(0, 2)` for stacked layers and heads; a head may span several neighbouring
        indices.  If `None`, S is one scalar for each pair.

    `update` reads `params` and `max_logits`: S for each query, as a tree or a dict
    keyed by path, such as `{"layer/q": s}`, or S itself if there is one query.  S is a
    scalar or has one axis for each of `head_axis`, after those of a stack; values that
    are not finite do not clip.  If a key has fewer heads than its query, the query is
    multiplied by γ and the key by 1.

    Raises a `ValueError` for patterns that match nothing or different numbers of
    arrays, and for an S that is missing, unknown or of a wrong shape.
    """
    if not isinstance(pairs, Mapping) or not pairs:
        raise ValueError(
            f"`pairs` of `qk_clip` is {pairs!r}, expected a dict from patterns of "
            'queries to patterns of keys, as {"**/q": "**/k"}'
        )
    if isinstance(threshold, int | float) and threshold not in rx.POSITIVE_CAP:
        raise rx.POSITIVE_CAP.refuse("`threshold` of `qk_clip`", threshold)
    axes = (head_axis,) if isinstance(head_axis, int) else tuple(head_axis or ())

    def update(updates, state, params=None, *, max_logits=None, **extra_args):
        if params is None or max_logits is None:
            missing = "params" if params is None else "max_logits"
            raise ValueError(
                f"`qk_clip` reads `{missing}`: call "
                "`update(updates, state, params, max_logits=...)`"
            )
        us, treedef = _flat(updates)
        ps = [x for _, x in _flat(params)[0]]
        if len(ps) != len(us):
            raise rx.errors.mismatch("params", params, "the updates", updates)
        found = _pairs(pairs, [path for path, _ in us])
        given = _logits(max_logits, [us[q][0] for q, _ in found])
        new = [u for _, u in us]
        stacked = stacks.of_leaves(updates)
        for (q, k), s in zip(found, given, strict=True):
            if not rx.is_array(ps[q]) or not rx.is_array(ps[k]):
                continue  # skipped by `None`
            at = [_axes(ps[i], stacked[i], axes) for i in (q, k)]
            s = _checked(s, ps[q], stacked[q], axes, "/".join(us[q][0]))
            factors = _factors(threshold, s, ps[q], ps[k], *at)
            for i, factor in zip((q, k), factors, strict=True):
                if factor is not None and not rx.has_no_gradient(new[i]):
                    new[i] = _shrunk(new[i], ps[i], factor)
        return treedef.unflatten(new), rx.EmptyState()

    return rx.transformation(rx.init_empty_state, update)


def _flat(tree: rx.ArrayTree) -> tuple[list, Any]:
    rows, treedef = tree_flatten_with_path(tree, is_leaf=rx.is_none)
    return [(rx.selection.path_names(path), x) for path, x in rows], treedef


def _pairs(pairs: Mapping[str, str], paths: Sequence[tuple]) -> list[tuple[int, int]]:
    """The positions of queries and of their keys."""
    found = []
    for pattern, other in pairs.items():
        qs, ks = _matches(pattern, paths), _matches(other, paths)
        if len(qs) != len(ks):
            lists = [_listed([paths[i] for i in at]) for at in (qs, ks)]
            raise ValueError(
                f"in `pairs` of `qk_clip`, `{pattern}` matches {len(qs)} queries and "
                f"`{other}` {len(ks)} keys, expected equally many: "
                f"{'; '.join(lists)}"
            )
        found += zip(qs, ks, strict=True)
    return found


def _matches(pattern: str, paths: Sequence[tuple]) -> list[int]:
    names = rx.selection.names_of(pattern)
    found = [i for i, path in enumerate(paths) if rx.selection.is_match(names, path)]
    if not found:
        raise ValueError(
            f"the pattern `{pattern}` in `pairs` of `qk_clip` matches no leaf of "
            f"{_listed(paths)}"
        )
    return found


def _logits(max_logits: Any, queries: list[tuple]) -> list:
    """The largest logits of each query."""
    if rx.is_array(max_logits) and len(queries) == 1:
        return [max_logits]
    given = dict(_flat(max_logits)[0])
    if missing := [path for path in queries if path not in given]:
        raise ValueError(
            f"`max_logits` of `qk_clip` has nothing for {_listed(missing)}; it has "
            f"{_listed(given)}"
        )
    if unknown := [path for path in given if path not in queries]:
        raise ValueError(
            f"`max_logits` of `qk_clip` has {_listed(unknown)}, which is not a query; "
            f"the queries are {_listed(queries)}"
        )
    return [given[path] for path in queries]


def _axes(w: jax.Array, stack: Axes, heads: Axes) -> Axes:
    """The axes of a stack and then those of heads, without any that `w` lacks."""
    n = w.ndim - len(stack)
    return joined(stack, tuple(i % n for i in heads if -n <= i < n))


def _listed(paths: Collection[tuple]) -> str:
    return rx.errors.list_some("/".join(path) or "the root" for path in paths)


def _checked(
    s: rx.ArrayLike, w: jax.Array, stack: Axes, heads: Axes, name: str
) -> jax.Array:
    """The largest logits in float32, of a shape that fits the weights."""
    start = f"`max_logits` of `qk_clip` at {name}"
    if not rx.is_array(s) or jnp.iscomplexobj(rx.as_array(s)):
        raise TypeError(f"{start} is {rx.errors.describe(s)}, expected real numbers")
    s, shape = jnp.asarray(rx.as_array(s)).astype(jnp.float32), jnp.shape(w)
    if not s.shape:
        return s
    axes = _axes(w, stack, heads)
    if len(axes) < len(stack) + len(heads):
        raise ValueError(
            f"`head_axis` {heads} is not an axis of {name}, of shape {shape}"
        )
    sizes = tuple(shape[i] for i in axes)
    fits = len(s.shape) == len(axes) and all(
        n and not size % n for n, size in zip(s.shape, sizes, strict=True)
    )
    if not fits:
        wanted = (
            f"a scalar, or lengths that divide {sizes}, those of `head_axis`"
            if axes
            else "a scalar, because `head_axis` is not given"
        )
        raise ValueError(f"{start} has shape {s.shape}, expected {wanted}")
    return s


def _factors(
    threshold: rx.ArrayLike,
    s: jax.Array,
    q: jax.Array,
    k: jax.Array,
    axes: Axes,
    of_key: Axes,
) -> tuple:
    """The factors of the query and the key, `None` for 1."""
    is_large = (s > threshold) & jnp.isfinite(s)
    gamma = jnp.where(is_large, threshold / jnp.where(is_large, s, 1), 1)
    if s.shape and [q.shape[i] for i in axes] != [k.shape[i] for i in of_key]:
        return _along(gamma, q, axes), None
    root = jnp.sqrt(gamma)
    return _along(root, q, axes), _along(root, k, of_key)


def _along(factor: jax.Array, w: jax.Array, axes: Axes) -> jax.Array:
    """The factors of heads, in a shape that broadcasts with the weights."""
    if not factor.shape:
        return factor
    factor = jnp.transpose(factor, sorted(range(len(axes)), key=axes.__getitem__))
    for i, axis in enumerate(sorted(axes)):
        factor = jnp.repeat(factor, w.shape[axis] // factor.shape[i], axis=i)
    return jnp.expand_dims(factor, [i for i in range(w.ndim) if i not in axes])


@rx.computed_wide
def _shrunk(u, p, factor):
    """The update to `factor (p + u)`; exactly `u` where the factor is 1."""
    return jnp.where(factor == 1, u, factor.astype(u.real.dtype) * (p + u) - p)
