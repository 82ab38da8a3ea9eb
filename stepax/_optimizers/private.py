"""Differential privacy: the gradient of each example is clipped, and noise is added.

Abadi et al., 2016, Deep Learning with Differential Privacy (arXiv:1607.00133),
Algorithm 1.

Differences from Optax: raw keys of `jax.random.PRNGKey` are taken, too; sums are taken,
and noise is drawn, in float32 where gradients are narrower; examples without any
gradient, and arrays that disagree on how many there are, raise errors.
"""

import inspect
import math
from numbers import Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .._engine.arrays.numerics import upcast
from .._engine.base.optax_types import optax_compatible
from .._engine.base.protocol import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    ScalarOrSchedule,
    transformation,
)
from .._engine.factories.ranges import AT_LEAST_0, CAP
from .._engine.factories.registry import public
from .._engine.step.gradients import Gradients, has_no_gradient, is_float0
from .._engine.trees import errors
from .._transforms.clip import per_example_global_norm_clip
from .._transforms.decay import decayed
from .._transforms.noise import chosen_key, typed_key
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain
from .._wrappers.partition import identity
from .sgd import trace


PAPER = "arXiv:1607.00133"
_RANGES = {"l2_norm_clip": CAP, "noise_multiplier": AT_LEAST_0}


@optax_compatible
class DifferentiallyPrivateAggregateState(NamedTuple):
    """rng_key: for the noise of the next step, a scalar key."""

    rng_key: jax.Array


@public("aggregate", paper=PAPER, ranges=_RANGES)
def differentially_private_aggregate(
    l2_norm_clip: ArrayLike,
    noise_multiplier: ArrayLike,
    key: jax.Array | int | None = None,
    *,
    seed: int | None = None,
) -> GradientTransformation:
    """The mean over examples i of clipped gradients, with Gaussian noise.

        u = (Σ_i min(1, C / ‖g_i‖) g_i + N(0, σ² C²)) / n

    It comes first in a chain; gradients have a first axis, over the n examples, that
    the parameters and u lack.  It must not be wrapped by `MultiSteps`: the noise is
    right for one whole batch.

    l2_norm_clip: C, the most that an example counts, at least 0; infinity, without
        noise, for no bound.
    noise_multiplier: σ, at least 0; there is no privacy at 0.
    key: a random key, or an integer to make one of.
    seed: the former name of `key`, deprecated.

    Raises a `ValueError` if both `key` and `seed` are given, and for infinite noise; in
    `update`, if the first axes of the gradients differ, or count no examples.
    """
    key = chosen_key(key, seed)
    is_known = isinstance(l2_norm_clip, Real) and isinstance(noise_multiplier, Real)
    if is_known and l2_norm_clip == math.inf and noise_multiplier:
        raise ValueError(
            "`differentially_private_aggregate`: `l2_norm_clip` is infinite, and so "
            f"would be the noise with `noise_multiplier` {noise_multiplier}; give a "
            "finite bound, or no noise"
        )

    def init(params):
        return DifferentiallyPrivateAggregateState(typed_key(key))

    def update(updates, state, params=None, **extra_args):
        errors.require_state(
            "differentially_private_aggregate",
            DifferentiallyPrivateAggregateState,
            state,
        )
        flow = Gradients(updates, None)
        live = [i for i, g in enumerate(flow.leaves) if not has_no_gradient(g)]
        _check_examples(flow, live)
        gs = [flow.leaves[i] for i in live]
        means, rng_key = _aggregate(gs, state.rng_key, l2_norm_clip, noise_multiplier)
        flow.leaves = [_without_examples(g) for g in flow.leaves]
        for i, u in zip(live, means, strict=True):
            flow.leaves[i] = u
        new = DifferentiallyPrivateAggregateState(rng_key)
        return flow.treedef.unflatten(flow.leaves), new

    return transformation(init, update)


def _check_examples(flow, live):
    sizes = {i: jnp.shape(flow.leaves[i])[:1] for i in live}
    first = next(iter(sizes.values()), None)
    for i, size in sizes.items():
        if size in ((), (0,)) or size != first:
            raise ValueError(
                f"the gradient at {flow.path(i)} has shape "
                f"{jnp.shape(flow.leaves[i])}, but its first axis must count the "
                f"examples, of which {flow.path(live[0])} has "
                f"{first[0] if first else 'none'}; take gradients with `jax.vmap`"
            )


def _without_examples(g):
    return np.zeros(g.shape[1:], g.dtype) if is_float0(g) else g


# Jitted, since compiled noise differs from noise that is drawn operation by operation.
@jax.jit
def _aggregate(gs, rng_key, l2_norm_clip, noise_multiplier):
    rng_key, *keys = jax.random.split(rng_key, len(gs) + 1)
    if not gs:
        return [], rng_key
    sums, _ = per_example_global_norm_clip([*map(upcast, gs)], l2_norm_clip)
    # Without noise the bound may be infinite, and 0 inf is NaN.
    deviation = jnp.where(noise_multiplier == 0, 0, l2_norm_clip * noise_multiplier)
    means = []
    for g, total, now in zip(gs, sums, keys, strict=True):
        mean = (total + deviation.astype(total.dtype) * _noise(now, total)) / len(g)
        is_inexact = jnp.issubdtype(g.dtype, jnp.inexact)
        means.append(mean.astype(g.dtype) if is_inexact else mean)
    return means, rng_key


def _noise(key, x):
    """Of deviation 1 in each number; JAX halves the variance of complex ones."""
    noise = jax.random.normal(key, x.shape, x.dtype)
    return noise * jnp.asarray(2**0.5, x.dtype) if jnp.iscomplexobj(x) else noise


@public("aggregate", paper=PAPER, ranges=_RANGES)
def dpsgd(
    learning_rate: ScalarOrSchedule,
    l2_norm_clip: ArrayLike,
    noise_multiplier: ArrayLike,
    seed: jax.Array | int | None = None,
    momentum: ArrayLike | None = None,
    nesterov: bool = False,
    *,
    key: jax.Array | int | None = None,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: MaskOrFn = None,
) -> GradientTransformationExtraArgs:
    """Gradient descent with privacy: p = p - learning_rate (u + weight_decay p).

    u is that of `differentially_private_aggregate`, or of `trace` of it.  The decay
    reads no example, so that it costs no privacy.

    learning_rate, weight_decay: numbers, or schedules of the step; no decay if `None`.
    weight_decay_mask: which parameters decay; see `masked`.
    l2_norm_clip: the most that an example counts, at least 0.
    noise_multiplier: deviation of the noise in units of it; no privacy at 0.
    seed: the former name of `key`, deprecated.
    momentum: the decay of `trace`; none if `None`.
    nesterov: whether to look one step ahead with the sum of `trace`.
    key: a random key, or an integer to make one of.

    Raises a `ValueError` unless one of `seed` and `key` is given.
    """
    if (seed is None) == (key is None):
        raise ValueError("give one of `seed` and `key`, the start of the noise")
    return chain(
        differentially_private_aggregate(
            l2_norm_clip, noise_multiplier, chosen_key(key, seed)
        ),
        identity() if momentum is None else trace(momentum, nesterov),
        *decayed(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )


def _without_default(f: Any, name: str) -> None:
    """Let a parameter look required, as it is in Optax, that need not be given."""
    signature = inspect.signature(f)
    parameters = dict(signature.parameters)
    parameters[name] = parameters[name].replace(default=inspect.Parameter.empty)
    f.__signature__ = signature.replace(parameters=list(parameters.values()))


_without_default(dpsgd, "seed")
