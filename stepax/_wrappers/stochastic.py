"""Stochastic rounding of half-precision parameters.

Gupta, Agrawal, Gopalakrishnan and Narayanan, 2015, Deep Learning with Limited Numerical
Precision (arXiv:1502.02551), section 3.1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.trees import stacks
from .._transforms.noise import drawn_like, typed_key
from .narrow import Widened, on_wide, widen_narrow


class StochasticRoundingState(NamedTuple):
    """key_data: raw data of the next step's key, which any checkpoint format can store.
    inner_state: state of the inner transformation."""

    key_data: jax.Array
    inner_state: rx.OptState


@rx.traits("keeps small steps")
@rx.public("wrapper", paper="arXiv:1502.02551")
def stochastic_rounding(
    inner: rx.TransformationLike, key: jax.Array | int
) -> rx.GradientTransformationExtraArgs:
    """Round low-precision parameters stochastically, so that small steps are not lost.

        x = p + inner(g, p) lies between the neighbours a < b in the dtype of p
        p + u = b with probability (x - a) / (b - a), otherwise a;   its mean is x

    The inner transformation sees gradients and parameters in float32.  Unlike
    `master_weights` it needs no copies, but it adds rounding noise.  If an update is
    many times larger than the parameter and the gradient is narrow, too, u itself is
    rounded to nearest.

    inner: the transformation; its state has the dtypes for float32 parameters, or
        narrower ones with `with_state_dtypes`.
    key: a random key, or an integer seed for one.
    """
    inner = rx.with_keywords(inner, "`inner` of `stochastic_rounding`")
    kind = jax.random.key_impl(typed_key(key))

    def init(params):
        data = jax.random.key_data(typed_key(key))
        wide = widen_narrow(params, jnp.float32)
        return StochasticRoundingState(data, inner.init(wide))

    def widened(updates, state, params):
        rx.errors.require_state("stochastic_rounding", StochasticRoundingState, state)
        return _Noisy(updates, params, state.key_data, kind)

    def after(seen, masters, inner_state, was):
        return StochasticRoundingState(seen.next_key_data, inner_state)

    return on_wide(init, inner, widened, after)


class _Noisy(Widened):
    """As `Widened`, rounded with noise; next_key_data: of the key for the next step."""

    def __init__(
        self, updates: rx.Updates, params: rx.Params, key_data: jax.Array, kind: Any
    ):
        super().__init__(updates, params, jnp.float32)
        key = jax.random.wrap_key_data(key_data, impl=kind)
        then, now = jax.random.split(key)
        self.next_key_data = jax.random.key_data(then)
        axes = stacks.of_leaves(params)
        narrow = [axes[i] for i in self.at]
        uniform = jax.random.uniform
        self.more = [drawn_like(now, self.narrow, narrow, uniform, jnp.float32)]
        self.to_narrow = _rounded


@rx.promote_freely
def _rounded(x: jax.Array, dtype: rx.DTypeLike, noise: jax.Array) -> jax.Array:
    """x, rounded up where uniform noise is below the fraction (x - a) / (b - a)."""
    near = x.astype(dtype)
    infinity = jnp.full_like(near, jnp.inf)
    a = jnp.where(near.astype(x.dtype) > x, jax.lax.nextafter(near, -infinity), near)
    b = jax.lax.nextafter(a, infinity)
    part = (x - a.astype(x.dtype)) / (b.astype(x.dtype) - a.astype(x.dtype))
    # Beyond the largest finite value b is infinite and the fraction 0; for infinite x
    # the fraction is undefined.
    return jnp.where(jnp.isfinite(x), jnp.where(noise < part, b, a), near)
