"""Conversion of states between few bits and full precision."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_flatten_with_path

from ..arrays.coding import Coded, encoded, is_coded, opened
from ..arrays.numerics import is_numeric
from ..base import ArrayTree, OptState, is_array
from ..functions.calls import explain_misuse
from . import errors


@explain_misuse
def dequantize(state: OptState) -> OptState:
    """A state of `low_bit_states` in full precision, with float32 instead of codes.

    It has the structure of the inner transformation's state, and is accepted by that
    transformation, by Optax's of the same name, by `get` and by `migrate`.

    state: any state, or tree; arrays that are not coded are unchanged.
    """

    def one(x):
        is_shape = is_coded(x) and isinstance(x.codes, jax.ShapeDtypeStruct)
        return jax.eval_shape(opened, x) if is_shape else opened(x)

    return jax.tree.map(one, state, is_leaf=is_coded)


@explain_misuse
def quantize(state: OptState, like: OptState) -> OptState:
    """A state in few bits; the inverse of `dequantize`.

    state: a state in full precision, possibly Optax's of the same names.
    like: a state of `low_bit_states`, or `jax.eval_shape(tx.init, params)`, which says
        how each array is stored.

    Raises a `ValueError`, with the path, if structures or shapes differ.
    """
    given, _ = tree_flatten_with_path(state, is_leaf=is_coded)
    wanted, treedef = tree_flatten_with_path(like, is_leaf=is_coded)
    # By their paths, as the classes of another library differ.
    if [keystr(path) for path, _ in given] != [keystr(path) for path, _ in wanted]:
        raise errors.mismatch("state", dequantize(state), "`like`", dequantize(like))
    pairs = zip(given, wanted, strict=True)
    return treedef.unflatten(_stored(path, x, old) for (path, x), (_, old) in pairs)


def _stored(path: tuple, x: Any, old: Any) -> Any:

    def shape(x):
        return x.shape if is_coded(x) else jnp.shape(x)

    if not (is_coded(x) or is_array(x)) or not (is_coded(old) or is_numeric(old)):
        return x
    if shape(x) != shape(old):
        raise ValueError(
            f"`state` has shape {shape(x)} at {keystr(path) or 'the root'}, but `like` "
            f"has {shape(old)}"
        )
    if is_coded(old):
        return stored_as(x, old)
    return jax.lax.convert_element_type(opened(x), old.dtype)


def stored_as(x: Any, old: Coded) -> Coded:
    """An array in codes, in the form of `old`."""
    if is_coded(x) and x.form == old.form:
        return x
    return encoded(jnp.asarray(opened(x)), old.form)


def stored_like(tree: ArrayTree, like: ArrayTree) -> ArrayTree:
    """`tree`, with arrays coded where `like` has codes, if it has its structure."""
    old, treedef = jax.tree.flatten(like, is_leaf=is_coded)
    try:
        found = treedef.flatten_up_to(tree)
    except (ValueError, TypeError):
        raise errors.mismatch("state", tree, "`like`", dequantize(like)) from None
    pairs = zip(found, old, strict=True)
    return treedef.unflatten(stored_as(x, y) if is_coded(y) else x for x, y in pairs)
