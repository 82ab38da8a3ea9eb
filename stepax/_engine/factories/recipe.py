"""Records how a transformation was made, so that it can be printed and compared."""

import functools as ft
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from ..arrays.lifted import Lifted
from ..base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    Record,
    Transformation,
    titled,
    transformation,
    with_extra_args_support,
)
from ..functions import calls
from ..functions.calls import CONSTANTS, copy_containers, frozen
from ..functions.signatures import name_of
from ..step.nest import Composite
from ..step.plan import Plan, adopt, origins_of
from ..step.rule import Rule
from ..trees import errors
from ..xla.programs import Origin
from . import Made, functions
from .argument_checks import ArgumentChecks, unchecked
from .by_path import ByPath, Wraps, made_by_path
from .ranges import Range


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Recipe:
    """A factory and the arguments of its call.

    factory: the public function, under whose name a recipe is pickled.
    build: the function it decorates.
    bound: all its arguments, defaults included.
    title: the text to print, if it is not a call of `factory`.
    origin: used to recreate rules with other arguments; `None` if that is impossible.
    """

    factory: Callable
    build: Callable
    bound: inspect.BoundArguments
    title: str = ""
    origin: Origin | None = None

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
    def key(self) -> object:
        """Equal for equal recipes; `None` if an argument cannot be compared."""
        try:
            return self.build, frozen(self.bound.arguments)
        except TypeError:
            return None

    @property
    def trains(self) -> str:
        """The name of an optimizer, which raises for integers; "" for other parts."""
        is_optimizer = "learning_rate" in self.bound.signature.parameters
        return self.build.__name__ if is_optimizer else ""

    @property
    def shared(self) -> Mapping[str, str]:
        """The `shared` arguments that its factory declares; see `public`."""
        checks = vars(self.factory).get("scalars")
        return checks.shared if checks else {}

    @property
    def given(self) -> dict[str, Any]:
        """The arguments that differ from their defaults."""
        parameters = self.bound.signature.parameters
        arguments = self.bound.arguments.items()
        return {k: x for k, x in arguments if not _is_default(x, parameters[k].default)}

    def titled(self, title: str) -> "Recipe":
        return replace(self, title=title)

    def again(self) -> Callable:
        """A function without arguments that calls the factory again."""
        # Defaults are omitted, so that a pickle does not depend on them.
        make = ft.partial(ft.partial, self.factory)
        return calls.call_with(make, self.bound.signature, self.given)

    def reduced(self) -> tuple:
        """The result of `__reduce__` for an object with this recipe."""
        again = self.again()
        return (_titled, (again, self.title)) if self.title else (again, ())


def known_by_call(cls: type[T]) -> type[T]:
    """Let objects with a `recipe` be printed, compared and pickled as that call."""
    # Not a base class, which `help` would show.
    made: Any = cls

    def is_same(self, other):
        if self is other or not isinstance(other, made):
            return self is other
        return self.recipe.key is not None and self.recipe.key == other.recipe.key

    methods = {
        "__repr__": lambda self: repr(self.recipe),
        "__eq__": is_same,
        "__hash__": lambda self: hash(self.recipe.key or id(self)),
        "__reduce__": lambda self: self.recipe.reduced(),
    }
    for name, method in methods.items():
        setattr(cls, name, method)
    return cls


def _titled(again: Callable, title: str) -> Any:
    return titled(again(), title)


def _is_default(x: object, default: object) -> bool:
    # Types are compared, because 1 == 1.0 == True; `all`, because of arrays.
    return x is default or (type(x) is type(default) and bool(np.all(x == default)))


def _plain(x: Any) -> Any:
    """A NumPy scalar as Python's, which adopts the dtype of the arrays it meets."""
    if isinstance(x, Wraps):
        return x.with_amount(_plain(x.amount))
    if not isinstance(x, np.generic):
        return x
    # `np.float64(0.9)` would otherwise widen float32 gradients under 64-bit mode.  The
    # `kind` of bfloat16 is that of any structured dtype.
    is_number = x.dtype.kind in "biufc" or jnp.issubdtype(x.dtype, jnp.floating)
    return x.item() if is_number else x


def _widened(x: Any) -> Any:
    """A hyperparameter, in float32 if it is in half precision."""
    if isinstance(x, Wraps):
        return x.with_amount(_widened(x.amount))
    # Rules compute in float32: in bfloat16, 1 - b1 would be rounded to three digits.
    if isinstance(x, jax.Array) and x.dtype in (jnp.bfloat16, jnp.float16):
        return x.astype(jnp.float32)
    return x


class FactoryDecorator(Protocol):
    """A decorator; a function that returns a rule becomes a factory."""

    @overload
    def __call__(
        self, factory: Callable[P, Rule], /
    ) -> Callable[P, GradientTransformationExtraArgs]: ...

    @overload
    def __call__(self, factory: Callable[P, R], /) -> Callable[P, R]: ...


