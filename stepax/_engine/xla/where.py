"""A step of one leaf that may be rejected, at the cost of one that may not.

A step that may be rejected selects between new and old slots, element by element.  The
update would still be computed from the new slots before that selection.  XLA would then
compute them twice, once for the update and once for the selection, and copy the old
slots first, as they are overwritten in between.  So the update is computed from the
selected slots instead: they are the new ones where the step is accepted, and where it
is rejected the update is not used.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ..base.protocol import ArrayTree


def step_where(
    accepted: jax.Array, step: Callable[[], ArrayTree], old: ArrayTree
) -> ArrayTree:
    """`step()`, which returns an update and slots, with the slots of `old` if rejected.

    The update is that of `step` if it is accepted, and unspecified if it is not.
    """
    # Imported here, because it loads half of JAX, and few steps can be rejected.
    from .jaxprs import traced, update_from

    closed, run, rebuild = traced(step)
    _, *new = run()
    pairs = zip(new, jax.tree.leaves(old), strict=True)
    kept = [jnp.where(accepted, x, was) for x, was in pairs]
    u = update_from(closed, kept)
    return rebuild([u, *kept])
