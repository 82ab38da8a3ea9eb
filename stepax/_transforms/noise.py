"""Gradient noise.

Neelakantan et al., 2015, Adding Gradient Noise Improves Learning for Very Deep Networks
(arXiv:1511.06807), equation 1.

Difference from Optax: raw keys of `jax.random.PRNGKey` are accepted, too.
"""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .. import tree
from .._engine import rules as rx
from .._engine.arrays.numerics import has_dtype, safe_increment, upcast
from .._engine.functions.calls import level_of_user, warn_deprecated


@rx.optax_compatible
class AddNoiseState(NamedTuple):
    """count: steps taken.  rng_key: key for the noise of the next step, a scalar."""

    count: jax.Array
    rng_key: jax.Array


@rx.public(paper="arXiv:1511.06807")
def add_noise(
    eta: rx.ArrayLike,
    gamma: rx.ArrayLike,
    key: jax.Array | int | None = None,
    *,
    seed: int | None = None,
) -> rx.GradientTransformation:
    """Add Gaussian noise with decaying variance.

        u = g + N(0, eta / t^gamma)

    eta: variance at the first step, at least 0.
    gamma: exponent of the decay, at least 0; 0.55 in the paper.
    key: a random key, or an integer seed for one.
    seed: deprecated name of `key`.

    Raises a `ValueError` if both `key` and `seed` are given.
    """
    key = chosen_key(key, seed)

    def init(params):
        return AddNoiseState(jnp.zeros([], jnp.int32), typed_key(key))

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state("add_noise", AddNoiseState, state)
        rx.require_floats("add_noise", updates)
        return _step(updates, state, eta, gamma)

    return rx.transformation(*rx.by_leaf(init, update))


# Jitted, because compiled noise differs in rounding from noise drawn op by op.
@jax.jit
def _step(updates, state, eta, gamma):
    count = safe_increment(state.count)
    # Injected hyperparameters are float32 or float64.
    with jax.numpy_dtype_promotion("standard"):
        deviation = jnp.sqrt(eta / upcast(count) ** gamma)
    rng_key, now = jax.random.split(state.rng_key)

    def add(g, noise):
        wide = upcast(g)
        more = deviation.astype(wide.dtype) * noise.astype(wide.dtype)
        return (wide + more).astype(g.dtype)

    noisy = rx.map_gradients(add, updates, noise=tree.random_like(now, updates))
    return noisy, AddNoiseState(count, rng_key)


def chosen_key(key, seed):
    """The one of both that is given."""
    if key is not None and seed is not None:
        raise ValueError("both `key` and `seed` are given; give only `key`")
    if seed is not None:
        warn_deprecated("seed")
        return seed
    if key is None:
        message = "`key` will be required; it defaults to 0 for now"
        warnings.warn(message, UserWarning, stacklevel=level_of_user())
        return 0
    return key


def typed_key(key):
    """A copy of the key: the caller's must survive donation of the state."""
    if jnp.ndim(key) == 0 and not has_dtype(key):
        return jax.random.key(key)
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return jnp.copy(key)
    return jax.random.key(key) if jnp.ndim(key) == 0 else jax.random.wrap_key_data(key)
