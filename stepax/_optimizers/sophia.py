"""Sophia and AdaHessian: EMAs of gradients divided by an estimate of the curvature.

Liu et al., 2024, Sophia: A Scalable Stochastic Second-order Optimizer for Language
Model Pre-training (arXiv:2305.14342), Algorithm 3, with the curvature of Algorithm 1.

Differences from the paper, as in Optax: the EMA is bias-corrected; a new estimate of
the curvature is used from the next step on, so that the first step is a sign step; the
random vectors are signs rather than normal.  `bias_correction`, `use_new_curvature` and
`sampler` restore the paper's choices.

Difference from Optax: the seed of the estimator may be an integer.

Yao et al., 2021, ADAHESSIAN: An Adaptive Second Order Optimizer for Machine Learning
(arXiv:2006.00719), Algorithm 1: Adam with the diagonal of the Hessian in place of
squared gradients.  Differences from the authors' program: the diagonal is not averaged
over the spatial axes of kernels, which `hessian_diagonal_fn` may do; with
`update_interval` above 1 its squares are averaged when it is estimated, and their bias
is corrected by the number of estimates.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .. import tree
from .._engine import rules as rx
from .._engine.arrays import moments
from .._engine.arrays.moments import bias_correction, ema, square
from .._engine.arrays.numerics import safe_sqrt, strong_type
from .._transforms.decay import descend


PAPER = "arXiv:2305.14342"


@rx.optax_compatible
class HutchinsonState(rx.optax.contrib.HutchinsonState):
    """key: random key for the next estimate."""

    key: jax.Array


@rx.optax_compatible
class SophiaState(rx.optax.contrib.SophiaState):
    """count: steps taken.

    mu: EMA of g.  nu: EMA of the estimates of the Hessian's diagonal.  Both are shaped
        like the parameters.
    hessian_fn_state: state of the estimator.
    """

    count: jax.Array
    mu: rx.ArrayTree
    nu: rx.ArrayTree
    hessian_fn_state: rx.OptState


@rx.public("measure", paper=PAPER, holomorphic=False)
def hutchinson_estimator_diag_hessian(
    random_seed: jax.Array | int | None = None,
    *,
    sampler: Callable[..., jax.Array] = jax.random.rademacher,
) -> rx.GradientTransformationExtraArgs:
    """Replace the updates by an estimate of the diagonal of the Hessian.

        h = z ∘ H z,   z a vector of random signs

    The expectation of h is the diagonal.  `update` takes the keyword `obj_fn`, the loss
    as a function of the parameters only.

    random_seed: a random key, or an integer seed for one; 0 if `None`.
    sampler: samples z from a key, a shape and a dtype; `jax.random.normal` in the
        paper.

    Raises a `ValueError` if `obj_fn` or `params` is missing.
    """

    def init(params):
        return HutchinsonState(_key(random_seed))

    def update(updates, state, params=None, obj_fn=None, **extra_args):
        rx.errors.require_state(
            "hutchinson_estimator_diag_hessian", HutchinsonState, state
        )
        if obj_fn is None:
            raise ValueError(
                "`hutchinson_estimator_diag_hessian` reads the keyword `obj_fn`, the "
                "loss as a function of the parameters: call `update(updates, state, "
                "params, obj_fn=...)`"
            )
        if params is None:
            raise ValueError(
                "`hutchinson_estimator_diag_hessian` needs `params`: call "
                "`update(updates, state, params, obj_fn=...)`"
            )
        key, now = jax.random.split(state.key)
        return _sampled(
            obj_fn, updates, params, lambda like: tree.random_like(now, like, sampler)
        ), HutchinsonState(key)

    return rx.transformation(init, update)


# An instance of Optax's class, because tests compare signatures with Optax's.
HUTCHINSON = rx.GradientTransformationExtraArgs(*hutchinson_estimator_diag_hessian())


@rx.public("optimizer", paper=PAPER, holomorphic=False, ranges={"gamma": rx.AT_LEAST_0})
def sophia(
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.965,
    b2: rx.ArrayLike = 0.99,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 1e-4,
    weight_decay_mask: rx.MaskOrFn = None,
    gamma: rx.ArrayLike = 0.01,
    clip_threshold: rx.ArrayLike | None = 1.0,
    update_interval: rx.ArrayLike = 10,
    hessian_diagonal_fn: rx.TransformationLike = HUTCHINSON,
    mu_dtype: rx.DTypeLike | None = None,
    verbose: bool = False,
    print_win_rate_every_n_steps: rx.Whole = 0,
    *,
    bias_correction: bool = True,
    use_new_curvature: bool = False,
) -> rx.GradientTransformationExtraArgs:
    """Sophia, with decoupled weight decay (Liu et al., 2024, arXiv:2305.14342).

        mu = b1 mu + (1 - b1) g
        u = clip(mu / (1 - b1^t) / max(gamma nu, eps), clip_threshold)
        nu = b2 nu + (1 - b2) h    every update_interval steps, starting at the first
        p = p - learning_rate (u + weight_decay p)

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs mu and nu, in [0, 1].
    eps: lower bound of the divisor, above 0.
    weight_decay_mask: parameters to decay; see `masked`.
    gamma: factor of the curvature, above 0; a larger one clips fewer elements.
    clip_threshold: largest |u|, above 0; `None` does not clip.
    update_interval: steps between estimates, at least 1.
    hessian_diagonal_fn: a transformation whose updates are h; it receives the keywords
        of `update`.
    mu_dtype: dtype of `mu`; defaults to the parameter's, as always for `nu`.
        In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    verbose, print_win_rate_every_n_steps: whether, and how often, to print the fraction
        of u that is not clipped; 0 prints at every step.
    bias_correction: whether to divide by 1 - b1^t.
    use_new_curvature: whether nu is updated before it is used rather than after.

    Raises a `TypeError` for complex parameters.
    """
    every = max(print_win_rate_every_n_steps, 1)
    report = _reporter(every, clip_threshold) if verbose else _silent
    precondition = _preconditioned(
        b1, eps, gamma, clip_threshold, mu_dtype, bias_correction
    )
    rules = precondition, averaged_curvature(b2)
    when = update_interval, use_new_curvature
    direction = scale_by_curvature(
        "sophia", SophiaState, rules, hessian_diagonal_fn, when, report
    )
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


class Mean(NamedTuple):
    """count: steps taken.  mu: EMA of g."""

    count: jax.Array
    mu: rx.Updates


class _Curvature(NamedTuple):
    nu: rx.Updates


@rx.recorded
def _preconditioned(b1, eps, gamma, clip_threshold, mu_dtype, is_corrected):
    """The EMA of g divided by the curvature, which is passed as the parameters."""

    def leaf(g, nu, c1, mu):
        mu = ema(mu, g, b1)
        m = mu / c1 if is_corrected else mu
        u = m / jnp.maximum(gamma * nu, eps)
        if clip_threshold is not None:
            u = jnp.clip(u, -clip_threshold, clip_threshold)
        return u, mu

    prepare = rx.from_step(lambda t: moments.bias_correction(b1, t))
    slots = {"mu": rx.Slot(dtype=mu_dtype)}
    return rx.Rule(
        leaf, Mean, slots, rx.COUNT, prepare, needs_params=True, elementwise=True
    )


@rx.recorded
def averaged_curvature(b2: rx.ArrayLike, of: Callable = lambda h: h) -> rx.Rule:
    """The EMA of the estimates, which are the updates, or of a function of them."""
    # Steps divide by what is stored, which must not be rounded to 0.
    slots = {"nu": rx.Slot(is_wide=True, kind="other")}
    return rx.Rule(
        lambda h, p, c, nu: (h, ema(nu, of(h), b2)), _Curvature, slots, elementwise=True
    )


def _silent(count: jax.Array, u: rx.Updates) -> None:
    """Report nothing."""


@rx.traits("normalizes")
@rx.recorded
def scale_by_curvature(
    name: str,
    State: type,
    rules: tuple[rx.GradientTransformation, rx.GradientTransformation],
    hessian_diagonal_fn: rx.TransformationLike,
    when: tuple[rx.ArrayLike, bool],
    report: Callable = _silent,
) -> rx.GradientTransformationExtraArgs:
    """Precondition by averages of an estimate of the diagonal of the Hessian.

    name, State: name of the optimizer; class of its state, with the fields of
        `SophiaState`.
    rules: the rule for the gradient, which receives the average as its parameters and
        has the state `Mean`; and the rule for the estimate, `averaged_curvature`.
    when: steps between estimates, and whether an estimate is averaged before it is
        used.
    report: a function that is called with the step count and the updates.
    """
    estimator = rx.with_keywords(
        hessian_diagonal_fn, f"`hessian_diagonal_fn` of `{name}`"
    )
    (precondition, average), (interval, is_new_used) = rules, when

    def init(params):
        require_real(name, params, "the sign of a complex curvature is not defined")
        count, mu = precondition.init(params)
        (nu,) = average.init(params)
        return State(count, mu, nu, estimator.init(params))

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state(name, State, state)
        rx.require_floats(name, updates, state.mu)
        old = state.nu, state.hessian_fn_state

        def estimate():
            h, new = estimator.update(updates, old[1], params, **extra_args)
            _, (nu,) = average.update(h, _Curvature(old[0]))
            return rx.keep_dtypes((nu, new), old)

        is_due = state.count % interval == 0
        nu, hessian_fn_state = rx.branch(is_due, estimate, lambda: old)
        mean, curvature = Mean(state.count, state.mu), nu if is_new_used else old[0]
        u, (count, mu) = precondition.update(updates, mean, tree.dequantize(curvature))
        report(count, u)
        return u, State(count, mu, nu, hessian_fn_state)

    return rx.transformation(init, update, inner={"hessian_fn_state": estimator})


def require_real(name: str, params: rx.Params, hint: str) -> None:
    for path, p in jax.tree_util.tree_leaves_with_path(params):
        is_array = rx.is_trainable(p)
        if is_array and jnp.issubdtype(jnp.result_type(p), jnp.complexfloating):
            raise TypeError(
                f"`{name}` needs real parameters, but the parameter at "
                f"{jax.tree_util.keystr(path) or 'the root'} is of dtype "
                f"{jnp.result_type(p)}; {hint}"
            )


def _reporter(every, clip_threshold):
    """Print the fraction of the updates that is not clipped, every few steps."""
    threshold = jnp.inf if clip_threshold is None else clip_threshold

    def report(count, u):
        won = rx.map_gradients(lambda u: _won(u, threshold), u, idle=nothing)
        size = tree.size(rx.map_gradients(lambda u: u, u, idle=nothing))
        rate = tree.sum(won) / max(size, 1)

        def show():
            return jax.debug.print("Sophia optimizer win rate: {}", rate)

        rx.branch(count % every == 0, show, lambda: None)

    return report


@jax.jit
def _won(u, threshold):
    with jax.numpy_dtype_promotion("standard"):
        return jnp.sum(jnp.abs(u) < threshold, dtype=jnp.float32)


def _key(seed):
    """A copy of the key: the caller's must survive donation of the state."""
    if seed is None or isinstance(seed, int):
        return jax.random.PRNGKey(seed or 0)
    return jnp.copy(seed)


