"""Transformations that run on other arrays: on vectors, or on pairs of real arrays.

Concatenating all leaves into one vector saves operations for many small arrays, at the
cost of copies and of the sharding of large ones.  `stepax.tree.pack` avoids the copies.
Complex arrays become pairs of real ones for optimizers that expect these.

Differences from Optax: leaves of different dtypes are not promoted to one dtype;
keywords of `update` reach the transformation of real and imaginary parts.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.joined import grouped, join, split
from .._engine.trees.pack import unpack
from .partition import cut_like


@rx.public("wrapper")
def flatten(inner: rx.TransformationLike) -> rx.GradientTransformationExtraArgs:
    """Apply a transformation to the leaves, concatenated into one vector.

    If the leaves have several dtypes, it is applied to a dict of vectors, keyed by
    dtype name.  The dtypes are those of `params`, or those of the gradients if `update`
    is called without.  Missing gradients are treated as 0 if `params` is given.  The
    keywords `grad` and `value_fn` of a line search are those of the tree.

    inner: the transformation; it does not see the boundaries between arrays, unless it
        has hyperparameters by path: then it is applied to `stepax.tree.pack(params)`.
    """
    inner = rx.with_keywords(inner, "`inner` of `flatten`")
    is_by_path = rx.node_of(inner).is_varied  # arrays in a packed tree keep their paths
    shows = _in_packs if is_by_path else _in_vectors
    read = rx.node_of(inner).keywords()
    is_searching = read is None or not read.isdisjoint({"grad", "value_fn"})

    def init(params):
        if is_by_path:
            return inner.init(rx.pack(params))
        leaves = list(map(rx.as_array, jax.tree.leaves(params)))
        groups = _groups(leaves)
        return inner.init(_join(leaves, groups) if groups else params)

    def update(updates, state, params=None, **extra_args):
        seen, joined, back = shows(updates, params)
        if is_searching and not is_by_path:
            extra_args = _for_vectors(extra_args, updates, params)
        out, state = inner.update(seen, state, joined, **extra_args)
        return back(out, inner), state

    known: dict = {"inner": {"": inner}, "hands_on": "", "shows": shows}
    return rx.transformation(*rx.by_leaf(init, update), **known)


def _grouped(updates, params):
    gradients = rx.Gradients(updates, params)
    ps = gradients.leaves if params is None else gradients.params
    return gradients, ps, _groups(ps)


def _in_vectors(updates, params):
    """What the transformation sees; see `Closure.shows`."""
    gradients, ps, groups = _grouped(updates, params)
    if not groups:
        return updates, params, lambda out, *txs: out
    gs = list(map(_filled, gradients.leaves, ps))

    def back(out, *txs):
        leaves = list(gradients.leaves)
        for i, u in _split(out, groups, rx.like_updates(gs, *txs)):
            if not rx.has_no_gradient(leaves[i]):
                leaves[i] = u
        return gradients.treedef.unflatten(leaves)

    joined = None if params is None else _join(ps, groups)
    return _join(gs, groups), joined, back


def _for_vectors(extra, updates, params):
    """The keywords of a line search, of vectors in place of trees."""
    if not {"grad", "value_fn"} & extra.keys():
        return extra
    (gradients, ps, groups), extra = _grouped(updates, params), dict(extra)
    if not groups:
        return extra
    if extra.get("grad") is not None:
        masked = gradients.treedef.unflatten(gradients.leaves)
        leaves = gradients.leaves_of(cut_like(masked, extra["grad"]), "grad")
        extra["grad"] = _join(list(map(_filled, leaves, ps)), groups)
    of_tree = extra.get("value_fn")
    if callable(of_tree):

        def value_fn(vectors, *args, **kwargs):
            leaves = list(ps)
            for i, p in _split(vectors, groups, ps):
                leaves[i] = p
            return of_tree(gradients.treedef.unflatten(leaves), *args, **kwargs)

        extra["value_fn"] = value_fn
    return extra


def _in_packs(updates, params):
    """What the transformation sees; see `Closure.shows`."""
    gradients = rx.Gradients(updates, params)
    ps = gradients.leaves if params is None else gradients.params
    layout = rx.pack(gradients.treedef.unflatten(ps))
    filled = gradients.treedef.unflatten(map(_filled, gradients.leaves, ps))

    def back(out, *txs):
        return rx.map_gradients(lambda g, u: u, updates, u=out.unpack())

    joined = None if params is None else layout
    return rx.pack(filled, like=layout), joined, back


def _filled(g, p):
    return jnp.zeros_like(p) if rx.has_no_gradient(g) and rx.is_array(p) else g


def _groups(leaves):
    """The indices of the leaves of each dtype, by dtype name.

    Integer leaves are skipped if there are floating-point ones: they have no gradient.
    """
    known = [i for i, x in enumerate(leaves) if rx.is_array(x) and not rx.is_float0(x)]
    dtypes = {i: jnp.result_type(leaves[i]) for i in known}
    floating = [i for i in known if jnp.issubdtype(dtypes[i], jnp.inexact)]
    return grouped(floating or known, lambda i: dtypes[i].name)


def _join(leaves, groups):
    """A dict with a vector for each group; the vector itself if there is one group."""
    vectors = {k: _concatenate([leaves[i] for i in at]) for k, at in groups.items()}
    return vectors if len(groups) > 1 else vectors.popitem()[1]


def as_params(stored: rx.ArrayTree, params: rx.Params) -> rx.ArrayTree:
    """A tree in a state, like the parameters if wrappers show them in another form."""
    if rx.holds_packed(stored) and not rx.holds_packed(params):
        return unpack(stored)
    if isinstance(params, rx.Packed) and not rx.holds_packed(stored):
        return rx.pack(stored, like=params)  # they are stored in two parts each
    inside = _unjoined(stored, _in_pairs(params))
    whole = _joined(stored if inside is None else inside)
    found = _unjoined(whole, params)
    return whole if found is None else found


def _unjoined(vectors: rx.ArrayTree, params: rx.Params) -> rx.ArrayTree | None:
    """A tree like the parameters; `None` if these are not vectors of them."""
    leaves, treedef = jax.tree.flatten(params)
    groups = _groups(leaves)
    if not groups or jax.tree_util.treedef_is_leaf(treedef):
        return None
    wanted, form = jax.tree.flatten(jax.eval_shape(lambda: _join(leaves, groups)))
    try:
        found = form.flatten_up_to(vectors)
    except (ValueError, TypeError):
        return None
    shapes = [
        y.shape if rx.is_absent(x) else getattr(x, "shape", None)
        for x, y in zip(found, wanted, strict=True)
    ]
    if shapes != [y.shape for y in wanted]:
        return None
    parts = dict(_parts(vectors, groups, leaves))
    return treedef.unflatten(parts.get(i, rx.MaskedNode()) for i in range(len(leaves)))


def _split(vectors: rx.ArrayTree, groups, likes):
    """Pairs of the index of a leaf and its part of the vectors, as `likes`."""
    for i, part in _parts(vectors, groups, likes):
        yield i, rx.with_sharding_of(likes[i], part).astype(likes[i].dtype)


def _parts(vectors: Any, groups, likes):
    if len(groups) == 1:
        vectors = dict.fromkeys(groups, vectors)
    for name, at in groups.items():
        if rx.is_array(vectors[name]):  # of which nothing may be kept
            shapes = [np.shape(likes[i]) for i in at]
            yield from zip(at, split(vectors[name], shapes), strict=True)


@jax.jit
def _concatenate(leaves):
    with jax.numpy_dtype_promotion("standard"):
        return join([jnp.asarray(rx.replicated(x)) for x in leaves])


@rx.optax_compatible
class SplitRealAndImaginaryArrays(NamedTuple):
    """real, imaginary: parts of a complex array, shaped like it."""

    real: rx.ArrayTree
    imaginary: rx.ArrayTree


@rx.optax_compatible
class SplitRealAndImaginaryState(rx.optax.contrib.SplitRealAndImaginaryState):
    """inner_state: state of `inner`, with a pair of real arrays per complex array."""

    inner_state: rx.OptState


@rx.public("wrapper")
def split_real_and_imaginary(
    inner: rx.TransformationLike,
) -> rx.GradientTransformationExtraArgs:
    """Apply a transformation to real and imaginary parts as separate arrays.

        Re u, Im u = inner(Re g, Im g)

    Real arrays and keywords of `update` are passed on unchanged.

    inner: the transformation; it only sees real arrays.
    """
    inner = rx.with_keywords(inner, "`inner` of `split_real_and_imaginary`")

    def init(params):
        return SplitRealAndImaginaryState(inner.init(_in_pairs(params)))

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state(
            "split_real_and_imaginary", SplitRealAndImaginaryState, state
        )
        pairs, params, back = _shown_in_pairs(updates, params)
        out, new = inner.update(pairs, state.inner_state, params, **extra_args)
        return back(out), SplitRealAndImaginaryState(new)

    known: dict = {"hands_on": "inner_state", "shows": _shown_in_pairs}
    return rx.transformation(init, update, inner={"inner_state": inner}, **known)


def _shown_in_pairs(updates, params):
    """What the transformation sees; see `Closure.shows`."""
    return _in_pairs(updates), None if params is None else _in_pairs(params), _joined


def _in_pairs(tree):
    def one(x):
        if not rx.is_array(x) or not jnp.iscomplexobj(x):
            return x
        return SplitRealAndImaginaryArrays(jnp.real(x), jnp.imag(x))

    return jax.tree.map(one, tree)


def _joined(tree):
    def is_pair(x):
        return isinstance(x, SplitRealAndImaginaryArrays)

    def one(x):
        return jax.lax.complex(*x) if all(map(rx.is_array, x)) else rx.MaskedNode()

    return jax.tree.map(lambda x: one(x) if is_pair(x) else x, tree, is_leaf=is_pair)
