"""Scion: steps along the linear minimization oracle of a norm, one norm for each array.

Pethick et al., 2025, Training Deep Learning Models with Norm-Constrained LMOs
(arXiv:2502.07529), Algorithms 1 (unconstrained) and 2 (constrained), with the norms of
the authors' program.

State, in bytes for each element of a float32 array: 4 for the mean, even if `momentum`
is 1 and the mean is the gradient itself.
"""

import functools as ft
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.moments import ema, square
from .._engine.arrays.numerics import eps_for, in_units, safe_sqrt, upcast
from .._transforms.decay import add_decayed_weights
from .._transforms.scale import scale, scale_by_learning_rate
from .._wrappers.chain import chain
from .._wrappers.partition import partition
from .orthogonal import newton_schulz, shape_factor


PAPER = "arXiv:2502.07529"
_RANGES = {"momentum": rx.UP_TO_1}


class ScionState(NamedTuple):
    """mu: EMA of g, shaped like the parameters."""

    mu: rx.ArrayTree


def _root_mean(x, axis):
    """The root mean square over some axes, 0 for an empty array."""
    number = max(x.size, 1) if axis is None else max(x.shape[axis], 1)
    return safe_sqrt(jnp.sum(square(x), axis, keepdims=True) / number)


def _over_root_mean(m, axis, times=1):
    x, unit = in_units(m, axis)
    return x / (_root_mean(x, axis) * times + eps_for(unit, 1e-8) / unit)


def _spectral_conv(m, orthogonal):
    *window, inputs, outputs = m.shape
    o = orthogonal(m.reshape(-1, outputs)).reshape(m.shape)
    return shape_factor((inputs, outputs), "spectral") / max(np.prod(window), 1) * o


# For each norm, its direction and the least number of axes.
_NORMS = {
    "spectral": (lambda m, o: shape_factor(m.shape[-2:], "spectral") * o(m), 2),
    "spectral_conv": (_spectral_conv, 3),
    "sign": (lambda m, o: jnp.sign(m) / max(m.shape[-2], 1), 2),
    "bias_rms": (lambda m, o: _over_root_mean(m, None), 0),
    "column": (lambda m, o: _over_root_mean(m, -1), 2),
    # A sum over the inputs times their number is their mean times the number squared.
    "row": (lambda m, o: _over_root_mean(m, -2, m.shape[-2]), 2),
}


@rx.traits("orthogonalizes")
@rx.recorded
def _scion_direction(
    norm: str, momentum: rx.ArrayLike, ns_steps: int, axis_name: rx.AxisName
) -> rx.Rule:
    """The direction of one norm, for all arrays."""
    direction, _ = _NORMS[norm]
    orthogonal = newton_schulz("muon", ns_steps, 1e-7)

    def leaf(g, p, ctx, mu):
        mu = ema(mu, g, 1 - momentum)
        return mu, mu

    stage = rx.Batched(
        lambda m, ctx: (direction(m, orthogonal),),
        lambda m: True,
        split=rx.ArraySplit(axis_name),
    )
    return rx.Rule(leaf, ScionState, {"mu": rx.Slot()}, batched=stage)


