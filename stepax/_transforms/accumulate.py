"""Gradient accumulation: several calls, one step."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from .._engine.compose import Guards
from .._engine.control import branch
from .._engine.leafwise import (
    count_not_finite,
    keep_dtypes,
    map_gradients,
    zeros_like_updates,
)
from .._engine.numerics import safe_increment
from .._engine.protocol import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    Params,
    Updates,
    require,
    transformation,
    with_extra_args_support,
)
from .._engine.rule import zeros_like
from .._engine.twin import twin
from ..tree import norm


class ShouldSkipUpdateFunction(Protocol):
    """Decides whether `MultiSteps` leaves out a gradient."""

    def __call__(
        self, updates: Updates, gradient_step: jax.Array, params: Params | None
    ) -> tuple[jax.Array, Any]:
        """Whether to skip, and a tree to keep in the state, always of one structure."""
        ...


def skip_not_finite(
    updates: Updates, gradient_step: jax.Array, params: Params | None
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Skip a gradient that has a NaN or an infinity in it.

    Returns the decision, and a dict of `should_skip` and `num_not_finite`.
    """
    number = count_not_finite(updates)
    skip = number > 0
    return skip, {"should_skip": skip, "num_not_finite": number}


def skip_large_updates(
    updates: Updates,
    gradient_step: jax.Array,
    params: Params | None,
    max_squared_norm: ArrayLike,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Skip a gradient whose squared norm is max_squared_norm or more, or not finite.

    max_squared_norm: above 0.

    Returns the decision, and a dict of `should_skip` and `norm_squared`.
    """
    norm_squared = norm(updates, squared=True)
    skip = ~(norm_squared < max_squared_norm)  # also true for NaN
    return skip, {"should_skip": skip, "norm_squared": norm_squared}


@twin
class MultiStepsState(NamedTuple):
    """State of `MultiSteps`.

    mini_step: gradients taken in since the last step, a scalar.
    gradient_step: steps of the inner transformation, a scalar.
    inner_opt_state: of the inner transformation.
    acc_grads: their mean, or sum, shaped as the parameters.
    skip_state: what the function that skips has returned.
    """

    mini_step: jax.Array
    gradient_step: jax.Array
    inner_opt_state: Any
    acc_grads: Any
    skip_state: Any = ()


def _accumulator_dtype(p: Any, asked: Any) -> Any:
    """`asked`, but never so as to lose an imaginary part, or half of a float64."""
    dtype = getattr(p, "dtype", jnp.dtype(jnp.float32))
    is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
    if is_complex or asked == jnp.float32:
        return jnp.promote_types(dtype, asked)
    return asked


def _never(updates, gradient_step, params):
    return False, ()


class MultiSteps:
    """Take a step with the mean of several gradients, one gradient a call.

        acc = acc + (g - acc) / n,   n = 1 ... k;   at n = k: u = inner(acc), acc = 0

    The calls before the k-th return zeros and do none of the work of the inner
    transformation; under `vmap` both are computed and one is selected.  Where
    `zero_nans` leads the inner transformation it cleans every single gradient, so that
    a NaN costs the one number that it replaces.

    opt: the inner transformation.
    every_k_schedule: k, at least 1, or a function from the number of steps taken to k.
    use_grad_mean: whether to take the mean, else the sum.
    should_skip_update_fn: decides whether a call is left out, as if it had not been.
    accumulator_dtype: of the sum; float64 and complex gradients keep their precision.

    Raises a `ValueError` for a k below 1.
    """

    def __init__(
        self,
        opt: GradientTransformation,
        every_k_schedule: int | Callable[[ArrayLike], ArrayLike],
        use_grad_mean: bool = True,
        should_skip_update_fn: ShouldSkipUpdateFunction | None = None,
        accumulator_dtype: DTypeLike = jnp.float32,
    ):
        require(opt, "`opt` of `MultiSteps`")
        if not callable(every_k_schedule) and every_k_schedule < 1:
            raise ValueError(
                f"`every_k_schedule` is {every_k_schedule}, but a step needs at least "
                "1 gradient"
            )
        self._opt = with_extra_args_support(opt)
        self._every_k = every_k_schedule
        self._use_grad_mean = use_grad_mean
        self._should_skip = should_skip_update_fn or _never
        self._dtype = jax.dtypes.canonicalize_dtype(accumulator_dtype)
        self._guards = Guards(opt)

    @property
    def inner_opt(self) -> GradientTransformationExtraArgs:
        """The inner transformation."""
        return self._opt

    def __repr__(self) -> str:
        return f"MultiSteps({self._opt!r}, {self._every_k!r})"

    def _steps(self, gradient_step: jax.Array) -> Any:
        every_k = self._every_k
        k = every_k(gradient_step) if callable(every_k) else every_k
        return jnp.asarray(k, jnp.int32)

    def init(self, params: Params) -> MultiStepsState:
        """The first state: no gradient taken in."""
        zero = lambda p: zeros_like(p, _accumulator_dtype(p, self._dtype))
        acc = jax.tree.map(zero, params)
        zeros = jax.tree.map(zeros_like, params)
        step = jnp.zeros([], jnp.int32)
        _, skip_state = self._should_skip(zeros, step, params)
        inner = self._opt.init(params)
        return MultiStepsState(jnp.zeros([], jnp.int32), step, inner, acc, skip_state)

    def update(
        self,
        updates: Updates,
        state: MultiStepsState,
        params: Params | None = None,
        **extra_args: Any,
    ) -> tuple[Updates, MultiStepsState]:
        """Take in a gradient; the k-th returns updates, the others return zeros."""
        skip, seen = self._should_skip(updates, state.gradient_step, params)
        state = state._replace(skip_state=keep_dtypes(seen, state.skip_state))

        def take():
            return self._take(updates, state, params, extra_args)

        def leave():
            return zeros_like_updates(updates), state

        return take() if skip is False else branch(skip, leave, take)

    def _take(self, updates, state, params, extra):
        n = state.mini_step
        clean, flags = self._guards.clean(updates, state.inner_opt_state, params)
        flags = self._raise_flags(flags, state)
        state = state._replace(
            inner_opt_state=self._guards.write(state.inner_opt_state, flags)
        )
        acc = map_gradients(
            lambda g, a: self._add(g, a, n),
            clean,
            idle=lambda g, a: a,
            acc_grads=state.acc_grads,
        )

        def emit():
            u, inner = self._step(updates, acc, state, params, extra)
            inner = self._guards.write(inner, flags)
            zeros = jax.tree.map(jnp.zeros_like, acc)
            step = safe_increment(state.gradient_step)
            return u, MultiStepsState(
                jnp.zeros_like(n), step, inner, zeros, state.skip_state
            )

        def wait():
            waiting = state._replace(mini_step=safe_increment(n), acc_grads=acc)
            return zeros_like_updates(updates), waiting

        return branch(n >= self._steps(state.gradient_step) - 1, emit, wait)

    def _raise_flags(self, found, state):
        """What the guards have found since the last step, this gradient included."""
        before = self._guards.read(state.inner_opt_state)
        goes_on = state.mini_step > 0
        return jax.tree.map(lambda x, was: x | (was & goes_on), found, before)

    def _add(self, g, acc, n):
        if not self._use_grad_mean:
            return acc + g.astype(acc.dtype)
        times = (n + 1).astype(jnp.finfo(acc.dtype).dtype)
        return acc + (g.astype(acc.dtype) - acc) / times

    def _step(self, updates, acc, state, params, extra):
        # A leaf without a gradient in this call has none in the step.
        mean = map_gradients(lambda g, a: a, updates, acc_grads=acc)
        u, inner = self._opt.update(mean, state.inner_opt_state, params, **extra)
        u = map_gradients(lambda g, x: x.astype(g.dtype), updates, updates=u)
        return u, keep_dtypes(inner, state.inner_opt_state)

    def has_updated(self, state: MultiStepsState) -> jax.Array:
        """Whether the last call took a step."""
        return (state.mini_step == 0) & (state.gradient_step > 0)

    def gradient_transformation(self) -> GradientTransformationExtraArgs:
        """The same as a plain pair of functions."""
        return transformation(self.init, self.update)
