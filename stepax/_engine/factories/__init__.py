"""Lets libraries that inspect closures find the arrays of an optimizer, as in Optax.

Optimistix, for example, turns the closure of `update` into a pytree, so that optimizers
that differ in an array share one trace, and calls the function with other arrays in its
closure.  So our closures hold a tuple of all arrays that the optimizer was made with,
at any depth, and `Alike`, which is equal for optimizers that differ only in these.
Called with that same tuple, they run the optimizer; with another one, the optimizer is
recreated from the arrays in it.  An array that is a learning rate is stored with its
sign flipped, as in Optax: users look for the factor of the updates.
"""

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import jax

from ..arrays.placement import init_on_mesh
from ..base import ArrayTree, GradientTransformation, ScalarOrSchedule, Schedule
from ..base.call import Call, Hole, call_of, within
from ..base.node import Closure, Foreign, Node, Transformation, init_of
from ..functions.calls import CONSTANTS
from ..step.plan import Plan
from ..trees import errors


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
    """A node, equal to those of calls that differ in arrays alone.

    opened: the call, with holes for the arrays, which are in `shown`.
    """

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

    # What Python calls them in errors, such as that for a missing state, and where the
    # pair is printed as a tuple, as by `nnx.Optimizer`.  Arrays take long to print.
    said = "<" if shown else repr(call)
    said = f"{name}(...)" if "<" in said or len(said) > 120 else said
    init.__qualname__, update.__qualname__ = f"{said}.init", f"{said}.update"
    # The keywords that a closure reads are only known from its signature.
    if closure:
        vars(update)["__signature__"] = inspect.signature(own.node.update)
    # Leads back from either function to the factory.
    vars(init)["node"] = vars(update)["node"] = own.node
    return init, update
