"""Updates that keep the parameters within a set."""

import jax.numpy as jnp

from .._engine.base.protocol import EmptyState
from .._engine.factories.registry import public
from .._engine.step.rule import Rule


NonNegativeParamsState = EmptyState


@public(holomorphic=False)
def keep_params_nonnegative() -> Rule:
    """Shorten updates that would make a parameter negative, so that it becomes 0.

        u = -p where p + g < 0, otherwise g

    Put it last in a chain.  Negative parameters are moved to 0.
    """
    leaf = lambda g, p, ctx: (jnp.where(p + g < 0, -p, g),)
    return Rule(leaf, needs_params=True, elementwise=True)
