"""What arguments other than hyperparameters must be: flags, dtypes, functions, keys.

Python takes anything for a flag: a string from a command line, such as "false", would
be true, and so would a momentum that is passed one place too late.  The annotation of a
parameter says what it takes.
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike

from ..arrays.numerics import dtype_of
from ..base import TransformationLike
from ..functions.signatures import Hint, members


KEYS = ("key", "seed", "random_seed")


@dataclass(frozen=True)
class Kind:
    """What an argument must be: in the words of errors, and as a predicate."""

    wanted: str
    accepts: Callable[[Any], bool]


def _is_flag(x: Any) -> bool:
    # As in Optax, 0 and 1 are flags, too, and nothing is false.
    if isinstance(x, np.ndarray | jax.Array):
        is_whole = x.dtype.kind in "biu" and x.size == 1
        return not isinstance(x, Tracer) and is_whole and x.item() in (0, 1)
    return x is None or (isinstance(x, Real | np.bool_) and x in (0, 1))


def _is_float_dtype(x: Any) -> bool:
    if isinstance(x, np.ndarray | jax.Array):
        return False  # which NumPy takes for their dtype
    try:
        return jnp.issubdtype(jnp.dtype(x), jnp.inexact)
    except TypeError:
        return False


def _is_key(x: Any) -> bool:
    dtype = dtype_of(x)
    if dtype is None:
        return isinstance(x, int) and not isinstance(x, bool)
    return jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(
        dtype, jax.dtypes.prng_key
    )


FLAG = Kind("True or False", _is_flag)
DTYPE = Kind("a floating-point dtype", _is_float_dtype)
FUNCTION = Kind("a function", callable)
KEY = Kind("a random key or an integer", _is_key)
MAPPING = Kind("a mapping", lambda x: isinstance(x, Mapping))


def _of_member(hint: object) -> Kind | None:
    origin = typing.get_origin(hint)
    if hint is bool:
        return FLAG
    # Factories that take a mapping of transformations explain what its keys are.
    if origin in (Mapping, dict):
        return None if typing.get_args(hint)[1] is TransformationLike else MAPPING
    of = getattr(hint, "__mro__", ())
    is_protocol = typing.Protocol in of and "__call__" in vars(hint)
    return FUNCTION if Callable in (origin, hint) or is_protocol else None


def kind_of(parameter: inspect.Parameter, hint: Hint) -> Kind | None:
    """What the arguments of a parameter must be; `None` if nothing is known of it."""
    kinds = [h for h in hint if h is not type(None)]
    if not kinds or parameter.kind is parameter.VAR_POSITIONAL:
        return None
    found = set(map(_of_member, kinds))
    kind = found.pop() if len(found) == 1 else None
    if set(kinds) == set(members(DTypeLike)):
        kind = DTYPE
    kind = KEY if parameter.name in KEYS else kind
    if kind is None or len(kinds) == len(hint):
        return kind
    return Kind(f"{kind.wanted} or `None`", lambda x: x is None or kind.accepts(x))
