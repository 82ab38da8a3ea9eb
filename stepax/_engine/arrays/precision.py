"""Which dtype a rule computes in: at least float32, and never less than its inputs.

The arithmetic of a pass is done in this dtype and rounded once, at its end.
"""

import functools as ft
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from ..functions.signatures import signature


P = ParamSpec("P")
R = TypeVar("R")


def compute_dtype(*arrays: Any) -> Any:
    """The narrowest dtype that holds float32 and all inexact `arrays`."""
    wide = jnp.dtype(jnp.float32)
    with jax.numpy_dtype_promotion("standard"):
        for x in filter(is_inexact, arrays):
            wide = jnp.promote_types(wide, x.dtype)
    return wide


def is_inexact(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def real_dtype(dtype: Any) -> Any:
    """The dtype of the real part."""
    return jnp.finfo(dtype).dtype


def scalar_dtype(params: Any) -> Any:
    """float32, or float64 where parameters are: for real numbers beside them.

    Beside no parameters at all it is JAX's default, as in Optax.
    """
    default = jax.dtypes.canonicalize_dtype(float)
    if default == jnp.float32:
        return default
    arrays = {x.dtype: x for x in jax.tree.leaves(params) if hasattr(x, "dtype")}
    return real_dtype(compute_dtype(*arrays.values())) if arrays else default


def widen(x: Any, wide: Any) -> Any:
    """Floating-point arrays in `x` in the precision of `wide`; the rest as it is."""

    def one(x):
        if not hasattr(x, "dtype") or not is_inexact(x):
            return x
        is_complex = jnp.issubdtype(x.dtype, jnp.complexfloating)
        return x.astype(wide if is_complex else real_dtype(wide))

    return jax.tree.map(one, x)


def promote_freely(f: Callable[P, R]) -> Callable[P, R]:
    """Let dtypes meet inside `f`, also where users forbid that."""

    @ft.wraps(f)
    def mixed(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.numpy_dtype_promotion("standard"):
            return f(*args, **kwargs)

    shown: Any = mixed
    shown.__signature__ = signature(f)  # for tools that do not unwrap
    return mixed


def computed_wide(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`f` of arrays, computed in float32 or wider, and rounded as the first of them.

    Keywords are numbers; they have no say in the precision.
    """

    @jax.jit
    @promote_freely
    def rounded(x, *others, **numbers):
        x, *others = map(jnp.asarray, (x, *others))  # also where `jit` is off
        wide = compute_dtype(x, *others)
        arrays, numbers = widen(((x, *others), numbers), wide)
        return f(*arrays, **numbers).astype(x.dtype if is_inexact(x) else wide)

    return rounded


def require_floating(name: str, dtype: Any) -> Any:
    """`dtype`, as JAX has it; raises unless it is of real floating-point numbers."""
    found = jax.dtypes.canonicalize_dtype(dtype)
    if not jnp.issubdtype(found, jnp.floating):
        raise TypeError(
            f"`{name}` stores real floating-point numbers, but is given {found} as a "
            "dtype"
        )
    return found
