"""Several averages of the parameters, and swapping one in for an evaluation."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
from jax.typing import ArrayLike, DTypeLike

from .._engine.base.protocol import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    Schedule,
    init_of,
    require_transformation,
)
from .._engine.factories.ranges import AT_LEAST_0, AT_LEAST_1
from .._engine.factories.registry import public
from .._engine.functions.calls import explain_misuse
from .._engine.step.plan import Composite, build
from .._engine.trees import errors
from .._engine.trees.search import get_all_with_path
from .average import (
    AverageParamsState,
    SwappedAverage,
    average_of,
    average_params,
    chosen,
    is_swapped,
    names_in,
)
from .partition import identity


class AveragesState(NamedTuple):
    """State of `averages`.

    averages: a dict from names to `AverageParamsState`s.
    inner_state: state of the inner transformation.
    """

    averages: dict[str, Any]
    inner_state: OptState


class _Averages(Composite):
    """A transformation, then averages of the parameters that result from it."""

    def __init__(self, inner: GradientTransformation, named: Mapping[str, Any]):
        self.names = tuple(named)
        self.members = (inner, *named.values())

    def init(self, params):
        return self.pack([init_of(tx)(params) for tx in self.members])

    def unpack(self, state):
        errors.require_state("averages", AveragesState, state)
        if set(state.averages) != set(self.names):
            raise ValueError(
                f"`averages` has the names {list(self.names)}, but was given a state "
                f"of {list(state.averages)}; was this state made by another optimizer?"
            )
        return [state.inner_state, *(state.averages[k] for k in self.names)]

    def pack(self, states):
        inner, *rest = states
        return AveragesState(dict(zip(self.names, rest, strict=True)), inner)


@public("wrapper", ranges={"start": AT_LEAST_0, "every": AT_LEAST_1})
def averages(
    inner: GradientTransformation,
    decays: Mapping[str, ArrayLike | Schedule | None],
    *,
    debias: bool = True,
    start: int = 0,
    every: int = 1,
    dtype: DTypeLike | None = None,
    remainder: Literal[16, 8] | None = None,
) -> GradientTransformationExtraArgs:
    """Maintain several averages of the parameters; the updates are unchanged.

        u = inner(g),   a_k = a_k + w_k (p + u - a_k)   for each name k

    with the weights of `average_params`, all in one pass over the parameters.  Read one
    with `averaged_params(state, params, "slow")`, or exchange it for the parameters
    with `swap_averages`.

    inner: the transformation.
    decays: a dict from names to decay rates in [0, 1], schedules, or `None` for the
        uniform average, as in `{"fast": 0.99, "slow": 0.9999}`.
    debias, start, every, remainder: for each average; see `average_params`.
    dtype: dtype of each average; that of the parameter, but at least float32, if
        `None`.  In bfloat16 small changes are rounded away, and the average stops
        changing.

    Raises a `ValueError` if `decays` is empty; errors of `average_params` are raised
    with the name.
    """
    require_transformation(inner, "`inner` of `averages`")
    if not isinstance(decays, Mapping) or not decays:
        raise ValueError(
            '`averages`: `decays` must be a dict, as in {"fast": 0.99, "slow": 0.9999},'
            f" but is {decays!r}"
        )
    found = {}
    for name, decay in decays.items():
        options: Any = dict(debias=debias, start=start, every=every, dtype=dtype)
        try:
            found[name] = average_params(
                identity(), decay, **options, remainder=remainder
            )
        except (TypeError, ValueError) as error:
            raise type(error)(f"`averages`: {name!r}: {error}") from None
    return build(_Averages(inner, found))


@explain_misuse
def swap_averages(
    state: OptState, params: Params, name: str | None = None
) -> tuple[OptState, Params]:
    """Exchange the parameters for their average; a second call exchanges them back.

        state, params = swap_averages(state, params)   # evaluate with these
        state, params = swap_averages(state, params)   # train on

    Two calls return the original state and parameters, bit for bit, even if the average
    has a wider dtype than the parameters: in between the state keeps both, and a step
    with it raises.

    state: the state of `average_params` or `averages`, or a state that contains it.
    params: the parameters.
    name: the name of the average, if there are several; it may be omitted in the second
        call.

    Raises a `ValueError` if there is no such average, if there are several and `name`
    is missing, or if the parameters are exchanged for another average.
    """
    swapped = [x for _, x in get_all_with_path(state, "SwappedAverage")]
    if swapped:
        _require_swapped(state, name)
        return _mapped(_restored, state), swapped[0].params
    found = chosen("swap_averages", state, name)
    average = average_of(found, params)
    ids = {id(x) for x in found}

    def kept(x):
        if id(x) not in ids:
            return x
        return x._replace(average=SwappedAverage(x.average, params))

    return _mapped(kept, state), average


def _require_swapped(state: OptState, name: str | None) -> None:
    """Raise if a name is not that of the average in place of the parameters."""
    if name is None or any(map(is_swapped, chosen("swap_averages", state, name))):
        return
    here = [k for k in names_in(state) if any(map(is_swapped, chosen("", state, k)))]
    raise ValueError(
        f"`swap_averages`: the parameters are exchanged for {here[0]!r}, not for "
        f"{name!r}; call it again without a name, and then with {name!r}"
    )


def _restored(x: AverageParamsState) -> AverageParamsState:
    return x._replace(average=x.average.average) if is_swapped(x) else x


def _mapped(f: Any, tree: Any) -> Any:
    """A tree with `f` of each state of an average."""
    is_average = lambda x: isinstance(x, AverageParamsState)

    def one(x):
        if not is_average(x):
            return x
        return f(x)._replace(inner_state=_mapped(f, x.inner_state))

    return jax.tree.map(one, tree, is_leaf=is_average)
