"""What transformations of your own are written with; this module only lists names.

A `Rule` is an optimizer for one array, and `rule` decorates the function that makes it,
or that returns any other transformation.
"""

from typing import TYPE_CHECKING

from ._engine.base.node import Transformation
from ._engine.factories.ranges import Range
from ._engine.factories.registry import rule
from ._engine.step.batched import Batched
from ._engine.step.rule import COUNT, Rule, Slot, from_step
from ._names import attributes


__all__ = [
    "Batched", "COUNT", "Range", "Rule", "Slot", "Transformation", "from_step", "rule",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)
