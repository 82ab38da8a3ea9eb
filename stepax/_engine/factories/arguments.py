"""Which arguments of a factory are hyperparameters, and calling it with others.

The annotation of a parameter decides, and its default where there is none: a number is
a hyperparameter where numbers may be arrays, and a function is a schedule where numbers
are taken and nothing says that it is a function of anything else.
"""

import inspect
import typing
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..base.protocol import (
    GradientTransformationExtraArgs,
    is_array,
    with_extra_args_support,
)
from ..base.stateful import StatefulSchedule
from ..functions import annotations, calls
from ..functions.annotations import Hint, members
from ..trees import selection
from .argument_checks import require_array, returned_by, scalar, unchecked
from .ranges import RANGES


_REALS = (float, np.number, np.floating)
_NUMBERS = (*_REALS, complex, np.ndarray, jax.Array)


# Parts of the names of parameters, without annotation, that are for other functions.
_NO_SCHEDULE = ("mask", "label", "dtype", "filter", "spec", "_fn", "numbers")

# Words in the names of parameters, without annotation or default, that are for numbers.
_WORDS = {"alpha", "decay", "gamma", "lr", "momentum", "rate", "scale", "schedule"}
_WORDS |= {"size", "temperature", "wd"}


def _takes_schedule(name: str, hint: Hint, default: Any) -> bool:
    """Whether a function for a parameter is one of the step."""
    functions = [h for h in hint if typing.get_origin(h) is Callable]
    if functions and not any(map(_is_of_number, functions)):
        return False  # such as a function of the parameters
    if hint and Any not in hint:
        return any(x in _NUMBERS for x in hint)
    has_default = default is not inspect.Parameter.empty
    if has_default and (isinstance(default, bool | str) or callable(default)):
        return False
    return not any(word in name for word in _NO_SCHEDULE)


def _takes_number(name: str, hint: Hint, default: Any) -> bool:
    """Whether something says that a parameter is for numbers, and not for trees."""
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    words = _WORDS.intersection(name.lower().split("_"))
    return bool(hint or is_number or words or name in RANGES)


def _is_of_number(function: Any) -> bool:
    """Whether a type of functions is one of functions of a number."""
    arguments = next(iter(typing.get_args(function)), None)
    if not isinstance(arguments, list):
        return True  # it does not say
    given = members(arguments[0]) if len(arguments) == 1 else []
    is_tree = Any in given or any(map(typing.get_origin, given))
    return not is_tree and any(x is int or x in _NUMBERS for x in given)


def _is_number(name: str, x: Any, hint: Hint) -> bool:
    """Whether an argument that is an array is a hyperparameter."""
    dtype = jnp.result_type(x)
    if jnp.issubdtype(dtype, jnp.floating):
        return True
    if not jnp.issubdtype(dtype, jnp.integer) or np.ndim(x) > 0:
        return False  # a flag, a mask, a random key, indices
    if name in ("key", "seed"):
        return False
    if any(h in _REALS for h in hint):
        return True
    return not hint or (int not in hint and any(h in _NUMBERS for h in hint))


def _role(name: str, x: Any, hint: Hint, default: Any) -> str:
    """What an argument is: "number", "schedule", or "fixed"."""
    if isinstance(x, type | np.dtype):
        return "fixed"
    if isinstance(x, StatefulSchedule):
        return "schedule"
    if is_array(x):
        return "number" if _is_number(name, x, hint) else "fixed"
    # A module is a schedule only where numbers are taken; elsewhere it is a tree.
    is_known = selection.is_function(x) or _takes_number(name, hint, default)
    is_schedule = callable(x) and is_known and _takes_schedule(name, hint, default)
    return "schedule" if is_schedule else "fixed"


class Call:
    """A call of a factory, of which some arguments can be replaced.

    numbers, schedules: the hyperparameters, by their names.
    """

    def __init__(self, factory: Callable, args: tuple, kwargs: dict):
        self.factory = factory
        own: Any = getattr(factory, "scalars", None)
        # Not of a function around a factory, to which `functools.wraps` copied it.
        if own and getattr(factory, "__wrapped__", None) is not own.factory:
            own = None
        self.scalars = own  # its signature is what it takes, not what it shows
        signature = own.signature if own else inspect.signature(factory)
        name = getattr(factory, "__name__", type(factory).__name__)
        self.name = f"`{name}`"
        self.bound = calls.bind(name, signature, args, kwargs)
        self.parameters = signature.parameters
        if own:
            checked = own.checked(self.bound.arguments, may_inject=True)
            self.bound.arguments |= {k: unchecked(x) for k, x in checked.items()}
        kinds = {p.kind: name for name, p in self.parameters.items()}
        self.rest = kinds.get(inspect.Parameter.VAR_KEYWORD)

    def sort(self, static: Iterable[str]) -> tuple[dict, dict]:
        """The arguments that are numbers, and those that are schedules."""
        said = annotations.of_parameters(self.factory)
        numbers, schedules = {}, {}
        for name, x in self.arguments().items():
            default = self.default(name)
            role = _role(name, x, said.get(name, []), default)
            if name in static:
                continue
            if role == "number":
                numbers[name] = x
            elif role == "schedule":
                schedules[name] = x
        return numbers, schedules

    def arguments(self) -> dict[str, Any]:
        """All arguments; those of `**kwargs` under their own names."""
        named = dict(self.bound.arguments)
        return named | named.pop(self.rest) if self.rest else named

    def read(self, numbers: dict, scheduled: dict) -> dict:
        """Values of hyperparameters, looked at before they become arrays.

        numbers: as they are in the state, where anything may have been written.
        scheduled: what schedules returned.
        """
        if self.scalars:
            numbers = self.scalars.checked(numbers)
        subject = f"{self.name}: `{{}}`".format
        for k, x in numbers.items():
            require_array(subject(k), x)
        one = scalar if self.scalars else require_array
        now = {k: one(returned_by(subject(k)), x) for k, x in scheduled.items()}
        return numbers | now

    def default(self, name: str) -> Any:
        parameter = self.parameters.get(name)
        return inspect.Parameter.empty if parameter is None else parameter.default

    def again(self, values: dict[str, Any]) -> GradientTransformationExtraArgs:
        """What the factory makes with other values."""
        arguments = OrderedDict(self.bound.arguments)
        if self.rest:
            own = arguments[self.rest]
            arguments[self.rest] = own | {k: values[k] for k in own if k in values}
        arguments |= {k: values[k] for k in arguments if k in values}
        call = inspect.BoundArguments(self.bound.signature, arguments)
        return with_extra_args_support(self.factory(*call.args, **call.kwargs))
