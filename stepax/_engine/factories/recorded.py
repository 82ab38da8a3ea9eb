"""Records how a transformation was made, so that it can be printed and compared.

And lets libraries that inspect closures find the arrays of an optimizer, as in Optax.
Optimistix, for example, turns the closure of `update` into a pytree, so that optimizers
that differ in an array share one trace, and calls the function with other arrays in its
closure.  So our closures hold a tuple of all arrays that the optimizer was made with,
at any depth, and `Alike`, which is equal for optimizers that differ only in these.
Called with that same tuple, they run the optimizer; with another one, the optimizer is
recreated from the arrays in it.  An array that is a learning rate is stored with its
sign flipped, as in Optax: users look for the factor of the updates.
"""

import functools as ft
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FunctionType, MappingProxyType
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from ..arrays.lifted import Lifted
from ..arrays.placement import init_on_mesh
from ..base import (
    ArrayTree,
    GradientTransformation,
    GradientTransformationExtraArgs,
    ScalarOrSchedule,
    Schedule,
)
from ..base.call import Call, Hole, call_of, within
from ..base.node import (
    Closure,
    Foreign,
    Node,
    Transformation,
    init_of,
    name_functions,
    transformation,
    with_extra_args_support,
)
from ..functions import calls, deprecated
from ..functions.calls import CONSTANTS, copy_containers
from ..functions.signatures import name_of
from ..step.plan import Plan, adopt, origins_of
from ..step.rule import Rule
from ..trees import errors
from .argument_checks import ArgumentChecks, unchecked
from .by_path import ByPath, Wraps, made_by_path
from .ranges import Range


def _opened(call: Call, found: list) -> Call:
    """A call with holes for what others may replace, which is appended to `found`."""
    parameters = call.bound.signature.parameters

    def take(name, x):
        if type(x) in CONSTANTS:
            return x
        is_rate = name == "learning_rate"
        return _take(x, found, parameters[name].annotation, is_rate)

    return call.opened(take)


def _take(
    x: ArrayTree, found: list, kind: object = None, is_rate: bool = False
) -> ArrayTree:
    # A transformation of ours is opened, so that its arrays are found, too.
    if (call := call_of(x)) is not None:
        return _opened(call, found)
    kinds = jax.Array | GradientTransformation
    # A schedule may close over arrays, which the other library finds by itself.
    if kind in (Schedule, ScalarOrSchedule):
        kinds |= FunctionType
    if isinstance(x, kinds):
        is_negated = is_rate and isinstance(x, jax.Array)
        found.append(-x if is_negated else x)
        return Hole(len(found) - 1, "negated" if is_negated else "")
    return within(lambda y: _take(y, found), x)


class Alike:
    """A node, equal to those of calls that differ in the arrays `shown` alone."""

    def __init__(self, node: Node, call: Call):
        found: list = []
        self.opened = _opened(call, found)
        self.shown, self.node = tuple(found), cast(Any, node)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike) and self.opened == other.opened

    # Arguments may not be hashable, and few calls of one factory are compared.
    def __hash__(self) -> int:
        return hash(self.opened.factory)

    def again(self, shown: tuple) -> Any:
        """What the factory makes of other arrays."""

        def find(hole):
            return -shown[hole.at] if hole.kind == "negated" else shown[hole.at]

        return self.opened.filled(find, self.opened.factory)


def made_by(node: Node, call: Call) -> Transformation:
    """The transformation that runs a node, made by a call."""
    node = node.changed(call=call)
    if not isinstance(node, Closure):
        vars(node)["plan"] = Plan(node)
    return Transformation.of(*_functions(Alike(node, call), call), node)


def _functions(own: Alike, call: Call) -> tuple[Callable, Callable]:
    """`init` and `update`, with closures for others to inspect."""
    # A separate cell in both closures, which other libraries replace.  None has the
    # arguments: they would look into these, and a factory in them refers to itself.
    shown, closure = own.shown, isinstance(own.node, Closure)
    name = call.name

    def init(params):
        node = own.node
        is_ours = closure or not any(isinstance(x, Foreign) for x in node.parts())
        has_arrays = not is_ours or errors.holds_arrays(name, params)
        is_same = shown is own.shown
        bare = node.init if is_same else init_of(own.again(shown))
        with errors.named(name, made=node):
            state = init_on_mesh(bare, params)
        if not has_arrays:
            errors.require_no_slots(name, params, state)
        return state

    def update(updates, state, params=None, **extra_args):
        if shown is not own.shown:
            again = own.again(shown)
            return again.update(updates, state, params, **extra_args)
        with errors.named(name, made=own.node):
            if not closure:
                return own.node.plan(updates, state, params, extra_args)
            with jax.named_scope(name):  # for profiles, as a plan does for each rule
                return own.node.update(updates, state, params, **extra_args)

    # Arrays take long to print, and a program for which a number is printed serves this
    # number alone.
    is_lifted = any(isinstance(x, Lifted) for x in call.bound.arguments.values())
    name_functions(init, update, name, "<" if shown or is_lifted else repr(call))
    # The keywords that a closure reads are only known from its signature.
    if closure:
        vars(update)["__signature__"] = inspect.signature(own.node.update)
    # Leads back from either function to the factory.
    vars(init)["node"] = vars(update)["node"] = own.node
    return init, update


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
    """Decorates functions that return a rule, a transformation, or its functions."""

    # Not overloaded by what they return: without Optax its classes, which ours derive
    # from, are `Any` for a type checker, and so would the result be.
    def __call__(
        self, factory: Callable[P, Any], /
    ) -> Callable[P, GradientTransformationExtraArgs]: ...


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
        if deprecated.is_replaced(name):
            deprecated.warn_deprecated(name)
        mapped = {k: x for k, x in given.arguments.items() if isinstance(x, ByPath)}
        call = Call(make, factory, bound)
        if mapped:
            again = ft.partial(calls.call_with, make, signature)
            found = made_by_path(mapped, lambda one: again(given.arguments | one))
            return _named(found, call)
        for k, x in given.arguments.items():
            if isinstance(x, Wraps) and type(x) not in checks.hints[k]:
                return _named(x.around(make, given), call)
        with errors.named(name, f=factory, given=given.arguments):
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
