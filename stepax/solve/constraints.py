"""Constraints for `minimize`; this module only lists names."""

from typing import TYPE_CHECKING

from .._names import attributes
from ._minimize.constraints import Constraint, equality, inequality


__all__ = ["Constraint", "equality", "inequality"]

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)
