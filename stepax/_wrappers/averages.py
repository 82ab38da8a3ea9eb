"""Averages of the parameters, which often generalize better than the last iterate.

The exponential average (EMA) is that of Polyak and Juditsky, 1992, with the weights of
a debiased mean; the uniform average (SWA) is that of Izmailov, Podoprikhin, Garipov,
Vetrov and Wilson, 2018, Averaging Weights Leads to Wider Optima and Better
Generalization (arXiv:1803.05407), Algorithm 1.

The stored average is already debiased, by its weights, so that it can be read directly
from the state, and exchanged with the parameters for an evaluation.
"""

import functools as ft
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction, is_number
from .._engine.arrays.numerics import safe_increment
from .._engine.functions.calls import nearest
from .._engine.trees.paths import label
from .._engine.trees.search import Path, rebuilt
from .chain import Followed, own_fields
from .partition import identity
from .readers import READERS, Reader, present, stored_in, widened
from .remainders import checked_width, halved, is_halved, whole


class AverageState(NamedTuple):
    """State of `averages` with one average.

    count: steps taken, a scalar.
    average: average of the parameters, shaped like them; with a `remainder` in two
        arrays, `rounded` and `remainder`.
    inner_state: state of the inner transformation.
    """

    count: jax.Array
    average: rx.Params
    inner_state: rx.OptState


_Average = own_fields(AverageState)


class SwappedAverage(NamedTuple):
    """Takes the place of an average while it is exchanged with the parameters.

    average: the average as it was, in full precision.
    params: the parameters that are being trained.
    """

    average: rx.Params
    params: rx.Params


