"""Adan: Nesterov momentum from the difference of successive gradients.

Xie, Zhou, Li, Lin and Yan, 2022, Adan: Adaptive Nesterov Momentum Algorithm for Faster
Optimizing Deep Models (arXiv:2208.06677), Algorithm 1.

Differences from the paper, as in Optax: b1, b2 and b3 are 1 minus the ones of the
paper; the EMAs are bias-corrected; the difference enters `n` and the update with the
factor 1 - b2 rather than b2; weight decay is added to the update.  The authors'
program, too, corrects the bias; `change_factor=b2` and `proximal_decay=True` reproduce
the rest of it.
"""

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction, ema, square
from .._engine.arrays.numerics import safe_increment, safe_sqrt, zero_count
from .._transforms.decay import add_decayed_weights, decayed_after, resolve_mask_alias
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain


_RANGES = {"b2": rx.MOMENTUM}  # an average of gradients, and not of squares


@rx.optax_compatible
class ScaleByAdanState(rx.optax.ScaleByAdanState):
    """m, v, n: EMAs of g, of its change d, and of |g + c d|².

    g: the last gradient.  t: steps taken.  All but t are shaped like the parameters.
    """

    m: rx.ArrayTree
    v: rx.ArrayTree
    n: rx.ArrayTree
    g: rx.ArrayTree
    t: jax.Array


@rx.public(paper="arXiv:2208.06677", ranges=_RANGES)
def scale_by_adan(
    b1: rx.ArrayLike = 0.98,
    b2: rx.ArrayLike = 0.92,
    b3: rx.ArrayLike = 0.99,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 0.0,
    *,
    change_factor: rx.ArrayLike | None = None,
) -> rx.Rule:
    """Divide the extrapolated EMA of g by the root of an EMA of squares.

        d = g - g_last,   0 at the first step
        m = b1 m + (1 - b1) g,   v = b2 v + (1 - b2) d
        n = b3 n + (1 - b3) |g + c d|²
        u = (m' + c v') / (sqrt(n' + eps_root) + eps)

    with m' = m / (1 - b1^t), and so on, and c the `change_factor`.

    b1, b2, b3: decay rates of the EMAs of g, of its change and of squares, in [0, 1].
    eps, eps_root: added outside and inside the square root; at least 0.
    change_factor: factor c of the change; 1 - b2 if `None`, b2 in the paper.

    In bfloat16 `n` stalls: keep it in float32 with `with_state_dtypes`.
    """
    ahead = 1 - b2 if change_factor is None else change_factor

    def prepare(scalars, stat, extra):
        t = safe_increment(*scalars)
        return (t, *(bias_correction(b, t) for b in (b1, b2, b3))), (t,)

    def leaf(g, p, ctx, m, v, n, last):
        t, c1, c2, c3 = ctx
        d = jnp.where(t == 1, jnp.zeros_like(g), g - last)
        m = ema(m, g, b1)
        v = ema(v, d, b2)
        n = ema(n, square(g + ahead * d), b3)
        u = (m / c1 + ahead * (v / c2)) / (safe_sqrt(n / c3 + eps_root) + eps)
        return u, m, v, n, g

    slots = {"m": rx.Slot(), "v": rx.Slot(), "n": rx.REAL, "g": rx.Slot(kind="other")}
    count = {"t": zero_count}
    return rx.Rule(leaf, ScaleByAdanState, slots, count, prepare, elementwise=True)


@rx.public("optimizer", paper="arXiv:2208.06677", ranges=_RANGES)
def adan(
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.98,
    b2: rx.ArrayLike = 0.92,
    b3: rx.ArrayLike = 0.99,
    eps: rx.ArrayLike = 1e-8,
    eps_root: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    mask: rx.MaskOrFn = None,
    *,
    change_factor: rx.ArrayLike | None = None,
    proximal_decay: bool = False,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Adan, with decoupled weight decay (Xie et al., 2022, arXiv:2208.06677).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_adan`,   or
        p = (p - learning_rate u) / (1 + learning_rate weight_decay)

    learning_rate, weight_decay: scalars or schedules.
    mask, weight_decay_mask: parameters to decay (two aliases); see `masked`.
    proximal_decay: whether decay is the second of these, as by default in the authors'
        program; the first is Optax's.
    Other arguments: those of `scale_by_adan`.
    """
    mask = resolve_mask_alias(mask, weight_decay_mask)
    direction = scale_by_adan(b1, b2, b3, eps, eps_root, change_factor=change_factor)
    step = scale_by_learning_rate(learning_rate)
    if proximal_decay:
        last = decayed_after(learning_rate, weight_decay, mask, is_proximal=True)
        return chain(direction, step, last)
    return chain(direction, add_decayed_weights(weight_decay, mask), step)
