"""The call that made something: it is printed, compared and pickled as that call."""

import functools as ft
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from ..functions.calls import call_with, frozen


T = TypeVar("T")


@dataclass(frozen=True)
class Hole:
    """Stands for an argument that may be another one.

    at: the index of the argument among those that were replaced.
    kind: what the argument is, as `Call.opened` is told.
    """

    at: int
    kind: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Call:
    """A factory and the arguments of its call; equal for equal calls.

    factory: the public function, under whose name a call is pickled.
    build: the function it decorates.
    bound: all its arguments, defaults included.
    title: the text to print, if it is not a call of `factory`.
    checked: what `build` was given; `None` if it may not be called with other numbers.
    at: which rule of the result is meant: its index among those that the call made by
        itself, and its label if a hyperparameter differs by path.
    """

    factory: Callable
    build: Callable
    bound: inspect.BoundArguments
    title: str = ""
    checked: inspect.BoundArguments | None = None
    at: tuple = ()

    def __repr__(self) -> str:
        if self.title:
            return self.title
        shown = []
        for name, x in self.bound.arguments.items():
            parameter = self.bound.signature.parameters[name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                shown += map(repr, x)
            elif not _is_default(x, parameter.default):
                shown.append(f"{name}={x!r}")
        return f"{self.name}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Call):
            return self is other
        return self.key is not None and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key or id(self))

    @ft.cached_property
    def key(self) -> object:
        """Equal for equal calls; `None` if an argument cannot be compared."""
        try:
            return self.build, self.at, frozen(self.bound.arguments)
        except TypeError:
            return None

    @property
    def name(self) -> str:
        """The name of the factory."""
        return self.build.__name__

    @property
    def trains(self) -> str:
        """The name of an optimizer, which raises for integers; "" for other parts."""
        is_optimizer = "learning_rate" in self.bound.signature.parameters
        return self.name if is_optimizer else ""

    @property
    def shared(self) -> Mapping[str, str]:
        """The `shared` arguments that its factory declares; see `public`."""
        checks = vars(self.factory).get("scalars")
        return checks.shared if checks else {}

    @property
    def traits(self) -> frozenset[str]:
        """What its factory says of what it does; see `traits`."""
        return vars(self.factory).get("traits", frozenset())

    @property
    def given(self) -> dict[str, Any]:
        """The arguments that differ from their defaults."""
        parameters = self.bound.signature.parameters
        arguments = self.bound.arguments.items()
        return {k: x for k, x in arguments if not _is_default(x, parameters[k].default)}

    def titled(self, title: str) -> "Call":
        """The call, printed as another text."""
        return replace(self, title=title)

    def again(self) -> Callable:
        """A function without arguments that calls the factory again."""
        # Defaults are omitted, so that a pickle does not depend on them.
        make = ft.partial(ft.partial, self.factory)
        return call_with(make, self.bound.signature, self.given)

    def opened(self, take: Callable[[str, Any], Any]) -> "Call":
        """The call with `take(name, x)` for each argument, such as a `Hole`."""
        arguments = self.bound.arguments.items()
        taken = OrderedDict((k, take(k, x)) for k, x in arguments)
        bound = inspect.BoundArguments(self.bound.signature, taken)
        return Call(self.factory, self.build, bound, at=self.at)

    def filled(self, find: Callable[[Hole], Any], through: Callable) -> Any:
        """What a function makes of the arguments, with `find(hole)` for each hole."""
        filled = {k: _filled(x, find) for k, x in self.bound.arguments.items()}
        return call_with(through, self.bound.signature, filled)


def _filled(x: Any, find: Callable[[Hole], Any]) -> Any:
    if isinstance(x, Hole):
        return find(x)
    if isinstance(x, Call):
        return x.filled(find, x.factory)
    return within(lambda y: _filled(y, find), x)


def within(f: Callable, x: Any) -> Any:
    """`f` of each element of a plain container; anything else unchanged."""
    if type(x) is dict:
        return {k: f(v) for k, v in x.items()}
    if type(x) is tuple:
        return tuple(map(f, x))
    return list(map(f, x)) if type(x) is list else x


def _is_default(x: object, default: object) -> bool:
    # Types are compared, because 1 == 1.0 == True; `all`, because of arrays.
    return x is default or (type(x) is type(default) and bool(np.all(x == default)))


def call_of(x: object) -> Call | None:
    """The call of a factory that made `x`; `None` if it is not known."""
    found = getattr(x, "call", None)
    return found if isinstance(found, Call) else None


def known_by_call(cls: type[T]) -> type[T]:
    """Let objects with a `call` be printed, compared and pickled as that call."""
    # Not a base class, which `help` would show.
    methods = {
        "__repr__": lambda self: repr(self.call),
        "__eq__": lambda self, x: isinstance(x, cls) and self.call == cast(Any, x).call,
        "__hash__": lambda self: hash(self.call),
        "__reduce__": lambda self: (self.call.again(), ()),
    }
    for name, method in methods.items():
        setattr(cls, name, method)
    return cls
