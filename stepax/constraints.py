"""Constraints for `minimize`; this module only lists names."""

from typing import TYPE_CHECKING

from ._minimize.constraints import Constraint, equality, inequality
from ._names import attributes


__all__ = ["Constraint", "equality", "inequality"]

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)
