"""What the annotations of a function say about its parameters."""

import functools as ft
import inspect
import types
import typing
from collections.abc import Callable
from typing import TypeAlias


# The members of the union that annotates a parameter; empty if it has no annotation.
Hint: TypeAlias = list[object]


def members(hint: object) -> Hint:
    """The members of a union, and of unions within it."""
    # `X | Y` is a `UnionType`, but a `typing.Union` if one of them is from `typing`.
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [x for part in typing.get_args(hint) for x in members(part)]
    return [hint]


def of_parameters(f: Callable) -> dict[str, Hint]:
    """The annotations of a function's parameters."""
    inner = f
    # A partial has no globals in which to look up annotations given as text.
    while isinstance(inner, ft.partial):
        inner = inner.func
    names = getattr(inspect.unwrap(inner), "__globals__", {})
    parameters = inspect.signature(f).parameters.values()
    return {p.name: _hint(p.annotation, names) for p in parameters}


def _hint(annotation: object, names: dict) -> Hint:
    if annotation is inspect.Parameter.empty:
        return []
    # From `from __future__ import annotations`.
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, names)
        except Exception:
            return []  # it uses names that are imported only for type checkers
    return members(annotation)
