"""Independent normal variables, parametrized by mean and logarithm of the scale."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .._engine.arrays.numerics import upcast
from .._engine.functions.calls import explain_misuse


class MultiNormalDiagFromLogScale:
    """Independent normal variables, computed in float32 or wider.

    loc: the means.
    log_scale: the logarithms of the standard deviations, which broadcast with the
        means.

    Raises ValueError if the shapes do not fit.
    """

    def __init__(self, loc: ArrayLike, log_scale: ArrayLike):
        self._mean = jnp.asarray(loc)
        self._log_scale = jnp.asarray(log_scale)
        shapes = self._mean.shape, self._log_scale.shape
        try:
            self._shape = np.broadcast_shapes(*shapes)
        except ValueError:
            raise ValueError(
                "Incompatible shapes for broadcasting: "  # as JAX begins
                f"`loc` has shape {shapes[0]} and `log_scale` has shape {shapes[1]}"
            ) from None

    @property
    def log_scale(self) -> jax.Array:
        """The logarithms of the standard deviations."""
        return self._log_scale

    @property
    def params(self) -> Sequence[Any]:
        """The means and the logarithms of the standard deviations."""
        return [self._mean, self._log_scale]

    def sample(self, shape: Sequence[int], key: jax.Array) -> jax.Array:
        """Sample: mean + exp(log_scale) z.

        shape: leading shape of the result, before the axes of one sample.
        key: a random key.
        """
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            mean, scale = (upcast(self._mean), jnp.exp(upcast(self._log_scale)))
            dtype = jnp.promote_types(mean.dtype, scale.dtype)
            noise = jax.random.normal(key, (*shape, *self._shape), dtype)
            return mean + scale * noise

    def log_prob(self, x: ArrayLike) -> jax.Array:
        """The logarithm of the density, Σ -½ ((x - mean) / scale)² - log scale √(2π).

        x: one sample, or several along leading axes, which the result keeps.
        """
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            mean, log_scale = (upcast(self._mean), upcast(self._log_scale))
            z = (upcast(x) - mean) * jnp.exp(-log_scale)
            densities = -0.5 * jnp.square(z) - log_scale - 0.5 * math.log(2 * math.pi)
            axes = range(-len(self._shape), 0)
            return jnp.sum(densities, axis=tuple(axes))


@explain_misuse
def multi_normal(loc: ArrayLike, log_scale: ArrayLike) -> MultiNormalDiagFromLogScale:
    """The distribution of independent normal variables.

    loc: the means.
    log_scale: the logarithms of the standard deviations, which broadcast with the
        means.

    Raises ValueError if the shapes do not fit.
    """
    return MultiNormalDiagFromLogScale(loc, log_scale)
