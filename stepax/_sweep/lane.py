"""One training run, as a function of its traced numbers and its seed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._engine.base.protocol import with_extra_args_support
from .._engine.functions.calls import explain_tracing
from .._engine.step.leafwise import keep_dtypes
from .._engine.trees import errors
from .._engine.trees.apply import apply_updates
from .._minimize.frame import split
from ..tree import conj


def lane_of(
    loss: Callable, init: Callable, make_tx: Callable, steps: int, static: dict
) -> Callable[[dict, Any], jax.Array]:
    """A function from numbers and a seed to the losses of a run (steps,).

    The key of the seed is split in two: the first key is for the parameters, the second
    one is split into keys for the mini-batches.
    """

    def lane(numbers: dict, seed: Any) -> jax.Array:
        tx = with_extra_args_support(make_tx(**static, **numbers))
        init_key, data_key = jax.random.split(jax.random.key(seed))
        frame, moving, staying = split(init(init_key))
        if not moving:
            raise ValueError(
                "`init` returned a tree without floating-point arrays: there is "
                "nothing to train"
            )

        def step(carry, key):
            params, state = carry

            # Sophia needs `obj_fn`; a line search passes it on to `value_fn`.
            def value_fn(params, obj_fn=None):
                whole = frame.whole(frame.pick(params), staying)
                with explain_tracing("`loss`"):
                    found = loss(whole, key)
                return _scalar(found)

            value, grad = jax.value_and_grad(value_fn)(params)
            # JAX's gradient for a complex array is the conjugate of the gradient for
            # its parts.
            grad = conj(grad)
            more = {"value": value, "grad": grad, "value_fn": value_fn}
            updates, new = tx.update(grad, state, params, obj_fn=value_fn, **more)
            carry = apply_updates(params, updates), keep_dtypes(new, state)
            return carry, value

        params = frame.params(moving)
        start = params, tx.init(params)
        return jax.lax.scan(step, start, jax.random.split(data_key, steps))[1]

    return lane


def _scalar(found: Any) -> jax.Array:
    """The loss as an array of float32 or wider; raises unless it is a real scalar."""
    shape, dtype = getattr(found, "shape", None), getattr(found, "dtype", None)
    if isinstance(found, float):
        shape, dtype = (), jnp.result_type(float)
    if shape != () or dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        is_array = shape is not None and dtype is not None
        what = f"{dtype} of shape {shape}" if is_array else errors.describe(found)
        raise TypeError(
            f"`loss` returned {what}, expected a real scalar, as from `jnp.mean`"
        )
    return jnp.asarray(found).astype(jnp.promote_types(dtype, jnp.float32))
