"""Lets libraries that inspect closures find the arrays of an optimizer, as in Optax.

Optimistix, for example, turns the closure of `update` into a pytree, so that optimizers
that differ in an array share one trace, and calls the function with other arrays in its
closure.  So our closures hold a tuple of all arrays that the optimizer was made with,
at any depth, and `Made`, which is equal for optimizers that differ only in these.
Called with that same tuple, they run the optimizer; with another one, the optimizer is
recreated from the arrays in it.  An array that is a learning rate is stored with its
sign flipped, as in Optax: users look for the factor of the updates.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING

import jax

from ..arrays.placement import init_on_mesh
from ..base import (
    ArrayTree,
    GradientTransformation,
    ScalarOrSchedule,
    Schedule,
    init_of,
    recipe_of,
)
from ..functions.calls import CONSTANTS, call_with, frozen
from ..step.nest import is_ours
from ..step.plan import Plan
from ..trees import errors


if TYPE_CHECKING:
    from .recipe import Recipe


@dataclass(frozen=True)
class _Hole:
    """A placeholder for an argument that other libraries may replace."""

    at: int
    is_negated: bool = False


class _Call:
    """A call of a factory, with holes in its arguments."""

    def __init__(self, recipe: "Recipe", found: list):
        self.factory, self.signature = recipe.factory, recipe.bound.signature
        parameters = self.signature.parameters
        self.arguments = dict(recipe.bound.arguments)
        for k, x in self.arguments.items():
            if type(x) not in CONSTANTS:
                is_rate = k == "learning_rate"
                self.arguments[k] = _take(x, found, parameters[k].annotation, is_rate)

    def again(self, values: tuple) -> ArrayTree:
        filled = {k: _fill(x, values) for k, x in self.arguments.items()}
        return call_with(self.factory, self.signature, filled)

    def key(self) -> object:
        return self.factory, frozen(self.arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Call) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())


def _take(
    x: ArrayTree, found: list, kind: object = None, is_rate: bool = False
) -> ArrayTree:
    """`x` with holes; the arrays that they replace are appended to `found`."""
    # A transformation of ours is opened, so that its arrays are found, too.
    if (recipe := recipe_of(x)) is not None:
        return _Call(recipe, found)
    kinds = jax.Array | GradientTransformation
    # A schedule may close over arrays, which the other library finds by itself.
    if kind in (Schedule, ScalarOrSchedule):
        kinds |= FunctionType
    if isinstance(x, kinds):
        is_negated = is_rate and isinstance(x, jax.Array)
        found.append(-x if is_negated else x)
        return _Hole(len(found) - 1, is_negated)
    return _within(lambda y: _take(y, found), x)


def _fill(x: ArrayTree, values: tuple) -> ArrayTree:
    if isinstance(x, _Hole):
        return -values[x.at] if x.is_negated else values[x.at]
    if isinstance(x, _Call):
        return x.again(values)
    return _within(lambda y: _fill(y, values), x)


def _within(f: Callable, x: ArrayTree) -> ArrayTree:
    """`f` of each entry of a plain container; anything else unchanged."""
    if type(x) is dict:
        return {k: f(v) for k, v in x.items()}
    if type(x) is tuple:
        return tuple(map(f, x))
    return list(map(f, x)) if type(x) is list else x


class Made:
    """The result of a factory, and its call, without the arrays in `shown`.

    init: `init`, without placement on a mesh.
    update: `update`, or the plan of a rule or composite.
    """

    def __init__(self, init: Callable, update: Callable, recipe: "Recipe"):
        found: list = []
        self.call = _Call(recipe, found)
        self.shown = tuple(found)
        self.init, self.update, self.recipe = init, update, recipe

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Made):
            return self is other
        try:
            return self.call == other.call
        except TypeError:  # an argument cannot be compared
            return False

    # Arguments may not be hashable, and few calls of one factory are compared.
    def __hash__(self) -> int:
        return hash(self.call.factory)


def functions(made: Made, is_plan: bool) -> tuple[Callable, Callable]:
    """`init` and `update` of the result, with closures for others to inspect."""
    # A separate cell in both closures, which other libraries replace.  None has the
    # arguments: they would look into these, and a factory in them refers to itself.
    shown, name = made.shown, made.recipe.build.__name__

    def init(params):
        if not isinstance(made.update, Plan) or is_ours(made.update.node):
            errors.require_arrays(name, params)
        is_same = shown is made.shown
        bare = made.init if is_same else init_of(made.call.again(shown))
        with errors.named(name, made=made):
            return init_on_mesh(bare, params)

    def update(updates, state, params=None, **extra_args):
        if shown is not made.shown:
            again = made.call.again(shown)
            return again.update(updates, state, params, **extra_args)
        with errors.named(name, made=made):
            if is_plan:
                return made.update(updates, state, params, extra_args)
            with jax.named_scope(name):  # for profiles, as a plan does for each rule
                return made.update(updates, state, params, **extra_args)

    # What Python calls them in errors, such as that for a missing state.
    init.__qualname__, update.__qualname__ = f"{name}.init", f"{name}.update"
    # The keywords that a closure reads are only known from its signature.
    if not is_plan:
        vars(update)["__signature__"] = inspect.signature(made.update)
    # Leads back from either function to the factory.
    vars(init)["made"] = vars(update)["made"] = made
    return init, update
