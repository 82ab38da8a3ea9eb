"""COCOB: each coordinate bets on the sign of its gradient; no learning rate is needed.

Orabona and Tommasi, 2017, Training Deep Networks without Learning Rates Through Coin
Betting (arXiv:1705.07795), Algorithm 2.

Difference from Optax: a complex element is one bet, on the direction of its gradient.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp

from .._engine import rules as rx
from .._transforms.decay import ESTIMATED, add_decayed_weights, resolve_mask_alias
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain


PAPER = "arXiv:1705.07795"


@rx.optax_compatible
class COCOBState(NamedTuple):
    """init_particles: the first parameters.  cumulative_gradients: sum of -g.

    scale: largest |g|.  subgradients: sum of |g|.  reward: total winnings.
    All shaped like the parameters.
    """

    init_particles: Any
    cumulative_gradients: Any
    scale: Any
    subgradients: Any
    reward: Any


@rx.public(paper=PAPER, ranges={"alpha": rx.AT_LEAST_0}, shared=ESTIMATED)
def scale_by_cocob(alpha: rx.ArrayLike = 100.0, eps: rx.ArrayLike = 1e-8) -> rx.Rule:
    """Bet a fraction of the winnings on the direction of the summed gradients.

        L = max(L, |g|),   G = G + |g|,   theta = theta - g
        R = max(R - (p - w1) g, 0)
        u = w1 + theta / (L max(G + L, alpha L)) (L + R) - p

    w1 are the first parameters.

    alpha: the first bet moves a parameter by 1 / alpha; above 0.
    eps: initial value of L; at least 0.

    In bfloat16 `cumulative_gradients`, `reward` and `subgradients` stop changing:
    widen them with `with_state_dtypes`.
    """

    def leaf(g, p, ctx, w1, theta, L, G, R):
        size = jnp.abs(g)
        L = jnp.maximum(L, size)
        G = G + size
        R = jnp.maximum(R - jnp.real(jnp.conj(p - w1) * g), 0)
        theta = theta - g
        stake = L * jnp.maximum(G + L, alpha * L)
        # Where L is 0, so is theta.
        bet = theta / jnp.where(stake == 0, 1, stake) * (L + R)
        return w1 + bet - p, w1, theta, L, G, R

    slots = {
        "init_particles": rx.START,
        "cumulative_gradients": rx.Slot(is_wide=True, kind="sum"),
        "scale": replace(
            rx.MAXIMUM, make=lambda p: jnp.full_like(p, eps), is_wide=False
        ),
        "subgradients": rx.SQUARES,
        "reward": rx.SQUARES,
    }
    return rx.Rule(leaf, COCOBState, slots, needs_params=True, elementwise=True)


@rx.public("optimizer", paper=PAPER, ranges={"alpha": rx.AT_LEAST_0}, shared=ESTIMATED)
def cocob(
    learning_rate: rx.ScalarOrSchedule = 1.0,
    alpha: rx.ArrayLike = 100.0,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    mask: rx.MaskOrFn = None,
    *,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """COCOB: p = p + u, with u of `scale_by_cocob`.

    u is computed for the gradient learning_rate (g + weight_decay p).

    learning_rate: scales the gradients, which has no effect on the bets unless it
        changes over time; a scalar or a schedule.
    alpha: the first bet moves a parameter by 1 / alpha; above 0.
    eps: initial value of L, the bound on |g|; at least 0.
    weight_decay: a scalar, at least 0, or a schedule.
    mask, weight_decay_mask: which parameters decay (aliases: give one); see `masked`.

    In bfloat16 `cumulative_gradients`, `reward` and `subgradients` stop changing:
    widen them with `with_state_dtypes`.
    """
    return chain(
        add_decayed_weights(weight_decay, resolve_mask_alias(mask, weight_decay_mask)),
        scale_by_learning_rate(learning_rate, flip_sign=False),
        scale_by_cocob(alpha, eps),
    )
