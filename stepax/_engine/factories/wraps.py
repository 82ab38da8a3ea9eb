"""Values of an argument that wrap the result of a factory without it."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..base.protocol import Transformation


T = TypeVar("T", bound="Wraps")


class Wraps:
    """Such a value; `_transforms/decay_kinds.py` has the only subclass.

    amount: its hyperparameter: a number, a schedule, or a mapping from patterns.
    """

    amount: Any

    def with_amount(self: T, amount: Any) -> T:
        """The same value with another hyperparameter."""
        raise NotImplementedError

    def plain(self: T, amount: Any) -> T:
        """The meaning of a number beside such values in a mapping."""
        raise NotImplementedError

    def require_alike(self: T, subject: str, others: Sequence[T]) -> None:
        """Raise if such values of one mapping cannot be combined.

        subject: the factory and the argument, for errors.
        """
        raise NotImplementedError

    def taken_by(self, factory: Callable) -> bool:
        """Whether a factory takes the value itself."""
        raise NotImplementedError

    def around(self, make: Callable, given: inspect.BoundArguments) -> Transformation:
        """The result of a factory without the argument, wrapped by the value.

        make: the factory.
        given: all of its arguments.
        """
        raise NotImplementedError


def amount_of(x: Any) -> Any:
    """The hyperparameter in a value, or the value itself."""
    return x.amount if isinstance(x, Wraps) else x


def with_amount(x: Any, amount: Any) -> Any:
    """The value with another hyperparameter."""
    return x.with_amount(amount) if isinstance(x, Wraps) else amount
