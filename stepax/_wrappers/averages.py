"""Averages of the parameters, and their exchange with them for an evaluation.

The file beside this one has a single average; here are several at once.
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import jax

from .._engine import rules as rx
from .average import (
    AverageState,
    SwappedAverage,
    average,
    average_of,
    chosen,
    is_swapped,
    names_in,
)
from .partition import identity


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
        inner: rx.GradientTransformation,
        named: Mapping[str, rx.GradientTransformation],
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
    inner: rx.GradientTransformation,
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

    With a `remainder` float32 averages are stored in bfloat16, ready for use, with what
    rounding leaves over: 16 bits keep them exactly, 8 bits 24 of 32, so that an average
    stops at 2^-17 / (1 - d) of its size from what it approaches.

    inner: the transformation.
    decay: decay rate d, in [0, 1], a schedule of t - 1, or `None` for the uniform
        average (SWA); or several by name, as in `{"fast": 0.99, "slow": 0.9999}`.
    debias: whether it starts from the first averaged parameters, not those before.
    start: steps before averaging starts, at least 0; until then a is p + u.
    every: steps between averaged parameters, at least 1.
    dtype: dtype of the averages; that of the parameter, but at least float32, if
        `None`.  In bfloat16 `average` stops changing.
    remainder: bits of the remainders, 16 or 8; `None` stores averages whole.

    Raises a `ValueError` for an empty mapping, and for a `remainder` of other dtypes.
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

        state, params = swap_averages(state, params)   # evaluate with these
        state, params = swap_averages(state, params)   # train on

    Two calls return the original state and parameters, bit for bit, even if the average
    has a wider dtype than the parameters: in between the state keeps both, and a step
    with it raises.

    state: that of `averages`, or one that contains it.
    params: the parameters.
    name: the name of the average, if there are several; it may be omitted in the second
        call.

    Raises a `ValueError` if there is no such average, if there are several and `name`
    is missing, or if the parameters are exchanged for another average.
    """
    swapped = [x for _, x in rx.get_all_with_path(state, "SwappedAverage")]
    if swapped:
        _require_swapped(state, name)

        def restored(x):
            return x._replace(average=x.average.average) if is_swapped(x) else x

        return _mapped(restored, state), swapped[0].params
    found = chosen("swap_averages", state, name)
    average = average_of("swap_averages", found, params)
    ids = {id(x) for _, x in found}

    def kept(x):
        if id(x) not in ids:
            return x
        return x._replace(average=SwappedAverage(x.average, params))

    return _mapped(kept, state), average


def _require_swapped(state: rx.OptState, name: str | None) -> None:
    if name is None or _is_away(state, name):
        return
    here = [k for k in names_in(state) if _is_away(state, k)]
    raise ValueError(
        f"`swap_averages`: the parameters are exchanged for {here[0]!r}, not for "
        f"{name!r}; call it again without a name, and then with {name!r}"
    )


def _is_away(state: rx.OptState, name: str) -> bool:
    return any(is_swapped(x) for _, x in chosen("swap_averages", state, name))


def _mapped(f: Callable, tree: rx.ArrayTree) -> rx.ArrayTree:
    def one(x):
        if not isinstance(x, AverageState):
            return x
        return f(x)._replace(inner_state=_mapped(f, x.inner_state))

    return jax.tree.map(one, tree, is_leaf=lambda x: isinstance(x, AverageState))
