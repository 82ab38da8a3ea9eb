"""The rule that `stepax.step` appends to a plan: it returns the new parameter."""

import inspect

from ..xla.programs import Origin
from .rule import Rule


def _apply() -> Rule:
    return APPLY


# The kernel rounds its result to the dtype of the parameter, not of the gradient.
APPLY = Rule(
    lambda g, p, ctx: (p + g,),
    needs_params=True,
    elementwise=True,
    name="apply_updates",
    origin=Origin(_apply, inspect.signature(_apply).bind()),
)
