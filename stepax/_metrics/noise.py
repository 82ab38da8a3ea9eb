"""The gradient noise scale.

McCandlish et al., 2018, An Empirical Model of Large-Batch Training (arXiv:1812.06162),
appendix A.1: from squared norms of gradients of two batch sizes.  Difference from it:
where the estimate of |G|² is not positive, the scale is infinite.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .. import tree
from .._engine.base import as_array
from .._engine.functions.calls import explain_misuse
from .._wrappers.monitor import StatefulMetric
from . import beside, is_number, metric


class Noise(NamedTuple):
    """How noisy gradients are; scalars in float32.

    trace: Σ over parameters of the variance of the gradient of one example, tr Σ.
    squared_norm: the squared norm of the true gradient, |G|².
    scale: their ratio, the batch size up to which larger batches save steps in
        proportion.
    """

    trace: jax.Array
    squared_norm: jax.Array
    scale: jax.Array


@explain_misuse
def gradient_noise(
    small: ArrayLike, large: ArrayLike, small_size: ArrayLike, large_size: ArrayLike
) -> Noise:
    """The gradient noise from squared norms of gradients of two batch sizes.

        tr Σ = (s - l) / (1/b - 1/B),   |G|² = (B l - b s) / (B - b)

    Each is unbiased, and very noisy for a single step: average each over steps, as
    `noise_scale` does, and divide the averages.

    small, large: s and l, the mean of |g|² over batches of either size.
    small_size, large_size: b < B, in examples.

    Raises a `ValueError` unless 0 < b < B, if the sizes are concrete.
    """
    _check_sizes(small_size, large_size)
    s, l, b, B = (
        jnp.asarray(x, jnp.float32) for x in (small, large, small_size, large_size)
    )
    trace = (s - l) * (b * B / (B - b))
    return _noise(trace, (B * l - b * s) / (B - b))


def _noise(trace, squared_norm):
    is_known = squared_norm > 0
    scale = jnp.maximum(trace, 0) / jnp.where(is_known, squared_norm, 1)
    return Noise(trace, squared_norm, jnp.where(is_known, scale, jnp.inf))


@metric
def noise_scale(
    small_size: ArrayLike,
    large_size: ArrayLike | None = None,
    *,
    decay: float = 0.95,
    mean: bool = True,
) -> StatefulMetric:
    """The gradient noise scale tr Σ / |G|², a `Noise`, from averages over steps.

    Around `MultiSteps`, as in `observe(MultiSteps(tx, 8), {"noise": noise_scale(32)})`,
    it compares the gradient of each call with their mean.  Elsewhere it compares the
    gradients with the mean of |g|² over microbatches, which is the keyword
    `small_squared_norm` of `update`.

    small_size: examples of a call or microbatch, > 0; if calls have a `weight`, the
        examples that a weight of 1 stands for.
    large_size: examples of the gradients; `None` around `MultiSteps`.
    decay: decay rate of both averages, in [0, 1).
    mean: `use_grad_mean` of `MultiSteps`.

    A step with a single call carries no information and is skipped, as is a step with a
    NaN or an infinity.  All values are 0 before the first step.  Not for `MultiSteps`
    with `axis_name`.

    Raises a `ValueError` for a size or decay out of range, and if the observed
    transformation is not `MultiSteps`; a `TypeError` if the keyword is missing.
    """
    _check_sizes(small_size, math.inf if large_size is None else large_size)
    if not 0 <= decay < 1:
        raise ValueError(f"`decay` is {decay}, expected a number in [0, 1)")
    norms = _norms_by_calls(small_size, mean)
    if large_size is not None:
        norms = _norms_by_keyword(small_size, large_size)

    def init(params):
        # Separate arrays, because an array can be donated only once.
        zeros = [jnp.zeros([], jnp.float32) for _ in range(9)]
        names = "trace", "squared_norm", "share", *_WINDOW
        return Noise(*zeros[:3]), dict(zip(names, zeros[3:], strict=True))

    def measure(memory, seen):
        window, (s, l, b, B) = norms(memory, seen)
        is_told = jnp.isfinite(s) & jnp.isfinite(l) & (B > b)
        # Where sizes are not known, any will do: the result is not used.
        b, B = jnp.where(is_told, b, 1), jnp.where(is_told, B, 2)
        now = gradient_noise(s, l, b, B)
        parts = {"trace": now.trace, "squared_norm": now.squared_norm}

        def mix(old, x):
            return jnp.where(is_told, decay * old + (1 - decay) * x, old)

        share = mix(memory["share"], 1.0)
        kept = {k: mix(memory[k], x) for k, x in parts.items()}
        known = jnp.where(share > 0, share, 1)
        found = _noise(kept["trace"] / known, kept["squared_norm"] / known)
        value = jax.tree.map(lambda x: jnp.where(share > 0, x, 0), found)
        return value, kept | window | {"share": share}

    reads = () if large_size is None else ("small_squared_norm",)
    return StatefulMetric(init, measure, reads)


# For the calls since the last step: Σ w |g|², Σ w, and their number.
_WINDOW = ("sum", "weight", "calls")


def _check_sizes(small: Any, large: Any) -> None:
    is_traced = isinstance(small, jax.Array) or isinstance(large, jax.Array)
    if not is_traced and not 0 < small < large:
        wanted = "more than 0" if large == math.inf else f"more than 0, below {large}"
        raise ValueError(f"`small_size` is {small}, expected {wanted}")


def _norms_by_keyword(small_size, large_size):
    def norms(memory, seen):
        small = seen.keywords.get("small_squared_norm")
        if small is None:
            raise TypeError(
                "`noise_scale` with `large_size` needs the keyword "
                "`small_squared_norm` of `update`: the mean of |g|² over microbatches"
            )
        large = tree.norm(seen.before, squared=True)
        numbers = small, large, small_size, large_size
        window = {k: memory[k] for k in _WINDOW}
        return window, [jnp.asarray(x, jnp.float32) for x in numbers]

    return norms


def _norms_by_calls(size, mean):
    def norms(memory, seen):
        old, new = (_multi_steps(x) for x in (seen.old, seen.new))
        given = seen.keywords.get("weight")
        w = jnp.asarray(1.0 if given is None else given, jnp.float32)
        is_due = new.gradient_step > old.gradient_step
        # `MultiSteps` may skip a call, or a call may have a weight of 0.
        counts = is_due | (new.mini_step > old.mini_step)
        square = tree.norm(seen.before, squared=True)
        more = {"sum": w * square, "weight": w, "calls": 1.0}
        now = {k: memory[k] + jnp.where(counts, x, 0) for k, x in more.items()}
        total = now["weight"]
        before = memory["weight"] if mean else jnp.float32(1)
        large = _squared_sum(old.acc_grads, before, seen.before, w) / total**2
        # Calls with other weights are batches of other sizes: this is the average size.
        small_size = size * total / now["calls"]
        sizes = small_size, jnp.where(is_due, size * total, 0)
        window = {k: jnp.where(is_due, 0, x) for k, x in now.items()}
        return window, (now["sum"] / total, large, *sizes)

    return norms


def _squared_sum(acc, a, gradients, w):
    """|a acc + w g|², without an array for the sum, as the compiler fuses it."""
    terms = []
    for g, x in beside(gradients, acc):
        if is_number(g) and is_number(x):
            wide = as_array(x).astype(jnp.promote_types(x.dtype, jnp.float32))
            real = wide.real.dtype
            g = as_array(g).astype(wide.dtype)
            terms.append(a.astype(real) * wide + w.astype(real) * g)
    return tree.norm(terms, squared=True)


def _multi_steps(state):
    found = tree.get(state, "MultiStepsState")
    if found is None:  # the state for weighted gradients
        found = tree.get(state, "WeightedMultiStepsState")
    if found is None:
        raise ValueError(
            "`noise_scale` found no state of `MultiSteps` in the observed "
            "transformation: put `observe` around `MultiSteps`, or pass `large_size`"
        )
    return found
