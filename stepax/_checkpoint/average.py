"""The weighted mean of the parameters of several checkpoints, one array at a time."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._engine.arrays.precision import compute_dtype, is_inexact
from .match import Policy, match
from .place import template_of_params
from .store import Step


def averaged(sources: Sequence[Any], params: Any, weights: Any) -> Any:
    """The mean of the parameters of the checkpoints, in the form of `params`."""
    opened = [_step(x).open() for x in sources]
    factors = _factors(weights, len(opened))
    into = template_of_params(params)
    paths = [x.names for x in into.entries]
    chosen = []
    for source in opened:
        found = match(source.params, into.entries, paths)
        Policy("error", "error").check(str(source), found, match([], [], paths))
        chosen.append(found.chosen)
    values = []
    for i, target in enumerate(into.targets):
        read = lambda n, i=i, target=target: opened[n].read(
            "params", [(opened[n].params[chosen[n][i]], target)]
        )[0]
        values.append(_mean(read, factors))
    kinds = [opened[-1].params[i].kind for i in chosen[-1]]
    return into.fill(values, kinds)


def _step(source: Any) -> Step:
    """A directory, which means its newest step, or a directory and a step."""
    is_pair = isinstance(source, tuple | list) and len(source) == 2
    return Step(*source) if is_pair else Step(source, None)


def _factors(weights: Any, n: int) -> list[float] | int:
    """The weights, or their number if all are equal."""
    if not n:
        raise ValueError("`average` is given no checkpoints")
    if weights is None:
        return n
    found = [float(x) for x in np.asarray(weights, float).ravel()]
    if len(found) != n or not all(map(math.isfinite, found)):
        raise ValueError(
            f"`average`: `weights` must be {n} finite numbers, one for each "
            f"checkpoint, but are {found}"
        )
    return found


def _mean(read: Any, factors: list[float] | int) -> Any:
    """The mean of an array; the last array if it does not hold floats."""
    mean: Any = None
    for n in range(factors if isinstance(factors, int) else len(factors)):
        x = read(n)
        if not is_inexact(x):
            mean = x
            continue
        x = x.astype(compute_dtype(x))
        if not isinstance(factors, int):
            mean = x * factors[n] if mean is None else mean + x * factors[n]
        # In this form the mean of equal arrays is that array, bit for bit.
        else:
            mean = x if mean is None else mean + (x - mean) / (n + 1)
    return mean
