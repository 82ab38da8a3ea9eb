"""Mechanic: learn the scale of another optimizer's updates.

Cutkosky, Defazio and Mehta, 2023, Mechanic: A Learning Rate Tuner (arXiv:2306.00144),
Algorithm 1.

Differences from the paper, as in Optax: the sum of the updates is not stored but
recovered from the parameters; each scale starts at `s_init`, not at zero.  Differences
from Optax: the update is (p_start - p) - S Δ rather than (p_start - S Δ) - p, which
rounds to 0 while the scale is small; dtypes are preserved, also in mixed trees.

Optimizers that determine their own step size share code that is at the end.  They store
a few scalars about all parameters together, in float32 or wider whatever the dtype of
the parameters, and the initial parameters.
"""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.moments import square
from .._engine.arrays.numerics import has_dtype, safe_increment, safe_sqrt
from .._engine.trees import reduce
from .._transforms.decay import ESTIMATED
from .._transforms.scale import value_at
from .partition import identity, masked


@rx.optax_compatible
class MechanicState(rx.optax.contrib.MechanicState):
    """base_optimizer_state: state of the base optimizer.  count: steps taken, a scalar.

    r, m, v, s: rewards, bounds, sums of squares and scales, one for each beta.
    x0: initial parameters, shaped like the parameters.
    """

    base_optimizer_state: rx.OptState
    count: jax.Array
    r: jax.Array
    m: jax.Array
    v: jax.Array
    s: jax.Array
    x0: rx.Params


# The state seen by the tuner: its own fields, and the raw gradients.
_Tuned = namedtuple("_Tuned", [*MechanicState._fields[1:], "gradients"])


@rx.recorded
def _tune_scale(
    weight_decay: rx.ScalarOrSchedule,
    eps: rx.ArrayLike,
    s_init: rx.ArrayLike,
    num_betas: int,
) -> rx.Rule:
    """The tuner, which receives the updates of the base optimizer."""

    def start(p, x0, count):
        """The parameters at the first step, which may differ from those of `init`."""
        return jnp.where(count == 0, p, x0)

    def way(p, x0, s):
        """Δ, minus the sum of the updates so far."""
        return (x0 - p) / (jnp.sum(s) + eps)

    def leaf_stat(u, p, scalars, x0, g):
        delta = way(p, start(p, x0, scalars[0]), scalars[-1])
        return dot(delta, g), dot(delta, p), jnp.sum(square(g)), jnp.sum(square(p))

    def prepare(scalars, stat, extra):
        count, r, m, v, s = scalars
        delta_g, delta_p, g_square, p_square = sums(stat, 4)
        decay = value_at(weight_decay, count) * jnp.sum(s) * safe_sqrt(g_square)
        h = delta_g + decay / (safe_sqrt(p_square) + eps) * delta_p
        betas = jnp.asarray(1 - 10.0 ** -np.arange(1.0, num_betas + 1), s.dtype)
        bounded = jnp.clip(h, -m, m)
        m = jnp.maximum(betas * m, jnp.abs(h) + eps)
        v = jnp.square(betas) * v + jnp.square(h)
        r = betas * r + bounded * s
        new = (s_init * m / num_betas + jnp.maximum(r, 0)) / (safe_sqrt(v) + eps)
        return (count, s, jnp.sum(new)), (safe_increment(count), r, m, v, new)

    def leaf(u, p, ctx, x0, g):
        count, s, scale = ctx
        x0 = start(p, x0, count)
        return (x0 - p) - scale * (way(p, x0, s) - u), x0, g

    zeros = rx.real_scalar(shape=(num_betas,))
    scalars = {**rx.COUNT, "r": zeros, "m": zeros, "v": zeros}
    scalars["s"] = rx.real_scalar(s_init, (num_betas,))
    slots = {"x0": rx.START, "gradients": rx.Slot(kind="other")}
    options: Any = {"needs_params": True, "elementwise": True}
    return rx.Rule(leaf, _Tuned, slots, scalars, prepare, leaf_stat, **options)


_ONE = {
    "weight_decay": "it enters the reward of the scale, a sum over all parameters",
    **ESTIMATED,
}


