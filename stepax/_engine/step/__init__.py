"""The gradient tree, flattened once, while a step runs over its leaves.

A step flattens the gradients a single time.  Every other tree it meets (parameters,
slots of a state, master weights) is read against their structure by `leaves_of`, and
written back by `tree_of`.
"""

import functools as ft
import itertools as it
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..arrays.numerics import dtype_of, has_dtype
from ..base import ArrayTree, MaskedNode, Params, Updates, as_array, is_array, is_none
from ..trees import errors, stacks
from ..trees.selection import Scope, with_axes


def is_float0(x: object) -> bool:
    """Whether `x` is the gradient of an integer, which carries no information."""
    # `jax.grad(..., allow_int=True)` gives NumPy arrays of this dtype, which has no
    # bytes and no arithmetic.
    return dtype_of(x) == jax.dtypes.float0


def has_no_gradient(g: object) -> bool:
    """Whether a leaf has no gradient to apply: it is `None` or float0."""
    # In line: a call of `is_float0` for each leaf would take time.
    return g is None or dtype_of(g) == jax.dtypes.float0


class Gradients:
    """Gradients while a step turns them into updates, leaf by leaf.

    leaves: the current value of each leaf; `None` where there is no gradient.
    treedef: their structure, in which `None` counts as a leaf.
    accepted: a boolean that says whether the state may change; `None` for always.
    stepped: for each leaf whether the call is a step of all parts so far; `None` if it
        is one of each.
    """

    accepted: jax.Array | None = None
    stepped: list[bool | jax.Array] | None = None

    def __init__(self, updates: Updates, params: Params):
        self.all_params = params
        self.open(updates)

    def open(self, updates: Updates) -> None:
        """Replace all leaves by those of `updates`."""
        # `None` is not a leaf to JAX, but here it marks a parameter without a gradient.
        self.leaves, self.treedef = jax.tree.flatten(updates, is_leaf=is_none)
        for i, g in enumerate(self.leaves):
            # Tracers are also instances of `jax.Array`; anything else is rare.
            if g is not None and not isinstance(g, jax.Array):
                self.leaves[i] = self._as_array(i, g)
        # They were read against the old structure.
        self.__dict__.pop("params", None)

    def _as_array(self, i: int, g: ArrayTree) -> jax.Array:
        if not is_array(g):
            what = "it has to be called" if callable(g) else "`jnp.asarray` makes one"
            raise errors.of_step(
                f"the gradient at {self.path(i)} is not an array but a "
                f"`{type(g).__name__}`: {what}; use `None` for leaves without a "
                "gradient",
                TypeError,
            )
        g = as_array(g)
        return g if has_dtype(g) else jnp.asarray(g)

    def path(self, i: int) -> str:
        """The path of leaf `i`, for errors."""
        return errors.paths(self._tree)[i]

    def live(self) -> tuple[list[int], Callable[[list], list]]:
        """The indices of leaves that have a gradient; a function that picks these."""
        at = [i for i, g in enumerate(self.leaves) if not has_no_gradient(g)]
        return at, lambda column: [column[i] for i in at]

    @ft.cached_property
    def params(self) -> list:
        """The parameter of each leaf; raises where one does not fit its gradient."""
        # Not in `__init__`: most transforms read no parameters, and get none.
        if self.all_params is None:
            raise errors.of_step(
                "this transformation reads the parameters, but `params` is missing: "
                "call `update(updates, state, params)`"
            )
        params = self.leaves_of(self.all_params, "params")
        for i, (g, p) in enumerate(zip(self.leaves, params, strict=True)):
            # Nearly always; otherwise the rest of the loop converts `p`, or raises.
            if isinstance(p, jax.Array) and g is not None and p.shape == g.shape:
                continue
            if not has_no_gradient(g):
                params[i] = self._fitting(i, p)
        return params

    def _fitting(self, i: int, p: ArrayTree) -> ArrayLike:
        if not is_array(p):
            raise errors.of_step(
                f"there is a gradient at {self.path(i)}, but no array in `params`"
            )
        p = as_array(p)
        self.check_shape(i, jnp.shape(p), "its parameter")
        return p

    def check_shape(self, i: int, shape: tuple, of: str) -> None:
        """Raise unless leaf `i` has this shape, which is that `of` something else."""
        if jnp.shape(self.leaves[i]) != shape:
            raise errors.of_step(
                f"the gradient at {self.path(i)} has shape "
                f"{jnp.shape(self.leaves[i])}, {of} has shape {shape}"
            )

    def leaves_of(self, tree: ArrayTree, name: str) -> list:
        """What `tree`, which errors call `name`, has in place of each gradient."""
        # The common case costs one call; masked trees are handled afterwards.
        try:
            return self.treedef.flatten_up_to(tree)
        except (ValueError, TypeError):
            covered = self._covered(tree)
            if covered is None:
                raise errors.mismatch(name, tree, "the gradients", self._tree) from None
            return [x for x, n in zip(*covered[:2], strict=True) for _ in range(n)]

    def tree_of(self, parts: list, like: ArrayTree, scope: Scope) -> ArrayTree:
        """The inverse of `leaves_of`: a tree like `like`, with these parts."""
        # Only a mask puts one node in place of several leaves.
        covered = None if scope is None or scope.is_whole else self._covered(like)
        if covered is None:
            return self.treedef.unflatten(parts)
        found, spans, treedef = covered
        starts = it.accumulate(spans, initial=0)
        rows = zip(found, spans, starts, strict=False)
        return treedef.unflatten(parts[start] if n else x for x, n, start in rows)

    def _covered(self, other: ArrayTree) -> tuple[list, list[int], ArrayTree] | None:
        """Read a tree in which a `MaskedNode` may replace a whole subtree.

        Returns the nodes and leaves of `other` that correspond to leaves of the
        gradients, the number of leaves for each, and their structure; `None` if the
        structures differ for a reason other than a mask.
        """
        found, spans = [], []

        def walk(tree, x):
            # One level at a time: `flatten_up_to` of the whole would stop at the first
            # `MaskedNode` in place of an inner node.
            below, treedef = jax.tree.flatten(tree, is_leaf=lambda y: y is not tree)
            if isinstance(x, MaskedNode) or tree is None or treedef == _LEAF:
                found.append(x)
                spans.append(len(jax.tree.leaves(tree, is_leaf=lambda y: y is None)))
                return _PLACE
            return treedef.unflatten(map(walk, below, treedef.flatten_up_to(x)))

        try:
            places = walk(self._tree, other)
        except (ValueError, TypeError):
            return None
        return found, spans, jax.tree.structure(places)

    # Not `updates`, which a subclass returns in another form.
    @property
    def _tree(self) -> ArrayTree:
        return self.treedef.unflatten(self.leaves)

    @property
    def updates(self) -> Updates:
        """The current updates as a tree."""
        return self.treedef.unflatten(self.leaves)

    def cut(self, scope: Scope) -> Updates:
        """The current updates, without the leaves out of scope."""
        return self.updates if scope is None else scope.cut(self.updates)

    def outline(self, scope: Scope) -> ArrayTree:
        """As `cut`, for masks, which read only structure, shapes and dtypes."""
        # Where there is no gradient they see the parameter, as in `init`; otherwise a
        # mask by shape could choose differently there and here.
        leaves, axes = self.leaves, scope and scope.axes
        if self.all_params is not None and any(g is None for g in leaves):
            params = self.leaves_of(self.all_params, "params")
            pairs = zip(leaves, params, strict=True)
            leaves = [p if g is None else g for g, p in pairs]
        tree = self.treedef.unflatten(leaves)
        tree = stacks.as_one(tree, axes) if axes else tree
        return tree if scope is None else scope.cut(tree)

    def whole_scope(self) -> Scope:
        """All leaves; some are stacks if a closure inside of `stacked` calls."""
        if not stacks.is_any():
            return None
        return with_axes(stacks.axes_in(self.outline(None)))

    def telling(self, scope: Scope) -> AbstractContextManager:
        """Tells a closure that is called meanwhile which leaves in scope are stacks."""
        if scope is None or not scope.axes:
            return nullcontext()
        return stacks.known(self.outline(None), scope.axes)

    def cut_params(self, scope: Scope) -> Params:
        """The parameters as a tree, without the leaves out of scope."""
        if scope is None or self.all_params is None:
            return self.all_params
        params = self.leaves_of(self.all_params, "params")
        return scope.cut(self.treedef.unflatten(params))

    def merge(self, updates: Updates, scope: Scope) -> None:
        """Replace the leaves in scope by the results of a transformation."""
        if scope is None:
            self.open(updates)
            return
        inner = jax.tree.structure(self.cut(scope), is_leaf=lambda x: x is None)
        changed = iter(inner.flatten_up_to(updates))
        pairs = zip(self.leaves, scope, strict=True)
        self.leaves = [next(changed) if on else x for x, on in pairs]


# A leaf that only matters for the structure.
_PLACE = object()
_LEAF = jax.tree.structure(_PLACE)
