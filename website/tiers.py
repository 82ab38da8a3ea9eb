"""The tier of each public name, as `docs/stability.md` gives it."""

import inspect
import re
from functools import cache
from pathlib import Path

import optax
import optax.contrib

from .names import Name


PAGE = Path(__file__).parent.parent / "docs" / "stability.md"
# Modules whose names are all stable.
_WHOLE = ("stepax.rules", "stepax.tree")


@cache
def stable() -> tuple[str, ...]:
    """The paths that the page lists."""
    listed = PAGE.read_text().partition("Stable are:")[2].partition("There is no")[0]
    names = re.findall(r"`([\w.]+)`", listed)
    return tuple(x if x.startswith("stepax.") else f"stepax.{x}" for x in names)


def tier(name: Name) -> str:
    """The tier of a name: "frozen", "stable" or "may change"."""
    if _is_of_optax(name.name, name.module):
        return "frozen"
    is_state = inspect.isclass(name.value) and name.name.endswith("State")
    is_optimizer = name.module == "stepax.contrib" and callable(name.value)
    is_listed = name.path in stable() or name.module in _WHOLE
    return "stable" if is_listed or is_state or is_optimizer else "may change"


def _is_of_optax(name: str, module: str) -> bool:
    """Whether Optax has the name, in the same module or at its top."""
    places = [optax]
    for part in module.split(".")[1:]:
        place = getattr(places[-1], part, None)
        if place is None:
            break
        places.append(place)
    return any(name in vars(place) for place in places)
