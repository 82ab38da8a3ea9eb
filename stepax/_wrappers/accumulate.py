"""Gradient accumulation: one step for several calls.

A call may say how much its gradient weighs, such as the number of tokens it is a mean
over.  Optax's state has no field for the sum of the weights.  So there are two states:
Optax's, without weights, and `WeightedMultiStepsState`, to which the first call with a
weight converts it, even in the middle of a step; `init` makes one if asked to.

Differences from Optax: the inner transformation runs only when a step is due; NaN in
one window is not carried into the next; complex and float64 gradients are accumulated
in their own precision; `gradient_transformation` accepts extra keywords; `weight` and
`axis_name` are new.
"""

import functools as ft
import inspect
import operator
from typing import Any, NamedTuple, NoReturn, Protocol, cast

import jax
import jax.numpy as jnp
from jax.core import Tracer

from .._engine import rules as rx
from .._engine.arrays.numerics import increment
from .._engine.base.call import known_by_call
from .._engine.base.stepped import accumulates
from .._engine.factories.argument_checks import ArgumentChecks
from .._engine.factories.ranges import real_scalar, weights
from .._engine.functions.calls import no_attribute
from .._engine.step.array_split import weighted_mean
from .._engine.step.leafwise import count_not_finite, steps_in_one
from .._engine.step.nest import Sanitizers
from ..tree import norm
from .weighing import ReturnedParams, ReturnedUpdates, mean_with, sum_with, weigh


class ShouldSkipUpdateFunction(Protocol):
    """Decides whether `MultiSteps` skips a gradient."""

    def __call__(
        self, updates: rx.Updates, gradient_step: Any, params: rx.Params | None, /
    ) -> tuple[rx.ArrayLike, rx.OptState]:
        """Whether to skip, and a tree of fixed structure to keep in the state."""
        ...


