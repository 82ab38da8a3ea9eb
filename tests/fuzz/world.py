"""The names that programs use: trees, gradients, and the keywords of `update`.

A program is text, in which `o` is either library.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Pair(NamedTuple):
    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclass
class Record:
    weights: Any
    bias: Any


@jax.tree_util.register_dataclass
@dataclass
class Model(Record):
    """A tree that is callable, as modules of networks are."""

    def __call__(self) -> None:
        raise RuntimeError("the model was called")


def either(o: Any, ours: Any, theirs: Any) -> Any:
    """What only we understand, and the same for Optax."""
    return ours if o.__name__ == "stepax" else theirs


def a(shape: tuple, dtype: str, salt: Any) -> jax.Array:
    """An array of numbers between -1 and 1, none of them 0."""
    n = np.arange(1.0, np.prod(shape, dtype=int) + 1).reshape(shape)
    lib = np if isinstance(salt, int) else jnp
    x = lib.sin(n * 2.4 + salt)
    if "complex" in dtype:
        x = jax.lax.complex(x, lib.cos(n + salt))
    return jnp.asarray(x, dtype)


def gradients(params: Any, step: Any, size: Any) -> Any:
    """Different at each step; `size` times what is between -1 and 1."""
    step = step if isinstance(step, int) else jnp.asarray(step, float)
    leaves, treedef = jax.tree.flatten(params)
    gs = []
    for i, p in enumerate(map(jnp.asarray, leaves)):
        g = a(p.shape, p.dtype.name, step * 3 + 10 * i + 1)
        gs.append(g * jnp.asarray(size, p.dtype))
    return treedef.unflatten(gs)


def pair_for(o: Any, program: str, params: Any) -> Any:
    """The parameters, or the pair of them that `lookahead` takes."""
    is_lookahead = program.startswith("o.lookahead(")
    return o.LookaheadParams.init_synced(params) if is_lookahead else params


def fast(params: Any) -> Any:
    """Those of which gradients are taken."""
    return getattr(params, "fast", params)


def loss(params: Any) -> jax.Array:
    """Of which the gradients know nothing."""
    parts = [jnp.sum(jnp.abs(p) ** 2) for p in jax.tree.leaves(params)]
    return jnp.asarray(1.0) + sum(x.astype(jnp.result_type(float)) for x in parts)


def keywords(program: str, gradients: Any, params: Any) -> dict[str, Any]:
    """Of `update`, for those that read them; Optax's `sam` takes none."""
    if "sam(" in program:
        return {}
    more = {"value": loss(params), "grad": gradients, "value_fn": loss}
    return {**more, "obj_fn": loss} if "sophia(" in program else more


def is_matrix(params: Any) -> Any:
    return jax.tree.map(lambda p: jnp.ndim(p) > 1, params)


def matrix_or_not(params: Any) -> Any:
    return jax.tree.map(lambda p: "a" if jnp.ndim(p) > 1 else "b", params)


def falling(t: Any) -> jax.Array:
    """A schedule of one's own."""
    return 0.1 / (1.0 + jnp.asarray(t, float))


def always(step: Any, **extra_args: Any) -> Any:
    return step >= 0


def at_even_steps(step: Any, **extra_args: Any) -> Any:
    return step % 2 == 0


def if_small(step: Any, value: Any, **extra_args: Any) -> Any:
    return value < 3.0
