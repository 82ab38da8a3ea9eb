"""Programs outside of `jit`, compiled once for all values of their hyperparameters.

Inside of `jit` a rule is traced with its hyperparameters as literals.  Outside, where
each leaf is a separate program, that would mean one compilation for each value: a
search over learning rates, or `inject_hyperparams`, which makes an optimizer at each
step, would do little else.  Here the factory is called again inside the trace, with
arguments of the program in place of its numbers and arrays.  Rules for which this is
impossible, such as a rule of a local function, are compiled for each optimizer.
"""

import functools as ft
import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..arrays.lifted import Expression, Given, Lifting, Unmet, evaluate
from ..arrays.numerics import has_dtype
from ..base import ArrayTree
from ..base.call import Call, Hole
from ..base.node import rule_at


# How many kinds of programs are kept for optimizers that are yet to be made, and how
# many of each kind, which differ in the branches they take; each optimizer also keeps
# its own.
KINDS, VARIANTS = 512, 8


class _Uncalled:
    """A placeholder for a function, such as a schedule or a mask, that no leaf calls.

    So programs kept for other optimizers do not hold functions, nor what those hold.
    """

    def __call__(self, *args: object, **kwargs: object) -> Any:
        raise TypeError("a leaf called a function that its factory was given")


_UNCALLED = _Uncalled()
_PACKAGE = __name__.partition(".")[0] + "."
_CONSTANTS = (bool, int, float, complex, str, type(None), np.dtype)


def _is_constant(x: object) -> bool:
    """Whether a cache that outlives the optimizer may keep `x`."""
    if type(x) in (tuple, list):
        return all(map(_is_constant, cast(Sequence, x)))
    if type(x) is dict:
        return all(map(_is_constant, x.values()))
    # A class may hold anything in its attributes; those that name a dtype are safe.
    if isinstance(x, type):
        return has_dtype(x) or x in _CONSTANTS
    # A function may hold something in its closure, its defaults and its module.
    if inspect.isfunction(x):
        holds_none = x.__closure__ is None and x.__defaults__ is None
        return holds_none and (x.__module__ or "").startswith(_PACKAGE)
    return isinstance(x, _CONSTANTS)


def _shared(call: Call) -> tuple[Call, list[float], list[jax.Array]] | None:
    """A call with holes for its numbers and arrays; `None` if no program is shared."""
    # A factory that is itself a closure may differ from call to call.
    if call.checked is None or call.build.__closure__ is not None:
        return None
    parameters = call.checked.signature.parameters
    numbers: list[float] = []
    arrays: list[jax.Array] = []

    def take(name, x):
        if type(x) is float:
            numbers.append(x)
            return Hole(len(numbers) - 1, "number")
        if isinstance(x, jax.Array):
            arrays.append(x)
            return Hole(len(arrays) - 1, "array")
        if x is parameters[name].default or _is_constant(x):
            return x
        return _UNCALLED if callable(x) else Unmet

    opened = replace(call, bound=call.checked, checked=None).opened(take)
    if opened.key is None or any(x is Unmet for x in opened.bound.arguments.values()):
        return None
    return opened, numbers, arrays


class Shared:
    """A function of rules that is jitted inside `jit`, and shares programs outside.

    f: (rules, *args) -> a tree of arrays.
    name: its name in profiles and traces.
    program, run: what runs it outside of `jit`, once that is known.
    """

    def __init__(self, f: Callable, rules: Sequence, name: str):
        self.f, self.name = f, name
        own = ft.partial(f, rules)
        vars(own)["__name__"] = name
        self.jitted = jax.jit(own)
        self.origins = [rule.origin for rule in rules]
        self.program: _Program | None = None
        self.run: Callable = _nothing

    def __call__(self, *args: ArrayTree) -> ArrayTree:
        # Inside a trace only the trace can be shared.
        return self.jitted(*args) if has_tracer(args) else self.given()(*args)

    def given(self, *common: ArrayTree) -> Callable:
        """The function of the rest, for calls that share the first; none is traced."""
        if _jit_is_off(jax.config):
            # `jit` would make arrays of Python scalars.
            return lambda *args: self.jitted(
                *jax.tree.map(jnp.asarray, (*common, *args))
            )
        if not jax.sharding.get_abstract_mesh().empty:
            return ft.partial(self.jitted, *common)

        def call(*args):
            try:
                return self.run(*common, *args)
            except Exception as error:
                # Any other one is raised again, unless lifted numbers caused it.
                is_unmet = isinstance(error, Unmet)
            if not is_unmet:
                self.run = self.jitted
                return self.run(*common, *args)
            self.run = self._fitting(*common, *args)
            return call(*args)

        return call

    def _fitting(self, *args: ArrayTree) -> Callable:
        """What runs with these types, and with those before."""
        calls, values, arrays = [], [], []
        for origin in self.origins:
            found = _shared(origin) if origin else None
            if found is None:
                return self.jitted
            calls.append(found[0])
            values += found[1]
            arrays += found[2]
        if has_tracer(arrays):
            return self.jitted
        # Otherwise numbers would become tracers of the program around this one.
        with jax.ensure_compile_time_eval():
            kinds = tuple(call.key for call in calls), tuple(map(jax.typeof, arrays))
            programs = _programs(self.f, self.name, *kinds)
            fits = (x for x in reversed(programs) if x.needs.allow(values))
            program = next(fits, None)
            if program is None or program is self.program:
                needs = _Needs.traced(self.f, calls, values, arrays, args)
                if needs is None:
                    return self.jitted
                if program is not None:
                    needs = program.needs.merged(needs)
                    if needs == program.needs:
                        return self.jitted
                program = _Program.of(self.f, self.name, calls, needs)
                programs[:] = [*programs[1 - VARIANTS :], program]
            self.program = program
            return program.on(values, arrays)


