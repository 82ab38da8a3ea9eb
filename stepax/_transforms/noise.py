"""Gradient noise.

Neelakantan et al., 2015, Adding Gradient Noise Improves Learning for Very Deep Networks
(arXiv:1511.06807), equation 1.

Difference from Optax: raw keys of `jax.random.PRNGKey` are accepted, too.
"""

import itertools
import warnings
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from .. import tree
from .._engine import rules as rx
from .._engine.arrays import stacked
from .._engine.arrays.numerics import has_dtype, is_numeric, safe_increment, upcast
from .._engine.arrays.placement import shard_like
from .._engine.functions.calls import level_of_user
from .._engine.functions.deprecated import warn_deprecated
from .._engine.trees import stacks


@rx.optax_compatible
class AddNoiseState(rx.optax.AddNoiseState):
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
        leaves = jax.tree.leaves(updates, is_leaf=rx.is_none)
        pairs = zip(leaves, stacks.of_leaves(updates), strict=True)
        axes = tuple(axes for x, axes in pairs if x is not None)
        return _step(updates, state, eta, gamma, stacked.Static(axes))

    return rx.transformation(*rx.by_leaf(init, update))


# Jitted, because compiled noise differs in rounding from noise drawn op by op.
@jax.jit
def _step(updates, state, eta, gamma, axes):
    count = safe_increment(state.count)
    # Injected hyperparameters are float32 or float64.
    with jax.numpy_dtype_promotion("standard"):
        deviation = jnp.sqrt(eta / upcast(count) ** gamma)
    rng_key, now = jax.random.split(state.rng_key)

    def add(g, noise):
        wide = upcast(g)
        more = deviation.astype(wide.dtype) * noise.astype(wide.dtype)
        return (wide + more).astype(g.dtype)

    noise = drawn_like(now, updates, axes.axes)
    noisy = rx.map_gradients(add, updates, noise=noise)
    return noisy, AddNoiseState(count, rng_key)


def drawn_like(
    key: jax.Array,
    like: rx.Updates,
    axes: Sequence[stacked.Axes],
    sampler: Callable = jax.random.normal,
    dtype: rx.DTypeLike | None = None,
) -> rx.Updates:
    """As `tree.random_like`, with a key of its own for each array of a stack.

    axes: the stack axes of each leaf.
    """
    if not any(axes):
        return tree.random_like(key, like, sampler, dtype)
    leaves, treedef = jax.tree.flatten(like)
    ends = [*itertools.accumulate(map(stacked.number_in, leaves, axes))]
    keys = jnp.split(jax.random.split(key, ends[-1]), ends[:-1])

    def one(x, keys, axes):
        if not is_numeric(x):
            return x
        wanted = jnp.result_type(x) if dtype is None else dtype
        shape = stacked.shape_of_one(x.shape, axes)
        draw = stacked.mapped(lambda key: sampler(key, shape, wanted), axes)
        keys = keys.reshape(stacked.shape_of_stack(x.shape, axes))
        return shard_like(x, stacked.from_front(draw(keys), axes))

    return treedef.unflatten(map(one, leaves, keys, axes))


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
    if has_dtype(key) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return jnp.copy(key)
    return jax.random.key(key) if jnp.ndim(key) == 0 else jax.random.wrap_key_data(key)
