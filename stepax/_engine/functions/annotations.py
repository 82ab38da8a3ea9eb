"""What the annotations of a function say of its parameters."""

import functools as ft
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any


# What an annotation says of a parameter: the members of the union; empty if nothing.
Hint = list


def members(hint: Any) -> Hint:
    """The members of a union, and of unions within it."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [x for part in typing.get_args(hint) for x in members(part)]
    return [hint]


def of_parameters(f: Callable) -> dict[str, Hint]:
    """What a function says of its parameters."""
    inner: Any = f
    while isinstance(inner, ft.partial):
        inner = inner.func
    names = getattr(inspect.unwrap(inner), "__globals__", {})
    parameters = inspect.signature(f).parameters.values()
    return {p.name: _hint(p.annotation, names) for p in parameters}


def _hint(annotation: Any, names: dict) -> Hint:
    if annotation is inspect.Parameter.empty:
        return []
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, names)
        except Exception:
            return []  # it uses names that exist for the type checker alone
    return members(annotation)
