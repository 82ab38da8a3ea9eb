"""Sharpness-aware minimization (SAM): descend by the gradient at an adversarial point.

Foret, Kleiner, Mobahi and Neyshabur, 2021, Sharpness-Aware Minimization for Efficiently
Improving Generalization (arXiv:2010.01412), Algorithm 1, where the adversarial step is
`chain(normalize(), sgd(rho))`, and `sync_period` is 2.

Differences from Optax: `normalize` maps a zero gradient to zero; each step runs only
one of the two optimizers; a `sync_period` of 1 is the outer optimizer alone; both
optimizers receive the keywords of `update`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.numerics import safe_divide, safe_increment
from .._engine.trees import reduce


NormalizeState = rx.EmptyState


@rx.traits("normalizes")
@rx.public()
def normalize() -> rx.Rule:
    """Normalize the gradient to global norm 1: u = g / ‖g‖.

    ‖g‖ = sqrt(Σ |g|²) over all arrays; where it is 0, so is the update.
    """

    def prepare(scalars, norm, extra):
        return jnp.where(norm == 0, 1, norm), ()

    return rx.Rule(
        lambda g, p, ctx: (safe_divide(g, ctx),),
        prepare=prepare,
        global_stat=reduce.norm,
        elementwise=True,
    )


@rx.optax_compatible
class SAMState(rx.optax.contrib.SAMState):
    """State of `sam`.

    steps_since_sync: adversarial steps since the last outer step, a scalar.
    opt_state: state of the outer optimizer.
    adv_state: state of the adversarial optimizer.
    cache: the parameters before the adversarial steps; `None` in opaque mode.
    """

    steps_since_sync: jax.Array
    opt_state: rx.OptState
    adv_state: rx.OptState
    cache: rx.ArrayTree


@rx.public(
    "wrapper",
    paper="arXiv:2010.01412",
    ranges={"sync_period": rx.AT_LEAST_1},
    shared={"decay": "its steps return to where the adversarial ones began"},
    static=("sync_period",),
)
def sam(
    optimizer: rx.TransformationLike,
    adv_optimizer: rx.TransformationLike,
    sync_period: rx.Whole = 2,
    reset_state: bool = True,
    opaque_mode: bool = False,
    batch_axis_name: str | None = None,
) -> rx.GradientTransformationExtraArgs:
    """Take adversarial steps, then step from the start with the gradient at their end.

        p' = p - adv(g(p)),   sync_period - 1 times
        p = p + u(g(p'))

    Each call of `update` takes one of these `sync_period` steps.  In opaque mode it
    takes all of them, and computes further gradients with the keyword `grad_fn`, a
    function of the parameters and the number of the step, counted from 0.

    optimizer: takes the outer steps.
    adv_optimizer: takes the adversarial steps, with its sign flipped.
    sync_period: number of steps from one outer step to the next, at least 1.
    reset_state: whether to reset the state of `adv_optimizer` after each outer step.
    opaque_mode: whether `update` takes all steps.
    batch_axis_name: axis over which opaque mode averages the gradients of `grad_fn`.

    `update` raises a `ValueError` if `params`, or `grad_fn` in opaque mode, is
    missing.
    """
    outer = rx.with_keywords(optimizer, "`optimizer` of `sam`")
    adv = rx.with_keywords(adv_optimizer, "`adv_optimizer` of `sam`")

    def init(params):
        cache = None if opaque_mode else jax.tree.map(own, params)
        n = jnp.zeros([], jnp.int32)
        return SAMState(n, outer.init(params), adv.init(params), cache)

    def descend(updates, state, params, extra):
        """An outer step from `params`, which starts the next cycle."""
        u, new = outer.update(updates, state.opt_state, params, **extra)
        adv_state = state.adv_state
        if reset_state:
            adv_state = rx.stored_like(adv.init(params), adv_state)
        return u, state._replace(
            steps_since_sync=jnp.zeros_like(state.steps_since_sync),
            opt_state=rx.keep_dtypes(new, state.opt_state),
            adv_state=rx.keep_dtypes(adv_state, state.adv_state),
        )

    def climb(updates, state, params, extra):
        """An adversarial step; does not read the cache."""
        u, new = adv.update(updates, state.adv_state, params, **extra)
        return rx.map_gradients(jnp.negative, u), state._replace(
            steps_since_sync=safe_increment(state.steps_since_sync),
            adv_state=rx.keep_dtypes(new, state.adv_state),
        )

    def settled(updates, u):
        like = rx.like_updates(updates, outer, adv)
        return rx.map_gradients(lambda g, u: u.astype(g.dtype), like, updates=u)

    steps = (climb, descend, sync_period, settled)
    update = _opaque(*steps, batch_axis_name) if opaque_mode else _transparent(*steps)
    known: dict = {"stepped": lambda old, new, extra: new.steps_since_sync == 0}
    known["inner"] = {"opt_state": outer, "adv_state": adv}
    return rx.transformation(init, update, **known)


def _transparent(climb, descend, period: rx.Whole, settled: Callable) -> Callable:
    """One step per call."""

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state("sam", SAMState, state)
        rx.errors.require_params("sam", params)
        # Check here, because a step that does not read all trees would miss mismatches.
        cache = {"cache": state.cache} if period > 1 else {}
        rx.check_gradients(updates, params=params, **cache)

        def up():
            is_first = period == 2 or state.steps_since_sync == 0
            cache = rx.branch(
                is_first, lambda: jax.tree.map(own, params), lambda: state.cache
            )
            u, new = climb(updates, state._replace(cache=cache), params, extra_args)
            return settled(updates, u), new

        def down():
            origin = state.cache if period > 1 else jax.tree.map(own, params)
            new = state._replace(cache=origin)
            u, new = descend(updates, new, origin, extra_args)
            back = rx.map_gradients(_back, u, cache=origin, params=params)
            return settled(updates, back), new

        is_last = period == 1 or state.steps_since_sync >= period - 1
        return rx.branch(is_last, down, up)

    return update


def _opaque(climb, descend, period: rx.Whole, settled: Callable, axis_name) -> Callable:
    """All steps in a single call."""

    def update(updates, state, params=None, *, grad_fn=None, **extra_args):
        rx.errors.require_state("sam", SAMState, state)
        rx.errors.require_params("sam", params)
        if grad_fn is None:
            raise ValueError(
                "`sam` in opaque mode reads the keyword `grad_fn`, which returns the "
                "gradient for parameters and the number of an adversarial step: call "
                "`update(updates, state, params, grad_fn=...)`"
            )
        g, p = updates, params
        for i in range(period - 1):
            u, state = climb(g, state, p, extra_args)
            p = rx.apply_updates(p, u)
            g = grad_fn(p, i)
            if axis_name is not None:
                g = rx.map_gradients(lambda x: jax.lax.pmean(x, axis_name), g)
        u, state = descend(g, state, params, extra_args)
        return settled(updates, u), state

    return update


def own(p):
    """A copy of a parameter to keep, `None` for leaves that are not arrays."""
    return rx.START.new(p) if rx.is_trainable(p) else None


@rx.computed_wide
def _back(u, origin, p):
    """The update from `p` to `origin + u`."""
    return u - (p - origin)
