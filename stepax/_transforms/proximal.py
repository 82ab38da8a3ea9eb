"""The proximal operator after a step, as in sparse training.

Parikh and Boyd, 2014, Proximal Algorithms (DOI 10.1561/2400000003), section 4.2; Duchi
and Singer, 2009, Efficient Online and Batch Learning Using Forward Backward Splitting
(JMLR 10), for stochastic gradients.
"""

from typing import Any

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.numerics import safe_increment
from .._engine.arrays.precision import widen
from ..solve._prox.operators import ByPath, Operator, as_operator
from .scale import ScaleByScheduleState, following


@rx.recorded
def proximal(
    g: Any, learning_rate: rx.ScalarOrSchedule
) -> rx.GradientTransformationExtraArgs:
    """Apply a proximal operator to the parameters after the step.

        p + u becomes the minimizer z of a g(z) + |z - (p + u)|² / 2

    Place it last, after the learning rate: it changes the updates so that
    `apply_updates` gives z.  For an elementwise g, such as `prox.l1(0.1)`, it is a
    `Rule`, which works on packed and sharded trees as it is.

    g: an operator of `stepax.solve.prox`, or a dict from path patterns to operators;
        parameters that no pattern matches take their steps unchanged.  In
        `inject_hyperparams`, name it in `static_args`, since it can be called.
    learning_rate: a, that of the optimizer, a scalar or a schedule.

    Raises a `TypeError` if g is not an operator, and a `ValueError` for a pattern that
    matches nothing.
    """
    g = as_operator(g, "g")
    rate = learning_rate
    if isinstance(g, ByPath) and all(map(_is_elementwise, g.operators)):
        rules = [_rule(x, rate) for x in (*g.operators, None)]
        return _rule(None, rate, rx.Varied(g.indices, rules.__getitem__))  # type: ignore
    if _is_elementwise(g):
        return _rule(g, rate)  # type: ignore[return-value]
    return _of_trees(g, rate)


def _is_elementwise(g: Any) -> bool:
    return isinstance(g, Operator) and g.by_element


def _rule(g: Any, rate: Any, varied: rx.Varied | None = None) -> rx.Rule:
    def leaf(u, p, now):
        if g is None:
            return (u,)
        return (g(p + u, rate if now is None else now) - p,)

    options: dict = {"needs_params": True, "elementwise": True, "varied": varied}
    options["in_steps"] = "leaf"
    if callable(rate):
        options |= following(rate, ScaleByScheduleState)
    return rx.Rule(leaf, **options)


def _of_trees(g: Any, rate: Any) -> rx.GradientTransformationExtraArgs:
    def init(params):
        is_scheduled = callable(rate)
        count = rx.COUNT["count"](params)
        return ScaleByScheduleState(count) if is_scheduled else rx.EmptyState()

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_params("proximal", params)
        now = rate
        if callable(rate):
            now = rate(state.count)
            state = ScaleByScheduleState(safe_increment(state.count))
        moved = rx.map_gradients(_sum, updates, idle=lambda *row: None, params=params)
        return rx.map_gradients(_less, updates, z=g(moved, now), params=params), state

    return rx.transformation(init, update, in_steps="leaf")


def _sum(u: jax.Array, p: jax.Array) -> jax.Array:
    wide = rx.compute_dtype(jnp.asarray(p))
    return widen(jnp.asarray(p), wide) + widen(jnp.asarray(u), wide)


def _less(u: jax.Array, z: jax.Array, p: jax.Array) -> jax.Array:
    return (z - widen(jnp.asarray(p), z.dtype)).astype(u.dtype)
