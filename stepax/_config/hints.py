"""What annotations say about data: which lists are tuples, which strings numbers."""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from .._engine.functions import annotations
from .._engine.functions.annotations import Hint, members


class Hints:
    """What the annotations of a factory say about its arguments."""

    def __init__(self, factory: Callable):
        self._by_name = annotations.of_parameters(factory)
        parameters = inspect.signature(factory).parameters.values()
        by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        self._positional = [p.name for p in parameters if p.kind not in by_name]

    def named(self, name: str) -> Hint:
        """The hint for a keyword argument; empty if it is not known."""
        return self._by_name.get(name, [])

    def at(self, i: int) -> Hint:
        """The hint for a positional argument, the last of which may be variadic."""
        known = self._positional
        return self.named(known[min(i, len(known) - 1)]) if known else []


def takes_tuple(hint: Hint) -> bool:
    """Whether a list represents a tuple."""
    origins = [typing.get_origin(x) or x for x in hint]
    return tuple in origins and not any(x in origins for x in (list, Sequence, Any))


def takes_number(hint: Hint) -> bool:
    """Whether a string can only be meant as a number."""
    origins = [typing.get_origin(x) or x for x in hint]
    if any(x in origins for x in (str, Any, Literal)):
        return False
    return any(x in origins for x in (int, float, np.number))


def below(hint: Hint, i: int = 0) -> Hint:
    """The hint for the i-th element of a sequence, or for the values of a mapping."""
    found = []
    for x in hint:
        origin, args = typing.get_origin(x), typing.get_args(x)
        if origin is tuple and args[-1] is not ...:
            args = args[i : i + 1]
        elif isinstance(origin, type) and issubclass(origin, Mapping):
            args = args[1:]
        elif not (isinstance(origin, type) and issubclass(origin, Iterable)):
            continue
        found += members(args[0]) if args else []
    return found
