"""Stored arguments: copied, so that they cannot change, and compared."""

from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def copy_containers(x: Any) -> Any:
    """`x` with copies of all mutable containers and NumPy arrays in it.

    Functions, modules, transformations and JAX arrays are not copied.
    """
    if isinstance(x, np.ndarray):
        return x.copy()
    # A transformation is a tuple, but one that is compared by how it was made.
    if callable(x) or hasattr(x, "update") and hasattr(x, "init"):
        return x
    if type(x) is dict:  # JAX would sort it
        return {k: copy_containers(v) for k, v in x.items()}
    # One level of any container that JAX knows.
    children, treedef = jax.tree.flatten(x, is_leaf=lambda y: y is not x)
    if len(children) == 1 and children[0] is x:
        return x
    return treedef.unflatten(map(copy_containers, children))


def is_dtype(x: object) -> bool:
    """Whether `x` is a dtype or a class that names one, such as `jnp.float32`."""
    # Not Python's `float`, which is of the width that JAX is set to.
    kind = getattr(x, "dtype", None) if isinstance(x, type) else x
    is_scalar = isinstance(x, type) and issubclass(x, np.generic)
    return is_scalar or isinstance(kind, np.dtype)


def frozen(x: object) -> Hashable:
    """A hashable key, equal only for values that behave alike: 1 and 1.0 differ.

    A dtype equals its name.

    Raises a `TypeError` for values that cannot be compared, such as a tracer.
    """
    # Types are part of each key, because Python's 1 == 1.0 == True share one hash, but
    # give different dtypes.
    if isinstance(x, dict):
        return dict, tuple((k, frozen(v)) for k, v in x.items())
    if isinstance(x, tuple | list) and not hasattr(x, "init"):
        return type(x), tuple(map(frozen, x))
    if isinstance(x, jax.Array):
        return jax.Array, *_contents(x)
    if isinstance(x, np.ndarray):
        return np.ndarray, x.shape, x.dtype, x.tobytes()
    if is_dtype(x) and jnp.dtype(np.dtype(x).name) == x:  # type: ignore[call-overload]
        return str, np.dtype(x).name  # type: ignore[call-overload]
    hash(x)
    if isinstance(x, float) and x != x:
        return float, "nan"
    return type(x), x


def _contents(x: jax.Array) -> tuple:
    if isinstance(x, Tracer) or x.is_deleted() or not x.is_fully_addressable:
        raise TypeError("the elements of this array cannot be read")
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x.dtype, *_contents(jax.random.key_data(x))
    return x.shape, x.dtype, x.weak_type, np.asarray(x).tobytes()
