"""Layers in a scan, where each layer is updated as soon as its gradient is known.

The gradient of scanned layers is as large as all their parameters, and exists as a
whole before an optimizer sees it.  Lv and others, 2024, Full Parameter Fine-tuning for
Large Language Models with Limited Resources (arXiv:2306.09782), fuse the update into
the backward pass, so that one layer's gradient exists at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import keystr, tree_leaves_with_path

from .._engine import rules as rx
from .._engine.arrays.numerics import is_numeric
from .._engine.base import ArrayTree, TransformationLike
from .._engine.step.leafwise import step
from .._engine.xla import by_platform, true_after


@dataclass(frozen=True)
class FusedScan:
    """A sequence of equal layers, and their optimizer; see `fused_scan`.

    layer: (p, x, *args) -> x, with the parameters of one layer.
    tx: the transformation.
    """

    layer: Callable[..., ArrayTree]
    tx: TransformationLike

    def init(self, params: rx.Params) -> rx.OptState:
        """The state of each layer, stacked: `jax.vmap(tx.init)(params)`."""
        _number_of_layers(params)
        return jax.vmap(self.tx.init)(params)

    def forward(
        self, params: rx.Params, x: ArrayTree, *args: Any
    ) -> tuple[ArrayTree, ArrayTree]:
        """The output of the last layer, and the inputs of all layers for `backward`."""
        _number_of_layers(params)

        def one(x, p):
            y = self.layer(p, x, *args)
            _require_same_types(x, y)
            return y, x

        return lax.scan(one, x, params)

    def backward(
        self,
        dy: ArrayTree,
        inputs: ArrayTree,
        params: rx.Params,
        state: rx.OptState,
        *args: Any,
        **extra_args: Any,
    ) -> tuple[rx.Params, rx.OptState, ArrayTree]:
        """Take a step with each layer, from the last to the first.

        dy: the gradient of the output of `forward`; leaves for integers, booleans and
            random keys are ignored, as they are for parameters.
        inputs: the inputs of the layers, from `forward`, from which layers are
            recomputed.
        params, state: parameters and states of all layers; donate them to the program
            around this call.
        args: the arguments of `forward`, which get no gradient.
        extra_args: keywords for `update`.

        Returns the new parameters, the next state, and the gradient of x, of JAX's type
        `float0` for integers.
        """
        last = _number_of_layers(params) - 1

        def one(k, carry):
            *all_layers, dy = carry

            def take(x):
                return lax.dynamic_index_in_dim(x, last - k, 0, False)

            def put(x, new):
                return lax.dynamic_update_index_in_dim(x, new, last - k, 0)

            p, s, x = jax.tree.map(take, (*all_layers, inputs))
            g, dx = _gradients(lambda p, x: self.layer(p, x, *args), p, x, dy)
            new = _settled(step(self.tx, g, s, p, **extra_args), dx)
            return *jax.tree.map(put, tuple(all_layers), new), dx

        def whole(x, d):
            return d if rx.is_inexact(x) else np.zeros(x.shape[1:], jax.dtypes.float0)

        dy = jax.tree.map(lambda x, d: d if rx.is_inexact(x) else None, inputs, dy)
        *new, dx = lax.fori_loop(0, last + 1, one, (params, state, dy))
        return *new, jax.tree.map(whole, inputs, dx)


@rx.explain_misuse
def fused_scan(layer: Callable[..., ArrayTree], tx: TransformationLike) -> FusedScan:
    """Update layers in the backward pass that computes their gradients.

        x, inputs = fused.forward(params, x)
        params, state, dx = fused.backward(dy, inputs, params, state)

    Equal to a `lax.scan` over the layers, its gradient, and a step with each layer.
    But only the gradient of one layer exists at a time, and a layer is recomputed from
    its input, as with `jax.checkpoint`.

    layer: (p, x, *args) -> x, which returns an array or tree of the types of x.  Arrays
        in `params` have an additional first axis, over layers.  Both may contain
        integers, booleans and random keys.
    tx: the transformation, made of rules that need only one layer at a time.

    Raises a `ValueError` that names a member of `tx` that needs the gradients of all
    layers, such as `clip_by_global_norm`, or that cannot be inspected.
    """
    if not callable(layer):
        raise TypeError(f"`layer` must be a function, but is {layer!r}")
    rx.require_transformation(tx, "`tx` of `fused_scan`")
    for part in rx.node_of(tx).parts():
        _require_one_layer(part)
    return FusedScan(layer, tx)


def _require_one_layer(part: Any) -> None:
    if not isinstance(part, rx.Rule):
        name = part.call or part.title
        raise ValueError(
            f"`fused_scan` cannot inspect `{name}`, which may need the gradients of "
            "all layers: use transformations that are made of rules, such as `adamw`"
        )
    if part.leaf_stat is not None or part.global_stat is not None:
        raise ValueError(
            f"`{part.name}` measures the gradients of all layers, but `fused_scan` has "
            "one at a time: omit it, or clip each array, as `clip_by_block_rms` does"
        )


def _number_of_layers(params: rx.Params) -> int:
    """The length of the first axis of all arrays; raises where it differs."""
    found = tree_leaves_with_path(params)
    for path, p in found:
        if not rx.is_array(p) or jnp.ndim(p) == 0:
            raise ValueError(
                f"`params` has no axis of layers at {keystr(path)}: stack the layers, "
                "and split off leaves that are not arrays, such as functions"
            )
        first, other = jnp.shape(found[0][1])[0], jnp.shape(p)[0]
        if first != other:
            raise ValueError(
                f"`params` has {other} layers at {keystr(path)}, and {first} at "
                f"{keystr(found[0][0])}"
            )
    if not found:
        raise ValueError("`params` of `fused_scan` has no arrays, so no layers")
    return jnp.shape(found[0][1])[0]


def _require_same_types(x: ArrayTree, y: ArrayTree) -> None:
    old, new = (
        jax.tree.map(lambda z: (jnp.shape(z), jax.typeof(z).dtype), tree)
        for tree in (x, y)
    )
    if jax.tree.structure(x) != jax.tree.structure(y) or old != new:
        raise ValueError(
            f"`layer` takes {_shown(x)} and returns {_shown(y)}: layers of a scan "
            "return what the next one takes"
        )


def _shown(tree: ArrayTree) -> str:
    def show(x):
        return jax.typeof(x).str_short() if rx.is_array(x) else repr(x)

    return str(jax.tree.map(show, tree))


def _gradients(layer: Callable, p, x, dy) -> tuple[ArrayTree, ArrayTree]:
    """The gradients of one layer, with `None` for integers."""

    def outputs(*moving):
        return _moving(layer(*map(_filled, moving, (p, x))))

    return jax.vjp(outputs, *map(_moving, (p, x)))[1](dy)


def _moving(tree: ArrayTree) -> ArrayTree:
    """The real and complex numbers, with `None` for others."""
    return jax.tree.map(lambda x: x if rx.is_inexact(x) else None, tree)


def _filled(moving: ArrayTree, tree: ArrayTree) -> ArrayTree:
    fill = lambda x, other: other if x is None else x
    return jax.tree.map(fill, moving, tree, is_leaf=rx.is_none)


def _settled(new: ArrayTree, done: ArrayTree) -> ArrayTree:
    """`new`, computed as a whole before any of it is written among the other layers."""

    # On a CPU XLA would compute each array in the loop that writes it.  As others read
    # what that overwrites, it would copy the arrays of all layers, for each layer.  XLA
    # does not fuse across a branch, and does not detect that one is never taken.
    def settle(new, done):
        def zeros(x):
            return jnp.zeros_like(x) if is_numeric(x) else x  # a random key

        known = true_after(jnp.array(True), jax.tree.leaves(done))
        return rx.branch(known, lambda: new, lambda: jax.tree.map(zeros, new))

    return by_platform(lambda new, done: new, new, done, cpu=settle)