@rx.public("wrapper", paper="arXiv:2306.00144", shared=_ONE)
def mechanize(
    base_optimizer: rx.TransformationLike,
    weight_decay: rx.ScalarOrSchedule = 1e-2,
    eps: rx.ArrayLike = 1e-8,
    s_init: rx.ArrayLike = 1e-6,
    num_betas: int = 6,
) -> rx.GradientTransformationExtraArgs:
    """Learn the scale of another optimizer's updates instead of tuning it.

        Δ = (p_start - p) / (S + eps),   S = Σ s,   u = base_optimizer(g)
        h = Σ Δ (g + weight_decay S ‖g‖ / (‖p‖ + eps) p)
        r = β r + clip(h, -m, m) s
        m = max(β m, |h| + eps),   v = β² v + h²
        s = (s_init m / num_betas + max(r, 0)) / (sqrt(v) + eps)
        p = p_start - S (Δ - u)

    base_optimizer: gives the direction; its learning rate should be near 1, or a
        schedule that starts there.  It receives the keywords of `update`.
    weight_decay: weight decay in the reward, at least 0; a scalar or a schedule.
    eps: added to divisors, above 0.
    s_init: initial value of s, above 0.
    num_betas: number of decay rates β = 0.9, 0.99, ..., at least 1.

    Raises a `ValueError` for `num_betas` below 1.
    """
    base = rx.with_keywords(base_optimizer, "`base_optimizer` of `mechanize`")
    tuner = _tune_scale(weight_decay, eps, s_init, num_betas)

    def init(params):
        return MechanicState._make([base.init(params), *tuner.init(params)[:-1]])

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state("mechanize", MechanicState, state)
        was, *own = state
        tuned = _Tuned._make([*own, jax.tree.map(rx.as_array, updates)])
        u, inner = base.update(updates, was, params, **extra_args)
        u, tuned = tuner.update(u, tuned, params)
        return u, MechanicState._make([rx.keep_dtypes(inner, was), *tuned[:-1]])

    return rx.transformation(init, update, inner={"base_optimizer_state": base})


def sums(total: Any, size: int) -> Any:
    """The statistics passed to `prepare`; zeros if there are no leaves."""
    return total or (jnp.zeros([]),) * size


def norm(params: rx.Params) -> rx.ArrayLike:
    """The norm of all inexact parameters; 0 if only their shapes are known."""
    found = [
        rx.as_array(p)
        for p in filter(rx.is_trainable, jax.tree.leaves(params))
        if jnp.issubdtype(jnp.result_type(p), jnp.inexact)
    ]
    if any(isinstance(p, jax.ShapeDtypeStruct) for p in found):
        return 0.0
    return reduce.norm([p if has_dtype(p) else jnp.asarray(p) for p in found])


# Stored wide: a small step size times a gradient would underflow in float16.
MEAN = rx.Slot(is_wide=True)
SUM = rx.Slot(is_wide=True, kind="sum")


def dot(x: jax.Array, y: jax.Array) -> jax.Array:
    """Re Σ conj(x) y, the inner product over real and imaginary parts."""
    return jnp.sum(jnp.real(jnp.conj(x) * y))


def decaying(
    tx: rx.GradientTransformationExtraArgs,
    decay: Callable[[Any], rx.GradientTransformation],
    mask: rx.MaskOrFn,
) -> rx.GradientTransformationExtraArgs:
    """Add masked weight decay to an optimizer without changing its state.

    decay: maps the state before a step to the transformation for masked parameters.
    """

    @rx.promote_freely
    def update(updates, state, params=None, **extra_args):
        updates, new = tx.update(updates, state, params, **extra_args)
        pull = masked(decay(state), mask)
        return pull.update(updates, pull.init(params), params)[0], new

    return rx.transformation(checking(tx.init, mask), update, inner={"": tx})


def checking(init: Callable, mask: rx.MaskOrFn) -> Callable:
    """`init`, which raises for a mask that does not fit the parameters, too."""
    read = masked(identity(), mask)

    def checked(params):
        read.init(params)
        return init(params)

    return checked
