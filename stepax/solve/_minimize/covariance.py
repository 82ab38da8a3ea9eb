"""The covariance of a fit, from the factor of its Jacobian."""

from typing import Any

import jax
import jax.numpy as jnp

from .frame import split
from .pack import Flat


def blocks(whole: jax.Array, params: Any) -> Any:
    """A symmetric matrix as a tree of trees of blocks."""
    frame, moving, _ = split(params)
    flat = Flat(moving, whole.dtype)
    # Each has the shape of a leaf, and an axis for the columns.
    rows = [jnp.moveaxis(x, 0, -1) for x in jax.vmap(flat.split)(whole)]

    def tree(row):
        shape = row.shape[:-1]
        columns = jax.vmap(flat.split)(row.reshape(-1, row.shape[-1]))
        return frame.params(x.reshape(shape + x.shape[1:]) for x in columns)

    return frame.params(map(tree, rows))


def inverse(factor: jax.Array) -> jax.Array:
    """The inverse of R'R, or infinity if that is singular."""
    norms = jnp.sqrt(jnp.sum(factor**2, axis=0))
    scale = jnp.where(norms > 0, norms, 1)
    _, values, rows = jnp.linalg.svd(factor / scale[None])
    least = len(factor) * jnp.finfo(factor.dtype).eps * jnp.max(values)
    half = rows.T / (jnp.maximum(values, least)[None] * scale[:, None])
    return jnp.where(jnp.min(values) > least, half @ half.T, jnp.inf)
