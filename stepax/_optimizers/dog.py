"""DoG, DoWG and COCOB: no learning rate is needed.

DoG and DoWG take step sizes from the distance travelled so far:

Ivgi, Hinder and Carmon, 2023, DoG is SGD's Best Friend: A Parameter-Free Dynamic Step
Size Schedule (arXiv:2302.12022), equation 1, and its layer-wise form L-DoG; Khaled,
Mishchenko and Jin, 2023, DoWG Unleashed: An Efficient Universal Parameter-Free Gradient
Descent Method (arXiv:2305.16284), Algorithm 1.

The authors of DoG recommend averaging the parameters.

Differences from Optax: scalars in the state are stored in float32 or wider; a zero
gradient gives a zero update, even with eps = 0.

Orabona and Tommasi, 2017, Training Deep Networks without Learning Rates Through Coin
Betting (arXiv:1705.07795), Algorithm 2: each coordinate bets on the sign of its
gradient.  Difference from Optax: a complex element is one bet, on the direction of its
gradient.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import square
from .._engine.arrays.numerics import quotient, safe_sqrt
from .._engine.factories.ranges import ANY
from .._transforms.decay import (
    ESTIMATED,
    add_decayed_weights,
    decayed,
    resolve_mask_alias,
)
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain
from .._wrappers.mechanic import norm, sums
from .._wrappers.partition import identity


DOG = "arXiv:2302.12022"
DOWG = "arXiv:2305.16284"


@rx.optax_compatible
class DoGState(rx.optax.contrib.DoGState):
    """is_init_step: whether no step has been taken.  init_params: initial parameters.

    max_dist: r, the largest distance from there so far.
    sum_sq_norm_grads: G, the sum of ‖g‖² over all steps.

    All but `init_params` are scalars.
    """

    is_init_step: jax.Array
    init_params: rx.Params
    max_dist: jax.Array
    sum_sq_norm_grads: jax.Array


@rx.optax_compatible
class DoWGState(rx.optax.contrib.DoWGState):
    """init_params: initial parameters.

    weighted_sq_norm_grads: Σ r² ‖g‖² over all steps, a scalar.
    estim_sq_dist: r², the largest squared distance from the start, a scalar.
    """

    init_params: rx.Params
    weighted_sq_norm_grads: jax.Array
    estim_sq_dist: jax.Array


@rx.optax_compatible
class ScaleByDistanceOverGradientsState(NamedTuple):
    """Trees like the parameters.

    max_dist: the largest distance of each array from its initial value, a scalar.
    grad_sum_of_squares: the sum of ‖g‖² over all steps, of shape (1,).
    init_params: initial parameters.
    """

    max_dist: rx.ArrayTree
    grad_sum_of_squares: rx.ArrayTree
    init_params: rx.Params


def _step_size(r: jax.Array, total: jax.Array, eps: rx.ArrayLike) -> jax.Array:
    """r / sqrt(total + eps), or 0 where total + eps is 0."""
    is_zero = total + eps == 0
    return jnp.where(is_zero, 0, r * jax.lax.rsqrt(jnp.where(is_zero, 1, total + eps)))


def _statistics(g, p, start):
    """The squared norm of the gradient and the squared distance from the start."""
    return jnp.sum(square(g)), jnp.sum(square(p - start))


def _scaled(
    State: type,
    scalars: Mapping[str, Callable],
    prepare: Callable,
    measure: Callable = _statistics,
) -> rx.Rule:
    """Gradients times the context, which is made of the sums of `measure`."""
    return rx.Rule(
        lambda g, p, eta, start: (eta * g, start),
        State,
        {"init_params": rx.START},
        scalars,
        prepare,
        lambda g, p, scalars, start: measure(g, p, start),
        needs_params=True,
        elementwise=True,
    )


@rx.traits("normalizes", "estimates its rate")
@rx.recorded
def _scale_by_dog(init_step: tuple, eps: rx.ArrayLike) -> rx.Rule:
    kind, first = init_step
    distances = {
        "distance": first,
        "learning_rate": 0.0,
        "heuristic": lambda params: first * (1 + norm(params)),
    }

    def measure(g, p, start):
        # Of parameters that have a gradient, which `init` does not know.
        return *_statistics(g, p, start), jnp.sum(square(start))

    def prepare(scalars, stat, extra):
        is_first, r, squares = scalars
        here, distance, start = sums(stat, 3)
        if kind == "heuristic":
            r = jnp.where(is_first, first * (1 + safe_sqrt(start)), r)
        squares = squares + here
        r = jnp.maximum(r, safe_sqrt(distance))
        eta = _step_size(r, squares, eps)
        eta = jnp.where(is_first, first, eta) if kind == "learning_rate" else eta
        return eta, (jnp.zeros_like(is_first), r, squares)

    scalars = {
        "is_init_step": lambda params: jnp.ones([], bool),
        "max_dist": rx.real_scalar(distances[kind]),
        "sum_sq_norm_grads": rx.real_scalar(),
    }
    return _scaled(DoGState, scalars, prepare, measure)


@rx.traits("normalizes", "estimates its rate")
@rx.recorded
def _scale_by_dowg(init_estim_sq_dist: rx.ArrayLike, eps: rx.ArrayLike) -> rx.Rule:
    def prepare(scalars, stat, extra):
        v, r2 = scalars
        squares, distance = sums(stat, 2)
        r2 = jnp.maximum(r2, distance)
        v = v + r2 * squares
        return quotient(r2, safe_sqrt(v) + eps), (v, r2)

    scalars = {
        "weighted_sq_norm_grads": rx.real_scalar(),
        "estim_sq_dist": rx.real_scalar(init_estim_sq_dist),
    }
    return _scaled(DoWGState, scalars, prepare)


def _descent(scaling, learning_rate, weight_decay, mask, alias):
    mask = resolve_mask_alias(mask, alias)
    (decay,) = decayed(weight_decay, mask) or (identity(),)
    return chain(decay, scaling, scale_by_learning_rate(learning_rate))


@rx.public("optimizer", paper=DOG, shared=ESTIMATED)
def dog(
    learning_rate: rx.ScalarOrSchedule | None = 1.0,
    init_step: tuple[
        Literal["distance", "learning_rate", "heuristic"], rx.ArrayLike
    ] = ("heuristic", 1e-6),
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule | None = None,
    mask: rx.MaskOrFn = None,
    *,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Distance over gradients, with norms over all parameters together
    (Ivgi et al., 2023, arXiv:2302.12022).

        r = max(r, ‖p - p_start‖),   G = G + ‖g‖²
        p = p - learning_rate r / sqrt(G + eps) g

    learning_rate: a scalar or a schedule.
    init_step: a pair of a name and a scalar above 0, small enough not to diverge:
        ("distance", r) for the first r, ("heuristic", a) for r = a (1 + ‖p_start‖), or
        ("learning_rate", eta) for the first step eta g.
    eps: added inside the square root, at least 0.
    weight_decay: added to g as weight_decay p; a scalar, a schedule, or `None`.
    mask, weight_decay_mask: parameters to decay (two aliases); see `masked`.

    Raises a `ValueError` for another name in `init_step`.
    """
    kinds = "distance", "learning_rate", "heuristic"
    is_pair = isinstance(init_step, tuple | list) and len(init_step) == 2
    if not is_pair or init_step[0] not in kinds:
        raise ValueError(
            f"`init_step` is {init_step!r}, expected a pair of one of {kinds} and a "
            "number"
        )
    scaling = _scale_by_dog(tuple(init_step), eps)
    return _descent(scaling, learning_rate, weight_decay, mask, weight_decay_mask)


