"""Checks of the hyperparameters that a factory is called with.

A hyperparameter is one finite real number.  It is checked when a factory is called, and
the value of a schedule at each step: an array would broadcast silently, and a boolean
or a string is a mistake.  The annotation of a parameter says what it takes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from types import MappingProxyType
from typing import Any, NoReturn, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from ..arrays.lifted import Lifted
from ..base import holds_array
from ..base.node import Transformation
from ..functions.calls import (
    OF_INIT,
    holds_parameters,
    refuse_operators,
    refuse_uncalled,
)
from ..functions.signatures import Hint, of_parameters, signature
from .by_path import ByPath, Wraps, amount_of, with_amount
from .ranges import ANY, RANGES, Kind, Range, kind_of
from .takes import BY_PATH as BY_PATH, Takes, takes_none_unsaid, takes_of


T = TypeVar("T")

# Whole numbers that a step compares with its count, so that they may be traced.
_COUNTS = frozenset(
    """
    accumulation_size cooldown every first_step growth_interval max_backtracking_steps
    max_consecutive max_consecutive_errors max_linesearch_steps patience start
    sync_period warmup warmup_steps
    """.split()
)


class ArgumentChecks:
    """The hyperparameters among the arguments of a factory.

    name: the name of the factory.
    own: the ranges that differ from `RANGES`.
    shared: see `public`.
    """

    def __init__(
        self,
        factory: Callable,
        own: Mapping[str, Range],
        shared: Mapping[str, str] = MappingProxyType({}),
        static: tuple[str, ...] = (),
    ):
        self.shared, self.static = shared, static
        self.name = factory.__name__
        self.factory = factory
        self.hidden = ("learning_rate",) if takes_none_unsaid(factory) else ()
        self.signature = signature(factory)
        self.own = own

    @cached_property
    def hints(self) -> dict[str, Hint]:
        return of_parameters(self.factory)

    @cached_property
    def takes(self) -> dict[str, Takes]:
        parameters = self.signature.parameters
        found = {
            k: takes_of(p, self.hints[k], k in self.hidden)
            for k, p in parameters.items()
        }
        return {k: t for k, t in found.items() if t is not None}

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """What each of the other arguments must be, where that is known."""
        parameters = self.signature.parameters
        found = {k: kind_of(p, self.hints[k]) for k, p in parameters.items()}
        return {k: x for k, x in found.items() if x and k not in self.takes}

    def checked(
        self, arguments: Mapping[str, Any], may_inject: bool = False
    ) -> dict[str, Any]:
        """The arguments, with checked schedules; for any scalar if `may_inject`."""
        given = dict(arguments)
        self.check_kinds(given)
        for key, takes in self.takes.items():
            if key not in given:
                continue
            takes = replace(takes, schedule=True) if may_inject else takes
            try:
                given[key] = self._number(key, given[key], takes)
            except (TypeError, ValueError) as error:
                if OF_INIT in f"{error}" or not holds_parameters(given[key]):
                    raise
                raise type(error)(f"{error}; {OF_INIT}") from None
        for key, x in given.items():
            if not isinstance(x, jax.Array) or not self._decides_shapes(key):
                continue
            if isinstance(x, Tracer):
                raise TypeError(
                    f"`{self.name}`: `{key}` is traced, but must be known before the "
                    "program runs: pass a Python integer, in `jit` by `static_argnums`"
                )
            if key in self.takes:
                given[key] = x.item()
        return given

    def _number(self, key: str, x: Any, takes: Takes) -> Any:
        subject = f"`{self.name}`: `{key}`"
        allowed = self.own.get(key) or RANGES.get(key, ANY)
        if isinstance(x, Wraps):
            return self._wrapping(subject, key, x, takes, allowed)
        if takes.by_path and isinstance(x, Mapping):
            if why := self.shared.get(key):
                raise TypeError(
                    f"{subject} must be one number or schedule, but is {_shown(x)}: "
                    f"{why}; use `partition` with an optimizer for each group of "
                    "parameters"
                )
            return _by_path(subject, key, x, takes, allowed)
        if takes.by_name and isinstance(x, Mapping):
            return x
        return _argument(subject, x, takes, allowed)

    def check_kinds(self, given: Mapping[str, Any]) -> None:
        """Raise a `TypeError` for an argument that is something else than `kinds`."""
        for key in self.kinds.keys() & given.keys():
            x, kind = given[key], self.kinds[key]
            if x is not self.signature.parameters[key].default and not kind.accepts(x):
                raise TypeError(
                    f"`{self.name}`: `{key}` must be {kind.wanted}, but is "
                    f"{_shown(x)}{_hint(x)}"
                )

    def _decides_shapes(self, key: str) -> bool:
        """Whether an argument is a whole number that may decide shapes or branches."""
        hint = self.hints[key]
        is_count = key in _COUNTS and key not in self.static
        return int in hint and not is_count and not {float, jax.Array} & {*hint}

    def _wrapping(
        self, subject: str, key: str, x: Wraps, takes: Takes, allowed: Range
    ) -> Wraps | ByPath:
        if key != "weight_decay" or not takes.by_path:
            raise TypeError(f"{subject} must be {takes}, but is {x}")
        if isinstance(x.amount, Mapping):
            return _by_path(subject, key, x.amount, takes, allowed).map(x.with_amount)
        takes = replace(takes, by_path=False, none=False)
        return x.with_amount(_argument(subject, x.amount, takes, allowed))


def _by_path(
    subject: str, key: str, x: Mapping, takes: Takes, allowed: Range
) -> ByPath:
    takes = replace(takes, by_path=False, none=False)
    if not x:
        raise ValueError(
            f"{subject} is an empty mapping: name the parameters, as in "
            '`{"bias": 0.1, "**": 0.01}`'
        )
    values = {}
    for pattern, value in x.items():
        if not isinstance(pattern, str):
            raise TypeError(
                f"{subject} is a mapping, whose keys must be path patterns such as "
                f'"encoder/**", but one is {_shown(pattern)}'
            )
        one = f"{entry(subject[:-1], pattern)}`"
        if isinstance(value, Mapping):
            raise TypeError(
                f"{one} must be {takes}, but is {_shown(value)}; write paths out, as "
                f'in "{pattern}/{next(iter(value), "*")}"; {OF_INIT}'
            )
        amount = _argument(one, amount_of(value), takes, allowed)
        values[pattern] = with_amount(value, amount)
    return ByPath(subject, values, BY_PATH[key])


def entry(name: str, pattern: str) -> str:
    """The name of one value of a hyperparameter by path."""
    return f"{name}[{pattern!r}]"


def _argument(subject: str, x: object, takes: Takes, allowed: Range) -> object:
    # A schedule that is already checked comes from a factory that called this one.
    if x is None and takes.none or isinstance(x, CheckedSchedule):
        return x
    # As in Optax, a schedule that is missing is an error where it is called.
    if x is None and takes.schedule and not takes.number:
        return CheckedSchedule(x, subject)
    if takes.parts:
        return _tuple(subject, x, takes, allowed)
    if type(x) in (int, float) and takes.number:
        return _within(subject, x, x, allowed)
    if _is_function(x):
        if takes.schedule:
            refuse_uncalled(subject, x)
            return CheckedSchedule(x, subject)
        raise TypeError(
            f"{subject} must be {takes}, but is a function; use `inject_hyperparams` "
            "for a schedule of it"
        )
    if not takes.number:
        raise TypeError(f"{subject} must be {takes}, but is {_shown(x)}")
    return scalar(subject, x, f"{takes}", allowed, takes.complex)


def _tuple(subject: str, x: object, takes: Takes, allowed: Range) -> object:
    # An array in place of a tuple may be traced, and is not read.
    if isinstance(x, np.ndarray | jax.Array) and x.shape == (len(takes.parts),):
        return x
    if not isinstance(x, tuple | list) or len(x) != len(takes.parts):
        if None in takes.parts:
            return x  # the factory itself checks which strings it takes
        raise TypeError(f"{subject} must be {takes}, but is {_shown(x)}")
    pairs = zip(x, takes.parts, strict=True)
    return tuple(
        y if t is None else _argument(subject, y, t, allowed) for y, t in pairs
    )


def scalar(
    subject: str,
    x: object,
    wanted: str = "a number",
    allowed: Range = ANY,
    is_complex: bool = False,
) -> ArrayLike:
    """`x` as a scalar; raises unless it is one real number."""
    # `False` counts as 0, as in `weight_decay=False`.  `True` is refused, since it is
    # most likely a flag in the place of another argument.
    is_flag = isinstance(x, bool | np.bool_)
    x = 0 if is_flag and not x else x
    if (is_flag and x) or not _is_array_like(x):
        raise TypeError(f"{subject} must be {wanted}, but is {_shown(x)}{_hint(x)}")
    if isinstance(x, Real):
        return _within(subject, x, x, allowed)
    # In a trace that serves other numbers; each was checked when it was given.
    if isinstance(x, Lifted):
        return x
    # Numbers other than Python's, which are `Real`: arrays and scalars of JAX and
    # NumPy.
    x = jnp.asarray(x) if holds_array(x) else x
    dtype, shape = jnp.result_type(x), np.shape(x)
    kinds = (jnp.floating, jnp.integer, *[jnp.complexfloating] * is_complex)
    if not any(jnp.issubdtype(dtype, kind) for kind in kinds):
        raise TypeError(f"{subject} must be real, but is of dtype {dtype}")
    if np.prod(shape, dtype=int) != 1:
        raise ValueError(f"{subject} must be a scalar, but has shape {shape}")
    # An array without axes stays the same object: programs are shared by identity of
    # arrays.
    if shape and isinstance(x, np.ndarray | jax.Array):
        x = x.reshape(())
    # Comparing a JAX array would wait for the device, and fail if it is traced.
    if isinstance(x, jax.Array) or jnp.issubdtype(dtype, jnp.complexfloating):
        return x
    return _within(subject, x, float(np.asarray(x)), allowed)


def _within(subject: str, x: T, value: Any, allowed: Range) -> T:
    if value not in allowed:
        raise allowed.refuse(subject, value)
    return x


def require_array(subject: str, x: object) -> ArrayLike:
    """`x`; raises unless JAX can convert it to an array."""
    if not _is_array_like(x):
        raise TypeError(f"{subject} must be a number, but is {_shown(x)}{_hint(x)}")
    return x


def _is_array_like(x: object) -> TypeGuard[ArrayLike]:
    kinds = (int, float, complex, np.generic, np.ndarray, jax.Array)
    return isinstance(x, kinds) or holds_array(x)


def _is_function(x: object) -> TypeGuard[Callable]:
    # Some arrays are callable, such as a variable of Flax; classes are, too, and
    # passing the class of a schedule instead of an instance is a mistake.
    is_number = _is_array_like(x) or isinstance(x, type | Transformation)
    return callable(x) and not is_number


def _shown(x: object) -> str:
    # With the type, as a string looks like a number, and truncated, as an array is
    # long.
    if x is None or isinstance(x, bool):
        return f"{x}"
    text = " ".join(repr(x).split())
    shown = text if len(text) < 60 else f"{text[:60]}…"
    return f"{shown}, a `{type(x).__name__}`"


def _hint(x: object) -> str:
    # As read from a command line or a YAML file, in which 1e-3 is a string.
    if isinstance(x, Tracer):
        return ", which must be known before the program runs"
    if isinstance(x, bytes | str):
        if x in ("true", "True", "false", "False"):
            return f"; write {x.title()} without quotes"
        try:
            return f"; write {float(x)} without quotes"
        except ValueError:
            return ""
    return ""


@dataclass(frozen=True)
class CheckedSchedule:
    """A schedule whose values are checked; `None` if it is missing."""

    schedule: Callable | None
    subject: str

    def refuse(self) -> NoReturn:
        """Raise the error for a schedule that is used like a number."""
        raise TypeError(
            f"{self.subject} is a schedule, a function of the step, not a number: call "
            "it with the step count, or pass it on to `scale_by_learning_rate`"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.schedule is None:
            wanted = Takes(schedule=True)
            raise TypeError(f"{self.subject} must be {wanted}, but is None")
        return scheduled_scalar(self.subject, self.schedule(*args, **kwargs))

    def __repr__(self) -> str:
        return repr(self.schedule)


refuse_operators(CheckedSchedule)


def scheduled_scalar(subject: str, x: object) -> ArrayLike:
    """`x`, which a schedule returned; raises unless it is one real number."""
    # A boolean from a condition, as in `lambda count: count >= 100`, is a switch.
    if isinstance(x, jax.Array) and x.dtype == bool:
        x = x.astype(jnp.float32)
    return scalar(returned_by(subject), x)


def returned_by(subject: str) -> str:
    """The name of the value of a schedule in errors."""
    owner, _, argument = subject.rpartition(": ")
    return f"{owner}: the value of the schedule {argument}"


def unchecked(x: Any) -> Any:
    """A schedule or mapping as it was passed; anything else unchanged."""
    if isinstance(x, ByPath):
        return {k: unchecked(v) for k, v in x.values.items()}
    if isinstance(x, Wraps):
        return with_amount(x, unchecked(x.amount))
    return x.schedule if isinstance(x, CheckedSchedule) else x


def checks_of(factory: object) -> ArgumentChecks | None:
    """The checks of a factory of ours; `None` for other functions."""
    checks = getattr(factory, "scalars", None)
    # `functools.wraps` copies them to a function around a factory, which may take other
    # arguments.
    if not isinstance(checks, ArgumentChecks):
        return None
    return checks if vars(factory).get("__wrapped__") is checks.factory else None
