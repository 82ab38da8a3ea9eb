"""Derivatives of non-differentiable functions, by random perturbation of inputs.

Berthet et al., 2020, Learning with Differentiable Perturbed Optimizers
(arXiv:2002.08676); derivatives use the score function estimator, written with the
operator of Foerster et al., 2018, DiCE (arXiv:1802.05098), so that they exist to any
order.

Differences from Optax: the score is that of the noise itself, in float32 or wider, not
of the noise after rounding in a narrow sum; the result is also differentiable with
respect to `sigma`.
"""

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from . import tree
from ._engine import rules as rx
from ._engine.arrays.numerics import dtype_of, is_numeric, strong_type, upcast
from ._names import attributes


__all__ = [
    "Gumbel", "Normal", "make_perturbed_fun",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)


class _Noise(Protocol):
    def sample(
        self, key: jax.Array, sample_shape: Sequence[int], dtype: DTypeLike
    ) -> jax.Array: ...

    def log_prob(self, inputs: jax.Array) -> jax.Array: ...


class Gumbel:
    """The standard Gumbel distribution, with density exp(-x - exp(-x))."""

    def sample(
        self,
        key: jax.Array,
        sample_shape: Sequence[int] = (),
        dtype: DTypeLike = float,
    ) -> jax.Array:
        """Sample from the distribution.

        key: a random key.
        sample_shape, dtype: shape and dtype of the result.
        """
        return jax.random.gumbel(key, tuple(sample_shape), dtype)

    def log_prob(self, inputs: jax.Array) -> jax.Array:
        """The logarithm of the density, elementwise."""
        return -inputs - jnp.exp(-inputs)


class Normal:
    """The standard normal distribution, with density proportional to exp(-x² / 2)."""

    def sample(
        self,
        key: jax.Array,
        sample_shape: Sequence[int] = (),
        dtype: DTypeLike = float,
    ) -> jax.Array:
        """Sample from the distribution.

        key: a random key.
        sample_shape, dtype: shape and dtype of the result.
        """
        return jax.random.normal(key, tuple(sample_shape), dtype)

    def log_prob(self, inputs: jax.Array) -> jax.Array:
        """The logarithm of the density up to a constant, elementwise."""
        return -0.5 * jnp.square(inputs)


_GUMBEL = Gumbel()


@rx.explain_misuse
def make_perturbed_fun(
    fun: Callable[[rx.ArrayTree], rx.ArrayTree],
    num_samples: int = 1000,
    sigma: ArrayLike = 0.1,
    noise: _Noise = _GUMBEL,
    use_baseline: bool = True,
) -> Callable[[jax.Array, rx.ArrayTree], rx.ArrayTree]:
    """A smooth random function, the average of `fun` at perturbed inputs.

        f(x) = mean of fun(x + σ z) over samples z
        ∂f(x) = mean of -(fun(x + σ z) - baseline) ∂ log p(z) / σ

    `fun` itself is never differentiated.

    fun: maps a tree of arrays to a tree of arrays; it need not be continuous.
    num_samples: number of samples z, >= 1.
    sigma: σ, the scale of the perturbations, above 0.
    noise: the distribution of z, with methods `sample(key, shape, dtype)` and
        `log_prob(z)`; `Gumbel` or `Normal`.
    use_baseline: whether the baseline is fun(x) rather than 0, which often reduces the
        variance of the derivative and does not change its expectation.

    Returns a function of a random key and the inputs.  It raises a ValueError, with the
    path, for inputs that are not real floating-point arrays.
    """
    if operator.index(num_samples) < 1:
        raise ValueError(f"`num_samples` is {num_samples}, expected at least 1")
    if isinstance(sigma, int | float | np.generic) and not sigma > 0:
        raise ValueError(f"`sigma` is {sigma}, expected above 0")

    def perturbed(key: jax.Array, inputs: rx.ArrayTree) -> rx.ArrayTree:
        _check(inputs)
        zs = jax.vmap(lambda k: tree.random_like(k, inputs, noise.sample))(
            jax.random.split(key, num_samples)
        )
        fixed = jax.lax.stop_gradient(inputs)
        outputs = jax.vmap(lambda z: fun(_each(_shifted(sigma), fixed, z)))(zs)
        logs = jax.vmap(lambda z: _log_prob(inputs, z, sigma, noise))(zs)
        # 1 for each sample, with the derivative of its log-probability (DiCE).
        box = jnp.exp(logs - jax.lax.stop_gradient(logs))
        at_x = [fun(fixed)] if use_baseline else []
        return jax.tree.map(lambda y, *b: _mean(y, box, *b), outputs, *at_x)

    return perturbed


def _check(inputs):
    for i, x in enumerate(jax.tree.leaves(inputs, is_leaf=rx.is_none)):
        dtype = dtype_of(x, type(x))
        if x is not None and is_numeric(x) and not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(
                f"the input at {rx.errors.paths(inputs)[i]} is of dtype "
                f"{np.dtype(dtype)}, expected real floating-point numbers"
            )


def _each(f, inputs, zs):
    """Apply `f` to the numeric inputs and their noise."""
    return jax.tree.map(lambda x, z: f(x, z) if is_numeric(x) else x, inputs, zs)


def _shifted(sigma):
    def shift(x, z):
        scale = jax.lax.stop_gradient(jnp.asarray(sigma)).astype(z.dtype)
        return strong_type(jnp.asarray(x, z.dtype) + scale * z)

    return shift


def _log_prob(inputs, zs, sigma, noise):
    """The logarithm of the density of one sample, as a function of x and σ."""
    fixed = jax.lax.stop_gradient

    def leaf(x, z):
        # Equals z, but as the difference between a constant point and x: it has a
        # derivative with respect to x.
        x, z = upcast(x), upcast(z)
        scale = jnp.asarray(sigma).astype(z.dtype)
        z = z + (fixed(x) - x + (fixed(scale) - scale) * z) / scale
        return jnp.sum(noise.log_prob(z) - jnp.log(scale))

    logs = [x for x in jax.tree.leaves(_each(leaf, inputs, zs)) if is_numeric(x)]
    with jax.numpy_dtype_promotion("standard"):
        return sum(logs, start=jnp.zeros([]))


def _mean(y, box, baseline=0.0):
    """The mean of (y - b) box + b, whose value does not depend on b."""
    is_inexact = jnp.issubdtype(y.dtype, jnp.inexact)
    wide, b = upcast(y), jax.lax.stop_gradient(upcast(baseline))
    box = jnp.reshape(box, box.shape + (1,) * (y.ndim - 1)).astype(wide.dtype)
    b = jnp.expand_dims(jnp.broadcast_to(b, y.shape[1:]).astype(wide.dtype), 0)
    found = jnp.mean(wide * box + b * (1 - box), axis=0)
    return found.astype(y.dtype) if is_inexact else found
