"""What counts as an array, alone and in a tree."""

import functools as ft
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .numerics import dtype_of


# Pytrees ask it of each node: not a function of Python, which takes its time.
is_none: Callable[[object], bool] = ft.partial(operator.is_, None)


_NUMBERS = (bool, int, float, complex)
_ARRAYS = (*_NUMBERS, np.generic, np.ndarray, jax.Array, jax.ShapeDtypeStruct)


def of_arrays_or_shapes(f: Callable, *xs: Any) -> Any:
    """`f(*xs)` of arrays, or the shape and dtype of it if `xs` are those of arrays."""
    is_shape = isinstance(xs[0], jax.ShapeDtypeStruct)
    return jax.eval_shape(f, *xs) if is_shape else f(*xs)


def is_array(x: object) -> bool:
    """Whether `x` is an array, its shape and dtype, or convertible to an array by JAX.

    Functions and strings are not; variables of Flax NNX and references are.
    """
    if isinstance(x, _ARRAYS):
        return True
    # A class that defines `__jax_array__` has the attribute as well as its instances.
    if isinstance(x, type):
        return False
    if holds_array(x):
        return True
    # Other libraries' arrays have a `dtype` of their own, which JAX does not know.
    is_known = isinstance(dtype_of(x), np.dtype) or isinstance(x, Tracer)
    return is_known and hasattr(x, "shape")


def holds_array(x: object) -> bool:
    """Whether `x` is an object of another library that JAX can convert to an array."""
    return hasattr(x, "__jax_array__")


def as_array(x: Any) -> Any:
    """`x` as an array; unchanged if it is not like one, or is one of JAX or NumPy."""
    if isinstance(x, _ARRAYS) or not is_array(x):
        return x
    if holds_array(x):
        return jnp.asarray(x.__jax_array__())
    return jnp.asarray(x) if hasattr(x, "__array__") else x[...]  # a reference


def partition_arrays(tree: Any) -> tuple[list, Callable]:
    """The arrays of a tree, and a function that rebuilds it with others."""
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_none)
    at = [i for i, x in enumerate(leaves) if is_array(x)]

    def rebuild(arrays):
        given = dict(zip(at, arrays, strict=True))
        return treedef.unflatten(given.get(i, x) for i, x in enumerate(leaves))

    return [as_array(leaves[i]) for i in at], rebuild