def _sampled(obj_fn, updates, params, draw):
    """z ∘ H z for the parameters that have a gradient; the others are held constant."""
    moved = moved_params(updates, params)

    def loss(x):
        return obj_fn(with_fixed(x, params))

    z = draw(moved)
    _, products = jax.jvp(jax.grad(loss), (moved,), (z,))
    return tree.mul(z, products)


def moved_params(updates: rx.Updates, params: rx.Params) -> rx.Params:
    """The parameters that have a gradient, and `None` for the others."""
    return rx.map_gradients(
        lambda g, p: strong_type(jnp.asarray(p)), updates, idle=nothing, params=params
    )


def with_fixed(moved: rx.Params, params: rx.Params) -> rx.Params:
    return jax.tree.map(
        lambda x, p: p if x is None else x, moved, params, is_leaf=rx.is_none
    )


def nothing(*_: object) -> None:
    return None


class AdaHessianState(NamedTuple):
    """count: steps taken.

    mu: EMA of g.  nu: EMA of the squared estimates of the Hessian's diagonal.  Both are
        shaped like the parameters.
    hessian_fn_state: state of the estimator.
    """

    count: jax.Array
    mu: rx.ArrayTree
    nu: rx.ArrayTree
    hessian_fn_state: rx.OptState


@rx.public(
    "optimizer",
    paper="arXiv:2006.00719",
    holomorphic=False,
    ranges={"hessian_power": rx.AT_LEAST_0},
)
def adahessian(
    learning_rate: rx.ScalarOrSchedule = 0.15,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-4,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
    *,
    hessian_power: rx.ArrayLike = 1.0,
    update_interval: rx.ArrayLike = 1,
    hessian_diagonal_fn: rx.TransformationLike = HUTCHINSON,
) -> rx.GradientTransformationExtraArgs:
    """AdaHessian, with decoupled weight decay (Yao et al., 2021, arXiv:2006.00719).

        nu = b2 nu + (1 - b2) h²    every update_interval steps, starting at the first
        mu = b1 mu + (1 - b1) g
        u = mu / (1 - b1^t) / (sqrt(nu / (1 - b2^n))^hessian_power + eps)
        p = p - learning_rate (u + weight_decay p)

    with h of `hessian_diagonal_fn` and n the number of estimates so far.

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of g and of h², in [0, 1].
    eps: added to the power of the root, above 0.
    weight_decay_mask: parameters to decay; see `masked`.
    hessian_power: exponent of the curvature, at least 0; 0 ignores it.
    update_interval: steps between estimates, at least 1.
    hessian_diagonal_fn: a transformation whose updates are h; it receives the keywords
        of `update`.  The default reads `obj_fn`, the loss as a function of the
        parameters.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.

    Raises a `TypeError` for complex parameters.
    """
    precondition = _preconditioned_by_power(b1, b2, eps, hessian_power, update_interval)
    rules = precondition, averaged_curvature(b2, square)
    when = update_interval, True
    direction = scale_by_curvature(
        "adahessian", AdaHessianState, rules, hessian_diagonal_fn, when
    )
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


@rx.recorded
def _preconditioned_by_power(
    b1: rx.ArrayLike,
    b2: rx.ArrayLike,
    eps: rx.ArrayLike,
    power: rx.ArrayLike,
    interval: rx.ArrayLike,
) -> rx.Rule:
    """The EMA of g divided by a power of nu, which is passed as the parameters."""

    def context(t):
        estimates = (t - 1) // interval + 1
        c1, c2 = bias_correction(b1, t), bias_correction(b2, estimates)
        # As an array: each literal exponent would be compiled separately.
        return c1, c2, jnp.asarray(power)

    def leaf(g, nu, ctx, mu):
        c1, c2, exponent = ctx
        mu = ema(mu, g, b1)
        root = safe_sqrt(nu / c2)
        # 0^0 is 1; the derivative of the power would be infinite at 0.
        at_0 = jnp.where(exponent == 0, 1.0, 0.0)
        scaled = jnp.where(root == 0, 1, root) ** exponent
        return mu / c1 / (jnp.where(root == 0, at_0, scaled) + eps), mu

    prepare = rx.from_step(context)
    slots = {"mu": rx.Slot()}
    return rx.Rule(
        leaf, Mean, slots, rx.COUNT, prepare, needs_params=True, elementwise=True
    )
