"""Records how a transformation was made, so that it can be printed and compared."""

import functools as ft
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from ..arrays.lifted import Lifted
from ..base import GradientTransformation, GradientTransformationExtraArgs
from ..base.call import Call
from ..base.node import (
    Closure,
    Node,
    Transformation,
    transformation,
    with_extra_args_support,
)
from ..functions import calls
from ..functions.calls import CONSTANTS, copy_containers
from ..functions.signatures import name_of
from ..step.plan import adopt, origins_of
from ..step.rule import Rule
from ..trees import errors
from . import made_by
from .argument_checks import ArgumentChecks, unchecked
from .by_path import ByPath, Wraps, made_by_path
from .ranges import Range


P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable)


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


def as_factory(
    factory: Callable[P, Any],
    own_ranges: Mapping[str, Range] = MappingProxyType({}),
    shares: bool = True,
    shared: Mapping[str, str] = MappingProxyType({}),
    is_piece: bool = False,
    static: tuple[str, ...] = (),
) -> Callable[P, Any]:
    """Make a factory of transformations from a function that returns a rule.

    Its results are printed, compared, hashed and pickled as the call.  The function
    may also return a transformation.

    own_ranges: the ranges of its arguments that differ from `ranges.RANGES`.
    shares: whether equal calls make equal rules, so that calls that differ only in
        numbers and arrays may share programs; a function of a user may read anything.
    shared, static: as of `public`.
    is_piece: whether it makes a piece of an optimizer, which is plain unless it reads
        keywords.
    """
    checks = ArgumentChecks(factory, own_ranges, shared, static)
    name, signature = checks.name, checks.signature

    @ft.wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> Any:
        bound = calls.bind(factory, name, signature, args, kwargs)
        given = inspect.BoundArguments(signature, OrderedDict())
        # The call keeps the user's arguments, with copies of mutable containers; the
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
        call = Call(make, factory, bound)
        if mapped:
            again = ft.partial(calls.call_with, make, signature)
            found = made_by_path(mapped, lambda one: again(given.arguments | one))
            return _named(found, call)
        for k, x in given.arguments.items():
            if isinstance(x, Wraps) and type(x) not in checks.hints[k]:
                return _named(x.around(make, given), call)
        made = factory(*given.args, **given.kwargs)
        if not shares:
            made = _of_user(name, made)
        call = replace(call, checked=given if shares else None)
        if isinstance(made, Rule):
            return _of_node(made, call, is_piece)
        return _named(made, call, is_piece) if type(made) is Transformation else made

    # The signature is set, because `inspect.getfullargspec` unwraps nothing.
    shown = signature
    if signature.return_annotation is Rule:  # its callers see no rule
        kind = GradientTransformationExtraArgs
        shown = signature.replace(return_annotation=kind)
    vars(make).update(__signature__=shown, scalars=checks)
    return make


recorded: FactoryDecorator = as_factory


Trait = Literal[
    "calls a function", "clips gradients", "clips norms", "descends",
    "estimates its rate", "freezes", "keeps small steps", "normalizes",
    "orthogonalizes", "stores",
]  # fmt: skip


def traits(*found: Trait) -> Callable[[F], F]:
    """Say what the transformations of a factory do, for `diagnose`.

    "normalizes": their updates have a size of their own, whatever gradients have.
    "descends": they turn gradients into steps, with the sign.
    "stores": they return the rules that they are given, which store slots otherwise.
    "keeps small steps": 16-bit parameters move, even by less than they resolve.
    "estimates its rate": the learning rate is a factor of one that they estimate.
    """

    def enter(factory):
        vars(factory)["traits"] = frozenset(found)
        return factory

    return enter


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


def _of_node(node: Node, call: Call, is_piece: bool = False) -> Transformation:
    """The transformation that runs a rule or a composite."""
    if isinstance(node, Rule):
        origin = next(origins_of(call), None)
        is_plain = is_piece and not node.reads
        node = node.made_by(call.name, origin).changed(is_plain=is_plain)
    return made_by(node, call)


def _named(made: Transformation, call: Call, is_piece: bool = False) -> Transformation:
    """A transformation with the call of the factory that returned it."""
    node = made.node
    if not isinstance(node, Closure):
        return _of_node(node, call, is_piece)
    adopt(node, call)
    parameters = inspect.signature(made.update).parameters.values()
    names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    # A closure that neither reads keywords nor passes them on.
    reads_none = len(names) <= 3 and not node.inner and not node.reads_any
    is_plain = is_piece and reads_none
    return made_by(node.changed(update=made.update, is_plain=is_plain), call)