@rx.public(paper=PAPER, ranges=_RANGES)
def scale_by_scion(
    momentum: rx.ArrayLike = 1.0,
    norms: Any = "auto",
    scales: rx.ArrayLike | Any = 1.0,
    *,
    ns_steps: int = 5,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """Take the direction u in which the EMA of g, m, grows fastest, in units of a norm.

        "spectral"       sqrt(outputs / inputs) orthogonalize(m)
        "spectral_conv"  sqrt(outputs / inputs) orthogonalize(m as a matrix) / window
        "sign"           sign(m) / inputs
        "bias_rms"       m / rms(m)
        "column", "row"  m / rms(m) of each input;   of each output, / inputs
        "auto"           spectral for two axes, spectral_conv above, bias_rms below

    Inputs and outputs are the last two axes.  Axes before these are a stack of matrices
    or, for "spectral_conv", a window, whose number of elements is the divisor.

    momentum: weight of the new g in the mean, in [0, 1]; 1 for no mean.
    norms: one of these names for all, a tree of them, or path patterns, as labels in
        `partition`.
    scales: factors of u: a number, a tree of them, or path patterns.
    ns_steps: steps of the iteration, at least 0.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `scale_by_muon`.

    Raises a `ValueError` for unknown names, and for arrays that have too few axes.
    """
    directions = {k: _scion_direction(k, momentum, ns_steps, axis_name) for k in _NORMS}
    is_number = isinstance(scales, float | int | np.number | np.ndarray | jax.Array)
    scaled = scale(scales) if is_number else _scale_each(scales)
    return chain(partition(directions, ft.partial(_labels, norms)), scaled)


def _labels(norms: Any, tree: rx.ArrayTree) -> rx.ArrayTree:
    leaves, treedef = jax.tree.flatten(tree, is_leaf=rx.is_none)
    found = rx.selection.resolve(norms, tree, "norms")
    return treedef.unflatten(
        None if x is None else _label(norm, x, tree, i)
        for i, (norm, x) in enumerate(zip(found, leaves, strict=True))
    )


def _label(norm: Any, x: Any, tree: rx.ArrayTree, i: int) -> str:
    ndim = np.ndim(rx.as_array(x)) if rx.is_array(x) else 0
    if norm == "auto":
        return ("bias_rms", "bias_rms", "spectral", "spectral_conv")[min(ndim, 3)]
    if norm not in _NORMS:
        raise ValueError(
            f"`norms` for {rx.errors.paths(tree)[i]} is {norm!r}, expected one of "
            f"{['auto', *_NORMS]}"
        )
    least = _NORMS[norm][1]
    if ndim < least:
        raise ValueError(
            f"`norms` for {rx.errors.paths(tree)[i]} is {norm!r}, expected an array "
            f"with at least {least} axes, but it has the shape "
            f"{np.shape(rx.as_array(x))}"
        )
    return norm


@rx.recorded
def _scale_each(scales: Any) -> rx.GradientTransformationExtraArgs:
    """Multiply each update by its factor."""

    @rx.promote_freely
    def update(updates, state, params=None, **extra_args):
        leaves, treedef = jax.tree.flatten(updates, is_leaf=rx.is_none)
        factors = rx.selection.resolve(scales, updates, "scales")
        pairs = zip(factors, leaves, strict=True)
        return treedef.unflatten(
            u if rx.has_no_gradient(u) else (s * upcast(u)).astype(u.dtype)
            for s, u in pairs
        ), state

    return rx.transformation(*rx.by_leaf(rx.init_empty_state, update))


@rx.public("optimizer", paper=PAPER, ranges=_RANGES)
def scion(
    learning_rate: rx.ScalarOrSchedule = 1e-3,
    momentum: rx.ArrayLike = 1.0,
    norms: Any = "auto",
    scales: rx.ArrayLike | Any = 1.0,
    *,
    constrained: bool = True,
    ns_steps: int = 5,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """Scion (Pethick et al., 2025, arXiv:2502.07529): steps whose length depends on the
    norm of each array, not on its gradient.

        p = (1 - learning_rate) p - learning_rate s u
        with u the output of `scale_by_scion`
        p = p - learning_rate s u   unless `constrained`

    If `constrained`, p stays within the ball of radius s around 0, in its norm.

    learning_rate: a scalar, or a schedule; at most 1 if `constrained`.
    constrained: whether p shrinks, towards a point within the ball.
    Other arguments: those of `scale_by_scion`.

    Raises a `ValueError` for unknown names, and for arrays that have too few axes.
    """
    return chain(
        scale_by_scion(momentum, norms, scales, ns_steps=ns_steps, axis_name=axis_name),
        *(add_decayed_weights(1.0),) * constrained,
        scale_by_learning_rate(learning_rate),
    )
