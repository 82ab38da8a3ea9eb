"""Differential privacy: clip the gradient of each example and add noise.

Abadi et al., 2016, Deep Learning with Differential Privacy (arXiv:1607.00133),
Algorithm 1.

Differences from Optax: raw keys of `jax.random.PRNGKey` are accepted, too; sums and
noise are computed in float32 for narrower gradients; an empty batch, and arrays that
disagree on the number of examples, raise errors.
"""

import inspect
import math
from collections.abc import Callable
from numbers import Real

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.numerics import upcast
from .._transforms.clip import per_example_global_norm_clip
from .._transforms.decay import decayed
from .._transforms.noise import chosen_key, typed_key
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain
from .._wrappers.partition import identity
from .sgd import trace


PAPER = "arXiv:1607.00133"
_RANGES = {"l2_norm_clip": rx.CAP, "noise_multiplier": rx.AT_LEAST_0}


@rx.optax_compatible
class DifferentiallyPrivateAggregateState(
    rx.optax.contrib.DifferentiallyPrivateAggregateState
):
    """rng_key: key for the noise of the next step, a scalar."""

    rng_key: jax.Array


@rx.public("aggregate", paper=PAPER, ranges=_RANGES)
def differentially_private_aggregate(
    l2_norm_clip: rx.ArrayLike,
    noise_multiplier: rx.ArrayLike,
    key: jax.Array | int | None = None,
    *,
    seed: int | None = None,
) -> rx.GradientTransformation:
    """Average the clipped gradients of the examples i, with Gaussian noise.

        u = (Σ_i min(1, C / ‖g_i‖) g_i + N(0, σ² C²)) / n

    Put it first in a chain.  Gradients have a leading axis over the n examples, which
    the parameters and u do not have.  Do not wrap it in `MultiSteps`: the noise is
    calibrated for one whole batch.

    l2_norm_clip: C, the largest norm of an example's gradient, at least 0; infinity
        does not clip, and requires `noise_multiplier=0`.
    noise_multiplier: σ, at least 0; there is no privacy at 0.
    key: a random key, or an integer seed for one.
    seed: deprecated name of `key`.

    Raises a `ValueError` if both `key` and `seed` are given, and for infinite noise;
    `update` raises one if the leading axes of the gradients differ or are empty.
    """
    key = chosen_key(key, seed)
    is_known = isinstance(l2_norm_clip, Real) and isinstance(noise_multiplier, Real)
    if is_known and l2_norm_clip == math.inf and noise_multiplier:
        raise ValueError(
            "`differentially_private_aggregate`: `l2_norm_clip` is infinite, so the "
            f"noise would be infinite with `noise_multiplier` {noise_multiplier}; give "
            "a finite bound, or set `noise_multiplier=0`"
        )

    def init(params):
        return DifferentiallyPrivateAggregateState(typed_key(key))

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state(
            "differentially_private_aggregate",
            DifferentiallyPrivateAggregateState,
            state,
        )
        gradients = rx.Gradients(updates, None)
        live, pick = gradients.live()
        _check_examples(gradients, live)
        gs = pick(gradients.leaves)
        means, rng_key = _aggregate(gs, state.rng_key, l2_norm_clip, noise_multiplier)
        gradients.leaves = [
            np.zeros(g.shape[1:], g.dtype) if rx.is_float0(g) else g
            for g in gradients.leaves
        ]
        for i, u in zip(live, means, strict=True):
            gradients.leaves[i] = u
        new = DifferentiallyPrivateAggregateState(rng_key)
        return gradients.treedef.unflatten(gradients.leaves), new

    return rx.transformation(init, update)


def _check_examples(gradients, live):
    sizes = {i: jnp.shape(gradients.leaves[i])[:1] for i in live}
    first = next(iter(sizes.values()), None)
    for i, size in sizes.items():
        if size in ((), (0,)) or size != first:
            raise ValueError(
                f"the gradient at {gradients.path(i)} has shape "
                f"{jnp.shape(gradients.leaves[i])}, but its first axis must be over "
                f"the examples, of which {gradients.path(live[0])} has "
                f"{first[0] if first else 'none'}; compute gradients with `jax.vmap`"
            )


# Jitted, because compiled noise differs in rounding from noise drawn op by op.
@jax.jit
def _aggregate(gs, rng_key, l2_norm_clip, noise_multiplier):
    rng_key, *keys = jax.random.split(rng_key, len(gs) + 1)
    if not gs:
        return [], rng_key
    sums, _ = per_example_global_norm_clip([*map(upcast, gs)], l2_norm_clip)
    # Without noise the bound may be infinite, and 0 * inf is NaN.
    deviation = jnp.where(noise_multiplier == 0, 0, l2_norm_clip * noise_multiplier)
    means = []
    for g, total, now in zip(gs, sums, keys, strict=True):
        mean = (total + deviation.astype(total.dtype) * _noise(now, total)) / len(g)
        is_inexact = jnp.issubdtype(g.dtype, jnp.inexact)
        means.append(mean.astype(g.dtype) if is_inexact else mean)
    return means, rng_key


def _noise(key, x):
    """Noise of deviation 1 per real component; JAX halves the variance of complex x."""
    noise = jax.random.normal(key, x.shape, x.dtype)
    return noise * jnp.asarray(2**0.5, x.dtype) if jnp.iscomplexobj(x) else noise


@rx.public("aggregate", paper=PAPER, ranges=_RANGES)
def dpsgd(
    learning_rate: rx.ScalarOrSchedule | None,
    l2_norm_clip: rx.ArrayLike,
    noise_multiplier: rx.ArrayLike,
    seed: jax.Array | int | None = None,
    momentum: rx.ArrayLike | None = None,
    nesterov: bool = False,
    *,
    key: jax.Array | int | None = None,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Differentially private SGD: p = p - learning_rate (u + weight_decay p).

    u is the output of `differentially_private_aggregate`, followed by `trace` if
    `momentum` is given.  Weight decay reads no examples, so it costs no privacy.

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    momentum: decay rate of `trace`; no momentum if `None`.
    nesterov: whether to use Nesterov momentum.
    Other arguments: those of `differentially_private_aggregate`.

    Raises a `ValueError` unless exactly one of `seed` and `key` is given.
    """
    if (seed is None) == (key is None):
        raise ValueError("give one of `seed` and `key`, which seed the noise")
    return chain(
        differentially_private_aggregate(
            l2_norm_clip, noise_multiplier, chosen_key(key, seed)
        ),
        identity() if momentum is None else trace(momentum, nesterov),
        *decayed(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )


def _without_default(f: Callable, name: str) -> None:
    """Show a parameter as required in the signature, as in Optax."""
    signature = inspect.signature(f)
    parameters = dict(signature.parameters)
    parameters[name] = parameters[name].replace(default=inspect.Parameter.empty)
    f.__signature__ = signature.replace(parameters=list(parameters.values()))


_without_default(dpsgd, "seed")
