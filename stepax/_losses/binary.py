"""Binary cross-entropy of sigmoids, and the focal loss.

Lin et al., 2017, Focal Loss for Dense Object Detection (arXiv:1708.02002), equation 5,
for `sigmoid_focal_loss`; labels between 0 and 1 interpolate between its two cases.

Difference from Optax: loss and derivatives are correct for every logit, including ±inf
and 3e38, and never NaN.
"""

import functools as ft

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike

from .._engine.factories import ranges
from .._engine.functions.calls import explain_misuse
from .inputs import fit, floats


@explain_misuse
def sigmoid_binary_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> jax.Array:
    """Elementwise cross-entropy between a sigmoid and a probability.

        -y log σ(x) - (1 - y) log σ(-x)

    logits: the logits x.
    labels: y, in [0, 1]; broadcast to the shape of the logits.

    Returns the dtype of the logits.  Raises TypeError unless the logits are of floating
    point, ValueError if shapes do not fit.
    """
    x, y, _ = floats({"logits": logits}, {"labels": labels})
    x, y = fit({"logits": x, "labels": y})
    return _cross_entropy(x, y).astype(jnp.result_type(logits))


@explain_misuse
def sigmoid_focal_loss(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    alpha: ArrayLike | None = None,
    gamma: ArrayLike = 2.0,
) -> jax.Array:
    """Elementwise cross-entropy with more weight on hard examples.

        q = y σ(-x) + (1 - y) σ(x)
        (alpha y + (1 - alpha) (1 - y)) q^gamma (-y log σ(x) - (1 - y) log σ(-x))

    logits: the logits x.
    labels: y, in [0, 1]; broadcast to the shape of the logits.
    alpha: weight of label 1, in [0, 1]; that of label 0 is 1 - alpha; `None` for
        weights of 1.
    gamma: how strongly easy examples are down-weighted, at least 0; 0 for
        cross-entropy.

    Returns the dtype of the logits.  Raises TypeError unless the logits are of floating
    point, ValueError if shapes do not fit.
    """
    given = {"alpha": alpha, "gamma": gamma}
    own = {"alpha": ranges.UP_TO_1, "gamma": ranges.AT_LEAST_0}
    ranges.check("sigmoid_focal_loss", given, own)
    x, y, _ = floats({"logits": logits}, {"labels": labels})
    x, y = fit({"logits": x, "labels": y})
    # The power of a Python int is cheaper.
    is_known = isinstance(gamma, float | int)
    whole = int(gamma) if is_known and float(gamma).is_integer() else None
    weight = _power(whole, x, y, jnp.asarray(gamma, x.dtype))
    loss = _weighted(weight, _cross_entropy(x, y))
    if alpha is not None:
        a = jnp.asarray(alpha, x.dtype)
        loss = (a * y + (1 - a) * (1 - y)) * loss
    return loss.astype(jnp.result_type(logits))


@jax.custom_jvp
def _cross_entropy(x, y):
    size = jnp.abs(x)
    against = jnp.where(x > 0, 1 - y, y)
    linear = jnp.where(against == 0, 0, against * size)
    return linear + jnp.log1p(jnp.exp(-size))


@_cross_entropy.defjvp
def _(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    slope = (1 - y) * jax.nn.sigmoid(x) - y * jax.nn.sigmoid(-x)
    return _cross_entropy(x, y), slope * dx - _finite(x) * dy


@jax.custom_jvp
def _weighted(weight, loss):
    return weight * loss


@_weighted.defjvp
def _(primals, tangents):
    (weight, loss), (d_weight, d_loss) = primals, tangents
    # Where the loss is larger, the weight is constant, and inf * 0 must be 0.
    return weight * loss, weight * d_loss + d_weight * jnp.minimum(loss, 1e6)


def _finite(x):
    """x made finite, so that its product with 0 is 0."""
    info = jnp.finfo(x.dtype)
    return jnp.clip(x, info.min, info.max)


def _missed(x, y):
    """q, the probability of being wrong, clipped where all losses are 0."""
    q = y * jax.nn.sigmoid(-x) + (1 - y) * jax.nn.sigmoid(x)
    return jnp.maximum(q, jnp.finfo(x.dtype).tiny)


@ft.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _power(whole, x, y, gamma):
    """q^gamma, whose derivatives are all products with itself."""
    return _missed(x, y) ** (gamma if whole is None else whole)


def _is_0(tangent):
    """Whether the tangent is a symbolic zero, as it usually is for labels."""
    return isinstance(tangent, SymbolicZero)


@ft.partial(_power.defjvp, symbolic_zeros=True)
def _(whole, primals, tangents):
    x, y, gamma = primals
    dx, dy, d_gamma = tangents
    power = _power(whole, x, y, gamma)
    slope = gamma * _d_log_missed(x, y, dx, dy)
    if not _is_0(d_gamma):
        slope = slope + _log_missed(x, y) * d_gamma
    return power, power * slope


@jax.custom_jvp
def _log_missed(x, y):
    return jnp.log(_missed(x, y))


@ft.partial(_log_missed.defjvp, symbolic_zeros=True)
def _(primals, tangents):
    return _log_missed(*primals), _d_log_missed(*primals, *tangents)


def _d_log_missed(x, y, dx, dy):
    slope = jnp.zeros_like(x) if _is_0(dx) else _slope_in_x(x, y) * dx
    return slope if _is_0(dy) else slope + _slope_in_y(x, y) * dy


@jax.custom_jvp
def _slope_in_x(x, y):
    """∂ log q / ∂x: (1 - 2 y) σ(x) σ(-x) / q, without 0 / 0."""
    return (1 - 2 * y) * _spread(x, y)


@ft.partial(_slope_in_x.defjvp, symbolic_zeros=True)
def _(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    slope = _slope_in_x(x, y)
    turn = -slope * (jnp.tanh(x / 2) + slope)
    turn = jnp.zeros_like(x) if _is_0(dx) else turn * dx
    return slope, turn if _is_0(dy) else turn - _spread(x, y) / _missed(x, y) * dy


@jax.custom_jvp
def _slope_in_y(x, y):
    """∂ log q / ∂y: (σ(-x) - σ(x)) / q."""
    return -jnp.tanh(x / 2) / _missed(x, y)


@_slope_in_y.defjvp
def _(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    slope = _slope_in_y(x, y)
    in_x = -2 * _spread(x, y) - _finite(slope * _slope_in_x(x, y))
    return slope, in_x * dx - _finite(jnp.square(slope)) * dy


def _spread(x, y):
    """σ(x) σ(-x) / q."""
    down = jnp.where(y == 0, 0, y * (1 + jnp.exp(-x)))
    up = jnp.where(y == 1, 0, (1 - y) * (1 + jnp.exp(x)))
    return 1 / (down + up)
