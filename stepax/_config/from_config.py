"""A transformation made from plain data."""

import functools as ft
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .._engine.functions.calls import explain_misuse
from .._engine.functions.signatures import Hint
from .._wrappers.inject import inject_hyperparams
from . import ARGS, IGNORED, PARTIAL, TARGET, VALUES, Names, function
from .hints import Hints, below, place, takes_number, takes_tuple


# Numbers as users of YAML write them: its readers parse 1e-3, without a point, as a
# string.
_WHOLE = re.compile(r"[+-]?[0-9]+")
_REAL = re.compile(r"[+-]?(inf|nan|[0-9.]+(e[+-]?[0-9]+)?)", re.IGNORECASE)


@explain_misuse
def from_config(
    config: Mapping[str, Any], *, factories: Iterable[Callable[..., Any]] = ()
) -> Any:
    """The transformation that a configuration describes, as `to_config` writes it.

    The configuration may come from a JSON or YAML file, from Hydra or from a command
    line.  Only factories and schedules of Stepax, and `factories`, are called; no other
    name is looked up or imported.  A string such as "1e-3" is a number where one is
    expected.

    config: a mapping with a `_target_`, the name of a factory or schedule such as
        "stepax.adamw" or "adamw"; `_args_` holds arguments without a name, the other
        keys are arguments.  With `_partial_` a `functools.partial` is returned.
    factories: functions decorated by `stepax.rules.rule()`, known by module and name.

    Raises a `ValueError` for an unknown name, an integer that no float holds and what
    is nested too deeply or in a cycle, and a `TypeError` for an unknown argument,
    both with the closest match, and a `TypeError` for values that are not data; errors
    name the location.

    >>> stepax.from_config({"_target_": "adamw", "learning_rate": "1e-3"})
    adamw(learning_rate=0.001)
    """
    if not isinstance(config, Mapping):
        raise TypeError(
            f"a configuration is a mapping with a `{TARGET}`, but this is a "
            f"`{type(config).__name__}`"
        )
    known = Names(factories)
    if config.get(PARTIAL):
        f, args, named = _call(config, (), known)
        return ft.partial(f, *args, **named)
    return _made(config, (), known)


def _made(config: Mapping, path: tuple, known: Names) -> Any:
    if config.get(PARTIAL):
        if found := function(_target(config, path)):
            return found
        raise TypeError(
            f"{place(path)} has `{PARTIAL}`, which only the outermost call and public "
            "functions of trees, which are not called, may have"
        )
    f, args, named = _call(config, path, known)
    if f is inject_hyperparams:
        return _injected(config, args, named, path, known)
    return _called(f, args, named, path)


def _called(f: Callable, args: Iterable, named: Mapping, path: tuple) -> Any:
    try:
        return f(*args, **named)
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{error} (at {place(path)})") from error


def _call(config: Mapping, path: tuple, known: Names) -> tuple[Callable, list, dict]:
    """A function of the table, and its arguments."""
    f = known.find(_target(config, path))
    hints = Hints(f) if f not in VALUES.values() else None
    args = config.get(ARGS, [])
    if not isinstance(args, Sequence) or isinstance(args, str):
        raise TypeError(f"{place((*path, ARGS))} must be a list, but is {args!r}")
    positional = [
        _value(x, (*path, ARGS, i), hints.at(i) if hints else [], known)
        for i, x in enumerate(args)
    ]
    apart = {TARGET, ARGS, PARTIAL, *IGNORED}
    if f is inject_hyperparams:
        apart.add("inner_factory")  # a call that is not made here
    named = {
        k: _value(x, (*path, k), hints.named(k) if hints else [], known)
        for k, x in config.items()
        if k not in apart
    }
    return f, positional, named


def _target(config: Mapping, path: tuple) -> str:
    target = config.get(TARGET)
    if isinstance(target, str):
        return target
    if target is not None:
        raise TypeError(
            f"{place((*path, TARGET))} must be a name, but is {target!r}; a "
            "configuration cannot hold functions"
        )
    near = [k for k in config if f"{k}".strip("_") in ("target", "name", "type")]
    hint = f"; rename `{near[0]}`" if near else ""
    raise ValueError(
        f"{place(path)} has no `{TARGET}`, which names a factory, but {[*config]}{hint}"
    )


def _injected(
    config: Mapping, args: list, named: dict, path: tuple, known: Names
) -> Any:
    inner, at = config.get("inner_factory"), (*path, "inner_factory")
    if not isinstance(inner, Mapping):
        raise TypeError(
            f"{place(at)} must be the call whose hyperparameters are injected, a "
            f"mapping with a `{TARGET}`, but is {inner!r}"
        )
    factory, inner_args, inner_named = _call(inner, at, known)
    make = _called(inject_hyperparams, [factory, *args], named, path)
    return _called(make, inner_args, inner_named, at)


def _value(x: Any, path: tuple, hint: Hint, known: Names) -> Any:
    known.require_end(path)
    if isinstance(x, str) and takes_number(hint):
        x = _number(x)
    if isinstance(x, int) and abs(x) > sys.float_info.max:
        raise ValueError(
            f"{place(path)} has an integer of {x.bit_length()} bits; give one up to "
            f"{sys.float_info.max:g}"
        )
    if x is None or isinstance(x, bool | int | float | str):
        return x
    if isinstance(x, Mapping):
        if TARGET in x:
            return _made(x, path, known)
        inner = below(hint)
        return {k: _value(y, (*path, k), inner, known) for k, y in x.items()}
    if isinstance(x, Sequence) and not isinstance(x, bytes):
        found = [_value(y, (*path, i), below(hint, i), known) for i, y in enumerate(x)]
        return tuple(found) if takes_tuple(hint) else found
    raise TypeError(
        f"{place(path)} is a `{type(x).__name__}`; a configuration holds mappings, "
        "lists, strings, numbers, booleans and `None` only"
    )


def _number(x: str) -> str | int | float:
    try:
        if _WHOLE.fullmatch(x):
            return int(x)
        return float(x) if _REAL.fullmatch(x) else x
    except ValueError:  # such as "1.2.3" or 5,000 digits, for which the factory raises
        return x
