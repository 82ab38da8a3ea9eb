"""Half-precision parameters that follow master copies in a wider dtype.

Micikevicius and others, 2018, Mixed Precision Training (arXiv:1710.03740), section 3.1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from .._engine.arrays.precision import require_floating
from .._engine.base.protocol import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskedNode,
    OptState,
    require_transformation,
    transformation,
    with_extra_args_support,
)
from .._engine.factories.registry import public
from .._engine.step.leafwise import keep_dtypes
from .._engine.step.rule import Slot, copy_of
from .._engine.trees import errors
from .narrow import Widened, is_narrower, widen_narrow


class MasterWeightsState(NamedTuple):
    """State of `master_weights`.

    masters: the parameters in the wider dtype, shaped like the parameters; a
        `MaskedNode` for parameters that are not narrower and need no master.
    inner_state: state of the inner transformation.
    """

    masters: Any
    inner_state: OptState


@public("wrapper", paper="arXiv:1710.03740")
def master_weights(
    inner: GradientTransformation, dtype: DTypeLike = jnp.float32
) -> GradientTransformationExtraArgs:
    """Update wider master copies of narrow parameters, so that no step is rounded away.

        m = m + inner(g, m),   u = round(m) - p

    The inner transformation sees gradients and masters in `dtype`, and stores its state
    for them.  Updates are relative to the parameters that `update` receives, which
    become the rounded masters even if an update is itself rounded.  Hence anything else
    that changes parameters, such as a projection, belongs inside; after loading new
    parameters call `init` again, otherwise the next step undoes the change.

    inner: the transformation.
    dtype: dtype of the masters; complex parameters, and those at least as wide, have
        none.

    Raises a `TypeError` if `dtype` is not a real floating-point dtype.
    """
    require_transformation(inner, "`inner` of `master_weights`")
    inner, wide = (
        with_extra_args_support(inner),
        require_floating("master_weights", dtype),
    )
    slot = Slot(copy_of, wide)

    def init(params):
        own = lambda p: slot.new(p) if is_narrower(p, wide) else MaskedNode()
        masters = jax.tree.map(own, params)
        return MasterWeightsState(masters, inner.init(widen_narrow(params, wide)))

    def update(updates, state, params=None, **extra_args):
        errors.require_state("master_weights", MasterWeightsState, state)
        old = state.inner_state
        seen = Widened(updates, params, wide, state.masters)
        u, new = inner.update(seen.gradients, old, seen.params, **extra_args)
        u, masters = seen.settle(u, jax.lax.convert_element_type)
        masters = keep_dtypes(masters, state.masters)
        return u, MasterWeightsState(masters, keep_dtypes(new, old))

    members = {"inner_state": inner}
    return transformation(init, update, inner=members, hands_on="inner_state")
