"""Metrics of gradients, updates and parameters, for `observe` and any logger.

Each is a function of the updates before a transformation, the updates after it and the
parameters, or a `StatefulMetric`, which has a memory.  `tree.flat` returns the latest
values in a state by name.

All choose the leaves of trees in the same way.  The gradient noise scale is that of
McCandlish et al., 2018, An Empirical Model of Large-Batch Training (arXiv:1812.06162),
appendix A.1: from squared norms of gradients of two batch sizes.  Difference from it:
where the estimate of |G|² is not positive, the scale is infinite.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from . import tree
from ._engine import rules as rx
from ._engine.arrays.joined import grouped
from ._engine.arrays.numerics import is_numeric, upcast
from ._engine.base.call import Call, known_by_call
from ._engine.factories.scheduled import METRICS, MadeFunction, known
from ._engine.trees.paths import join
from ._engine.trees.search import spell
from ._names import attributes
from ._wrappers.flatten import as_params
from ._wrappers.monitor import Metric, Observation, StatefulMetric
from ._wrappers.readers import found_in


__all__ = [
    "Noise", "Observation", "StatefulMetric", "by_layer", "cosine_to_last",
    "gradient_noise", "lost_updates", "noise_scale", "rms", "update_ratio",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)


F = TypeVar("F", bound=Callable)

Of: TypeAlias = Literal["gradients", "updates", "params"]


@known_by_call
class _MadeStateful(StatefulMetric):
    """A metric with a memory, and the call that made it."""

    def __init__(self, made: StatefulMetric, call: Call):
        super().__init__(made.init, made.measure, made.reads)
        vars(self)["call"] = call  # the class is frozen


def _made(made: Any, call: Call) -> Any:
    kind: Any = _MadeStateful if isinstance(made, StatefulMetric) else MadeFunction
    return kind(made, call)


def _metric(factory: F) -> F:
    """Let the metrics that `factory` makes be printed, compared and pickled."""
    made: Any = known(factory, _made, METRICS)
    return made


def _require_params(x: Any) -> None:
    if x is None:
        raise ValueError("this metric needs `params`: pass them to `update`")


def _is_number(x: Any) -> bool:
    return rx.is_array(x) and is_numeric(x)


def _numbers(x: Any, y: Any) -> tuple[list, list]:
    """The arrays of numbers of two trees, where both have one."""
    leaves, treedef = jax.tree.flatten(x, is_leaf=rx.is_none)
    pairs = zip(leaves, treedef.flatten_up_to(y), strict=True)
    both = [tuple(map(rx.as_array, row)) for row in pairs if all(map(_is_number, row))]
    return [a for a, _ in both], [b for _, b in both]


def _layers_of(depth: int | None, first: Any, *others: Any) -> dict[str, list]:
    """The leaves of trees by layer: a list for each tree, or `None` for `None`."""
    paths, treedef = jax.tree_util.tree_flatten_with_path(first, is_leaf=rx.is_none)
    trees = [x if x is None else treedef.flatten_up_to(x) for x in (first, *others)]
    places = grouped(range(len(paths)), lambda i: join(paths[i][0][:depth]))
    return {
        name: [x if x is None else [x[i] for i in at] for x in trees]
        for name, at in places.items()
    }


@_metric
def rms(
    of: Of = "gradients",
) -> Callable[[rx.Updates, rx.Updates, rx.Params], jax.Array]:
    """The root mean square of all elements of a tree; 0 if there are none.

        sqrt(Σ |x|² / n)

    of: "gradients" for the updates before the transformation, "updates" for the updates
        after it, or "params".

    Raises a `ValueError` for any other `of`.
    """
    places = {"gradients": 0, "updates": 1, "params": 2}
    rx.errors.require_one_of("of", of, places)

    def measure(*trees):
        x = trees[places[of]]
        if of == "params":
            _require_params(x)
        # A model may also hold functions.
        arrays = [y for y in jax.tree.leaves(x) if _is_number(y)]
        return tree.norm(arrays) / max(tree.size(arrays), 1) ** 0.5

    return measure


@_metric
def update_ratio() -> Callable[[rx.Updates, rx.Updates, rx.Params], jax.Array]:
    """The size of the updates relative to the parameters; 0 if these are all 0.

        |u| / |p|

    Only parameters that have an update are counted.
    """

    def measure(before, after, params):
        _require_params(params)
        u, p = map(tree.norm, _numbers(after, params))
        return jnp.where(p > 0, u / jnp.where(p > 0, p, 1), 0)

    return measure


@_metric
def lost_updates() -> Metric:
    """The share of the elements of each array whose update is rounded away.

        Σ (u != 0 and p + u = p) / n,   with p + u rounded to the dtype of p

    It is a dict from paths.  Put `observe` around the whole optimizer, whose updates
    are those that `apply_updates` adds.
    """

    def measure(before, after, params):
        _require_params(params)
        (u,), (p,) = after, params
        if not (_is_number(u) and _is_number(p)):
            return jnp.zeros([])
        u, p = rx.as_array(u), rx.as_array(p)
        is_lost = (u != 0) & (rx.apply_updates(p, u) == p)
        return jnp.sum(is_lost, dtype=jnp.float32) / max(jnp.size(p), 1)

    return by_layer(measure, None)


@_metric
def by_layer(metric: Metric, depth: int | None = 1) -> Metric:
    """A metric of each layer: a dict from the names of layers to values.

    metric: a function of gradients, updates and parameters, which are passed as lists.
    depth: number of names in a path that identify a layer, >= 1; `None` for each array.

    Raises a `ValueError` for another `depth`, and a `TypeError` if `metric` is not a
    metric.
    """
    if depth is not None and (isinstance(depth, bool) or depth < 1):
        raise ValueError(f"`depth` is {depth!r}, expected 1 or more, or `None`")
    if isinstance(metric, StatefulMetric):
        return _stateful_by_layer(metric, depth)
    if not callable(metric):
        raise TypeError(f"`metric` is {rx.errors.describe(metric)}, expected a metric")

    def measure(before, after, params):
        parts = _layers_of(depth, before, after, params)
        return {name: metric(*xs) for name, xs in parts.items()}

    return measure


def _stateful_by_layer(metric: StatefulMetric, depth: int | None) -> StatefulMetric:
    def init(params):
        parts = _layers_of(depth, params)
        first = {name: metric.init(p) for name, (p,) in parts.items()}
        return _apart(first)

    def measure(memory, seen):
        parts = _layers_of(depth, seen.before, seen.after, seen.params)
        found = {}
        for name, (before, after, params) in parts.items():
            part = seen._replace(before=before, after=after, params=params)
            found[name] = metric.measure(memory[name], part)
        return _apart(found)

    return StatefulMetric(init, measure)


def _apart(pairs: dict[str, tuple]) -> tuple[dict, dict]:
    """Values and memories of layers."""
    return {k: x for k, (x, _) in pairs.items()}, {k: y for k, (_, y) in pairs.items()}


@_metric
def cosine_to_last() -> StatefulMetric:
    """The cosine of the angle between a gradient and the previous one.

        Re(g · g') / (|g| |g'|)

    It is 0 at the first step and where either is 0; it is NaN for a gradient that is
    not finite, and the next gradient is compared with the last finite one.  The memory
    is a copy of the gradient in the dtypes of the parameters.
    """

    def init(params):
        return jnp.zeros([]), jax.tree.map(rx.zeros_like, params)

    def measure(last, seen):
        gs, ms = _numbers(seen.before, last)
        size, was = tree.norm(gs), tree.norm(ms)
        # Divided before the product, which might underflow for small gradients.
        units = [_unit(g, size) for g in gs], [_unit(m, was) for m in ms]
        cosine = jnp.real(jnp.asarray(tree.vdot(*units)))
        is_finite = jnp.isfinite(size)

        def keep(g, m):
            if not (_is_number(g) and _is_number(m)):
                return m
            return jnp.where(is_finite, rx.as_array(g).astype(m.dtype), m)

        return cosine, jax.tree.map(keep, seen.before, last, is_leaf=rx.is_none)

    return StatefulMetric(init, measure)


def _unit(x, size):
    wide = upcast(x)
    return wide / jnp.where(size == 0, 1, size).astype(wide.dtype)


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


@rx.explain_misuse
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


@_metric
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
        acc = as_params(old.acc_grads, seen.before)
        large = _squared_sum(acc, before, seen.before, w) / total**2
        # Calls with other weights are batches of other sizes: this is the average size.
        small_size = size * total / now["calls"]
        sizes = small_size, jnp.where(is_due, size * total, 0)
        window = {k: jnp.where(is_due, 0, x) for k, x in now.items()}
        return window, (now["sum"] / total, large, *sizes)

    return norms


def _squared_sum(acc, a, gradients, w):
    """|a acc + w g|², without an array for the sum, as the compiler fuses it."""

    def mixed(g, x):
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        real = wide.real.dtype
        return a.astype(real) * wide + w.astype(real) * g.astype(wide.dtype)

    return tree.norm(list(map(mixed, *_numbers(gradients, acc))), squared=True)


def _multi_steps(state):
    names = "MultiStepsState", "WeightedMultiStepsState"
    found = [pair for name in names for pair in found_in(state, name)]
    if len(found) == 1:
        return found[0][1]
    places = rx.errors.list_some(spell(path) for path, _ in found)
    what = f"{len(found)} states, at {places}," if found else "no state"
    raise ValueError(
        f"`noise_scale` found {what} of `MultiSteps` in the observed transformation: "
        "put `observe` around one `MultiSteps`, or pass `large_size`"
    )
