"""A transformation as plain data, from which `from_config` recreates it."""

import functools as ft
import math
from collections import OrderedDict
from collections.abc import Mapping
from inspect import Parameter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._engine.arrays.numerics import is_known
from .._engine.base import GradientTransformation, call_of_pair
from .._engine.base.call import Call, call_of
from .._engine.factories.scheduled import WrappedSchedule
from .._engine.functions.calls import explain_misuse, is_dtype
from .._engine.functions.signatures import Hint
from .._wrappers import accumulate, inject
from . import (
    ARGS,
    INJECT,
    PAIR,
    PARTIAL,
    SCALARS,
    TARGET,
    function_name,
    is_factory,
    is_record,
    name_of,
    public_name,
)
from .hints import Hints, below, refusal, takes_tuple


@explain_misuse
def to_config(tx: Any) -> dict[str, Any]:
    """A transformation as nested dictionaries, lists, strings and numbers.

        {"_target_": "stepax.adamw", "learning_rate": 0.001, "b1": 0.8}

    `_target_` names a factory; the other keys are the arguments that differ from their
    defaults, and `_args_` holds positional arguments.  JSON, YAML and Hydra can write
    and read it, and `from_config` makes an equal transformation from it.  It needs no
    version: its names are those of public functions and of their arguments.

    tx: a transformation, `MultiSteps`, a schedule, or a `functools.partial` of a
        factory.

    Raises a `TypeError` for values that are not data, such as a mask that is a
    function, with the location and a replacement.

    >>> stepax.to_config(stepax.adamw(1e-3))
    {'_target_': 'stepax.adamw', 'learning_rate': 0.001}
    """
    if isinstance(tx, ft.partial) and is_factory(tx.func):
        found = {TARGET: name_of(tx.func), PARTIAL: True}
        return found | _arguments(tx.func, tx.args, tx.keywords, ())
    call = _made_by(tx)
    if call is None:
        raise refusal(tx, ())
    return _call(call, ())


def _made_by(x: Any) -> Call | None:
    return call_of_pair(x) if isinstance(x, GradientTransformation) else call_of(x)


def _call(call: Call, path: tuple) -> dict:
    arguments = call.bound.arguments
    if call.factory is inject._injected:
        return _injected(path, **arguments)
    if call.factory is accumulate._pair:
        inner = arguments["multi_steps"].call
        return {TARGET: PAIR, ARGS: [_call(inner, (*path, ARGS, 0))]}
    args, named = (), call.given
    kinds = {p.kind for p in call.bound.signature.parameters.values()}
    # A name is clearer than a position, but not all arguments have one.
    if kinds - {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}:
        args, by_name = call.bound.args, call.bound.kwargs
        named = {k: x for k, x in by_name.items() if k in named or k not in arguments}
    found = {TARGET: name_of(call.factory)}
    return found | _arguments(call.build, args, named, path)


def _injected(path, inner_factory, static, dtype, args, kwargs) -> dict:
    at = (*path, "inner_factory")
    if not is_factory(inner_factory):
        raise refusal(inner_factory, at)
    inner = {TARGET: name_of(inner_factory)}
    inner |= _arguments(inner_factory, args, kwargs, at)
    found = {TARGET: INJECT, "inner_factory": inner}
    found |= {"static_args": [*static]} if static else {}
    return found | ({"hyperparam_dtype": dtype.name} if dtype else {})


def _arguments(factory: Any, args: tuple, named: Mapping, path: tuple) -> dict:
    hints = Hints(factory)
    found = {}
    if args:
        at = (*path, ARGS)
        found[ARGS] = [_data(x, (*at, i), hints.at(i)) for i, x in enumerate(args)]
    for k, x in named.items():
        found[k] = _data(x, (*path, k), hints.named(k))
    return found


def _data(x: Any, path: tuple, hint: Hint | None = None) -> Any:
    """An argument as data; its annotation says whether a list represents a tuple."""
    if x is None or type(x) in (bool, int, str):
        return x
    if type(x) is float:
        # JSON has neither infinity nor NaN.
        return x if math.isfinite(x) else _made("builtins.float", f"{x}")
    if type(x) is complex:
        return _made("builtins.complex", *(_data(y, path) for y in (x.real, x.imag)))
    if call := _made_by(x):
        return _call(call, path)
    if is_dtype(x):
        return np.dtype(x).name
    if name := function_name(x):
        return {TARGET: name, PARTIAL: True}
    if isinstance(x, np.ndarray | np.generic | jax.Array):
        return _array(x, path)
    return _container(x, path, hint or [])


def _made(target: str, *args: Any) -> dict:
    return {TARGET: target, ARGS: [*args]}


def _container(x: Any, path: tuple, hint: Hint) -> Any:
    if type(x) in (dict, OrderedDict):
        return _mapping(x, path, hint)
    if type(x) in (list, tuple):
        found = [_data(y, (*path, i), below(hint, i)) for i, y in enumerate(x)]
        kind = tuple if takes_tuple(hint) else list
        return (
            found if type(x) is kind else _made(f"builtins.{type(x).__name__}", found)
        )
    if is_record(type(x)) and (name := public_name(type(x))):
        fields = x._asdict().items()
        return {TARGET: name} | {k: _data(y, (*path, k)) for k, y in fields}
    if type(x) is WrappedSchedule:
        inner = _data(x.schedule_fn, (*path, "schedule_fn"))
        return {TARGET: "stepax.WrappedSchedule", "schedule_fn": inner}
    if isinstance(x, jax.P):
        return _made("jax.P", *(_data(y, (*path, i)) for i, y in enumerate(x)))
    raise refusal(x, path)


def _mapping(x: Mapping, path: tuple, hint: Hint) -> dict:
    values = {k: _data(y, (*path, k), below(hint)) for k, y in x.items()}
    # The first pattern that matches decides, but YAML's writer sorts; and keys in JSON
    # are strings.
    is_plain = all(type(k) is str for k in x) and TARGET not in x
    if is_plain and sorted(x) == [*x]:
        return values
    pairs = [[_data(k, path), y] for k, y in values.items()]
    return _made("builtins.dict", pairs)


def _array(x: Any, path: tuple) -> dict:
    kinds = jnp.number, jnp.bool_
    is_numeric = any(jnp.issubdtype(x.dtype, kind) for kind in kinds)
    if not is_known(x) or not is_numeric or x.size == 0:
        raise refusal(x, path)
    # Python's types, which are wide enough for the values of every dtype.
    wide = {"f": np.float64, "V": np.float64}.get(np.dtype(x.dtype).kind, x.dtype)
    values = _data(np.asarray(x).astype(wide).tolist(), path)
    if isinstance(x, np.generic):
        name = f"numpy.{type(x).__name__}"
        if name not in SCALARS:
            raise refusal(x, path)
        return _made(name, values)
    is_weak = isinstance(x, jax.Array) and x.weak_type and x.ndim == 0
    home = "jax.numpy" if isinstance(x, jax.Array) else "numpy"
    dtype = {} if is_weak else {"dtype": np.dtype(x.dtype).name}
    return _made(f"{home}.asarray", values) | dtype
