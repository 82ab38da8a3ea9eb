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
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..arrays.lifted import Expression, Lifting, evaluate
from ..arrays.numerics import has_dtype
from ..base import ArrayTree
from ..functions.calls import call_with, frozen


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


class Call(NamedTuple):
    """The call of a factory, without the arguments that may differ in shared programs.

    find: a function from the result of the factory to the rule.
    numbers, arrays: the names of the arguments that differ.
    key: equal for equal calls.
    """

    build: Callable
    find: Callable[[Any], Any]
    signature: inspect.Signature
    fixed: Mapping[str, Any]
    numbers: tuple[str, ...]
    arrays: tuple[str, ...]
    key: Hashable

    def rule(self, numbers: Sequence, arrays: Sequence) -> Any:
        """What the factory makes of other numbers and arrays."""
        varied = zip((*self.numbers, *self.arrays), (*numbers, *arrays), strict=True)
        given = {**self.fixed, **dict(varied)}
        given = {k: given[k] for k in self.signature.parameters}
        return self.find(call_with(self.build, self.signature, given))


def _itself(made: Any, at: Hashable) -> Any:
    return made


@dataclass(frozen=True, eq=False)
class Origin:
    """The call of a factory that made a rule.

    bound: its arguments, checked.
    find: (made, at) -> the rule in the result.
    at: the index of the rule; for a rule of a label, the index and the label.
    """

    build: Callable
    bound: inspect.BoundArguments
    find: Callable[[Any, Any], Any] = _itself
    at: Hashable = 0

    @ft.cached_property
    def call(self) -> Call | None:
        """The call with which programs are shared; `None` if they cannot be."""
        numbers, arrays, fixed = {}, {}, {}
        parameters = self.bound.signature.parameters
        for name, x in self.bound.arguments.items():
            if type(x) is float:
                numbers[name] = x
            elif isinstance(x, jax.Array):
                arrays[name] = x
            elif x is parameters[name].default or _is_constant(x):
                fixed[name] = x
            elif callable(x):
                fixed[name] = _UNCALLED
            else:
                return None
        # A factory that is itself a closure may differ from call to call.
        if self.build.__closure__ is not None:
            return None
        names = (*numbers,), (*arrays,)
        key = self.build, self.at, frozen(fixed), *names
        # Not of `self`, whose arguments may be arrays and functions: a call is kept.
        find, at = self.find, self.at
        return Call(
            self.build,
            lambda made: find(made, at),
            self.bound.signature,
            fixed,
            *names,
            key,
        )

    def given(self, names: Sequence[str]) -> list:
        """Some of its arguments."""
        return [self.bound.arguments[name] for name in names]


class Shared:
    """A function of rules that is jitted inside `jit`, and shares programs outside.

    f: (rules, *args) -> a tree of arrays.
    name: its name in profiles and traces.
    """

    def __init__(self, f: Callable, rules: Sequence, name: str):
        self.f, self.name = f, name
        own = ft.partial(f, rules)
        vars(own)["__name__"] = name
        self.jitted = jax.jit(own)
        self.origins = [rule.origin for rule in rules]
        self.runs: dict[Hashable, Callable] = {}

    def __call__(self, *args: ArrayTree) -> ArrayTree:
        leaves, treedef = jax.tree.flatten(args)
        if _jit_is_off(jax.config):
            # `jit` would make arrays of Python scalars.
            return self.jitted(*jax.tree.map(jnp.asarray, args))
        kinds = set(map(type, leaves))
        if any(issubclass(kind, Tracer) for kind in kinds):
            return self.jitted(*args)
        # JAX has a cache of traces, but looking it up takes longer than running the
        # program.
        key = treedef, _types(leaves), _settings(jax.config)
        if key not in self.runs:
            self.runs[key] = self._run(key, args)
        return self.runs[key](*args)

    def _run(self, key: Hashable, args: tuple) -> Callable:
        """The program for some types, with its numbers and arrays."""
        calls, values, arrays = [], [], []
        for origin in self.origins:
            call = origin.call if origin else None
            if origin is None or call is None:
                return self.jitted
            calls.append(call)
            values += origin.given(call.numbers)
            arrays += origin.given(call.arrays)
        is_traced = any(isinstance(x, Tracer) for x in arrays)
        if is_traced or not jax.sharding.get_abstract_mesh().empty:
            return self.jitted
        # Otherwise numbers would become tracers of the program around this one.
        with jax.ensure_compile_time_eval():
            kinds = tuple(call.key for call in calls), _types(arrays), key
            variants = _variants(self.f, self.name, *kinds)
            for program in variants:
                if program.serves(values):
                    return program.on(values, arrays)
            made = _Program.traced(self.f, self.name, calls, values, arrays, args)
            if made is None:
                return self.jitted
            variants[:] = [*variants[1 - VARIANTS :], made]
            return made.on(values, arrays)


