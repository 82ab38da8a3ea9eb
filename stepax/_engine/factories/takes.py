"""The hyperparameters among the parameters of a factory: what each takes."""

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base import ScalarOrSchedule
from ..functions.signatures import Hint, members
from .ranges import KEYS


# Parameters for integers that are not hyperparameters, and may be arrays.
_WHOLE = (*KEYS, "axis")


# Learning rates and decays, which may differ by path.  Leaves that no pattern matches
# are an error, unless there is a default for them.
BY_PATH = {
    "learning_rate": (),
    "weight_decay": (),
    "weight_decay_rate": (),
    "adam_learning_rate": (),
    "adam_weight_decay": (),
    "scaling": (),
    "factors": (1.0,),
}


@dataclass(frozen=True)
class Takes:
    """The values that a parameter takes.

    number, schedule, none: whether it takes a scalar, a function that returns one, and
        `None`.
    hides_none: whether neither annotations nor errors offer `None`, which Optax takes
        for no scaling.
    complex: whether the scalar may be complex.
    by_path: whether it takes a mapping from path patterns to these.
    by_name: whether it takes one from names, each for a factory that checks its value.
    parts: what the members of a tuple are; `None` for those that are not checked.
    """

    number: bool = False
    schedule: bool = False
    none: bool = False
    hides_none: bool = False
    complex: bool = False
    by_path: bool = False
    by_name: bool = False
    parts: tuple["Takes | None", ...] = ()

    def __str__(self) -> str:
        if self.parts:
            return f"a tuple of {len(self.parts)}"
        kinds = ["a number"] * self.number + ["a function of the step"] * self.schedule
        said = " or ".join(kinds + ["`None`"] * (self.none and not self.hides_none))
        keys = "path patterns" * self.by_path or "names" * self.by_name
        return f"{said}, or a mapping of {keys} to these" if keys else said


def _is_number(hint: Hint) -> bool:
    # `int` in a union with anything but `None` may be an index or an axis.
    whole = {int, type(None)}.issuperset(hint) and int in hint
    return whole or float in hint or np.number in hint


def takes_none_unsaid(factory: Callable) -> bool:
    """Whether a factory takes `None` for a learning rate, which Optax does not say.

    Then its annotation becomes Optax's, since programs compare that.
    """
    annotations = getattr(factory, "__annotations__", {})
    if annotations.get("learning_rate") != ScalarOrSchedule | None:
        return False
    if inspect.signature(factory).parameters["learning_rate"].default is None:
        return False
    annotations["learning_rate"] = ScalarOrSchedule
    return True


def takes_of(parameter: inspect.Parameter, hint: Hint, hides: bool) -> Takes | None:
    """The values that a parameter takes; `None` if it is not a hyperparameter."""
    if parameter.name in _WHOLE or str in hint or Any in hint:
        return None
    none = hides or type(None) in hint or parameter.default is None
    for pair in (h for h in hint if typing.get_origin(h) is tuple):
        args = [members(x) for x in typing.get_args(pair) if x is not ...]
        parts = tuple(Takes(number=True) if _is_number(x) else None for x in args)
        return Takes(none=none, parts=parts) if any(parts) else None
    number, schedule = _is_number(hint), any(map(_is_schedule, hint))
    is_complex = parameter.name == "step_size"  # a factor, which may be one
    by_path = parameter.name in BY_PATH
    by_name = not by_path and any(typing.get_origin(h) is Mapping for h in hint)
    found = Takes(number, schedule, none, hides, is_complex, by_path, by_name)
    return found if number or schedule else None


def _is_schedule(hint: object) -> bool:
    """Whether it is a function of one number, the step, that returns a number."""
    if typing.get_origin(hint) is not Callable:
        return False
    taken, returned = typing.get_args(hint)
    return taken is not ... and len(taken) == 1 and np.number in members(returned)
