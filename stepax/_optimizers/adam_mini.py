"""Adam-mini: Adam with one second moment for each block of parameters.

Zhang et al., 2024, Adam-mini: Use Fewer Learning Rates To Gain More (arXiv:2406.16793),
Algorithm 1, with the blocks chosen by the caller.

The state holds the momentum and one number for each block: 4 bytes for each element of
a float32 matrix, where Adam needs 8.
"""

import operator as op
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.moments import corrections, ema, square
from .._engine.arrays.numerics import safe_sqrt
from .._engine.trees import stacks
from .._engine.trees.packed import outline
from .._transforms.decay import descend


PAPER = "arXiv:2406.16793"

Blocks: TypeAlias = Literal["element", "output", "whole"] | int | Any


class AdamMiniState(NamedTuple):
    """count: steps taken.  mu: EMA of g, shaped like the parameters.

    nu: EMA of the mean of |g|² over each block: a scalar for a whole array, a vector
        for blocks of outputs, else shaped like the parameter.
    """

    count: jax.Array
    mu: rx.ArrayTree
    nu: rx.ArrayTree


@rx.public(paper=PAPER)
def scale_by_adam_mini(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    *,
    partition: Blocks = "whole",
) -> rx.GradientTransformationExtraArgs:
    """Divide the EMA of g by the root of the EMA of |g|², averaged over blocks.

        mu = b1 mu + (1 - b1) g,   nu = b2 nu + (1 - b2) mean(|g|²)
        u = mu / (1 - b1^t) / (sqrt(nu / (1 - b2^t)) + eps)

    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    eps: added to the square root, above 0.
    partition: the blocks: "whole" arrays; "output", a block for each index of the last
        axis; a number n, for n blocks of neighbouring outputs, such as the heads of
        attention; "element", as in Adam.  Give one of these for all arrays, a tree of
        them, path patterns as in `partition`, or a function from the parameters to one
        of these.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.

    `init` raises a `ValueError` for unknown blocks, and if n does not divide the
    outputs.
    """

    def leaf(g, p, ctx, mu, nu):
        c1, c2, _ = ctx
        mu = ema(mu, g, b1)
        nu = ema(nu, _means(square(g), nu.shape), b2)
        return mu / c1 / (_spread(safe_sqrt(nu / c2), g.shape) + eps), mu, nu

    # The shape of `nu` says what the blocks are; `init` makes it.
    nu = replace(rx.REDUCED, make=lambda p: jnp.zeros((), jnp.result_type(p)))
    slots = {"mu": rx.Slot(), "nu": nu}
    prepare = rx.from_step(corrections(b1, b2, False))
    rule = rx.Rule(leaf, AdamMiniState, slots, rx.COUNT, prepare)

    def init(params):
        params = params.unpack() if isinstance(params, rx.Packed) else params
        ps, treedef = jax.tree.flatten(params, is_leaf=rx.is_none)
        ones = jax.tree.leaves(outline(params), is_leaf=rx.is_none)
        each = [slots["nu"]] * len(ps)
        for i, how in enumerate(rx.selection.resolve(partition, params, "partition")):
            if rx.is_trainable(ps[i]):
                shape = _shape(how, rx.as_array(ones[i]), params, i)

                def make(p, shape=shape):
                    return rx.zeros_for(p, lambda p: _means(p, shape))

                each[i] = replace(slots["nu"], make=make)
        nu = rule.column(slots["nu"], ps, ps, each, stacks.of_leaves(params))
        return rule.init(params)._replace(nu=treedef.unflatten(nu))

    return rx.with_init(rx.build(rule), init)


def _shape(how: Any, p, params, i):
    """The shape of the means over blocks of a parameter, which is the i-th leaf."""
    shape, given = np.shape(p), f"`partition` for {{}} is {how!r}"
    if isinstance(how, str) and how in _SHAPES:
        return _SHAPES[how](shape)
    try:
        n = 0 if isinstance(how, bool | str) else op.index(how)
    except TypeError:
        n = 0
    if n < 1:
        expected = f"expected one of {list(_SHAPES)} or a number of blocks"
        raise ValueError(f"{given.format(rx.errors.paths(params)[i])}, {expected}")
    outputs = shape[-1] if shape else 1
    if outputs % n:
        raise ValueError(
            f"{given.format(rx.errors.paths(params)[i])}, but the last axis of the "
            f"shape {shape} has {outputs} outputs: give a divisor of that number"
        )
    return (n,) if shape else ()


_SHAPES = {
    "element": lambda shape: shape,
    "output": lambda shape: shape[-1:],
    "whole": lambda shape: (),
}


def _means(x, shape):
    """Means over blocks: all of `x`, its elements, or neighbouring outputs."""
    if shape == x.shape:
        return x
    if not x.size:
        return jnp.zeros(shape, x.dtype)  # a mean would be NaN
    if not shape:
        return jnp.mean(x)
    outputs = jnp.mean(x, tuple(range(x.ndim - 1)))
    return outputs if shape == outputs.shape else outputs.reshape(*shape, -1).mean(1)


def _spread(v, shape):
    """A number for each block, in the shape of the parameter."""
    if v.ndim == 1 and v.shape != shape:
        v = jnp.repeat(v, shape[-1] // max(v.size, 1))
    return jnp.broadcast_to(v, shape)


@rx.public("optimizer", paper=PAPER)
def adam_mini(
    learning_rate: rx.ScalarOrSchedule = 1e-3,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
    *,
    partition: Blocks = "whole",
) -> rx.GradientTransformationExtraArgs:
    """Adam-mini, with decoupled weight decay (Zhang et al., 2024, arXiv:2406.16793).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_adam_mini`

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask: parameters to decay; see `masked`.
    partition: the blocks that share a second moment: "whole" arrays, "output" or a
        number of blocks along the last axis, or "element"; see `scale_by_adam_mini`.
        The authors use "output" for embeddings and most matrices, the number of heads
        for queries and keys, and "whole" for vectors.
    Other arguments: those of `scale_by_adam_mini`.

    `init` raises a `ValueError` for unknown blocks, and if n does not divide the
    outputs.
    """
    direction = scale_by_adam_mini(b1, b2, eps, partition=partition)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)
