"""An average of the parameters, which often generalizes better than the last ones.

The exponential one is that of Polyak and Juditsky, 1992, with the weights of a debiased
mean; the uniform one is that of Izmailov, Podoprikhin, Garipov, Vetrov and Wilson,
2018, Averaging Weights Leads to Wider Optima and Better Generalization
(arXiv:1803.05407), Algorithm 1.

The average is kept debiased, so that it can be read from the state as it is: its
weights, and not it, make up for the start.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from .._engine.arrays.moments import bias_correction, is_number
from .._engine.arrays.numerics import safe_increment
from .._engine.arrays.precision import compute_dtype, is_inexact
from .._engine.base.protocol import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    ScalarOrSchedule,
    require_transformation,
)
from .._engine.factories.ranges import AT_LEAST_0, AT_LEAST_1
from .._engine.factories.recipe import recipe
from .._engine.factories.registry import public
from .._engine.functions.calls import explain_misuse
from .._engine.step.leafwise import map_stored
from .._engine.step.plan import Composite, build
from .._engine.step.rule import COUNT, Rule, Slot, copy_of
from .._engine.trees import errors
from .._engine.trees.search import get_all_with_path


class AverageParamsState(NamedTuple):
    """State of `average_params`.

    count: steps taken, a scalar.
    average: of the parameters, shaped as these.
    inner_state: of the inner transformation.
    """

    count: jax.Array
    average: Any
    inner_state: OptState


class _Average(NamedTuple):
    """The fields of `AverageParamsState` that are not the inner transformation's."""

    count: jax.Array
    average: Any


class _Averaging(Composite):
    """The inner transformation, and then the averaging of where it leads."""

    def __init__(self, inner: GradientTransformation, averaging: Any):
        self.members = (inner, averaging)

    def init(self, params):
        return self.pack([tx.init(params) for tx in self.members])

    def unpack(self, state):
        errors.require_state("average_params", AverageParamsState, state)
        return [state.inner_state, _Average(state.count, state.average)]

    def pack(self, states):
        inner, own = states
        return AverageParamsState(own.count, own.average, inner)


@recipe
def _averaging(
    decay: ScalarOrSchedule | None,
    debias: bool,
    start: int,
    every: int,
    dtype: DTypeLike | None,
) -> GradientTransformation:
    """The averaging alone, whose updates are those it is given."""

    def weight(t):
        if decay is None:
            return 1 / t
        d = jnp.asarray(decay(t - 1), t.dtype) if callable(decay) else decay
        if is_number(d):  # rounded, so that 1 - d and the correction go together
            d = float(np.asarray(d, t.dtype))
        if not debias:
            return 1 - d
        # In the limit of a decay of 1 all count alike; the first is exactly itself.
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

    make = _wide_copy if dtype is None else copy_of
    slots = {"average": Slot(make, dtype, is_slow=True)}
    return build(
        Rule(leaf, _Average, slots, COUNT, prepare, needs_params=True, elementwise=True)
    )


def _wide_copy(p):
    x = copy_of(p)
    return x.astype(compute_dtype(x)) if is_inexact(x) else x


@public(
    "wrapper",
    paper="arXiv:1803.05407",
    ranges={"start": AT_LEAST_0, "every": AT_LEAST_1},
)
def average_params(
    inner: GradientTransformation,
    decay: ScalarOrSchedule | None = 0.999,
    *,
    debias: bool = True,
    start: int = 0,
    every: int = 1,
    dtype: DTypeLike | None = None,
) -> GradientTransformationExtraArgs:
    """Keep an average of the parameters beside an optimizer, which stays as it is.

        u = inner(g),   a = a + w_t (p + u - a)
        w_t = (1 - d) / (1 - d^t) if debias, else 1 - d;   w_t = 1 / t without a decay

    t counts the parameters that are averaged.  Read it by `averaged_params`.  Put it
    last in a chain, inside `MultiSteps`, and inside `master_weights`, so that the
    average is of what the parameters become.

    inner: the transformation.
    decay: d, weight of the past, in [0, 1], or a schedule of t - 1; `None` for the
        uniform average (SWA).
    debias: whether the average begins with the first parameters that enter, else with
        those before.
    start: steps before averaging begins, at least 0; up to there a is p + u.
    every: steps from one p that enters to the next, at least 1.
    dtype: of the average; if `None` that of the parameter, but at least float32.
        In bfloat16 `average` stops changing.
    """
    require_transformation(inner, "`inner` of `average_params`")
    own: Any = _averaging(decay, debias, start, every, dtype)
    return build(_Averaging(inner, own))


@explain_misuse
def averaged_params(state: OptState, params: Params) -> Params:
    """The averaged parameters, in the dtypes of the parameters.

    state: of `average_params`, or one that holds such states, as those of `chain`, of
        `MultiSteps` or of `partition`.
    params: the parameters; what has no average, such as integers, is taken from here.

    Raises a `ValueError` where there is no such state, or it is of other parameters.
    """
    states = [x for _, x in get_all_with_path(state, "AverageParamsState")]
    if not states:
        raise errors.foreign_state("averaged_params", AverageParamsState, state)
    for found in reversed(states):  # of two around each other the outer one counts
        as_param = lambda a, p: a.astype(p.dtype)
        params = map_stored(as_param, found.average, "average", params)
    return params
