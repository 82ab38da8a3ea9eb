"""What a call of `MultiSteps` returns, while it accumulates and when a step is due."""

from typing import Any

import jax
import jax.numpy as jnp

from .._engine.base.protocol import (
    GradientTransformationExtraArgs,
    Params,
    Updates,
    is_array,
)
from .._engine.step.applied import step
from .._engine.step.leafwise import map_gradients, zeros_like_updates


class ReturnedUpdates:
    """What a call of `update` returns: updates, which are zero in most calls."""

    def __init__(self, opt: GradientTransformationExtraArgs):
        self.opt = opt

    def elements(self, params: Params) -> int:
        """The size of what a call returns unchanged while it accumulates."""
        return 0

    def unchanged(self, updates: Updates, params: Params) -> Updates:
        return zeros_like_updates(updates)

    def due(
        self, updates: Updates, acc: Updates, inner: Any, params: Params, extra: dict
    ) -> tuple[Updates, Any]:
        u, new = self.opt.update(acc, inner, params, **extra)
        u = map_gradients(lambda g, x: x.astype(g.dtype), updates, updates=u)
        return u, new


class ReturnedParams(ReturnedUpdates):
    """What a call in `stepax.step` returns: parameters, most often the old ones."""

    def elements(self, params: Params) -> int:
        return sum(getattr(p, "size", 1) for p in jax.tree.leaves(params))

    def unchanged(self, updates: Updates, params: Params) -> Params:
        # Both branches must return arrays, and the other one converts Python scalars.
        return jax.tree.map(lambda p: jnp.asarray(p) if is_array(p) else p, params)

    def due(
        self, updates: Updates, acc: Updates, inner: Any, params: Params, extra: dict
    ) -> tuple[Params, Any]:
        return step(self.opt, acc, inner, params, **extra)