def _nothing(*args: ArrayTree) -> ArrayTree:
    """What runs before any program is known."""
    raise Unmet


def has_tracer(tree: ArrayTree) -> bool:
    """Whether any leaf is a tracer."""
    # By types, of which there are few.
    for kind in set(map(type, jax.tree.leaves(tree))):
        if issubclass(kind, Tracer):
            return True
    return False


# Bounded: a search over hyperparameters makes calls without end.
@ft.lru_cache(maxsize=KINDS)
def _programs(*kinds: Hashable) -> "list[_Program]":
    """The programs of one kind, which differ in what they need to know of numbers."""
    return []


class _Needs(NamedTuple):
    """What a program needs to know of hyperparameters.

    slots: the numbers that it takes.
    guards: the questions asked about numbers when it was traced, and the answers.
    """

    slots: dict[Expression, None]
    guards: dict[Expression, Any]

    @classmethod
    def traced(
        cls,
        f: Callable,
        calls: Sequence[Call],
        values: Sequence[float],
        arrays: Sequence[jax.Array],
        args: tuple,
    ) -> "_Needs | None":
        """What is needed for the types of `args`; `None` if values cannot differ."""
        lifting = Lifting(values)
        try:
            jax.eval_shape(ft.partial(_applied, f, calls, lifting), arrays, *args)
        # Any error: unless a missing value caused it, the function raises it again when
        # it is called with all values.
        except Exception:
            return None
        return cls(lifting.slots, lifting.guards)

    def allow(self, values: Sequence[float]) -> bool:
        """Whether other values lead to the same branches."""
        pairs = [(evaluate(x, values), y) for x, y in self.guards.items()]
        return all(x == y or (x != x and y != y) for x, y in pairs)  # NaN equals NaN

    def merged(self, other: "_Needs") -> "_Needs":
        """What programs for the types of both need."""
        return _Needs(self.slots | other.slots, self.guards | other.guards)


class _Program(NamedTuple):
    """A jitted function of numbers and arrays, and what it needs to know of numbers."""

    function: Callable
    needs: _Needs

    @classmethod
    def of(
        cls, f: Callable, name: str, calls: Sequence[Call], needs: _Needs
    ) -> "_Program":
        """The program of some calls, whatever the values of their arguments are."""

        def program(numbers, arrays, *args):
            given = {x: numbers[i] for i, x in enumerate(needs.slots)}
            return _applied(f, calls, Given(given, needs.guards), arrays, *args)

        program.__name__ = program.__qualname__ = name
        return cls(jax.jit(program), needs)

    def on(self, values: Sequence[float], arrays: Sequence[jax.Array]) -> Callable:
        """The function of what remains."""
        # In one array, as each argument of a program costs time at every call.  It is
        # weakly typed like the numbers in it, which `jnp.asarray` of a list is not.
        numbers = [jnp.asarray(evaluate(x, values)) for x in self.needs.slots]
        return ft.partial(self.function, numbers and jnp.stack(numbers), arrays)


def _applied(f, calls, lifting, arrays, *args):
    """`f` of the rules that some calls make, and of arguments."""
    rules, first = [], Counter()

    def find(hole):
        at = first[hole.kind] + hole.at
        return arrays[at] if hole.kind == "array" else lifting.number(at)

    for call in calls:
        rules.append(rule_at(call.filled(find, call.build), call.at))
        holes = (x for x in call.bound.arguments.values() if isinstance(x, Hole))
        first.update(hole.kind for hole in holes)
    return f(rules, *args)


# By name, because the type of `jax.config` does not list its attributes.
_jit_is_off = attrgetter("jax_disable_jit")