def recorded(
    factory: Callable[P, Any],
    own_ranges: Mapping[str, Range] = MappingProxyType({}),
    shares: bool = True,
    shared: Mapping[str, str] = MappingProxyType({}),
    is_piece: bool = False,
) -> Callable[P, Any]:
    """Make a factory of transformations from a function that returns a rule.

    Its results are printed, compared, hashed and pickled as the call.  The function
    may also return a transformation.

    own_ranges: the ranges of its arguments that differ from `ranges.RANGES`.
    shares: whether equal calls make equal rules, so that calls that differ only in
        numbers and arrays may share programs; a function of a user may read anything.
    shared: as of `public`.
    is_piece: whether it makes a piece of an optimizer, which is plain unless it reads
        keywords.
    """
    checks = ArgumentChecks(factory, own_ranges, shared)
    name, signature = checks.name, checks.signature

    @ft.wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> Any:
        bound = calls.bind(factory, name, signature, args, kwargs)
        given = inspect.BoundArguments(signature, OrderedDict())
        # The recipe keeps the user's arguments, with copies of mutable containers; the
        # factory gets checked schedules and wider hyperparameters.
        for k, x in checks.checked(bound.arguments).items():
            if type(x) in CONSTANTS or isinstance(x, Lifted):
                given.arguments[k] = bound.arguments[k] = x
                continue
            if isinstance(x, ByPath):
                x = x.map(_plain)
                given.arguments[k], bound.arguments[k] = x.map(_widened), unchecked(x)
                continue
            x = copy_containers(_plain(x))
            given.arguments[k], bound.arguments[k] = _widened(x), unchecked(x)
        if calls.is_replaced(name):
            calls.warn_deprecated(name)
        mapped = {k: x for k, x in given.arguments.items() if isinstance(x, ByPath)}
        if mapped:
            again = ft.partial(calls.call_with, make, signature)
            made = made_by_path(mapped, lambda one: again(given.arguments | one))
            return _renamed(made, Recipe(make, factory, bound))
        for k, x in given.arguments.items():
            if isinstance(x, Wraps) and type(x) not in checks.hints[k]:
                made = x.around(make, given)
                return _renamed(made, Recipe(make, factory, bound))
        made = factory(*given.args, **given.kwargs)
        if not shares:
            made = _of_user(name, made)
        origin = Origin(factory, given) if shares else None
        recipe = Recipe(make, factory, bound, origin=origin)
        if isinstance(made, Rule):
            return _of_node(made, made.init, recipe, is_piece)
        is_ours = isinstance(made, Transformation)
        return _renamed(made, recipe, is_piece) if is_ours else made

    # The signature is set, because `inspect.getfullargspec` unwraps nothing.
    shown = signature
    if signature.return_annotation is Rule:  # its callers see no rule
        kind = GradientTransformationExtraArgs
        shown = signature.replace(return_annotation=kind)
    vars(make).update(__signature__=shown, scalars=checks)
    return make


recipe: FactoryDecorator = recorded


def _of_user(name: str, made: Any) -> Any:
    """What a user's factory returned, a rule or a transformation, as one of ours."""
    if isinstance(made, GradientTransformation):
        tx: Any = with_extra_args_support(made)
        is_ours = isinstance(tx, Transformation)
        return tx if is_ours else transformation(tx.init, tx.update)
    if isinstance(made, Rule) or calls.is_transformation(made):
        return made
    hint = "; is its `return` missing?" if made is None else ""
    if callable(made):
        hint = f"; write `return Rule({name_of(made, 'leaf')})`"
    raise TypeError(
        f"`{name}` returned {errors.describe(made)}, expected a `Rule` or a "
        f"transformation{hint}"
    )


def _of_node(
    node: Rule | Composite, init: Callable, recipe: Recipe, is_piece: bool = False
) -> Transformation:
    """The transformation that runs a rule or a composite."""
    if isinstance(node, Rule):
        origin = next(origins_of(recipe), None)
        node = node.made_by(recipe.build.__name__, origin)
    plan = Plan(node, recipe)
    is_plain = is_piece and isinstance(node, Rule) and not node.reads
    record = Record(init, node, plan, recipe=recipe, is_plain=is_plain)
    return Transformation.of(*functions(Made(init, plan, recipe), True), record)


def _renamed(
    made: Transformation, recipe: Recipe, is_piece: bool = False
) -> Transformation:
    """A transformation with the recipe of the factory that returned it."""
    record = replace(made.record, recipe=recipe)
    if made.node is not None:
        # Its `init` may not be that of its node: `with_state_dtypes` replaces it.
        return _of_node(made.node, record.init, recipe, is_piece)
    adopt(made, recipe)
    parameters = inspect.signature(made.update).parameters.values()
    names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    # A closure that neither reads keywords nor passes them on.
    reads_none = len(names) <= 3 and not record.inner and not record.reads_any
    record = replace(record, is_plain=is_piece and reads_none)
    closure = Made(record.init, made.update, recipe)
    return Transformation.of(*functions(closure, is_plan=False), record)
