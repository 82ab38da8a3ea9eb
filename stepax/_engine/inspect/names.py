"""What components are called: the calls that made them, as text."""

import re
from typing import Any

import numpy as np
from jax.core import Tracer

from ..base.protocol import GradientTransformation
from ..factories.scheduled import MadeSchedule
from .components import Component


def part_name(component: Component) -> str:
    """The call that made a component, without its own components."""
    recipe = component.recipe
    if recipe is None:  # the function in which `update` was written
        made_in = getattr(
            component.tx.update, "__qualname__", type(component.tx).__name__
        )
        return made_in.split(".<locals>")[0].removesuffix(".update")
    if recipe.title:
        return _short(recipe.title, 200)
    numbers = {k: x for k, x in recipe.given.items() if not _holds_parts(x)}
    shown = ", ".join(f"{k}={show(x)}" for k, x in numbers.items())
    return f"{recipe.build.__name__}({shown})"


def _holds_parts(x: object) -> bool:
    # Transformations among the arguments are listed as separate components.
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, tuple | list) and not isinstance(x, GradientTransformation):
        return any(map(_holds_parts, x))
    return hasattr(x, "init") and hasattr(x, "update")


def show(x: object) -> str:
    """A hyperparameter as text, truncated."""
    # A schedule is callable, but is known by its call rather than by a name.
    if isinstance(x, MadeSchedule):
        return _short(repr(x), 160)
    if callable(x):
        return getattr(x, "__name__", type(x).__name__)
    if isinstance(x, Tracer):
        return "…"
    found = plain(x)
    return _short(f"{found:.6g}" if isinstance(found, float) else str(found), 40)


def _short(text: str, most: int) -> str:
    """A text with functions shown by name only, truncated if it is too long."""
    # Addresses would make two descriptions of the same transformation differ.
    text = re.sub(r"<function (?:\S+\.)?(\S+) at 0x\w+>", r"\1", text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def plain(x: object) -> Any:
    """A value as dictionaries, lists, strings and numbers."""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, tuple | list):
        return [plain(v) for v in x]
    if x is None or isinstance(x, bool | int | float | str):
        return x
    try:
        found = np.asarray(x)
    except Exception:  # a random key, or a traced value
        return str(x)
    return found.tolist() if found.dtype.kind in "biuf" else str(x)
