"""Remembers how a transformation was made, so that it can be printed and compared."""

import functools as ft
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

from ..base.frozen import copy_containers, frozen
from ..base.protocol import Transformation, marked, transformation
from ..functions import calls, deprecations
from ..step.plan import part_of, parts
from ..step.rule import Rule
from .argument_checks import ArgumentChecks, unchecked
from .closures import Made, functions
from .ranges import Range


P = ParamSpec("P")
R = TypeVar("R")


_CONSTANTS = (bool, int, float, complex, str, type(None), np.dtype)


def _is_constant(x: Any) -> bool:
    """Whether what outlives an optimizer may keep `x`.

    A function may not be kept: its closure, its defaults and its globals can hold
    arrays, or a tracer.  Nor may a class, but for those that name a dtype.
    """
    if isinstance(x, tuple):
        return type(x) is tuple and all(map(_is_constant, x))
    if isinstance(x, type):
        return hasattr(x, "dtype") or x in _CONSTANTS
    return isinstance(x, _CONSTANTS)


@dataclass(frozen=True, eq=False)
class Recipe:
    """A factory and what it was called with.

    factory: the public function, under whose name a recipe is pickled.
    build: the function it decorates.
    bound: all its arguments, defaults included.
    title: how it is printed, if not as a call of `factory`.
    """

    factory: Callable
    build: Callable
    bound: inspect.BoundArguments
    title: str = ""

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
        return f"{self.build.__name__}({', '.join(shown)})"

    @ft.cached_property
    def key(self) -> Any:
        """Equal for equal recipes; `None` if an argument cannot be compared."""
        try:
            return self.build, frozen(self.bound.arguments)
        except TypeError:
            return None

    @ft.cached_property
    def arrays(self) -> dict[str, jax.Array]:
        """The arguments that may change from call to call without a new compilation."""
        arguments = self.bound.arguments
        return {k: x for k, x in arguments.items() if isinstance(x, jax.Array)}

    @ft.cached_property
    def mould(self) -> "Mould | None":
        """The recipe without its arrays, if what is left are constants."""
        rest = {k: x for k, x in self.bound.arguments.items() if k not in self.arrays}
        if not all(map(_is_constant, rest.values())):
            return None
        return Mould(self.build, rest, tuple(self.arrays))

    @property
    def given(self) -> dict[str, Any]:
        """The arguments that are not as by default."""
        parameters = self.bound.signature.parameters
        arguments = self.bound.arguments.items()
        return {k: x for k, x in arguments if not _is_default(x, parameters[k].default)}

    def again(self) -> Callable:
        """A function of nothing that calls the factory again; defaults stay there."""
        call = inspect.BoundArguments(self.bound.signature, OrderedDict(self.given))
        return ft.partial(self.factory, *call.args, **call.kwargs)

    def reduced(self) -> tuple:
        """What `__reduce__` of a thing with this recipe returns."""
        again = self.again()
        return (_titled, (again, self.title)) if self.title else (again, ())


def _titled(again: Callable, title: str) -> Any:
    made = again()
    made.recipe = replace(made.recipe, title=title)
    return made


class Mould:
    """A factory with its constants, equal by value; the arrays are poured in later."""

    def __init__(self, build: Callable, constants: dict[str, Any], names: tuple):
        self.build = build
        self.constants = constants
        self.name = build.__name__
        self.key = build, frozen(constants), names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mould) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def pour(self, arrays: dict[str, jax.Array]) -> Any:
        """What the factory makes a transformation of, for these arrays."""
        return self.build(**self.constants, **arrays).node


def _is_default(x: Any, default: Any) -> bool:
    return x is default or (type(x) is type(default) and bool(np.all(x == default)))


def _plain(x: Any) -> Any:
    """NumPy's numbers as Python's, which take the dtype of the arrays they meet."""
    return x.item() if isinstance(x, np.generic) and x.dtype.kind in "biufc" else x


def in_scope(name: str, update: Callable) -> Callable:
    """`update`, whose work profiles and traces find under a name."""

    @ft.wraps(update)
    def named(*args, **kwargs):
        with jax.named_scope(name):
            return update(*args, **kwargs)

    return named


def _mark_as_training(tx: Any, name: str) -> None:
    for rule in parts(part_of(tx)):
        if isinstance(rule, Rule):
            rule.trains = name


def recipe(
    factory: Callable[P, R], own_ranges: Mapping[str, Range] = {}
) -> Callable[P, R]:
    """Let what `factory` makes be printed, compared, hashed and pickled.

    own_ranges: the ranges of its arguments that are not those of `ranges.RANGES`.
    """
    scalars = ArgumentChecks(factory, own_ranges)
    name, signature = scalars.name, scalars.signature

    @ft.wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = calls.bind(name, signature, args, kwargs)
        checked = scalars.checked(bound.arguments)
        for k, x in checked.items():
            checked[k] = copy_containers(_plain(x))
            bound.arguments[k] = unchecked(checked[k])
        if deprecations.is_replaced(name):
            deprecations.warn(name)
        given = inspect.BoundArguments(signature, OrderedDict(checked))
        tx: Any = factory(*given.args, **given.kwargs)
        if not isinstance(tx, Transformation):
            return tx
        if "learning_rate" in signature.parameters:
            _mark_as_training(tx, name)
        run = tx if tx.node else tx._replace(update=in_scope(name, tx.update))
        made = Made(run, Recipe(make, factory, bound))
        init, update = functions(made)
        named: Any = transformation(
            marked(init, made), marked(update, made), tx.node, inner=tx.inner
        )
        named.passes_on = tx.passes_on
        named.recipe = made.recipe
        if getattr(tx.node, "recipe", named) is None:
            tx.node.recipe = named.recipe  # the innermost factory made the rule
        return named

    made: Any = make
    made.__signature__ = signature  # `inspect.getfullargspec` unwraps nothing
    made.scalars = scalars
    return make
