"""What arguments must be: the range of each hyperparameter, by name; flags and others.

A value is rejected if it can only be a mistake: a decay above 1, with which an average
grows without bound; a negative epsilon, which may make a divisor zero; a negative
count.  A negative learning rate ascends, and takes a negative weight decay to shrink
the parameters.  A lower bound of what is positive may be negative: there is none then.
A test compares the ends of each range with Optax, and lists what Optax accepts beyond
them.  Numbers of Python and NumPy are checked when a factory is called.  JAX arrays are
not: they may be traced, and reading one would wait for the device.

Other arguments are flags, dtypes, functions and keys.  Python takes anything for a
flag: a string from a command line, such as "false", would be true, and so would a
momentum that is passed one place too late.
"""

import inspect
import math
import operator
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike, DTypeLike

from ..arrays.numerics import dtype_of
from ..base import TransformationLike, as_array, is_array
from ..functions.signatures import Hint, members
from ..trees.errors import describe


T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """An interval of finite numbers, closed unless it excludes an end.

    hint: the remedy, for the error.
    is_cap: whether it includes infinity, as for a bound that is never reached.
    is_added: whether Optax does not have the argument, so that `inject_hyperparams`
        must not keep its default in a state that is otherwise Optax's.

    >>> unit = stepax.rules.Range(0.0, 1.0, excludes_most=True)
    """

    least: float = -math.inf
    most: float = math.inf
    excludes_most: bool = False
    excludes_least: bool = False
    hint: str = ""
    is_cap: bool = False
    is_added: bool = False

    def __contains__(self, x: Any) -> bool:
        # Comparisons with NaN are false, so it is not in any range.
        above = x > self.least if self.excludes_least else x >= self.least
        below = x < self.most if self.excludes_most else x <= self.most
        return above and below and (self.is_cap or math.isfinite(x))

    def __str__(self) -> str:
        if self.least == -math.inf and self.most < math.inf:
            return f"at most {self.most}"
        if self.least == -math.inf:
            return "a number" if self.is_cap else "a finite number"
        if self.most == math.inf:
            return f"above {self.least}" if self.excludes_least else f">= {self.least}"
        left = "(" if self.excludes_least else "["
        right = ")" if self.excludes_most else "]"
        return f"in {left}{self.least}, {self.most}{right}"

    def refuse(self, subject: str, x: Any) -> ValueError:
        """The error for a number that is not in this range."""
        finite = self.least > -math.inf and self.most == math.inf and math.isinf(x)
        allowed = f"{self} and finite" if finite else f"{self}"
        return ValueError(f"{subject} must be {allowed}, but is {x}{self.hint}")


ANY = Range()
AT_LEAST_0 = Range(0)
AT_LEAST_1 = Range(1)
BOUND = Range(is_cap=True)
CAP = Range(0, is_cap=True)
POSITIVE = Range(0, excludes_least=True)
POSITIVE_CAP = Range(0, excludes_least=True, is_cap=True)
UP_TO_1 = Range(0, 1)
# The decay of an average of gradients or steps.  A negative one damps the rotation in
# games (Gidel et al., 2019, arXiv:1807.04740).
MOMENTUM = Range(-1, 1)
EVERY = Range(1, hint="; use 1 for every step, 10 for every tenth")

_NAMES = {
    MOMENTUM: "adam_b1 b1 beta momentum",
    UP_TO_1: "adam_b2 b2 b3 beta3 betas decay ema_rate eta_minus rho shampoo_beta",
    ANY: """
        adam_learning_rate adam_weight_decay estim_lr_coef factors learning_rate
        min_norm min_scale min_step_size scaling trust_coefficient weight_decay
        weight_decay_rate
    """,
    AT_LEAST_0: """
        adam_eps adam_eps_root eps eps_root epsilon eta init_estim_sq_dist
        initial_accumulator_value initial_scale nonstandard_constant norm_eps ns_steps
        slow_step_size warmup_steps
    """,
    AT_LEAST_1: "eta_plus k num_betas update_interval",
    EVERY: "inverse_every precondition_frequency",
    POSITIVE: "estim_lr0 reps_rel s_init",
    BOUND: "clipping_threshold f_min lower_bound min_dim_size_to_factor threshold",
    CAP: "clipping max_delta max_learning_rate max_norm max_step_size",
    POSITIVE_CAP: "clip_threshold",
    Range(1, is_cap=True): "max_dim max_precond_dim",
}
RANGES = {name: x for x, names in _NAMES.items() for name in names.split()}


def whole(x: T) -> T | int:
    """The bound of a count as an integer; infinity as the largest one."""
    # Counts are int32, and saturate there.
    return 2**31 - 1 if isinstance(x, Real) and x == math.inf else x


def check(name: str, arguments: Mapping[str, object], own: Mapping[str, Range]) -> None:
    """Raise for the first number that is outside its range; `own` has other ranges."""
    for key, x in arguments.items():
        allowed = own.get(key) or RANGES.get(key)
        if allowed and isinstance(x, Real) and x not in allowed:
            raise allowed.refuse(f"`{name}`: `{key}`", x)


def real_array(x: Any, name: str) -> Any:
    """`x` as an array; NumPy's if its values are known, so that they can be checked."""
    if not is_array(x):
        raise TypeError(f"{name} is {describe(x)}, expected a number")
    x = as_array(x)
    x = x if isinstance(x, jax.Array) else np.asarray(x)
    if jnp.iscomplexobj(x):
        raise ValueError(f"{name} is complex, expected a real scalar")
    return x


def real_scalar(x: Any, name: str) -> Any:
    """As `real_array`, for a scalar."""
    x = real_array(x, name)
    if x.shape:
        raise ValueError(f"{name} is of shape {x.shape}, expected a real scalar")
    return x


def weights(x: Any, name: str) -> ArrayLike:
    """Weights in float32, which are finite and at least 0.

    Invalid weights that are only found in a compiled program become NaN.
    """
    if isinstance(x, Tracer):
        x = x.astype(jnp.float32)
        return jnp.where((x >= 0) & (x < jnp.inf), x, jnp.nan)
    known = np.asarray(x, np.float32)
    bad = known[~((known >= 0) & (known < np.inf))]
    if bad.size:
        raise ValueError(
            f"{name} is {bad[0]:g}, expected a finite number that is at least 0"
        )
    return known


def share(total: ArrayLike, weight: ArrayLike, dtype: Any) -> Any:
    """`total / weight` for an array of a dtype; exact if it is a small integer."""
    # In float32 or wider, and rounded once: equal weights give the same bits as no
    # weights.
    real = jnp.finfo(dtype).dtype
    wide = real if real == jnp.float64 else jnp.float32
    ratio = jnp.asarray(total).astype(wide) / jnp.asarray(weight).astype(wide)
    return ratio.astype(real)


def whole_number(
    name: str, x: Any, most: float = math.inf, least: int = 1, more: str = ""
) -> int:
    """`x` as a Python integer; integers of NumPy and JAX, and `more`, are accepted."""
    try:
        found = None if isinstance(x, bool | np.bool_) else operator.index(x)
    except TypeError:
        found = None
    if found is None or not least <= found <= most:
        upto = "or more" if most == math.inf else f"to {most}"
        wanted = f"a whole number, {least} {upto}{more}"
        raise ValueError(f"`{name}` is {x!r}, expected {wanted}")
    return found


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
