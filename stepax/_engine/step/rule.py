"""An optimizer written for one array.

A `Rule` is the mathematics of one optimizer for one array.  What is the same for all
optimizers is done by `kernel.Pass`, once: flattening, step counts, precision, storage,
masks, sharding, and errors that name the parameter.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from ..arrays.numerics import safe_increment
from ..arrays.placement import shard_like
from ..arrays.precision import scalar_dtype
from ..base.protocol import EmptyState, as_array, is_array, is_none
from ..trees import errors
from ..trees.packed import Packed


def _same(x):
    return x


@dataclass(frozen=True)
class Slot:
    """One array that a rule keeps for each parameter, and how it is stored.

    make: the initial value for a parameter.
    dtype: the stored dtype; `None` keeps that of `make`, by default the parameter's.
    alike: whether it has the shape of the parameter, which is then checked.
    is_wide: whether it is kept in float32 for float16 parameters: the squares of
        ordinary gradients, and products of small ones, lie outside of float16.
    is_slow: whether a step may change it by less than bfloat16 holds, as means of a
        long memory; `describe` warns of those that are stored so, and of wide ones.
    encode, decode: to and from storage, e.g. 8-bit blocks; `encode` may return a tree.
    """

    make: Callable = jnp.zeros_like
    dtype: Any = None
    alike: bool = True
    is_wide: bool = False
    is_slow: bool = False
    encode: Callable = _same
    decode: Callable = _same

    @property
    def is_array(self) -> bool:
        """Whether it is stored as one array."""
        return self.encode is _same

    def new(self, p: Any) -> Any:
        p = as_array(p)
        x = self.make(p)
        dtype = x.dtype if self.dtype is None else self.dtype
        if self.is_wide and self.dtype is None and dtype == jnp.float16:
            dtype = jnp.float32
        x = jax.lax.convert_element_type(x, jax.dtypes.canonicalize_dtype(dtype))
        return self.encode(shard_like(p, x))


def zeros_like(p: Any, dtype: Any = None) -> Any:
    """Zeros for a parameter, strongly typed and sharded alike; `None` for no array."""
    return Slot(dtype=dtype).new(p) if is_trainable(p) else None


def copy_of(p: Any) -> jax.Array:
    """`p` in a buffer of its own, so that both can be donated; zeros for a shape."""
    return jnp.zeros_like(p) if isinstance(p, jax.ShapeDtypeStruct) else jnp.copy(p)


# The mean squared gradient is real, but Optax stores it as the parameter's dtype.
REAL = Slot(is_wide=True, decode=jnp.real)


# The parameter as it was at first.
START = Slot(make=copy_of)


def is_trainable(p: Any) -> bool:
    """Whether an optimizer keeps anything for `p`: not for functions, keys, `None`."""
    if not is_array(p):
        return False
    return not jnp.issubdtype(getattr(p, "dtype", jnp.float32), jax.dtypes.extended)


def _only_count(scalars, stat, extra):
    return None, tuple(map(safe_increment, scalars))


def from_step(f: Callable) -> Callable:
    """`once` for rules that need only the number of this step, which starts at 1."""

    def prepare(scalars, stat, extra):
        t = safe_increment(*scalars)
        return f(t), (t,)

    return prepare


def real_scalar(first: Any = 0.0, shape: tuple = ()) -> Callable:
    """Makes a shared number, or several, in float32, or float64 as parameters are.

    first: its first value, or a function from the parameters to it.
    """

    def make(params):
        value: Any = first(params) if callable(first) else first
        return jnp.full(shape, value, scalar_dtype(params))

    return make


COUNT = {"count": lambda params: jnp.zeros([], jnp.int32)}


@dataclass(eq=False)
class Rule:
    """One optimizer, for one array.

    leaf: (g, p, c, *slots) -> (u, *slots).  Pure; sees float32 or wider.  `None` does
        nothing.
    State: named tuple whose fields are the names in `shared` and `slots`.
    slots: what `leaf` keeps for each parameter, in the order `leaf` takes them.
    shared: what is kept once for all parameters, with a function of them to make it.
    once: (shared, total, extra) -> (c, shared).  Runs once a step; all leaves get `c`.
    total: (g, p, shared, *slots) -> statistics, summed over all leaves for `once`.
    whole: list of all g -> a statistic, which `once` gets instead.
    batched: work on whole arrays, which follows `leaf`; devices share it out.
    needs_params: whether `leaf` or `total` reads `p`.
    reads: the keywords that `once` takes from `extra`.
    by_leaf: whether `leaf` depends on the shape of an array or on more than one number
        of it at a time, so that arrays may not be joined for it; also so if one of the
        slots is not `alike`.
    guard: whether it cleans each gradient by itself and keeps only flags of what it
        found, so that `MultiSteps` runs it on every micro-batch.
    recipe: the factory that made it and its arguments; set by `recipe`.
    trains: the optimizer that it is part of, which refuses integers; set by `recipe`.
    """

    leaf: Callable | None
    State: type = EmptyState
    slots: dict[str, Slot] = field(default_factory=dict)
    scalars: dict[str, Callable] = field(default_factory=dict)
    prepare: Callable = _only_count
    leaf_stat: Callable | None = None
    global_stat: Callable | None = None
    batched: Any = None
    needs_params: bool = False
    reads: tuple[str, ...] = ()
    elementwise: bool = False
    sanitizes: bool = False
    recipe: Any = None
    trains: str = ""

    def __post_init__(self):
        if self.elementwise and not all(slot.alike for slot in self.slots.values()):
            raise ValueError(self.slots)

    @property
    def name(self) -> str:
        return self.recipe.build.__name__ if self.recipe else self.State.__name__

    @property
    def keeps_gradients(self) -> bool:
        """Whether its slots are made of gradients, which flags of a guard are not."""
        return bool(self.slots) and not self.sanitizes

    def pour(self, arrays: dict) -> "Rule":
        """The rule itself; a `Mould` makes one for given arrays."""
        return self

    def init(self, params: Any) -> Any:
        if not self.elementwise and isinstance(params, Packed):
            params = params.unpack()
        ps, treedef = jax.tree.flatten(params, is_leaf=is_none)

        def column(slot):
            return treedef.unflatten(
                slot.new(p) if is_trainable(p) else None for p in ps
            )

        shared = {k: make(params) for k, make in self.scalars.items()}
        return self.State(**shared, **{k: column(s) for k, s in self.slots.items()})

    def check(self, state: Any) -> None:
        """Raise unless `state` is one of this rule's, or of Optax's of that name."""
        wanted = (*self.scalars, *self.slots)
        fields = getattr(state, "_fields", None)
        if fields is not None and type(state).__name__ == self.State.__name__:
            return
        # Every tuple has a method `count`.
        has = lambda k: hasattr(state, k) and not callable(getattr(state, k))
        if not fields and all(map(has, wanted)):
            return  # for a rule that keeps nothing, whatever holds nothing
        raise ValueError(
            f"`{self.name}` has a state `{self.State.__name__}` of fields "
            f"({', '.join(wanted)}), but was given {errors.describe(state)}; was this "
            "state made by another optimizer?"
        )
