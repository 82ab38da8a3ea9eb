"""A step of one leaf that may be rejected, at no additional cost.

A step that may be rejected selects between new and old slots, element by element.  The
update would still be computed from the new slots before that selection.  XLA would then
compute them twice, once for the update and once for the selection, and copy the old
slots first, as they are overwritten in between.  So the update is computed from the
selected slots instead: they are the new ones where the step is accepted, and where it
is rejected the update is not used.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from ..base.protocol import ArrayTree


if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr


def step_where(
    accepted: jax.Array, step: Callable[[], ArrayTree], old: ArrayTree
) -> ArrayTree:
    """`step()`, which returns an update and slots, with the slots of `old` if rejected.

    The update is that of `step` if it is accepted, and unspecified if it is not.
    """
    # Imported here, because it loads half of JAX, and few steps can be rejected.
    from jax.extend.core import jaxpr_as_fun

    closed, shapes = jax.make_jaxpr(step, return_shape=True)()
    _, *new = jaxpr_as_fun(closed)()
    pairs = zip(new, jax.tree.leaves(old), strict=True)
    kept = [jnp.where(accepted, x, was) for x, was in pairs]
    u = update_from(closed, kept)
    return jax.tree.structure(shapes).unflatten([u, *kept])


def update_from(
    closed: "ClosedJaxpr", slots: Sequence[jax.Array], *inputs: jax.Array
) -> jax.Array:
    """The update of a step, computed from these slots in place of its own.

    closed: a function from the inputs to an update and slots.
    """
    # The same program without the equations for its own slots; XLA removes their
    # sources.
    from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

    jaxpr = closed.jaxpr
    u, *own = jaxpr.outvars
    # A slot that is passed through has no equation, and one of several results cannot
    # be replaced without the others: both are left unchanged.
    alone = {var for eqn in jaxpr.eqns if len(eqn.outvars) == 1 for var in eqn.outvars}
    pairs = zip(own, slots, strict=True)
    given = {v: x for v, x in pairs if not isinstance(v, Literal) and v in alone}
    rest = [eqn for eqn in jaxpr.eqns if not given.keys() & set(eqn.outvars)]
    invars = [*jaxpr.invars, *given]
    after = jaxpr.replace(invars=invars, eqns=rest, outvars=[u])
    (found,) = jaxpr_as_fun(ClosedJaxpr(after, closed.consts))(*inputs, *given.values())
    return found
