"""Complex arrays as pairs of real arrays, for optimizers that expect real ones.

Difference from Optax: keywords of `update` reach the inner transformation.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx


@rx.optax_compatible
class SplitRealAndImaginaryArrays(NamedTuple):
    """real, imaginary: parts of a complex array, shaped like it."""

    real: Any
    imaginary: Any


@rx.optax_compatible
class SplitRealAndImaginaryState(NamedTuple):
    """inner_state: state of `inner`, with a pair of real arrays per complex array."""

    inner_state: Any


@rx.public("wrapper")
def split_real_and_imaginary(
    inner: rx.GradientTransformation,
) -> rx.GradientTransformationExtraArgs:
    """Apply a transformation to real and imaginary parts as separate arrays.

        Re u, Im u = inner(Re g, Im g)

    Real arrays and keywords of `update` are passed on unchanged.

    inner: the transformation; it only sees real arrays.
    """
    inner = rx.with_keywords(inner, "`inner` of `split_real_and_imaginary`")

    def init(params):
        return SplitRealAndImaginaryState(inner.init(_split(params)))

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state(
            "split_real_and_imaginary", SplitRealAndImaginaryState, state
        )
        params = None if params is None else _split(params)
        old = state.inner_state
        pairs, new = inner.update(_split(updates), old, params, **extra_args)
        return _joined(pairs), SplitRealAndImaginaryState(new)

    return rx.transformation(init, update, inner={"inner_state": inner})


def _split(tree):
    def one(x):
        if not rx.is_array(x) or not jnp.issubdtype(
            jnp.result_type(x), jnp.complexfloating
        ):
            return x
        return SplitRealAndImaginaryArrays(jnp.real(x), jnp.imag(x))

    return jax.tree.map(one, tree)


def _joined(tree):
    Pair = SplitRealAndImaginaryArrays
    return jax.tree.map(
        lambda x: jax.lax.complex(*x) if isinstance(x, Pair) else x,
        tree,
        is_leaf=lambda x: isinstance(x, Pair),
    )
