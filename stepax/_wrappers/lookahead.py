"""Lookahead: slow parameters that follow an optimizer, which restarts from them.

Zhang, Lucas, Hinton and Ba, 2019, Lookahead Optimizer: k steps forward, 1 step back
(arXiv:1907.08610), Algorithm 1.

Difference from Optax: the slow parameters of `init_synced` are a copy, so that both can
be donated.
"""

import functools as ft

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.numerics import safe_increment, strong_type


@rx.optax_compatible
class LookaheadState(rx.optax.LookaheadState):
    """State of `lookahead`.

    fast_state: state of the fast optimizer.
    steps_since_sync: steps since the last synchronization, a scalar.
    """

    fast_state: rx.OptState
    steps_since_sync: jax.Array


@rx.optax_compatible
class LookaheadParams(rx.optax.LookaheadParams):
    """The two sets of parameters of `lookahead`.

    fast: the parameters at which gradients are computed.
    slow: parameters for evaluation, shaped like `fast`.
    """

    fast: rx.Params
    slow: rx.Params

    @classmethod
    def init_synced(cls, params: rx.Params) -> "LookaheadParams":
        """Both sets equal to `params`; the slow one is a copy."""

        def copy(p):
            return p.copy() if isinstance(p, jax.Array) else p

        return cls(params, jax.tree.map(copy, params))


@rx.public("wrapper", paper="arXiv:1907.08610", ranges={"sync_period": rx.AT_LEAST_1})
def lookahead(
    fast_optimizer: rx.TransformationLike,
    sync_period: rx.Whole,
    slow_step_size: rx.ArrayLike,
    reset_state: bool = False,
) -> rx.GradientTransformationExtraArgs:
    """Let slow parameters follow those of an optimizer, and restart it from them.

        fast = fast + u(g)
        slow = slow + slow_step_size (fast - slow),   fast = slow   every sync_period

    `init` and `update` take `LookaheadParams` as parameters, and `update` returns a
    pair of updates.  Compute gradients at `fast`, and do not modify the updates.

    fast_optimizer: the optimizer of the fast parameters.
    sync_period: fast steps per slow step, at least 1.
    slow_step_size: fraction of the way from slow to fast, in [0, 1].
    reset_state: whether to reset the optimizer's state at each synchronization.

    Raises a `ValueError` for a period below 1; `update` raises a `TypeError` if the
    parameters are not `LookaheadParams`.
    """
    fast = rx.with_keywords(fast_optimizer, "`fast_optimizer` of `lookahead`")

    def init(params):
        params = params.fast if isinstance(params, LookaheadParams) else params
        return LookaheadState(fast.init(params), jnp.zeros([], jnp.int32))

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state("lookahead", LookaheadState, state)
        if not isinstance(params, LookaheadParams):
            raise TypeError(
                f"`params` is {rx.errors.describe(params)}, but `lookahead` needs "
                "`LookaheadParams`; create them with "
                "`LookaheadParams.init_synced(params)`"
            )
        old = state.fast_state
        u, inner = fast.update(updates, old, params.fast, **extra_args)
        u, inner = rx.map_gradients(strong_type, u), rx.keep_dtypes(inner, old)
        n = safe_increment(state.steps_since_sync)

        def go_on():
            return (u, rx.zeros_like_updates(u)), LookaheadState(inner, n)

        def meet():
            new = inner
            if reset_state:
                first = rx.stored_like(fast.init(params.fast), inner)
                new = rx.keep_dtypes(first, inner)
            both = _meeting(u, params, slow_step_size)
            return both, LookaheadState(new, jnp.zeros_like(n))

        (u, slow), state = rx.branch(n >= sync_period, meet, go_on)
        return type(params)(u, slow), state

    return rx.transformation(init, update, inner={"fast_state": fast})


def _meeting(
    u: rx.Updates, params: LookaheadParams, part: rx.ArrayLike
) -> tuple[rx.Updates, rx.Updates]:
    """Updates of the fast and the slow parameters that make both equal."""
    toward = ft.partial(_toward, part=part)
    slow = rx.map_gradients(toward, u, fast=params.fast, slow=params.slow)
    return rx.map_gradients(_onto, slow, fast=params.fast, slow=params.slow), slow


@rx.computed_wide
def _toward(u, fast, slow, *, part):
    return part * (fast + u - slow)


@rx.computed_wide
def _onto(u, fast, slow):
    return slow + u - fast