@rx.explain_misuse
def skip_not_finite(
    updates: rx.Updates, gradient_step: jax.Array, params: rx.Params | None
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Skip a gradient that contains NaN or an infinity.

    updates: the gradients to check.
    gradient_step: number of steps taken; not used.
    params: the parameters, or `None`; not used.

    Returns the decision, and a dict of `should_skip` and `num_not_finite`.
    """
    number = count_not_finite(updates)
    skip = number > 0
    return skip, {"should_skip": skip, "num_not_finite": number}


@rx.explain_misuse
def skip_large_updates(
    updates: rx.Updates,
    gradient_step: jax.Array,
    params: rx.Params | None,
    max_squared_norm: rx.ArrayLike,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Skip a gradient whose squared norm is not finite or at least max_squared_norm.

    max_squared_norm: least squared norm to skip, above 0.
    Other arguments: those of `skip_not_finite`.

    Returns the decision, and a dict of `should_skip` and `norm_squared`.
    """
    norm_squared = norm(updates, squared=True)
    skip = ~(norm_squared < max_squared_norm)  # True for NaN, too
    return skip, {"should_skip": skip, "norm_squared": norm_squared}


@rx.optax_compatible
class MultiStepsState(rx.optax.MultiStepsState):
    """State of `MultiSteps`.

    mini_step: gradients accumulated since the last step, a scalar.
    gradient_step: steps of the inner transformation, a scalar.
    inner_opt_state: state of the inner transformation.
    acc_grads: mean or sum of the gradients, shaped like the parameters.
    skip_state: the tree last returned by `should_skip_update_fn`.
    """

    mini_step: jax.Array
    gradient_step: jax.Array
    inner_opt_state: rx.OptState
    acc_grads: rx.Updates
    skip_state: rx.OptState = ()


class WeightedMultiStepsState(NamedTuple):
    """As `MultiStepsState`, where gradients have weights.

    weight: the sum of the weights since the last step, a scalar in float32; 0 while all
        calls were without a weight.
    """

    mini_step: jax.Array
    gradient_step: jax.Array
    inner_opt_state: rx.OptState
    acc_grads: rx.Updates
    skip_state: rx.OptState
    weight: jax.Array


def with_weight(state: rx.OptState) -> WeightedMultiStepsState:
    """A state with a field for weights, before any weight has been received."""
    if isinstance(state, WeightedMultiStepsState):
        return state
    return WeightedMultiStepsState(**state._asdict(), weight=jnp.zeros([], jnp.float32))


def _zeros(p: rx.ArrayLike, asked: Any) -> jax.Array | None:
    """Zeros of dtype `asked`, or by default of that of `p`, but not narrower.

    Complex parameters have complex zeros, whatever `asked` is.
    """
    if not rx.is_trainable(p):
        return None
    with jax.numpy_dtype_promotion("standard"):
        wide = jnp.promote_types(jnp.result_type(p), asked)
    is_complex = jnp.issubdtype(wide, jnp.complexfloating)
    return rx.zeros_like(p, wide if is_complex or asked == jnp.float32 else asked)


@jax.jit
def _zero_if(did, x):
    return jnp.where(did, jnp.zeros_like(x), x)


@ft.cache
def _checks() -> ArgumentChecks:
    """Made once, since it reads all annotations."""
    return ArgumentChecks(MultiSteps, {})


def _check_every_k(every_k: Any) -> None:
    try:
        # A switch is not a number of gradients, although Python counts with it.
        given: Any = None if isinstance(every_k, bool) else every_k
        is_enough = callable(given) or operator.index(given) >= 1
    except TypeError:
        raise TypeError(
            "`MultiSteps`: `every_k_schedule` must be an integer or a function that "
            f"returns integers, but is `{every_k!r}`"
        ) from None
    if not is_enough:
        raise _too_few(f"is {every_k}")


def _too_few(found: str) -> ValueError:
    return ValueError(
        f"`MultiSteps`: `every_k_schedule` {found}, but a step needs at least 1 "
        "gradient"
    )


@steps_in_one
@known_by_call
class MultiSteps:
    """Take one step with the mean of k gradients, one gradient per call.

        acc = acc + (w / W) (g - acc),   W = W + w,   in each of k calls
        u = inner(acc),   acc = 0,   W = 0            in the k-th

    w is the keyword `weight` of `update`, by default 1; the inner transformation gets
    W.  Calls with weight 0 are ignored, even if the gradient is NaN, and do not count
    towards k.

    Calls before the k-th return zeros without running the inner transformation; under
    `vmap` both branches run.  `zero_nans` in the inner transformation cleans each
    gradient, unless it comes after a check such as `apply_if_finite`, and `found_nan`
    covers all gradients since the last step.

    opt: the inner transformation.
    every_k_schedule: k, at least 1, or a function from the number of steps taken to k,
        which is rounded; values below 1 are an error, and count as 1 under `jit`.
    use_grad_mean: whether to accumulate the mean rather than the sum, Σ w g.
    should_skip_update_fn: decides whether to ignore the gradient of a call.
    accumulator_dtype: dtype of the accumulator; complex gradients stay complex, and
        float64 gradients stay float64 unless this is a dtype other than float32.
    axis_name: mesh axis inside `shard_map`, over which a call takes weighted means.
    weighted: whether `init` makes room for weights, which `lax.scan` and wrappers that
        branch need; otherwise the first call with a weight does.

    Raises a `ValueError` if k is below 1, and a `TypeError` if k is not an integer.
    """

    @rx.explain_misuse
    def __init__(
        self,
        opt: rx.TransformationLike,
        every_k_schedule: int | rx.Schedule,
        use_grad_mean: bool = True,
        should_skip_update_fn: ShouldSkipUpdateFunction | None = None,
        accumulator_dtype: rx.DTypeLike = jnp.float32,
        *,
        axis_name: str | tuple[str, ...] | None = None,
        weighted: bool = False,
    ):
        self._opt = rx.with_keywords(opt, "`opt` of `MultiSteps`")
        _check_every_k(every_k_schedule)
        given = use_grad_mean, should_skip_update_fn, accumulator_dtype
        bound = inspect.signature(MultiSteps).bind(
            opt, every_k_schedule, *given, axis_name=axis_name, weighted=weighted
        )
        _checks().check_kinds(bound.arguments)
        self._updates = ReturnedUpdates(self._opt)
        self._params = ReturnedParams(self._opt)
        self._every_k = every_k_schedule
        self._add = mean_with if use_grad_mean else sum_with
        self._should_skip = should_skip_update_fn or (lambda *call: (False, ()))
        self._axis_name = axis_name
        self._weighted = weighted
        self._dtype = jax.dtypes.canonicalize_dtype(accumulator_dtype)
        self._sanitizers = Sanitizers(opt)
        self.call = rx.Call(MultiSteps, MultiSteps, bound)

    @property
    def inner_opt(self) -> rx.GradientTransformationExtraArgs:
        """The inner transformation."""
        return self._opt

    # Type checkers see these; the weighted state has all these fields.
    def init(self, params: rx.Params) -> MultiStepsState:
        """The initial state, without any gradient."""
        acc = jax.tree.map(lambda p: _zeros(p, self._dtype), params)
        step = jnp.zeros([], jnp.int32)
        like = jax.tree.map(rx.zeros_like, params)
        with rx.errors.named("MultiSteps", made=self):
            _, seen = self._should_skip(like, step, params)
        inner = self._opt.init(params)
        count, seen = jnp.zeros([], jnp.int32), jax.tree.map(rx.START.new, seen)
        state = MultiStepsState(count, step, inner, acc, seen)
        return cast(MultiStepsState, with_weight(state)) if self._weighted else state

    def update(
        self,
        updates: rx.Updates,
        state: MultiStepsState | WeightedMultiStepsState,
        params: rx.Params | None = None,
        *,
        weight: rx.ArrayLike | None = None,
        **extra_args: Any,
    ) -> tuple[rx.Updates, MultiStepsState]:
        """Accumulate a gradient; the k-th call returns updates, the others zeros.

        updates: the gradients, or the updates of the preceding stage of a chain.
        weight: the weight of this gradient in the mean, such as its number of tokens: a
            finite scalar, at least 0.  Under `jit` any other value makes the mean NaN.
        extra_args: keywords for the inner transformation, which receives the keywords
            of the k-th call.

        Raises a `ValueError` for a weight that is negative, not finite, or not a
        scalar.
        """
        try:
            return self._call(self._updates, updates, state, params, weight, extra_args)
        except (TypeError, AttributeError) as error:
            with rx.errors.named("MultiSteps", made=self):
                raise error

    def __getattr__(self, name: str) -> NoReturn:
        raise no_attribute("MultiSteps", name)

    def take_step(
        self, gradients: rx.Updates, state: rx.OptState, params: rx.Params, extra: dict
    ) -> tuple[rx.Params, rx.OptState]:
        """The parameters after a call, and the state, for `stepax.step`."""
        extra = {**extra}
        weight = extra.pop("weight", None)
        return self._call(self._params, gradients, state, params, weight, extra)

    def _call(self, ends, updates, state, params, weight, extra) -> Any:
        """A call that returns updates or parameters, as `ends` says, and the state."""
        if not isinstance(state, WeightedMultiStepsState):
            rx.errors.require_state("MultiSteps", MultiStepsState, state)
        if weight is not None:
            name = "`weight` of `MultiSteps`"
            weight = weights(real_scalar(weight, name), name)
            state = with_weight(state)
        if self._axis_name is not None:
            updates, weight = weighted_mean(updates, weight, self._axis_name)

        def leave(state):
            return ends.unchanged(updates, params), state

        def unless_skipped():
            skip, seen = self._should_skip(updates, state.gradient_step, params)
            new = state._replace(skip_state=rx.keep_dtypes(seen, state.skip_state))
            take = ft.partial(self._take, ends, updates, new, params, weight, extra)
            return rx.branch(skip, ft.partial(leave, new), take)

        if weight is None:
            return unless_skipped()
        return rx.branch(weight == 0, ft.partial(leave, state), unless_skipped)

    def _take(self, ends, updates, state, params, weight, extra):
        inner, n = state.inner_opt_state, increment(state.mini_step)
        clean, found = self._sanitizers.clean(updates, inner, params)
        goes_on = state.mini_step > 0
        before = jax.tree.map(lambda was: was & goes_on, self._sanitizers.read(inner))
        found = jax.tree.map(jnp.logical_or, found, before)
        has_weight = isinstance(state, WeightedMultiStepsState)
        total, kept = weigh(state, n, weight) if has_weight else (n, None)
        extra = extra if weight is None else {**extra, "weight": total}

        def add(g, acc):
            return self._add(acc, g, total, weight)

        def gathered():
            return rx.map_gradients(
                add, clean, idle=lambda g, acc: acc, acc_grads=state.acc_grads
            )

        def emit():
            # A leaf without a gradient in this call has none in the step.
            acc = rx.map_gradients(lambda g, a: a, updates, acc_grads=gathered())
            u, new = ends.after_step(updates, acc, inner, params, extra)
            new = rx.keep_dtypes(new, inner)
            also = jax.tree.map(jnp.logical_or, found, self._sanitizers.read(new))
            step = increment(state.gradient_step)
            return u, self._sanitizers.write(new, also), step, jnp.array(True)

        def wait():
            marked = self._sanitizers.write(inner, found)
            step = state.gradient_step
            return ends.unchanged(updates, params), marked, step, jnp.array(False)

        # The branch returns whether a step was taken, so that the accumulator is
        # written after the branch has read it, and XLA need not copy it.
        due = self._is_due(n, state.gradient_step)
        size = ends.size(params)
        u, inner, step, did = rx.branch(due, emit, wait, size)
        rest = n, kept, gathered()
        n, kept, acc = jax.tree.map(ft.partial(_zero_if, did), rest)
        new = n, step, inner, acc, state.skip_state
        plain = kept is None
        return u, MultiStepsState(*new) if plain else WeightedMultiStepsState(
            *new, kept
        )

    def _is_due(self, n: jax.Array, gradient_step: jax.Array) -> jax.Array:
        k: Any = self._every_k
        if not callable(k):
            return k == 1 or n >= k  # for k = 1 this is a Python bool
        k = k(gradient_step)
        is_few = k < 1
        if not isinstance(is_few, Tracer) and is_few:
            raise _too_few(f"returned {k} for step {gradient_step}")
        k = jnp.asarray(k)
        is_float = jnp.issubdtype(k.dtype, jnp.floating)
        return n >= (jnp.rint(k) if is_float else k).astype(n.dtype)

    def has_updated(self, state: MultiStepsState) -> jax.Array:
        """Whether the last call took a step."""
        rx.errors.require_state("has_updated", MultiStepsState, state)
        return (state.mini_step == 0) & (state.gradient_step > 0)

    def gradient_transformation(self) -> rx.GradientTransformationExtraArgs:
        """The same transformation as a pair of functions."""
        tx: Any = _pair(self)
        return rx.titled(tx, f"{self!r}.gradient_transformation()")


@rx.recorded
def _pair(multi_steps: MultiSteps) -> rx.GradientTransformationExtraArgs:
    judges = multi_steps.call.bound.arguments["should_skip_update_fn"] is not None
    return rx.transformation(
        multi_steps.init,
        multi_steps.update,
        inner={"inner_opt_state": multi_steps.inner_opt},
        hands_on=None if judges else "inner_opt_state",
        stepped=accumulates,
        take_step=multi_steps.take_step,
    )
