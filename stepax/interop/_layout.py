"""The layout of Optax: its private modules, and names that only these have.

Libraries import modules such as `optax._src.base`.  Nearly all names that they use from
there are public under the same name; this file has the others.  The layout is that of
0.2.8 and earlier releases.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from .._engine.arrays.numerics import abs_sq as abs_sq


VERSION = "0.2.8"  # libraries compare it with the version they require

PRIVATE = {
    "optax": "_src",
    "optax._src": "alias base clipping combine constrain deprecations factorized "
    "linear_algebra linesearch lookahead loss numerics privacy schedule second_order "
    "transform update utils wrappers",
    "optax.assignment": "_hungarian_algorithm",
    "optax.contrib": "_acprop _ademamix _adopt _cocob _complex_valued _dadapt_adamw "
    "_dog _galore _madgrad _mechanic _momo _muon _privacy _prodigy _reduce_on_plateau "
    "_sam _schedule_free _sophia",
    "optax.experimental": "_aggregating",
    "optax.losses": "_classification _fenchel_young _ranking _regression "
    "_segmentation _self_supervised _smoothing",
    "optax.microbatching": "_microbatching",
    "optax.perturbations": "_make_pert",
    "optax.projections": "_projections",
    "optax.schedules": "_inject _join _schedule",
    "optax.second_order": "_deprecated",
    "optax.transforms": "_accumulation _adding _clipping _combining _conditionality "
    "_constraining _freezing _layouts _masking _monitoring",
    "optax.tree_utils": "_casting _random _state_utils _tree_math",
}

NO_PARAMS_MSG = (
    "this transformation needs the parameters; pass them to `update` as `params`"
)
ArrayTree: TypeAlias = Any
PyTree: TypeAlias = Any
PRNGKey: TypeAlias = jax.Array
Shape: TypeAlias = Sequence[int]


def canonicalize_dtype(dtype: DTypeLike | None) -> Any:
    """The canonical JAX dtype; `None` is returned unchanged."""
    return None if dtype is None else jax.dtypes.canonicalize_dtype(dtype)


def canonicalize_key(key_or_seed: jax.Array | int) -> jax.Array:
    """A random key, from a key or a seed."""
    is_key = jnp.issubdtype(jnp.result_type(key_or_seed), jax.dtypes.prng_key)
    return jnp.asarray(key_or_seed) if is_key else jax.random.key(key_or_seed)


def check_subdtype(array: ArrayLike, subdtype: Any) -> None:
    """Raise a `TypeError` unless the array has a subdtype of `subdtype`."""
    dtype = jnp.result_type(array)
    if not jnp.issubdtype(dtype, subdtype):
        raise TypeError(f"expected a dtype under `{subdtype}`, but got {dtype}")


def check_rank(array: ArrayLike, rank: int) -> None:
    """Raise a `ValueError` unless the array has this rank."""
    if jnp.ndim(array) != rank:
        raise ValueError(f"expected {rank} axes, but got shape {jnp.shape(array)}")


def check_shapes_equal(a: ArrayLike, b: ArrayLike) -> None:
    """Raise a `ValueError` unless both arrays have the same shape."""
    if jnp.shape(a) != jnp.shape(b):
        raise ValueError(f"shapes differ: {jnp.shape(a)} and {jnp.shape(b)}")


@contextlib.contextmanager
def x64_precision(enable_x64_precision: bool = True) -> Iterator[None]:
    """A context with 64-bit dtypes enabled or disabled."""
    with jax.enable_x64(enable_x64_precision):
        yield
