"""Storage dtypes of the parts of a state that are shaped like the parameters."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from .._engine.arrays.numerics import is_numeric
from .._engine.arrays.precision import require_floating
from .._engine.base.protocol import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    Transformation,
    require_transformation,
    transformation,
    with_extra_args_support,
    with_init,
)
from .._engine.factories.registry import public
from .._engine.step.leafwise import keep_dtypes
from .._engine.step.plan import keeps_dtypes
from .._engine.trees.parts import parts_like_params


@public("wrapper")
def with_state_dtypes(
    inner: GradientTransformation, dtypes: Mapping[str, DTypeLike]
) -> GradientTransformationExtraArgs:
    """Store parts of a state in other dtypes, such as `nu` in bfloat16.

    Fields that are shaped like the parameters are selected by name.  Arithmetic is in
    float32 or wider, and rounded once, when stored: for parameters in bfloat16, `{"mu":
    "float32", "nu": "float32"}` keeps moments from being rounded away.  The state has
    the structure of that of the inner transformation.

    inner: the transformation.
    dtypes: a dict from names to floating-point dtypes; complex and integer arrays are
        unchanged.

    Raises a `TypeError` for a dtype that is not floating-point; `init` raises a
    `ValueError` for unknown names, and lists the known ones.
    """
    require_transformation(inner, "`inner` of `with_state_dtypes`")
    tx = with_extra_args_support(inner)
    asked = {k: require_floating("with_state_dtypes", x) for k, x in dtypes.items()}

    def init(params):
        parts, treedef = parts_like_params(tx)
        known = dict.fromkeys(name for name in parts if name)
        if unknown := [k for k in asked if k not in known]:
            raise ValueError(
                f"`with_state_dtypes` is given {unknown}, but the fields shaped like "
                f"the parameters are {list(known)}"
            )
        pairs = zip(parts, treedef.flatten_up_to(tx.init(params)), strict=True)
        return treedef.unflatten(_stored(x, asked.get(name or "")) for name, x in pairs)

    # The engine preserves the dtypes that it finds in a state.
    if isinstance(tx, Transformation) and keeps_dtypes(tx):
        return with_init(tx, init)

    def update(updates, state, params=None, **extra_args):
        u, new = tx.update(updates, state, params, **extra_args)
        return keep_dtypes(u, updates), keep_dtypes(new, state)

    return transformation(init, update, inner={"": tx})


def _stored(part: Any, dtype: Any) -> Any:
    def one(x):
        if not is_numeric(x) or not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return x.astype(dtype)

    return part if dtype is None else jax.tree.map(one, part)
