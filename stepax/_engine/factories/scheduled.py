"""Schedules that know the call that made them."""

import functools as ft
import inspect
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, cast

from jax.typing import ArrayLike

from ..base.frozen import copy_containers
from ..base.protocol import Schedule
from ..functions import calls, signatures
from ..trees import errors
from .recipe import Recipe


P = ParamSpec("P")

# The factories of schedules, by name.
SCHEDULES: dict[str, Callable] = {}


class MadeSchedule:
    """A function of the step count, and the call that made it.

    Equal calls make equal schedules, which are printed and pickled as the call.
    """

    # No `__dict__`: `functools.wraps` would copy it to functions around a schedule,
    # which were not made by its call.
    __slots__ = ("__weakref__", "function", "recipe")

    def __init__(self, function: Schedule, recipe: Recipe):
        self.function = function
        self.recipe = recipe

    def __call__(self, count: ArrayLike) -> ArrayLike:
        return self.function(count)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that it was made with, including defaults."""
        return copy_containers(dict(self.recipe.bound.arguments))

    @property
    def __name__(self) -> str:
        return self.recipe.build.__name__

    def __repr__(self) -> str:
        return repr(self.recipe)

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, MadeSchedule):
            return self is other
        return self.recipe.key is not None and self.recipe.key == other.recipe.key

    def __hash__(self) -> int:
        return id(self) if self.recipe.key is None else hash(self.recipe.key)

    def __reduce__(self) -> tuple:
        return self.recipe.reduced()


def scheduled(factory: Callable[P, Any]) -> Callable[P, Schedule]:
    """Let the schedules that `factory` makes be printed, compared and pickled."""
    name, signature = factory.__qualname__, signatures.signature(factory)
    counts = [k for k, p in signature.parameters.items() if p.annotation is int]

    @ft.wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> Schedule:
        taken = tuple(_kept(x) for x in args)
        named = {k: _kept(x) for k, x in kwargs.items()}
        bound = calls.bind(name, signature, taken, named)
        with errors.named(name):
            for k in counts:
                _check_count(k, bound)
            function = cast(Callable, factory)(*taken, **named)
        # The product of two numbers instead of schedules is a number.
        if not callable(function):
            return function
        # Made by a factory that this one calls; the outer call is recorded.
        if isinstance(function, MadeSchedule):
            function = function.function
        return MadeSchedule(cast(Schedule, function), Recipe(make, factory, bound))

    # `inspect.getfullargspec` unwraps nothing.
    vars(make)["__signature__"] = signature
    SCHEDULES[factory.__name__] = make
    return make


def _check_count(name: str, bound: inspect.BoundArguments) -> None:
    """Raise for a number of steps that can only be a value: the order is wrong."""
    x = bound.arguments[name]
    if isinstance(x, float) and 0 < x < 1:
        raise errors.of_step(
            f"`{name}` is {x}, expected a number of steps; the arguments are "
            f"({', '.join(bound.signature.parameters)}): were two of them swapped?"
        )


def _kept(x: object) -> Any:
    # An iterator can be read only once: by the call, but not by the recipe.
    return copy_containers(list(x) if isinstance(x, Iterator) else x)
