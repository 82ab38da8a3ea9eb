"""Hyperball: steps of a given length on the sphere of the initial parameters.

Wen, Dang, Lyu, Ma and Liang, 2026, Fantastic Pretraining Optimizers and Where to Find
Them II: Hyperball Optimization (arXiv:2606.16899), with the norms of the records of
modded-nanogpt.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.arrays.numerics import safe_increment, upcast
from .._engine.base.protocol import ScalarOrSchedule
from .._engine.factories.ranges import AT_LEAST_0, POSITIVE
from .._engine.factories.registry import public
from .._engine.step.array_split import ArraySplit, AxisName, floored_norm
from .._engine.step.rule import COUNT, Rule, Slot, copy_of
from .scale import value_at


class HyperballState(NamedTuple):
    """count: steps taken.  radius: the norm of each parameter, a scalar for each."""

    count: jax.Array
    radius: Any


@public(
    paper="arXiv:2606.16899",
    ranges={"radius": AT_LEAST_0, "eps": POSITIVE},
    shared={"decay": "it keeps the norm of each array"},
)
def hyperball(
    learning_rate: ScalarOrSchedule,
    radius: ArrayLike | None = None,
    *,
    eps: ArrayLike = 1e-10,
    axis_name: AxisName = None,
) -> Rule:
    """Step by a fraction of the radius, and return to the sphere.

        q = p - learning_rate r g / max(‖g‖, eps)
        p = r q / max(‖q‖, eps)

    Put it last in a chain, instead of the learning rate: the length of the preceding
    updates has no effect, and there is no weight decay.  Norms are those of whole
    arrays; mask the arrays whose norm should change, such as biases: an array of zeros
    stays zero.

    learning_rate: length of a step relative to r; a scalar or a schedule.
    radius: r for all arrays, at least 0; the initial norm of each if `None`.
    eps: lower bound of norms that are divided by, above 0.
    axis_name: mesh axis over which arrays are sharded inside `shard_map`, or
        their `PartitionSpec`; without it, each shard is treated as a whole array.
    """
    parts = ArraySplit(axis_name)

    def first_norm(p):
        # `init` may be called outside of `shard_map`, on whole arrays.
        is_inside = jax.sharding.get_abstract_mesh().manual_axes
        x = upcast(copy_of(p))
        return floored_norm(x, 0.0, parts if is_inside else ArraySplit(None))

    def prepare(scalars, stat, extra):
        (count,) = scalars
        return jnp.asarray(value_at(learning_rate, count)), (safe_increment(count),)

    def leaf(g, p, rate, r):
        r = r if radius is None else jnp.full_like(r, radius)
        q = p - rate * r * g / floored_norm(g, eps, parts)
        return r * q / floored_norm(q, eps, parts) - p, r

    slots = {"radius": Slot(first_norm, alike=False)}
    return Rule(leaf, HyperballState, slots, COUNT, prepare, needs_params=True)
