"""Clipping to a norm that is computed from the norms of recent steps.

Three rules: ZClip, Kumar, Owen, Chowdhury and Güra, 2025, ZClip: Adaptive Spike
Mitigation for LLM Pre-Training (arXiv:2504.02507), with reciprocal clipping; AutoClip,
Seetharaman, Wichern, Pardo and Le Roux, 2020, AutoClip: Adaptive Gradient Clipping for
Source Separation Networks (arXiv:2007.14469), Algorithm 1; AdaGC, Wang, Li, Chen, Zeng,
Yang, Yu, Ma and Shen, 2025, AdaGC: Improving Training Stability for Large Language
Model Pretraining (arXiv:2502.11034), Algorithm 1.

Differences: only norms that are finite and above 0 enter the statistics, so that
    neither a NaN nor a layer without a gradient spoils them; AutoClip keeps a window of
    norms, not all of them; a standard deviation is taken as at least a millionth of the
    mean.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import percentile, recorded
from .._engine.arrays.numerics import norm2, safe_increment


class ZClipState(NamedTuple):
    """State of `clip_by_recent_norm` with "zclip"; scalars, or one for each leaf.

    count: number of norms in the statistics, one scalar.
    mean, variance: mean and variance of the clipped norms.
    factor: the factor by which the last gradient was multiplied.
    """

    count: jax.Array
    mean: rx.ArrayTree
    variance: rx.ArrayTree
    factor: rx.ArrayTree


class AutoClipState(NamedTuple):
    """As `ZClipState`, with "autoclip".

    recent: ring buffer of the last norms, before clipping; -1 where there is none yet.
    """

    count: jax.Array
    recent: rx.ArrayTree
    factor: rx.ArrayTree


class AdaGCState(NamedTuple):
    """As `ZClipState`, with "adagc".

    mean: the moving average of the clipped norms; 0 before the first.
    """

    count: jax.Array
    mean: rx.ArrayTree
    factor: rx.ArrayTree


class _Step(NamedTuple):
    """The inputs of a rule: `cap` is the norm after clipping to `max_norm`."""

    cap: jax.Array
    count: jax.Array
    is_warm: jax.Array


def _zclip(x, at, threshold, decay, mean, variance):
    std = jnp.maximum(jnp.sqrt(variance), 1e-6 * mean)
    z = (x - mean) / jnp.where(std > 0, std, 1)
    is_spike = z > threshold
    # Where nothing is clipped, an infinite threshold has a finite derivative, too.
    theta, over = jnp.where(is_spike, threshold, 1), jnp.where(is_spike, z, 1)
    reciprocal = mean + jnp.square(theta) / over * std
    is_first = mean == 0
    clipped = jnp.where(is_spike & ~is_first, reciprocal, x)
    y = jnp.minimum(x, jnp.where(at.is_warm, at.cap, clipped))
    # In the warm-up the plain mean and variance of all norms so far.
    n = at.count.astype(jnp.float32)
    keep = jnp.where(is_first, 0, jnp.where(at.is_warm, n / (n + 1), decay))
    new = keep * mean + (1 - keep) * y
    far = jnp.where(at.is_warm, keep * jnp.square(y - mean), jnp.square(y - new))
    return y, new, jnp.where(is_first, 0, keep * variance + (1 - keep) * far)


def _autoclip(x, at, threshold, decay, recent):
    recent = recorded(recent, at.count, x)
    limit = percentile(recent, recent >= 0, threshold)
    return jnp.minimum(x, jnp.where(at.is_warm, at.cap, limit)), recent


def _adagc(x, at, threshold, decay, mean):
    is_first = mean == 0
    limit = jnp.where(is_first, x, threshold * mean)
    y = jnp.minimum(x, jnp.where(at.is_warm, at.cap, limit))
    later = jnp.where(at.is_warm, jnp.minimum(mean, y), decay * mean + (1 - decay) * y)
    return y, jnp.where(is_first, y, later)


class _Clip(NamedTuple):
    """A rule and its hyperparameters; `statistics` are first values of its state."""

    State: type
    step: Callable
    statistics: dict[str, float]
    threshold: rx.ArrayLike
    decay: rx.ArrayLike | None
    warmup: int
    max_norm: rx.ArrayLike
    per: str

    def begin(self, count, norm):
        """What the norm of all gradients says about a step, and the new count."""
        norm = norm.astype(jnp.float32)
        is_above = norm > self.max_norm
        factor = jnp.where(is_above, self.max_norm, 1) / jnp.where(is_above, norm, 1)
        enters = jnp.isfinite(norm) & (norm > 0)
        at = _Step(factor.astype(jnp.float32), count, count < self.warmup)
        return at, jnp.where(enters, safe_increment(count), count)

    def __call__(self, x, at, old):
        """The factor of an array of norm `x`, and the new statistics."""
        x = x.astype(jnp.float32)
        at = at._replace(cap=at.cap * x)
        y, *new = self.step(x, at, self.threshold, self.decay, *old)
        enters = jnp.isfinite(x) & (x > 0)
        factor = jnp.where(enters & (y < x), y / jnp.where(enters, x, 1), 1)
        return factor, [jnp.where(enters, a, b) for a, b in zip(new, old, strict=True)]


# With their defaults.
_RULES = {
    "zclip": _Clip(
        ZClipState, _zclip, {"mean": 0, "variance": 0}, 2.5, 0.97, 25, jnp.inf, "all"
    ),
    "autoclip": _Clip(
        AutoClipState, _autoclip, {"recent": -1}, 10.0, None, 0, jnp.inf, "all"
    ),
    "adagc": _Clip(AdaGCState, _adagc, {"mean": 0}, 1.05, 0.98, 100, 1.0, "leaf"),
}


@rx.traits("clips norms")
@rx.public(
    paper="arXiv:2504.02507",
    ranges={
        "threshold": rx.CAP,
        "window": rx.AT_LEAST_1,
        "warmup": rx.AT_LEAST_0,
        "max_norm": rx.CAP,
    },
)
def clip_by_recent_norm(
    rule: Literal["zclip", "autoclip", "adagc"] = "zclip",
    *,
    threshold: rx.ArrayLike | None = None,
    decay: rx.ArrayLike | None = None,
    window: int = 1024,
    warmup: int | None = None,
    max_norm: rx.ArrayLike | None = None,
    per: Literal["all", "leaf"] | None = None,
    axis_name: rx.AxisName = None,
) -> rx.Rule:
    """Clip gradients to a norm that is computed from those of recent steps.

        zclip:     x' = m + (θ²/z) s  where z = (x - m)/s > θ;   m, s² from x' by decay
        autoclip:  x' = min(x, percentile θ of the last norms, with x)
        adagc:     x' = min(x, θ m);   m = decay m + (1 - decay) x'
        u = (x'/x) g,   x = ‖g‖

    In the warm-up x' = min(1, max_norm/‖all g‖) x; then m and s are plain means
    (zclip), or m is the least x' (adagc).  Norms that are 0 or not finite do not enter
    the statistics, and a gradient whose norm is not finite is returned unchanged.

    rule: "zclip", "autoclip" or "adagc"; the module names their papers.
    threshold: θ, at least 0: a z-score, by default 2.5; a percentile, 10; or a multiple
        of m, 1.05.
    decay: decay rate of the averages, in [0, 1]; by default 0.97 for zclip, 0.98 for
        adagc.
    window: number of norms that autoclip keeps, at least 1.
    warmup: number of steps before the rule clips, at least 0; by default 25, 0 and 100.
    max_norm: bound in the warm-up, at least 0; by default 1 for adagc, otherwise
        infinite.
    per: one norm for "all" arrays, or one per "leaf", the default of adagc.
    axis_name: mesh axis of the shards inside `shard_map`, or their `PartitionSpec`.

    Raises a `ValueError` for an unknown `rule` or `per`, and for a percentile above
    100.

    >>> tx = stepax.chain(stepax.clip_by_recent_norm("zclip"), stepax.adamw(1e-3))
    """
    rx.require_one_of("rule", rule, _RULES)
    rx.require_one_of("per", per, (None, "all", "leaf"))
    if rule == "autoclip" and isinstance(threshold, int | float) and threshold > 100:
        raise ValueError(
            f"`threshold` is {threshold}, but for autoclip it is a percentile, at most "
            "100"
        )
    given = {"threshold": threshold, "decay": decay, "warmup": warmup}
    given |= {"max_norm": max_norm, "per": per}
    known = {k: x for k, x in given.items() if x is not None}
    clip, parts = _RULES[rule]._replace(**known), rx.ArraySplit(axis_name)
    make = _kept(clip, window)

    def prepare_all(scalars, norm, extra):
        count, _, *old = scalars
        at, count = clip.begin(count, norm)
        factor, new = clip(norm, at, old)
        return factor, (count, factor, *new)

    def prepare_leaves(scalars, norm, extra):
        (count,) = scalars
        at, count = clip.begin(count, norm)
        return at, (count,)

    def leaf(g, p, at, _, *old):
        factor, new = clip(parts.norm(norm2(g), g), at, old)
        return (factor.astype(g.real.dtype) * g, factor, *new)

    if clip.per == "leaf":
        slots = {
            k: rx.Slot(f, "float32", alike=False, kind="other") for k, f in make.items()
        }
        return rx.Rule(
            leaf, clip.State, slots, rx.COUNT, prepare_leaves,
            global_stat=parts.norm_of_all,
        )  # fmt: skip
    return rx.Rule(
        lambda g, p, factor: (factor.astype(g.real.dtype) * g,),
        clip.State,
        scalars={**rx.COUNT, **make},
        prepare=prepare_all,
        global_stat=parts.norm_of_all,
        elementwise=True,
    )


def _kept(clip: _Clip, window: int) -> dict[str, Callable]:
    """The state of each norm: functions that make the initial values."""

    def filled(k, x):
        shape = (window,) if k == "recent" else ()
        return lambda p: jnp.full(shape, x, jnp.float32)

    first = {"factor": 1.0, **clip.statistics}
    return {k: filled(k, x) for k, x in first.items()}