@rx.public("optimizer", paper=DOWG, shared=ESTIMATED)
def dowg(
    learning_rate: rx.ScalarOrSchedule | None = 1.0,
    init_estim_sq_dist: rx.ArrayLike | None = None,
    eps: rx.ArrayLike = 1e-4,
    weight_decay: rx.ScalarOrSchedule | None = None,
    mask: rx.MaskOrFn = None,
    *,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Distance over weighted gradients, with norms over all parameters together
    (Khaled et al., 2023, arXiv:2305.16284).

        r = max(r, ‖p - p_start‖),   v = v + r² ‖g‖²
        p = p - learning_rate r² / (sqrt(v) + eps) g

    init_estim_sq_dist: the first r², above 0; eps if `None`.
    eps: added to the square root, at least 0.
    Other arguments: those of `dog`.
    """
    first = eps if init_estim_sq_dist is None else init_estim_sq_dist
    scaling = _scale_by_dowg(first, eps)
    return _descent(scaling, learning_rate, weight_decay, mask, weight_decay_mask)


@rx.traits("normalizes", "estimates its rate")
@rx.public(paper=DOG, shared=ESTIMATED)
def scale_by_distance_over_gradients(
    reps_rel: rx.ArrayLike = 1e-6,
    eps: rx.ArrayLike = 1e-8,
    param_dtype: rx.DTypeLike = jnp.float32,
    global_scale: rx.ArrayLike = 1.0,
) -> rx.Rule:
    """Distance over gradients for each array separately (L-DoG).

        r = max(r, ‖p - p_start‖),   G = G + ‖g‖²
        u = global_scale r / sqrt(G + eps) g,   at first r = reps_rel (1 + ‖p_start‖)

    reps_rel: relative size of the first step, above 0; 1e-4 is recommended for models
        with batch normalization.
    eps: added inside the square root, at least 0.
    param_dtype: storage dtype of p_start, unless it is complex.
    global_scale: factor of the updates; -1 to descend.
    """

    def leaf(g, p, ctx, r, total, start):
        squares, distance = _statistics(g, p, start)
        r, total = jnp.maximum(r, safe_sqrt(distance)), total + squares
        eta = global_scale * _step_size(r, total, eps)[0]
        return eta * g, r, total, start

    def start_of(p):
        p = rx.copy_of(p)
        is_complex = jnp.iscomplexobj(p)  # casting would drop the imaginary part
        return p if is_complex else p.astype(jax.dtypes.canonicalize_dtype(param_dtype))

    @rx.real_scalar
    @rx.promote_freely  # `reps_rel` may be an integer
    def first(p):
        return reps_rel * (1 + norm(p))

    slots = {
        "max_dist": rx.Slot(make=first, alike=False),
        "grad_sum_of_squares": rx.Slot(make=rx.real_scalar(shape=(1,)), alike=False),
        "init_params": rx.Slot(make=start_of, kind="copy"),
    }
    State = ScaleByDistanceOverGradientsState
    return rx.Rule(leaf, State, slots, needs_params=True)


COCOB = "arXiv:1705.07795"


@rx.optax_compatible
class COCOBState(rx.optax.contrib.COCOBState):
    """init_particles: the first parameters.  cumulative_gradients: sum of -g.

    scale: largest |g|.  subgradients: sum of |g|.  reward: total winnings.
    All shaped like the parameters.
    """

    init_particles: rx.Params
    cumulative_gradients: rx.Updates
    scale: rx.ArrayTree
    subgradients: rx.Updates
    reward: rx.ArrayTree


@rx.traits("descends", "estimates its rate")
@rx.public(paper=COCOB, ranges={"alpha": ANY}, shared=ESTIMATED)
def scale_by_cocob(alpha: rx.ArrayLike = 100.0, eps: rx.ArrayLike = 1e-8) -> rx.Rule:
    """Bet a fraction of the winnings on the direction of the summed gradients.

        L = max(L, |g|),   G = G + |g|,   theta = theta - g
        R = max(R - (p - w1) g, 0)
        u = w1 + theta / (L max(G + L, alpha L)) (L + R) - p

    w1 are the first parameters.

    alpha: the first bet moves a parameter by 1 / alpha; above 0.
    eps: initial value of L; at least 0.

    In bfloat16 `cumulative_gradients`, `reward` and `subgradients` stall: keep them in
    float32 with `with_state_dtypes`.
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


@rx.public("optimizer", paper=COCOB, ranges={"alpha": ANY}, shared=ESTIMATED)
def cocob(
    learning_rate: rx.ScalarOrSchedule | None = 1.0,
    alpha: rx.ArrayLike = 100.0,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    mask: rx.MaskOrFn = None,
    *,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """COCOB (Orabona and Tommasi, 2017, arXiv:1705.07795):
    p = p + u, with u the output of `scale_by_cocob`.

    u is computed for the gradient learning_rate (g + weight_decay p).

    learning_rate: scales the gradients, which has no effect on the bets unless it
        changes over time; a scalar or a schedule.
    weight_decay: a scalar, at least 0, or a schedule.
    mask, weight_decay_mask: parameters to decay (two aliases); see `masked`.
    Other arguments: those of `scale_by_cocob`.
    """
    return chain(
        add_decayed_weights(weight_decay, resolve_mask_alias(mask, weight_decay_mask)),
        scale_by_learning_rate(learning_rate, flip_sign=False),
        scale_by_cocob(alpha, eps),
    )
