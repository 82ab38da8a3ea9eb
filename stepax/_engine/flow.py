"""The gradient tree, opened once, while a step runs over its leaves."""

import functools as ft
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from . import errors
from .protocol import MaskedNode, is_array, is_none


# Which leaves something applies to, in flattening order; `None` is all of them.
Scope = Sequence[bool] | None


def cut(tree: Any, scope: Scope) -> Any:
    """`tree` with a `MaskedNode` in place of each leaf out of scope."""
    if scope is None:
        return tree
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_none)
    pairs = zip(leaves, scope, strict=True)
    return treedef.unflatten(x if on else MaskedNode() for x, on in pairs)


def align(flow: "Flow", other: Any, name: str) -> list:
    """The parts of `other` that stand where the gradients have leaves."""
    try:
        return flow.treedef.flatten_up_to(other)
    except (ValueError, TypeError):
        tree = flow.treedef.unflatten(flow.leaves)
        raise errors.mismatch(name, other, "the gradients", tree) from None


def is_float0(x: Any) -> bool:
    """Whether `x` is the gradient of an integer, which carries nothing."""
    return getattr(x, "dtype", None) == jax.dtypes.float0


class Flow:
    """Gradients on their way to becoming updates, leaf by leaf.

    leaves: the current value of each leaf; `None` where there is no gradient.
    treedef: the structure, in which `None` counts as a leaf.
    """

    def __init__(self, updates: Any, params: Any):
        self.whole_params = params
        self.open(updates)

    def open(self, updates: Any) -> None:
        self.leaves, self.treedef = jax.tree.flatten(updates, is_leaf=is_none)
        for i, g in enumerate(self.leaves):
            if g is None or hasattr(g, "dtype"):
                continue
            if not is_array(g):
                raise TypeError(
                    f"the gradient at {self.path(i)} is no array but a "
                    f"`{type(g).__name__}`; give `None` for leaves without a gradient"
                )
            self.leaves[i] = jnp.asarray(g)
        self.__dict__.pop("params", None)

    def path(self, i: int) -> str:
        return errors.paths(self.treedef.unflatten(self.leaves))[i]

    @ft.cached_property
    def params(self) -> list:
        """The parameter of each leaf; an error says which does not fit its gradient."""
        if self.whole_params is None:
            raise ValueError(
                "this transformation reads the parameters, but `params` is missing: "
                "call `update(updates, state, params)`"
            )
        params = align(self, self.whole_params, "params")
        for i, (g, p) in enumerate(zip(self.leaves, params, strict=True)):
            if g is None or is_float0(g):
                continue
            if not is_array(p):
                raise ValueError(
                    f"there is a gradient at {self.path(i)}, but no array in `params`"
                )
            self.check_shape(i, jnp.shape(p), "its parameter")
        return params

    def check_shape(self, i: int, shape: tuple, of: str) -> None:
        if jnp.shape(self.leaves[i]) != shape:
            raise ValueError(
                f"the gradient at {self.path(i)} has shape "
                f"{jnp.shape(self.leaves[i])}, {of} has shape {shape}"
            )

    def cut(self, scope: Scope) -> Any:
        """The current updates as a tree, without the leaves out of scope."""
        return cut(self.treedef.unflatten(self.leaves), scope)

    def cut_params(self, scope: Scope) -> Any:
        """The parameters as a tree, without the leaves out of scope."""
        if scope is None or self.whole_params is None:
            return self.whole_params
        params = align(self, self.whole_params, "params")
        return cut(self.treedef.unflatten(params), scope)

    def merge(self, updates: Any, scope: Scope) -> None:
        """Take over what a transformation made of the leaves in scope."""
        if scope is None:
            self.open(updates)
            return
        inner = jax.tree.structure(self.cut(scope), is_leaf=is_none)
        changed = iter(inner.flatten_up_to(updates))
        pairs = zip(self.leaves, scope, strict=True)
        self.leaves = [next(changed) if on else x for x, on in pairs]
