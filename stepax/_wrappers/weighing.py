"""The parts of `MultiSteps`: weighted means of gradients, and what a call returns."""

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.factories.ranges import share
from .._engine.step.leafwise import step


def divided(x: jax.Array, n: jax.Array) -> jax.Array:
    """`x / n` for a real scalar."""
    if jnp.iscomplexobj(x):  # complex division would spread an infinity to both parts
        return jax.lax.complex(divided(x.real, n), divided(x.imag, n))
    return x / n.astype(x.dtype)


@jax.jit
def mean_with(mean, g, total, w):
    """A mean with one more gradient; `total` is the sum of weights with its own."""
    n = total if w is None else share(total, w, mean.dtype)
    return mean + divided(g.astype(mean.dtype) - mean, n)


@jax.jit
def sum_with(total, g, _, w):
    """A sum with one more gradient, called like `mean_with`."""
    g = g.astype(total.dtype)
    return total + (g if w is None else jnp.asarray(w).astype(total.dtype) * g)


def weigh(
    state: rx.OptState, n: jax.Array, w: jax.Array
) -> tuple[jax.Array, rx.OptState]:
    """The sum of the weights up to this call, and what the state stores of it.

    n: the number of calls up to this one, which is the sum without weights.
    w: the weight of this call, 1 if it is `None`.
    """
    before = state.weight
    if w is None:
        total = jnp.where(before > 0, before + 1, n.astype(jnp.float32))
        return total, jnp.where(before > 0, total, 0)
    total = jnp.where(before > 0, before, (n - 1).astype(jnp.float32)) + w
    return total, total


class ReturnedUpdates:
    """What a call of `update` returns: updates, which are zero in most calls."""

    def __init__(self, opt: rx.GradientTransformationExtraArgs):
        self.opt = opt

    def size(self, params: rx.Params) -> int:
        """The size of what a call returns unchanged while it accumulates."""
        return 0

    def unchanged(self, updates: rx.Updates, params: rx.Params) -> rx.Updates:
        return rx.zeros_like_updates(rx.like_updates(updates, self.opt))

    def after_step(
        self, updates, acc, inner, params, extra
    ) -> tuple[rx.Updates, rx.OptState]:
        u, new = self.opt.update(acc, inner, params, **extra)
        like = rx.like_updates(updates, self.opt)
        u = rx.map_gradients(lambda g, x: x.astype(g.dtype), like, updates=u)
        return u, new


class ReturnedParams(ReturnedUpdates):
    """What a call in `stepax.step` returns: parameters, most often the old ones."""

    def size(self, params: rx.Params) -> int:
        # While the host waits for the boolean, it dispatches no array; one takes it as
        # long as a GPU takes for a million elements.
        return sum(np.size(x) - 2**20 for x in jax.tree.leaves(params))

    def unchanged(self, updates: rx.Updates, params: rx.Params) -> rx.Params:
        # Both branches must return arrays, and the other one converts Python scalars.
        return jax.tree.map(lambda p: jnp.asarray(p) if rx.is_array(p) else p, params)

    def after_step(
        self, updates, acc, inner, params, extra
    ) -> tuple[rx.Updates, rx.OptState]:
        return step(self.opt, acc, inner, params, **extra)
