"""MARS: gradients corrected for their variance, before any optimizer.

Yuan, Liu, Wu, Zhou and Gu, 2024, MARS: Unleashing the Power of Variance Reduction for
Training Large Models (arXiv:2411.10438), Algorithms 2 to 4 in the approximate form,
which uses the last gradient instead of the gradient of the last parameters on this
batch, https://github.com/AGI-Arena/MARS.

All arrays are treated alike, as with `optimize_1d=True` in that code.

State, in bytes for each element of a float32 array: 8 for the last gradient and a mean;
12 where Adam's second mean is stored, that is, for all arrays with "adamw", and for
arrays that are not matrices with "shampoo".
"""

from typing import Literal, NamedTuple

import jax
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.moments import one_minus
from .._transforms.decay import add_decayed_weights
from .._transforms.mean import ema
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain
from .._wrappers.partition import partition
from .adam import scale_by_adam
from .lion import scale_by_lion
from .orthogonal import newton_schulz, shape_factor


PAPER = "arXiv:2411.10438"


class ScaleByMarsCorrectionState(NamedTuple):
    """last: the last gradient, shaped like the parameters."""

    last: rx.ArrayTree


@rx.public(paper=PAPER, ranges={"gamma": rx.AT_LEAST_0})
def scale_by_mars_correction(
    b1: rx.ArrayLike = 0.95,
    gamma: rx.ArrayLike = 0.025,
    *,
    axis_name: rx.AxisName = None,
) -> rx.Rule:
    """Move the gradient away from the last one, before an optimizer.

        c = g + gamma b1 / (1 - b1) (g - last),   last = g
        u = c / max(1, ‖c‖)

    The norm is that of a whole array, and the first `last` is 0.

    b1: decay rate of the optimizer's EMA of the gradients, in [0, 1).
    gamma: strength of the correction, at least 0.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `clip_by_block_rms`.
    """
    parts = rx.ArraySplit(axis_name)
    strength = gamma * b1 / one_minus(b1)

    def leaf(g, p, ctx, last):
        c = g + strength * (g - last)
        return c / rx.floored_norm(c, 1.0, parts), g

    return rx.Rule(leaf, ScaleByMarsCorrectionState, {"last": rx.Slot(kind="other")})


@rx.recorded
def _orthogonal(eps: rx.ArrayLike, axis_name: rx.AxisName) -> rx.Rule:
    """Orthogonalize matrices as Muon does, with its factor of the shape."""
    iterate = newton_schulz("muon", 5, eps)

    def apply(m, ctx):
        return (shape_factor(m.shape[-2:], "jordan") * iterate(m),)

    split = rx.ArraySplit(axis_name)
    batched = rx.Batched(apply, lambda m: m.ndim == 2, split=split, is_product=True)
    return rx.Rule(lambda m, p, ctx: (m,), batched=batched)


def _kinds(params):
    return jax.tree.map(lambda p: "matrix" if np.ndim(p) == 2 else "other", params)


def _direction(variant, b1, b2, eps, axis_name):
    """The optimizer of a variant, without a learning rate."""
    rx.require_one_of("variant", variant, ("adamw", "lion", "shampoo"))
    if variant == "adamw":
        return scale_by_adam(b1, b2, eps)
    if variant == "lion":
        return scale_by_lion(b1, b1)  # the sign of the new mean
    # The authors orthogonalize m / (1 - b1): only `eps` sees the difference.
    matrix = chain(ema(b1, debias=False), _orthogonal(eps * (1 - b1), axis_name))
    return partition({"matrix": matrix, "other": scale_by_adam(b1, b2, eps)}, _kinds)


@rx.public("optimizer", paper=PAPER, ranges={"gamma": rx.AT_LEAST_0})
def mars(
    learning_rate: rx.ScalarOrSchedule = 3e-3,
    b1: rx.ArrayLike = 0.95,
    b2: rx.ArrayLike = 0.99,
    gamma: rx.ArrayLike = 0.025,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
    *,
    variant: Literal["adamw", "lion", "shampoo"] = "adamw",
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """An optimizer of gradients that are corrected by `scale_by_mars_correction`
    (Yuan et al., 2024, arXiv:2411.10438).

        p = p - learning_rate (u + weight_decay p)

        "adamw"    u of `scale_by_adam`
        "lion"     u = sign(m),   m = b1 m + (1 - b1) c
        "shampoo"  u = sqrt(max(1, columns / rows)) orthogonalize(m) for matrices
        with u the output of `scale_by_adam` for all other arrays

    For "shampoo" 2D arrays are matrices, (inputs, outputs).

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of the corrected gradient and its square, in [0, 1].
    gamma: strength of the correction, at least 0.
    eps: added to the square root, and to the norm of m; at least 0.
    weight_decay_mask: parameters to decay; see `masked`.
    variant: the optimizer: "adamw", "lion" or "shampoo".
    axis_name: mesh axis over which arrays are sharded inside `shard_map`.

    Raises a `ValueError` for another variant.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    """
    return chain(
        scale_by_mars_correction(b1, gamma, axis_name=axis_name),
        _direction(variant, b1, b2, eps, axis_name),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )
