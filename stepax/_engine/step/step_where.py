"""A step of one leaf that may be refused, at the cost of one that may not.

Where a gradient may be left out, the new slots are chosen number by number as they are
computed.  The update would then be computed from what was not chosen, and XLA would
compute that twice, from old slots which it would have to copy first.  So the update is
computed from the chosen slots: where the step is accepted they are the new ones, and
where it is not, nobody wants the update.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def step_where(accepted: Any, step: Callable, old: Any) -> tuple[Any, Any]:
    """`step()`, which returns an update and slots, with the slots of `old` if refused.

    The update is that of `step` where it is accepted, and anything where it is not.
    """
    from jax.extend.core import jaxpr_as_fun  # brings half of JAX along

    closed, shapes = jax.make_jaxpr(step, return_shape=True)()
    _, *new = jaxpr_as_fun(closed)()
    pairs = zip(new, jax.tree.leaves(old), strict=True)
    kept = [jnp.where(accepted, x, was) for x, was in pairs]
    u = _update_from(closed, kept)
    return jax.tree.structure(shapes).unflatten([u, *kept])


def _update_from(closed: Any, slots: list) -> Any:
    """The update of a step, computed from these slots in place of its own."""
    from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

    jaxpr = closed.jaxpr
    u, *own = jaxpr.outvars
    # What a step only passes on, or computes along with something else, stays.
    alone = {var for eqn in jaxpr.eqns if len(eqn.outvars) == 1 for var in eqn.outvars}
    pairs = zip(own, slots, strict=True)
    given = {v: x for v, x in pairs if not isinstance(v, Literal) and v in alone}
    rest = [eqn for eqn in jaxpr.eqns if not given.keys() & set(eqn.outvars)]
    after = jaxpr.replace(invars=list(given), eqns=rest, outvars=[u])
    (found,) = jaxpr_as_fun(ClosedJaxpr(after, closed.consts))(*given.values())
    return found
