"""Weights of microbatches, such as the numbers of their tokens."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from ._engine.trees.numbers import real_array, share, weights
from ._engine.xla.branch import varying
from ._microbatches import Parts, cut


NAME = "`weight` of `microbatch`"


class Weights:
    """The weight of each microbatch: the sum over its rows.

    each: the weights, in float32.
    upto: a function of n, the sum of the first n weights.
    """

    def __init__(self, weight: Any, parts: Parts):
        given, rows = real_array(weight, NAME), parts.count * parts.size
        if not given.shape or given.shape[0] != rows:
            raise ValueError(
                f"{NAME} has shape {given.shape}, expected {rows} rows, one for each "
                "row of the batch"
            )
        given = jnp.asarray(weights(given, NAME))
        rest = tuple(i for i in range(given.ndim + 1) if i != 1)
        self.each = jnp.sum(cut(given, 0, parts.size), axis=rest)
        self.sums = jnp.concatenate([jnp.zeros(1), jnp.cumsum(self.each)])
        self.total = self.sums[-1]
        self.varying = varying(jax.typeof(self.each))

    def upto(self, n: Any) -> jax.Array:
        return self.sums[n]

    def mix(self, mean: jax.Array, x: jax.Array, i: Any) -> jax.Array:
        """The weighted mean with result i."""
        w = self.each[i]
        n = share(self.sums[i + 1], jnp.where(w == 0, 1, w), x.dtype)
        return jnp.where(w == 0, mean, mean + (x - mean) / n)

    def term(self, x: jax.Array, i: Any) -> jax.Array:
        """Result i in a weighted sum; counts are not weighted."""
        w = self.each[i]
        is_inexact = jnp.issubdtype(x.dtype, jnp.inexact)
        mine = w.astype(x.real.dtype) * x if is_inexact else x
        return jnp.where(w == 0, jnp.zeros_like(mine), mine)

    def of_all(self, total: jax.Array) -> jax.Array:
        """A weighted sum divided by the sum of all weights; 0 if that is 0."""
        return total / jnp.where(self.total == 0, 1, self.total).astype(
            total.real.dtype
        )


def require_weighted(kinds: Iterable) -> None:
    """Raise unless there is an accumulator that reads weights."""
    if not any(True for _ in kinds):
        raise ValueError(
            f"{NAME} has no effect: no result is accumulated as a SUM, MEAN or "
            "RUNNING_MEAN"
        )
