"""The dtype that a rule computes in: at least float32, and as wide as its inputs.

A pass computes in this dtype throughout and rounds once, at its end.
"""

import functools as ft
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ..functions.signatures import signature
from .numerics import has_dtype


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Typed = jax.Array | jax.ShapeDtypeStruct | np.ndarray


def compute_dtype(*arrays: Typed) -> np.dtype:
    """The narrowest dtype that holds float32 and all inexact `arrays`."""
    # Integers do not count: a step counter in int64 must not make the step float64.
    wide = jnp.dtype(jnp.float32)
    with jax.numpy_dtype_promotion("standard"):
        for x in filter(is_inexact, arrays):
            wide = jnp.promote_types(wide, x.dtype)
    return wide


def is_inexact(x: Typed) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def rank(dtype: DTypeLike) -> int:
    """The place of a dtype among the kinds, each of which holds those before it."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return max([n for n, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)] + [0])


def real_dtype(dtype: DTypeLike) -> np.dtype:
    # `finfo` knows complex dtypes, and bfloat16, which NumPy's does not.
    return jnp.finfo(dtype).dtype


def scalar_dtype(params: object) -> np.dtype:
    """The dtype of real scalars in a state: float32, or float64 as the parameters.

    Without any parameters it is JAX's default, as in Optax.
    """
    # Without 64-bit mode there is nothing to decide, and no leaf to look at.
    default = jax.dtypes.canonicalize_dtype(float)
    if default == jnp.float32:
        return default
    arrays = {x.dtype: x for x in jax.tree.leaves(params) if has_dtype(x)}
    return real_dtype(compute_dtype(*arrays.values())) if arrays else default


def widen(x: T, wide: np.dtype) -> T:
    """Floating-point arrays in `x` in the precision of `wide`; the rest unchanged."""

    def one(x):
        if not has_dtype(x) or not is_inexact(x):
            return x
        is_complex = jnp.issubdtype(x.dtype, jnp.complexfloating)
        return x.astype(wide if is_complex else real_dtype(wide))

    return jax.tree.map(one, x)


def promote_freely(f: Callable[P, R]) -> Callable[P, R]:
    """`f` under standard promotion, even if users chose strict promotion."""

    @ft.wraps(f)
    def mixed(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.numpy_dtype_promotion("standard"):
            return f(*args, **kwargs)

    # For tools that do not unwrap.
    vars(mixed)["__signature__"] = signature(f)
    return mixed


def computed_wide(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`f` of arrays, computed in float32 or wider and rounded to the first one's dtype.

    Keywords are scalars, which do not affect the precision.
    """

    @jax.jit
    @promote_freely
    def rounded(x, *others, **numbers):
        # Arguments are arrays already, unless a user has disabled `jit` to debug.
        x, *others = map(jnp.asarray, (x, *others))
        wide = compute_dtype(x, *others)
        arrays, numbers = widen(((x, *others), numbers), wide)
        return f(*arrays, **numbers).astype(x.dtype if is_inexact(x) else wide)

    return rounded


def require_floating(name: str, dtype: DTypeLike) -> np.dtype:
    """`dtype`, canonicalized; raises unless it is a real floating-point dtype."""
    try:
        found = jax.dtypes.canonicalize_dtype(dtype)
    except TypeError:
        found = f"{dtype!r}, which is none"
    if isinstance(found, str) or not jnp.issubdtype(found, jnp.floating):
        raise TypeError(f"`{name}` must be a real floating-point dtype, but is {found}")
    return found
