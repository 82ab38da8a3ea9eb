"""Errors of calls that failed: the function, and the argument that did not fit.

Arguments are looked at after an error only: a call that succeeds costs no more, and
nothing that works is refused.
"""

import contextlib
import functools
import operator
import os
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter
from pathlib import Path
from types import NoneType
from typing import Any, get_origin

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JAXTypeError, UnexpectedTracerError
from jax.tree_util import keystr, tree_leaves_with_path
from jax.typing import ArrayLike, DTypeLike

from .signatures import members, of_parameters, signature


# The folder of the package, three levels up, and the code between it and a user's.
HOME = str(Path(__file__).parents[2]) + os.sep
_BETWEEN = (
    *(HOME, str(Path(jax.__file__).parent) + os.sep),
    *(contextlib.__file__, functools.__file__),
)
UNTRACED = (
    "is traced by JAX, so it cannot use NumPy, `float()` or `if` on its arguments: use "
    "`jax.numpy`, as in `jnp.sum`, and `jnp.where` for `if`"
)

# What makes the error for trees of other structure; `trees`, a layer above, adds it.
MISMATCH: list[Callable[..., Exception]] = []


def explain(error: Exception, f: Callable, name: str, given: Mapping[str, Any]) -> None:
    """Let an error of a call of `f` begin with its name.

    If it is not ours, and one of the arguments `given` does not fit, raise one that is.
    """
    *_, last = frames = traceback.extract_tb(error.__traceback__)
    is_ours = last.filename.startswith(HOME) and (last.line or "")[:6] == "raise "
    if not is_ours and (found := _wrong(f, given)):
        vars(found)["of_call"] = f"{found}"
        found.args = (f"`{name}`: {found}",)
        raise found from error
    text = None if is_ours else of_function(error, given.items())
    # The outermost function is the one that the user called.
    is_plain = type(error) in (TypeError, ValueError)
    if text or (is_plain and not any(map(_is_of_user, frames))):
        text = vars(error).setdefault("of_call", text or f"{error}")
        is_named = re.search(rf"^`\w+`: |`{name}`|\b{name}\(", text)
        is_named = is_named or name.startswith("_")
        error.args = (text if is_named else f"`{name}`: {text}",)


def _is_of_user(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith(_BETWEEN)


def of_function(error: Exception, passed: Iterable[tuple[str, Any]]) -> str | None:
    """What to say of a function of the user that is used otherwise than it is written.

    passed: arguments, and their names, among which it is.
    """
    *_, last = frames = traceback.extract_tb(error.__traceback__)
    names = {getattr(x, "__name__", ""): f"`{k}`" for k, x in passed if callable(x)}
    misfit = re.match(r"(?:.*\.)?(.+)\(\) (?:takes|missing)", f"{error}")
    if misfit and last.filename.startswith(HOME) and (key := names.get(misfit[1])):
        number = re.search(r"but (\d+) w", f"{error}")
        hint = f"; write a function of {number[1]} arguments" if number else ""
        return f"{key} is called with other arguments than it takes: {error}{hint}"
    if isinstance(error, UnexpectedTracerError):
        return (
            "a gradient, the state or a hyperparameter is left over from a function "
            "under `jax.jit` that has ended: let that function return it"
        )
    called = [x for x in frames if _is_of_user(x)]
    if called and isinstance(error, JAXTypeError):
        where = f"`{called[-1].name}` in line {called[-1].lineno}"
        return f"{names.get(called[-1].name, where)} {UNTRACED}"
    key = names.get(called[-1].name) if called else None
    if key and isinstance(error, AttributeError) and hasattr(np.ndarray, error.name):
        return (
            f"{key} is called with a whole tree, a `{type(error.obj).__name__}` that "
            f"has no `{error.name}`: apply it to each leaf, by `jax.tree.map`"
        )
    return None


def _is_array(x: Any) -> bool:
    is_one = isinstance(x, int | float | complex | np.generic | np.ndarray | jax.Array)
    dtype = getattr(x, "dtype", None)
    is_text = isinstance(dtype, np.dtype) and dtype.kind in "OUSMm"
    return (is_one or hasattr(x, "__jax_array__")) and not is_text


def _is_key(x: Any) -> bool:
    dtype = getattr(x, "dtype", None)
    return dtype == np.uint32 or jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _works(f: Callable, x: Any) -> bool:
    try:
        f(x)
    except Exception:
        return False
    return True


# What an argument must be whose annotation has these members, or some of them.
_KINDS: list[tuple[set, str, Callable[[Any], bool]]] = [
    ({int}, "a whole number", lambda x: _works(operator.index, x)),
    ({*members(ArrayLike)}, "a number or an array", _is_array),
    (
        {get_origin(x) or x for x in members(DTypeLike)},
        "a dtype, as `jnp.float32`",
        lambda x: _works(jnp.dtype, x),
    ),
    ({Callable}, "a function", callable),
    ({Mapping, dict}, "a mapping", lambda x: isinstance(x, Mapping)),
    ({int, tuple}, "whole numbers", lambda x: not isinstance(x, str | float)),
    (
        {Sequence, Iterable, list, tuple},
        "a list",
        lambda x: isinstance(x, Iterable) and not isinstance(x, str),
    ),
]


def _wrong(f: Callable, given: Mapping[str, Any]) -> Exception | None:
    """The error for the first argument that is not what its annotation says."""
    parameters, hints = signature(f).parameters, of_parameters(f)
    order = f"; the arguments are ({', '.join(parameters)})"
    kinds = {k: {get_origin(h) or h for h in hints[k]} for k in given}
    for key, x in given.items():
        if x is parameters[key].default or (x is None and NoneType in kinds[key]):
            continue
        of = kinds[key] - {NoneType}
        fits = [(wanted, test) for some, wanted, test in _KINDS if of and of <= some]
        if "key" in key.split("_"):
            fits = [("a random key, as `jax.random.key(0)`", _is_key)]
        if fits and not fits[0][1](x):
            found = "an array of objects or text" if hasattr(x, "dtype") else repr(x)
            found = found if len(found) < 60 else f"a `{type(x).__name__}`"
            return TypeError(f"`{key}` is {found}, expected {fits[0][0]}{order}")
    if {Callable} & set().union(*kinds.values()):
        return None  # whose trees may differ
    are_one = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
    trees = {
        k: x
        for k, x in given.items()
        if Any in kinds[k]
        and jax.Array in kinds[k]
        and parameters[k].kind not in are_one
    }
    return _differing(trees)


def _differing(trees: Mapping[str, Any]) -> Exception | None:
    """The error for trees that differ in structure, or in shapes that do not fit."""
    (first, wanted), *others = trees.items() or [("", None)]
    leaves = tree_leaves_with_path(wanted)
    for path, x in leaves:
        if isinstance(x, str | bytes) or not (callable(x) or _is_array(x)):
            return TypeError(
                f"`{first}` holds a `{type(x).__name__}` at "
                f"{keystr(path) or 'the root'}, expected an array"
            )
    for key, tree in others:
        if jax.tree.structure(tree) != jax.tree.structure(wanted):
            return MISMATCH[0](key, tree, f"`{first}`", wanted)
        for (path, x), y in zip(leaves, jax.tree.leaves(tree), strict=True):
            shapes = np.shape(x), np.shape(y)
            if not _works(lambda both: np.broadcast_shapes(*both), shapes):
                return ValueError(
                    f"`{key}` has shape {shapes[1]} at {keystr(path)}, expected "
                    f"{shapes[0]} as in `{first}`"
                )
    return None