# Bounded: a search over hyperparameters makes calls without end.
@ft.lru_cache(maxsize=KINDS)
def _variants(*kinds: Hashable) -> "list[_Program]":
    """The programs of one kind, which differ in the branches that they take."""
    return []


@dataclass(frozen=True)
class _Program:
    """A jitted function of numbers and arrays.

    slots: the numbers that it takes.
    guards: the questions asked about numbers when it was traced, and the answers.
    """

    function: Callable
    slots: tuple[Expression, ...]
    guards: tuple[tuple[Expression, Any], ...]

    @classmethod
    def traced(
        cls,
        f: Callable,
        name: str,
        calls: Sequence[Call],
        values: Sequence[float],
        arrays: Sequence[jax.Array],
        args: tuple,
    ) -> "_Program | None":
        """The program for some arguments; `None` if it cannot serve others."""
        found = Lifting(values)
        try:
            jax.eval_shape(ft.partial(_applied, f, calls, found), arrays, *args)
        # Any error: unless a missing value caused it, the function raises it again when
        # it is called with all values.
        except Exception:
            return None

        def program(numbers, arrays, *args):
            given = {x: numbers[i] for i, x in enumerate(found.slots)}
            return _applied(f, calls, Lifting(values, given), arrays, *args)

        program.__name__ = program.__qualname__ = name
        return cls(jax.jit(program), tuple(found.slots), tuple(found.guards))

    def serves(self, values: Sequence[float]) -> bool:
        """Whether other values lead to the same branches."""
        pairs = [(evaluate(x, values), y) for x, y in self.guards]
        return all(x == y or (x != x and y != y) for x, y in pairs)  # NaN equals NaN

    def on(self, values: Sequence[float], arrays: Sequence[jax.Array]) -> Callable:
        """The function of what remains."""
        # In one array, as each argument of a program costs time at every call.  It is
        # weakly typed like the numbers in it, which `jnp.asarray` of a list is not.
        numbers = [jnp.asarray(evaluate(x, values)) for x in self.slots]
        return ft.partial(self.function, numbers and jnp.stack(numbers), arrays)


def _applied(f, calls, lifting, arrays, *args):
    """`f` of the rules that some calls make, and of arguments."""
    arrays, rules, at = iter(arrays), [], 0
    for call in calls:
        numbers = [lifting.number(at + i) for i in range(len(call.numbers))]
        rules.append(call.rule(numbers, [next(arrays) for _ in call.arrays]))
        at += len(numbers)
    return f(rules, *args)


_TYPE = attrgetter("aval")


def _types(leaves: list) -> tuple:
    """The types of arrays; `aval` is quicker, which scalars of Python do not have."""
    try:
        return tuple(map(_TYPE, leaves))
    except AttributeError:
        return tuple(map(jax.typeof, leaves))


# The configuration that a trace depends on, besides the types of its inputs.  By name,
# because the type of `jax.config` does not list its attributes.
_settings = attrgetter(
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_rank_promotion",
    "jax_debug_nans",
)
_jit_is_off = attrgetter("jax_disable_jit")
