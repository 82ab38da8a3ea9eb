"""The rule that `stepax.step` appends to a plan: what it returns is the parameter."""

from .programs import Origin
from .rule import Rule


# The kernel rounds what it returns as the parameter is stored, and not as the gradient.
APPLY = Rule(
    lambda g, p, ctx: (p + g,),
    needs_params=True,
    elementwise=True,
    name="apply_updates",
    origin=Origin("apply_updates", ()),
)
