"""Half-precision parameters that follow master copies in a wider dtype.

Micikevicius and others, 2018, Mixed Precision Training (arXiv:1710.03740), section 3.1.
Master weights that are stored as remainders are explained in `remainders.py`.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_flatten_with_path

from .._engine import rules as rx
from .._engine.trees.apply import map_pairs
from .._engine.trees.search import rebuilt
from .._transforms.decay import STORED
from . import remainders
from .narrow import Widened, is_narrower, on_wide, widen_narrow
from .readers import present, stored_in


class MasterWeightsState(NamedTuple):
    """State of `master_weights`.

    masters: the parameters in the wider dtype, or remainders in int16 or int8, shaped
        like the parameters; a `MaskedNode` for parameters that need no master copy.
    inner_state: state of the inner transformation.
    """

    masters: rx.Params
    inner_state: rx.OptState


@rx.traits("keeps small steps")
@rx.public("wrapper", paper="arXiv:1710.03740", shared=STORED)
def master_weights(
    inner: rx.TransformationLike,
    dtype: rx.DTypeLike = jnp.float32,
    *,
    remainder: Literal[16, 8] | None = None,
) -> rx.GradientTransformationExtraArgs:
    """Update float32 master copies of parameters, so that no step is rounded away.

        m = m + inner(g, m),   u = round(m) - p

    The inner transformation sees gradients and master weights in `dtype`, and its state
    has the dtypes that these imply.  Updates are relative to the parameters that
    `update` receives, which become the rounded master weights even if an update is
    itself rounded.  Hence put anything else that changes parameters, such as a
    projection, inside.  After loading new parameters call `set_master_params`, or
    `init` again; otherwise the next step undoes the change.

    With a `remainder` only the rounding error of each parameter is stored: a bfloat16
    parameter and 16 extra bits form a float32, and 8 extra bits its upper 24 bits.
    Updates of such parameters are float32, which `apply_updates` adds exactly, and so
    are those of wrappers around it.

    inner: the transformation.
    dtype: dtype of the master weights; complex parameters, and parameters at least as
        wide, have none.
    remainder: number of extra bits, 16 or 8; `None` stores whole master weights.

    Raises a `TypeError` if `dtype` is not a real floating-point dtype, and at `init`
    for float16 parameters with a `remainder`.

    >>> half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    >>> state = stepax.master_weights(stepax.adamw(1e-3)).init(half)
    """
    inner = rx.with_keywords(inner, "`inner` of `master_weights`")
    wide = rx.require_floating("master_weights", dtype)
    width = remainders.checked_width("master_weights", remainder)
    # Check `dtype` as given: without 64-bit mode JAX makes float64 a float32, too.
    # Only Python's `float` means the width that JAX is set to.
    asked = jnp.result_type(float) if dtype is float else jnp.dtype(dtype)
    if width is not None and asked != jnp.float32:
        raise ValueError(
            "`master_weights`: with a `remainder` master weights are float32, but "
            f"`dtype` is {asked}"
        )
    slot = rx.Slot(rx.copy_of, wide)
    if width is not None:
        slot = rx.Slot(dtype=remainders.KINDS[width])

    def init(params):
        if width is not None:
            _require_bfloat16(params)
        masters = jax.tree.map(
            lambda p: slot.new(p) if is_narrower(p, wide) else rx.MaskedNode(), params
        )
        return MasterWeightsState(masters, inner.init(widen_narrow(params, wide)))

    def widened(updates, state, params):
        rx.errors.require_state("master_weights", MasterWeightsState, state)
        if width is None:
            return Widened(updates, params, wide, state.masters)
        return remainders.Joined(updates, params, state.masters, width)

    def after(seen, masters, inner_state, was):
        return MasterWeightsState(rx.keep_dtypes(masters, was.masters), inner_state)

    return on_wide(init, inner, widened, after, is_exact=width is not None)


def _require_bfloat16(params: rx.Params) -> None:
    for path, p in tree_flatten_with_path(params)[0]:
        if is_narrower(p, jnp.float32) and jnp.result_type(p) != jnp.bfloat16:
            raise TypeError(
                f"`master_weights`: the parameter at {keystr(path) or 'the root'} is "
                f"{jnp.result_type(p)}, which is not the upper half of a float32: "
                "store it in bfloat16, or omit `remainder`"
            )


@rx.explain_misuse
def master_params(params: rx.Params, state: rx.OptState) -> rx.Params:
    """The parameters in full precision where they have master weights, else unchanged.

    params: the parameters.
    state: the state of `master_weights`, with or without `remainder`, or a state that
        contains it.

    Raises a `ValueError` if there is no such state, or if it does not fit `params`.

    >>> tx = stepax.master_weights(stepax.adamw(1e-3))
    >>> stepax.master_params(params, tx.init(params))["b"].dtype
    dtype('float32')
    """

    def master(x, p):
        return remainders.joined(p, x) if jnp.issubdtype(x.dtype, jnp.integer) else x

    found = present("master_params", MasterWeightsState, state)
    for own in stored_in("master_params", found, _masters, params):
        params = rx.map_stored(master, own, "masters", params, rx.is_array)
    return params


@rx.explain_misuse
def set_master_params(
    params: rx.Params, state: rx.OptState, masters: rx.Params
) -> tuple[rx.Params, rx.OptState]:
    """Parameters and state for other master weights, such as those of a checkpoint.

    params, state: the current parameters and state, which say how each array is stored.
    masters: the new parameters in full precision, with the structure of `params`.

    Raises a `ValueError` if there is no such state, or if structures or shapes differ.

    >>> state = stepax.master_weights(stepax.adamw(1e-3)).init(params)
    >>> params, state = stepax.set_master_params(params, state, masters=params)
    """
    found = present("set_master_params", MasterWeightsState, state)
    trees = stored_in("set_master_params", found, _masters, params)
    if any(map(_differ, trees, (x.masters for _, x in found))):
        raise ValueError(
            "`set_master_params`: the master weights are joined by `flatten`: put "
            "`master_weights` around it, not inside"
        )

    def own(p, m, check):
        if not rx.is_array(p):
            return p
        check()
        return jax.lax.convert_element_type(rx.as_array(m), jnp.result_type(p))

    own_masters = map_pairs(own, ("params", "masters"), params, masters)

    new = {}
    for path, x in found:
        own_masters, stored = _split(x.masters, own_masters, masters)
        new[path] = lambda x, stored=stored: x._replace(masters=stored)
    return own_masters, rebuilt(state, new)


def _differ(x: rx.ArrayTree, y: rx.ArrayTree) -> bool:
    return jax.tree.structure(x) != jax.tree.structure(y)


def _masters(state: MasterWeightsState) -> rx.Params:
    return state.masters


def _split(stored: Any, params: rx.Params, masters: rx.Params) -> tuple[rx.Params, Any]:
    """Parameters, and master weights as they are stored, for new master weights."""

    def one(x, p, m):
        if not jnp.issubdtype(x.dtype, jnp.integer):
            return rx.as_array(m).astype(p.dtype), rx.as_array(m).astype(x.dtype)
        m = rx.as_array(m).astype(jnp.float32)
        half = remainders.rounded(m, remainders.width_of(x))
        return half, remainders.remainder_of(m, half, remainders.width_of(x))

    # Raises where the state does not fit.
    rx.map_stored(lambda x, p: p, stored, "masters", params, rx.is_array)
    xs, treedef = jax.tree.flatten(stored, is_leaf=rx.is_absent)
    rows = zip(xs, *map(treedef.flatten_up_to, (params, masters)), strict=True)
    new = [one(x, p, m) if rx.is_array(x) else (p, x) for x, p, m in rows]
    return treedef.unflatten(p for p, _ in new), treedef.unflatten(x for _, x in new)
