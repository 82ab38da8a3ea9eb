"""A fused step: updates are added to the parameters where they are computed.

`apply_updates` gets updates that have been rounded, and written for every leaf, also
where nothing changes.  `step` adds them in the pass that computes them.  So it rounds
once, and the engine knows which arrays take the place of which, and can order what is
read and written (`xla/order.py`).
"""

from typing import Any, TypeVar, cast

from ..base import (
    EmptyState,
    OptState,
    Params,
    Transformation,
    TransformationLike,
    Updates,
    require_transformation,
)
from ..functions.calls import explain_misuse
from ..trees.apply import apply_updates, map_pairs
from ..trees.packed import Packed
from . import has_no_gradient


T = TypeVar("T")


# Classes, besides `Transformation`, whose `take_step` is a fused step.
_CLASSES: set[type] = set()


def steps_in_one(cls: type[T]) -> type[T]:
    """Let `step` call `take_step` of a class, with the signature of a closure's."""
    _CLASSES.add(cls)
    return cls


@explain_misuse
def step(
    tx: TransformationLike,
    gradients: Updates,
    state: OptState,
    params: Params,
    **extra_args: Any,
) -> tuple[Params, OptState]:
    """Take one step: update the state and the parameters in one pass over memory.

        u, state = update(g, state, p),   p = p + u

    Equal to `update` and `apply_updates` bit for bit, except that one rounding is
    saved, because the updates are never stored.

    Donate parameters and state, and return them in the order of the arguments, as in
    `jax.jit(f, donate_argnums=(0, 1))` with `f(params, state, ...)`: XLA pairs donated
    arrays with results in this order, and most steps then need no memory of their own.

    tx: the transformation.  Any transformation works; one without rules of this library
        or a fused step runs its `update`.
    gradients: a tree like `params`; `None` leaves a parameter unchanged.
    state: the result of `tx.init(params)` or of the last step.
    params: a tree of arrays.
    extra_args: keywords for `update`.

    Returns the new parameters and the next state.  Raises the errors of `update`.
    """
    require_transformation(tx, "the first argument of `step`")
    if params is None:
        raise ValueError("`step` changes the parameters, but `params` is `None`")
    # By the exact type: an attribute of this name may mean anything in another class,
    # and a subclass may override `update`.
    if type(tx) in _CLASSES:
        return cast(Any, tx).take_step(gradients, state, params, extra_args)
    if type(tx) is Transformation:
        record = tx.record
        if record.take_step:
            return record.take_step(gradients, state, params, extra_args)
        if record.plan and _fits(gradients, params):
            states = state, EmptyState()
            plan = record.plan.applied
            new, (state, _) = plan(gradients, states, params, extra_args)
            return map_pairs(
                lambda p, x, check: p if has_no_gradient(x) else x,
                ("params", "updates"),
                params,
                new,
            ), state
    updates, state = tx.update(gradients, state, params, **extra_args)
    return apply_updates(params, updates), state


def _fits(gradients: Updates, params: Params) -> bool:
    """Whether the results of a pass can be stored as the parameters."""
    if not isinstance(gradients, Packed):
        return not isinstance(params, Packed)
    return isinstance(params, Packed) and params.layout == gradients.layout
