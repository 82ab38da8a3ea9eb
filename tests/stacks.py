"""A model with stacks of layers and of groups of experts, and the same unrolled."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stepax


AXES = {"layers/**": 0, "experts/**": (0, 1), "**": None}
ELSEWHERE = {"middle": 1, "last": -1, "**": None}

_SHAPES = {
    "layers": {"w": (3, 4, 3), "b": (3, 3)},
    "experts": {"w": (2, 2, 3, 4)},
    "head": (4, 3),
}
_MORE = {"middle": (4, 3, 2), "last": (3, 4, 2), "head": (4, 3)}


def params(dtype: Any = "float64", elsewhere: bool = False) -> Any:
    """elsewhere: whether stack axes are not in front."""
    rng = np.random.default_rng(3)
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape) + 0.3, dtype),
        _MORE if elsewhere else _SHAPES,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def gradients(params: Any, step: int) -> Any:
    """Gradients of no symmetry, which depend on the parameters alone."""
    return jax.tree.map(lambda p: jnp.sin((2 + step) * p) + 0.3 * p, params)


def trained(tx: Any, params: Any, steps: int = 4, unrolled: Any = None, **extra) -> Any:
    """Parameters and state after some steps.

    unrolled: the axes by which gradients and parameters are split; `None` for stacks.
    """
    split = lambda tree: (
        tree if unrolled is None else stepax.tree.unstack(tree, unrolled)
    )

    def step(g, state, p):
        more = {"grad": g} | extra if extra else {}
        u, state = tx.update(g, state, p, **more)
        return stepax.apply_updates(p, u), state

    gs = [split(gradients(params, i)) for i in range(steps)]
    p, step = split(params), jax.jit(step)
    state = jax.jit(tx.init)(p)
    for g in gs:
        p, state = step(g, state, p)
    return p, state
