"""Proximal operators, for `minimize(prox=...)` and `proximal`; only lists names.

An operator g has `g.value(x)` and `g(x, step)`, the minimizer z of
step g(z) + |z - x|² / 2, for any tree x.  A dict from path patterns to operators is an
operator, too, wherever one is expected.
"""

from typing import TYPE_CHECKING

from .._names import attributes
from ._prox.factories import (
    box,
    elastic_net,
    from_projection,
    group_l2,
    l1,
    l1_ball,
    l2_ball,
    l2_squared,
    non_negative,
    nuclear,
    simplex,
    total_variation,
)
from ._prox.operators import Operator


__all__ = [
    "Operator", "box", "elastic_net", "from_projection", "group_l2", "l1", "l1_ball",
    "l2_ball", "l2_squared", "non_negative", "nuclear", "simplex", "total_variation",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)