@rx.recorded
def _averaging(
    decay: rx.ArrayLike | rx.Schedule | None,
    debias: bool,
    start: int,
    every: int,
    dtype: rx.DTypeLike | None,
    width: int | None,
) -> rx.Rule:
    """Average the parameters, and pass the updates on unchanged."""

    def weight(t):
        if decay is None:
            return 1 / t
        d = jnp.asarray(decay(t - 1), t.dtype) if callable(decay) else decay
        if is_number(d):  # round first, so that 1 - d and the correction are consistent
            d = float(np.asarray(d, t.dtype))
        if not debias:
            return 1 - d
        # The limit for a decay of 1 is the uniform average; the first weight is exactly
        # 1.
        alike = (d == 1) | (t == 1)
        return jnp.where(alike, 1 / t, (1 - d) / bias_correction(d, t))

    def prepare(scalars, stat, extra):
        count = safe_increment(*scalars)
        since = count - start
        t = jnp.maximum(since // every, 1).astype(float)
        w = jnp.where(since % every == 0, weight(t), 0)
        return jnp.where(since <= 0, 1, w), (count,)

    def leaf(u, p, w, average):
        new = p + u
        return u, jnp.where(w == 1, new, average + w * (new - average))

    make = (lambda p: widened(rx.copy_of(p))) if dtype is None else rx.copy_of
    slot = rx.Slot(make, dtype, is_slow=width is None, kind="copy")
    if width is not None:
        slot = replace(slot, encode=ft.partial(halved, width=width), decode=whole)
    slots = {"average": slot}
    options: Any = {"needs_params": True, "elementwise": True, "in_steps": "any"}
    return rx.Rule(leaf, _Average, slots, rx.COUNT, prepare, **options)


class _Followed(Followed):
    def unpack(self, state):
        if isinstance(state, AverageState) and is_swapped(state):
            raise ValueError(
                "the parameters are exchanged for their average: call `swap_averages` "
                "again before the next step"
            )
        return super().unpack(state)


@rx.recorded
def average(
    inner: rx.TransformationLike,
    decay: rx.ArrayLike | rx.Schedule | None,
    debias: bool,
    start: int,
    every: int,
    dtype: rx.DTypeLike | None,
    remainder: Literal[16, 8] | None,
) -> rx.GradientTransformationExtraArgs:
    """A transformation with one average, of the arguments of `averages`."""
    width = checked_width("averages", remainder)
    if width is not None:
        if dtype is not None and str(jnp.dtype(dtype)) not in ("bfloat16", "float32"):
            raise ValueError(
                "`averages`: with a `remainder` averages are bfloat16, and with it "
                f"float32, but `dtype` is {jnp.dtype(dtype)}"
            )
        dtype = None
    own: Any = _averaging(decay, debias, start, every, dtype, width)
    return rx.build(_Followed("averages", inner, own, AverageState))


def _averaged(
    state: rx.OptState, params: rx.Params, wide: rx.Params, name: str | None = None
) -> rx.Params:
    """The averages of a name, in the dtypes of `wide`."""
    return average_of("eval_params", chosen("eval_params", state, name), params, wide)


READERS["AverageState"] = Reader((), _averaged, has_names=True)


def average_of(
    caller: str, states: list, params: rx.Params, wide: rx.Params
) -> rx.Params:
    """The parameters, with the averages of these states in place of those they have."""
    for own in stored_in(caller, states, _average_in, params):
        wide = rx.map_stored(lambda a, p: a.astype(p.dtype), own, "average", wide)
    return wide


def is_swapped(x: AverageState) -> bool:
    return isinstance(x.average, SwappedAverage)


def chosen(
    caller: str, state: rx.OptState, name: str | None = None
) -> list[tuple[Path, AverageState]]:
    """The states of the average of a name, of which a partition has several."""
    found = present(caller, AverageState, state)
    names = names_in(state)
    if name is None:
        if len(names) > 1:
            raise ValueError(f"`{caller}`: there are {names}; give the `name` of one")
        return found
    if name not in names:
        raise ValueError(
            f"`{caller}`: there is no average {name!r} in this state, but "
            f"{names or 'one without a name'}{nearest(name, names)}"
        )
    return [(path, x) for path, x in found if path and label(path[-1]) == name]


def _average_in(x: AverageState) -> rx.Params:
    average = x.average.average if is_swapped(x) else x.average
    return jax.tree.map(whole, average, is_leaf=is_halved)


def names_in(state: rx.OptState) -> list[str]:
    inside = [x for _, x in rx.get_all_with_path(state, "AveragesState")]
    return list(dict.fromkeys(k for x in inside for k in x.averages))


class AveragesState(NamedTuple):
    """State of `averages` with several averages.

    averages: from each name to an `AverageState`.
    inner_state: state of the inner transformation.
    """

    averages: dict[str, rx.Params]
    inner_state: rx.OptState


class _Averages(rx.Composite):
    """A transformation, then averages of the parameters that result from it."""

    def __init__(
        self,
        inner: rx.TransformationLike,
        named: Mapping[str, rx.TransformationLike],
    ):
        self.names = tuple(named)
        self.members = (inner, *named.values())

    def unpack(self, state):
        rx.errors.require_state("averages", AveragesState, state)
        if set(state.averages) != set(self.names):
            raise ValueError(
                f"`averages` has the names {list(self.names)}, but was given a state "
                f"of {list(state.averages)}; was this state made by another optimizer?"
            )
        return [state.inner_state, *(state.averages[k] for k in self.names)]

    def pack(self, states):
        inner, *rest = states
        return AveragesState(dict(zip(self.names, rest, strict=True)), inner)


@rx.public(
    "wrapper",
    paper="arXiv:1803.05407",
    ranges={"start": rx.AT_LEAST_0, "every": rx.AT_LEAST_1},
)
def averages(
    inner: rx.TransformationLike,
    decay: rx.ArrayLike
    | rx.Schedule
    | Mapping[str, rx.ArrayLike | rx.Schedule | None]
    | None = 0.999,
    *,
    debias: bool = True,
    start: int = 0,
    every: int = 1,
    dtype: rx.DTypeLike | None = None,
    remainder: Literal[16, 8] | None = None,
) -> rx.GradientTransformationExtraArgs:
    """Maintain averages of the parameters; the updates are unchanged.

        u = inner(g),   a = a + w_t (p + u - a)
        w_t = (1 - d) / (1 - d^t) if debias, otherwise 1 - d;   w_t = 1 / t if d is None

    t counts the averaged parameters.  Read an average with `eval_params`, or
    exchange it with `swap_averages`.  Put this last in a chain, inside `MultiSteps` and
    `master_weights`, so that it averages the parameters that result from the step.

    With a `remainder` averages are stored in bfloat16, ready for use, with extra bits:
    16 make the float32 average exact; 8 leave a relative error of 2^-17 / (1 - d).

    inner: the transformation.
    decay: decay rate d, in [0, 1], a schedule of t - 1, or `None` for the uniform
        average (SWA); or several by name, as in `{"fast": 0.99, "slow": 0.9999}`.
    debias: whether it starts from the first averaged parameters, not those before.
    start: steps before averaging starts, at least 0; until then a is p + u.
    every: steps between averaged parameters, at least 1.
    dtype: dtype of the averages; that of the parameter, but at least float32, if
        `None`.  In bfloat16 `average` stalls.
    remainder: extra bits of each average, 16 or 8; `None` keeps them in float32.

    Raises a `ValueError` for an empty mapping, and for a `remainder` of other dtypes.

    >>> tx = stepax.averages(stepax.adamw(1e-3), decay=0.999)
    >>> stepax.eval_params(tx.init(params), params)["b"]
    Array([0., 0.], dtype=float32)
    """
    rx.require_transformation(inner, "`inner` of `averages`")
    options = debias, start, every, dtype, remainder
    if not isinstance(decay, Mapping):
        return average(inner, decay, *options)
    if not decay:
        raise ValueError(
            "`averages`: `decay` is an empty mapping: name the averages, as in "
            '{"fast": 0.99, "slow": 0.9999}'
        )
    named = {}
    for name, d in decay.items():
        try:
            named[name] = average(identity(), d, *options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"`averages`: {name!r}: {error}") from None
    return rx.build(_Averages(inner, named))


@rx.explain_misuse
def swap_averages(
    state: rx.OptState, params: rx.Params, name: str | None = None
) -> tuple[rx.OptState, rx.Params]:
    """Exchange the parameters for their average; a second call exchanges them back.

    Two calls return the original state and parameters, bit for bit, even if the average
    is float32 and the parameters are not: in between the state keeps both, and a step
    with it raises.

    state: that of `averages`, or one that contains it.
    params: the parameters.
    name: the name of the average, if there are several; it may be omitted in the second
        call.

    Raises a `ValueError` if there is no such average, if there are several and `name`
    is missing, or if the parameters are exchanged for another average.

    >>> state = stepax.averages(stepax.adamw(1e-3)).init(params)
    >>> state, params = stepax.swap_averages(state, params)  # evaluate with these
    >>> state, params = stepax.swap_averages(state, params)  # train on
    """
    swapped = dict(rx.get_all_with_path(state, "SwappedAverage"))
    if swapped:
        path, held = next(iter(swapped.items()))
        if name is not None:
            asked = chosen("swap_averages", state, name)
            if not any(is_swapped(x) for _, x in asked):
                away = label(path[-2])
                raise ValueError(
                    f"`swap_averages`: the parameters are exchanged for {away!r}, not "
                    f"for {name!r}; call it again without a name, and then with "
                    f"{name!r}"
                )
        back = dict.fromkeys(swapped, lambda x: x.average)
        return rebuilt(state, back), held.params
    found = chosen("swap_averages", state, name)
    average = average_of("swap_averages", found, params, params)

    def swap(x):
        return x._replace(average=SwappedAverage(x.average, params))

    return rebuilt(state, {path: swap for path, _ in found}), average
