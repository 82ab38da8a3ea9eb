"""The hyperparameters among the arguments of a factory, and calls with other values.

The annotation of a parameter decides, or its default if there is none.  A number is a
hyperparameter if the parameter also takes arrays.  A function is a schedule if the
parameter takes numbers, unless the annotation says that it is a function of something
other than the step.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..base import GradientTransformationExtraArgs, is_array
from ..base.node import with_extra_args_support
from ..functions import calls
from ..functions.signatures import Hint, members, name_of, of_parameters
from ..trees import selection
from . import argument_checks as checks
from .by_path import amount_of, with_amount
from .ranges import RANGES
from .scheduled import StatefulSchedule


_REALS = (float, np.number, np.floating)
_NUMBERS = (*_REALS, complex, np.ndarray, jax.Array)


# Parts of names of unannotated parameters whose functions are not schedules.
_NO_SCHEDULE = ("mask", "label", "dtype", "filter", "spec", "_fn", "numbers")

# Words in names of parameters, without annotation or default, that take numbers.
_WORDS = {"alpha", "decay", "gamma", "lr", "momentum", "rate", "scale", "schedule"}
_WORDS |= {"size", "temperature", "wd"}


def _takes_schedule(name: str, hint: Hint, default: object) -> bool:
    """Whether a function given for a parameter is a schedule."""
    functions = [h for h in hint if _is_function_type(h)]
    if functions and not any(map(_is_of_number, functions)):
        return False  # such as a function of the parameters
    if any(isinstance(next(iter(typing.get_args(h)), 0), list) for h in functions):
        # Such as `Schedule`; with a function as default, such as a bound by the step
        # count, the factory may call what it is given.
        return not callable(default) or _is_named_as_number(name, default)
    hint = _beside_functions(hint)
    if hint and Any not in hint:
        return any(x in _NUMBERS for x in hint)
    if functions:  # only the name says of what
        return _is_named_as_number(name, default)
    has_default = default is not inspect.Parameter.empty
    if has_default and (isinstance(default, bool | str) or callable(default)):
        return False
    return not any(word in name for word in _NO_SCHEDULE)


def _is_function_type(hint: object) -> bool:
    return hint is Callable or typing.get_origin(hint) is Callable


def _beside_functions(hint: Hint) -> Hint:
    """The members that are neither types of functions nor `None`."""
    return [h for h in hint if not _is_function_type(h) and h is not type(None)]


def _is_named_as_number(name: str, default: object) -> bool:
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    words = _WORDS.intersection(name.lower().split("_"))
    return bool(is_number or words or name in RANGES)


def _is_of_number(function: object) -> bool:
    """Whether a `Callable` type is that of functions of one number."""
    arguments = next(iter(typing.get_args(function)), None)
    if not isinstance(arguments, list):
        return True  # it does not say
    given = members(arguments[0]) if len(arguments) == 1 else []
    is_tree = Any in given or any(map(typing.get_origin, given))
    return not is_tree and any(x is int or x in _NUMBERS for x in given)


def _is_number(name: str, x: ArrayLike, hint: Hint) -> bool:
    """Whether an argument that is an array is a hyperparameter."""
    # An integer is a hyperparameter where floats are accepted, too: `learning_rate=1`.
    dtype = jnp.result_type(x)
    if jnp.issubdtype(dtype, jnp.floating):
        return True
    if not jnp.issubdtype(dtype, jnp.integer) or np.ndim(x) > 0:
        return False  # a flag, a mask, a random key, indices
    if name in ("key", "seed"):
        return False
    if any(h in _REALS for h in hint):
        return True
    # The value decides, as in Optax, where the annotation only says `Schedule`.
    hint = _beside_functions(hint)
    return not hint or (int not in hint and any(h in _NUMBERS for h in hint))


def _role(name: str, x: Any, hint: Hint, default: object) -> str:
    """The role of an argument: "number", "schedule", or "fixed"."""
    # A dtype is a class or has a `dtype`, and would be taken for a schedule or an
    # array.
    if isinstance(x, type | np.dtype):
        return "fixed"
    if isinstance(x, StatefulSchedule):
        return "schedule"
    if is_array(x):
        return "number" if _is_number(name, x, hint) else "fixed"
    # A module is a schedule only where numbers are accepted; elsewhere it is a tree.
    is_known = selection.is_function(x) or hint or _is_named_as_number(name, default)
    is_schedule = callable(x) and is_known and _takes_schedule(name, hint, default)
    return "schedule" if is_schedule else "fixed"


class Arguments:
    """The arguments of a factory, of which some are hyperparameters.

    A hyperparameter by path counts as several, named as in `learning_rate['bias']`.

    numbers, schedules: the hyperparameters, by their names.
    entries: for hyperparameters by path, a dict from the names of values to the names
        of the argument and of the pattern.
    """

    def __init__(self, factory: Callable, args: tuple, kwargs: dict):
        self.factory = factory
        # For our factories not the signature that is shown, but the one that is bound.
        self.scalars = own = checks.checks_of(factory)
        signature = own.signature if own else inspect.signature(factory)
        name = name_of(factory, type(factory).__name__)
        self.name = f"`{name}`"
        self.bound = calls.bind(factory, name, signature, args, kwargs)
        self.parameters = signature.parameters
        if own:
            checked = own.checked(self.bound.arguments, may_inject=True)
            self.bound.arguments |= {k: checks.unchecked(x) for k, x in checked.items()}
        kinds = {p.kind: name for name, p in self.parameters.items()}
        self.rest = kinds.get(inspect.Parameter.VAR_KEYWORD)
        self.entries = {
            checks.entry(name, pattern): (name, pattern)
            for name, x in self.bound.arguments.items()
            if name in checks.BY_PATH and isinstance(amount_of(x), Mapping)
            for pattern in amount_of(x)
        }

    def sort(self, static: Iterable[str]) -> tuple[dict, dict]:
        """The arguments that are numbers, and those that are schedules."""
        said = of_parameters(self.factory)
        found: dict[str, dict] = {"number": {}, "schedule": {}, "fixed": {}}
        for name, x in self.arguments().items():
            default, own = self.default(name), self._argument(name)
            if name not in static and own not in static and not self._is_function(own):
                found[_role(own, x, said.get(own, []), default)][name] = x
        return found["number"], found["schedule"]

    def _is_function(self, name: str) -> bool:
        """Whether a parameter of ours takes functions of the step, but not numbers."""
        takes = self.scalars.takes.get(name) if self.scalars else None
        return takes is not None and not takes.number and not takes.parts

    def unused_additions(self) -> set[str]:
        """The arguments that Optax does not have and that have their defaults."""
        known = self.scalars.own if self.scalars else {}
        added = {name for name, allowed in known.items() if allowed.is_added}
        given = self.arguments().items()
        return {k for k, x in given if k in added and x is self.default(k)}

    def arguments(self) -> dict[str, Any]:
        """All arguments; those of `**kwargs` under their own names."""
        named = dict(self.bound.arguments)
        return self._flat(named | named.pop(self.rest) if self.rest else named)

    def _argument(self, name: str) -> str:
        """The argument that this value belongs to."""
        return self.entries.get(name, (name, ""))[0]

    def read(self, numbers: dict, scheduled: dict) -> dict:
        """The values in the state and of schedules, checked while they are numbers."""
        if self.scalars:
            numbers = self._flat(self.scalars.checked(self._nested(numbers)))
        subject = f"{self.name}: `{{}}`".format
        for k, x in numbers.items():
            checks.require_array(subject(k), x)
        now = {
            k: checks.scheduled_scalar(subject(k), x)
            if self.scalars
            else checks.require_array(checks.returned_by(subject(k)), x)
            for k, x in scheduled.items()
        }
        for k, x in (numbers | now).items():
            if jnp.issubdtype(jnp.result_type(x), jnp.complexfloating):
                raise TypeError(f"{subject(k)} must be real, as it is in the state")
        return numbers | now

    def _nested(self, values: dict) -> dict:
        """The values, with mappings for hyperparameters by path."""
        found = {k: x for k, x in values.items() if k not in self.entries}
        # In the order of the call; a state has JAX's order.
        for k, (name, pattern) in self.entries.items():
            if k in values:
                found.setdefault(name, {})[pattern] = values[k]
        return found

    def _flat(self, values: dict) -> dict:
        """The inverse; what is by path comes last."""
        plain, mapped = {}, {}
        for name, x in values.items():
            x = amount_of(checks.unchecked(x))
            if name in checks.BY_PATH and isinstance(x, Mapping):
                mapped |= {checks.entry(name, k): amount_of(y) for k, y in x.items()}
            else:
                plain[name] = x
        return plain | mapped

    def default(self, name: str) -> object:
        parameter = self.parameters.get(self._argument(name))
        return inspect.Parameter.empty if parameter is None else parameter.default

    def again(self, values: dict[str, Any]) -> GradientTransformationExtraArgs:
        """The result of the factory with other values."""
        arguments = dict(self.bound.arguments)
        # Arguments from `**kwargs` are one argument here, a dict.
        if self.rest:
            own = arguments[self.rest]
            arguments[self.rest] = own | {k: values[k] for k in own if k in values}
        for name, x in self._nested(values).items():
            if name in arguments:
                arguments[name] = _with_values(arguments[name], x)
        made = calls.call_with(self.factory, self.bound.signature, arguments)
        return with_extra_args_support(made)


def _with_values(own: Any, x: Any) -> Any:
    """An argument with other values of its hyperparameters."""
    within = amount_of(own)
    if isinstance(within, Mapping):
        new = {k: with_amount(v, x[k]) if k in x else v for k, v in within.items()}
        return with_amount(own, new)
    return with_amount(own, x)
