"""Half-precision parameters that follow master copies in a wider dtype.

Micikevicius and others, 2018, Mixed Precision Training (arXiv:1710.03740), section 3.1.
Masters that are stored as remainders are explained in `remainders.py`.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_flatten_with_path
from jax.typing import DTypeLike

from .._engine.arrays.precision import require_floating
from .._engine.base.protocol import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskedNode,
    OptState,
    Params,
    as_array,
    is_array,
    require_transformation,
    transformation,
    with_extra_args_support,
)
from .._engine.factories.registry import public
from .._engine.functions.calls import explain_misuse
from .._engine.step.applied import step
from .._engine.step.leafwise import keep_dtypes, map_stored
from .._engine.step.rule import Slot, copy_of
from .._engine.trees import errors
from .._engine.trees.apply import map_pairs
from .narrow import Widened, is_narrower, widen_narrow
from .remainders import (
    KINDS,
    Joined,
    checked_width,
    joined,
    remainder_of,
    rounded,
    width_of,
)


class MasterWeightsState(NamedTuple):
    """State of `master_weights`.

    masters: the parameters in the wider dtype, or remainders in int16 or int8, shaped
        like the parameters; a `MaskedNode` for parameters that need no master.
    inner_state: state of the inner transformation.
    """

    masters: Any
    inner_state: OptState


@public("wrapper", paper="arXiv:1710.03740")
def master_weights(
    inner: GradientTransformation,
    dtype: DTypeLike = jnp.float32,
    *,
    remainder: Literal[16, 8] | None = None,
) -> GradientTransformationExtraArgs:
    """Update wider master copies of narrow parameters, so that no step is rounded away.

        m = m + inner(g, m),   u = round(m) - p

    The inner transformation sees gradients and masters in `dtype`, and stores its state
    for them.  Updates are relative to the parameters that `update` receives, which
    become the rounded masters even if an update is itself rounded.  Hence anything else
    that changes parameters, such as a projection, belongs inside; after loading new
    parameters call `init` again, otherwise the next step undoes the change, or
    `set_master_params`.

    With a `remainder` only what rounding leaves over is stored: with 16 bits a bfloat16
    parameter and its remainder are a float32, with 8 the upper 24 bits of one.  Updates
    of such parameters are float32, which `apply_updates` adds exactly; put `MultiSteps`
    inside, as around it they are rounded to the gradients' dtype.

    inner: the transformation.
    dtype: dtype of the masters; complex parameters, and those at least as wide, have
        none.
    remainder: 16 or 8; `None` stores the masters themselves.

    Raises a `TypeError` if `dtype` is not a real floating-point dtype, and at `init`
    for float16 parameters with a `remainder`.
    """
    require_transformation(inner, "`inner` of `master_weights`")
    inner, wide = (
        with_extra_args_support(inner),
        require_floating("master_weights", dtype),
    )
    width = _checked(remainder, dtype)
    slot = Slot(copy_of, wide) if width is None else Slot(dtype=KINDS[width])

    def init(params):
        own = lambda p: slot.new(p) if is_narrower(p, wide) else MaskedNode()
        if width is not None:
            _require_bfloat16(params)
        masters = jax.tree.map(own, params)
        return MasterWeightsState(masters, inner.init(widen_narrow(params, wide)))

    def widened(updates, state, params):
        errors.require_state("master_weights", MasterWeightsState, state)
        if width is None:
            return Widened(updates, params, wide, state.masters)
        return Joined(updates, params, state.masters, width)

    def after(masters, inner_state, was):
        masters = keep_dtypes(masters, was.masters)
        return MasterWeightsState(masters, keep_dtypes(inner_state, was.inner_state))

    def update(updates, state, params=None, **extra_args):
        seen, old = widened(updates, state, params), state.inner_state
        u, new = inner.update(seen.gradients, old, seen.params, **extra_args)
        u, masters = seen.settle(u, jax.lax.convert_element_type)
        return u, after(masters, new, state)

    def take_step(gradients, state, params, extra):
        seen, old = widened(gradients, state, params), state.inner_state
        new_p, new = step(inner, seen.gradients, old, seen.params, **extra)
        new_p, masters = seen.settle_params(new_p, jax.lax.convert_element_type)
        return new_p, after(masters, new, state)

    members = {"inner_state": inner}
    return transformation(
        init, update, inner=members, hands_on="inner_state", take_step=take_step
    )


def _checked(remainder: Any, dtype: Any) -> int | None:
    width = checked_width("master_weights", remainder)
    # As it was asked for: without 64-bit mode float64, too, is float32 in JAX.  Of the
    # width that JAX is set to is Python's `float` alone.
    asked = jnp.result_type(float) if dtype is float else jnp.dtype(dtype)
    if width is not None and asked != jnp.float32:
        raise ValueError(
            "`master_weights`: with a `remainder` masters are float32, but `dtype` is "
            f"{asked}"
        )
    return width


def _require_bfloat16(params: Any) -> None:
    for path, p in tree_flatten_with_path(params)[0]:
        if is_narrower(p, jnp.float32) and jnp.result_type(p) != jnp.bfloat16:
            raise TypeError(
                f"`master_weights`: the parameter at {keystr(path) or 'the root'} is "
                f"{jnp.result_type(p)}, which is no half of a float32: store it in "
                "bfloat16, or leave out `remainder`"
            )


@explain_misuse
def master_params(params: Params, state: OptState) -> Params:
    """The parameters in full precision where they have masters, otherwise themselves.

    params: the parameters.
    state: that of `master_weights`, of either kind, or a state that contains it.

    Raises a `ValueError` if there is no such state, or if it does not fit `params`.
    """
    for found in _states("master_params", state):
        params = map_stored(_master, found.masters, "masters", params, is_array)
    return params


@explain_misuse
def set_master_params(
    params: Params, state: OptState, masters: Params
) -> tuple[Params, OptState]:
    """Parameters and state for other masters, such as those of a checkpoint.

    params, state: the present ones, which say how each array is stored.
    masters: the new parameters in full precision, of the structure of `params`.

    Raises a `ValueError` where there is no such state, or structures or shapes differ.
    """
    _states("set_master_params", state)

    def own(p, m, check):
        if not is_array(p):
            return p
        check()
        return jax.lax.convert_element_type(as_array(m), jnp.result_type(p))

    own_masters = map_pairs(own, ("params", "masters"), params, masters)

    def one(node):
        nonlocal own_masters
        if not _is_state(node):
            return node
        own_masters, stored = _split(node.masters, own_masters, masters)
        return node._replace(masters=stored)

    new = jax.tree.map(one, state, is_leaf=_is_state)
    return own_masters, new


def _is_state(x: Any) -> bool:
    return type(x).__name__ == MasterWeightsState.__name__ and hasattr(x, "masters")


def _states(name: str, state: OptState) -> list:
    nodes = jax.tree.leaves(state, is_leaf=_is_state)
    if not (found := list(filter(_is_state, nodes))):
        raise errors.foreign_state(name, MasterWeightsState, state)
    return found


def _master(x: jax.Array, p: jax.Array) -> jax.Array:
    is_remainder = jnp.issubdtype(x.dtype, jnp.integer)
    return joined(p, x) if is_remainder else x


def _split(stored: Any, params: Params, masters: Params) -> tuple[Params, Any]:
    """Parameters, and masters as they are stored, for new masters."""

    def one(x, p, m):
        if not jnp.issubdtype(x.dtype, jnp.integer):
            return as_array(m).astype(p.dtype), as_array(m).astype(x.dtype)
        m = as_array(m).astype(jnp.float32)
        half = rounded(m, width_of(x))
        return half, remainder_of(m, half, width_of(x))

    # Raises where the state does not fit.
    map_stored(lambda x, p: p, stored, "masters", params, is_array)
    is_end = lambda x: x is None or isinstance(x, MaskedNode)
    xs, treedef = jax.tree.flatten(stored, is_leaf=is_end)
    rows = zip(xs, *map(treedef.flatten_up_to, (params, masters)), strict=True)
    new = [one(x, p, m) if is_array(x) else (p, x) for x, p, m in rows]
    return treedef.unflatten(p for p, _ in new), treedef.unflatten(x for _, x in new)
