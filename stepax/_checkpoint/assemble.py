"""Assembling parameters and the state of a transformation from named arrays.

Or parameters alone: the weighted mean of several checkpoints, one array at a time.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.trees.errors import describe, list_some
from .._engine.trees.migrate import renew
from . import Entry, adopt, arrays_of, rename
from .digest import digest
from .match import Match, Policy, match
from .place import (
    Template,
    first_state,
    in_form_of,
    is_weight,
    template_of_params,
    template_of_state,
)
from .store import Step
from .told import tell
from .values import JAX


class Held(NamedTuple):
    """A source of arrays in memory.

    what: description of the source.
    params: entries of the parameters; `None` if there are none.
    arrays: arrays by "params" or "state" and the key of the entry.
    """

    what: str
    params: list[Entry] | None
    state: list[Entry]
    arrays: Mapping[tuple[str, str], Any]

    @classmethod
    def of(cls, what: str, params: rx.Params, state: rx.OptState) -> "Held":
        trees = {"params": params, "state": state}
        lists, arrays = {}, {}
        for name, tree in trees.items():
            pairs = arrays_of(tree)
            lists[name] = [_of_memory(x, a) for x, a in pairs]
            arrays |= {(name, x.key): a for x, a in pairs}
        known = None if params is None else lists["params"]
        return cls(what, known, lists["state"], arrays)

    def __str__(self) -> str:
        return self.what

    def read(self, name: str, wanted: list[tuple[Entry, Any]]) -> list[Any]:
        return [self.arrays[name, x.key] for x, _ in wanted]


def _of_memory(x: Entry, a: Any) -> Entry:
    """Treat a NumPy array as JAX's, since other libraries use NumPy for such arrays.

    Scalars get a digest, so that equal counts can be recognized.
    """
    x = x._replace(kind=JAX)
    is_number = x.shape == () and not x.key_kind
    return x._replace(digest=digest(np.asarray(a))) if is_number else x


def assemble(
    source: Any,
    tx: Any,
    params: rx.Params,
    policy: Policy,
    renamed: Mapping[str, str] | None,
) -> tuple[Any, Any]:
    """Parameters and a state of `tx` from the arrays in `source`, such as a `Held`."""
    p_into = template_of_params(params)
    tx = in_form_of(source.state, tx, p_into.entries)
    s_into = template_of_state(tx, params)
    p_source = p_into.entries if source.params is None else source.params
    p_old, s_old = rename({} if renamed is None else renamed, p_source, source.state)
    s_old = adopt(s_old, s_into.entries)
    paths = [x.names for x in p_into.entries]
    p_match = match(p_old, p_into.entries, paths)
    s_match = match(s_old, s_into.entries, paths)
    policy.check(str(source), p_match, s_match)
    renew(s_into.entries, s_match.chosen)
    if source.params is not None:
        found = _read(source, "params", p_source, p_match, p_into)
        params = p_into.fill(*_made(found, p_into, lambda: params))
    found = _read(source, "state", source.state, s_match, s_into)
    tell(source, tx, params, s_into.entries, [x for x, _ in found])
    return params, s_into.fill(*_made(found, s_into, lambda: first_state(tx, params)))


def _read(source: Any, name: str, old: list, how: Match, into: Template) -> list[tuple]:
    """The array for each place, and its library; `None` for both if there is none."""
    rows = zip(how.chosen, into.targets, into.entries, strict=True)
    rows = [(i, old[i], *rest) for i, *rest in rows if i is not None]
    # Codes of other blocks are not sharded like the requested array.
    other = {x.names[:-1] for _, x, _, place in rows if x.shape != place.shape}
    wanted = {i: (x, None if x.names[:-1] in other else s) for i, x, s, _ in rows}
    arrays = source.read(name, [*wanted.values()])
    found = {i: (x, old[i].kind) for i, x in zip(wanted, arrays, strict=True)}
    return [(None, None) if i is None else found[i] for i in how.chosen]


def _made(found: list[tuple], into: Template, make: Callable) -> tuple[list, list]:
    """The values, with missing ones initialized, and their libraries."""
    kinds = [kind for _, kind in found]
    rows = zip(found, into.entries, strict=True)
    values = [np.float32(0) if is_weight(e) and x is None else x for (x, _), e in rows]
    if all(x is not None for x in values):
        return values, kinds
    fresh = [rx.as_array(x) for _, x in arrays_of(make())]
    rows = zip(into.entries, values, fresh, strict=True)
    if shapes := [
        entry
        for entry, old, new in rows
        if old is None and isinstance(new, jax.ShapeDtypeStruct)
    ]:
        raise ValueError(
            f"the template has shapes where the checkpoint has nothing, for "
            f"{list_some(shapes)}: give arrays"
        )
    return [y if x is None else x for x, y in zip(values, fresh, strict=True)], kinds


def averaged(sources: Sequence[Any], params: rx.Params, weights: Any) -> Any:
    """The mean of the parameters of the checkpoints, in the form of `params`."""
    if isinstance(sources, str | os.PathLike) or not isinstance(sources, Iterable):
        raise TypeError(
            f"`sources` is {describe(sources)}, expected a list of directories"
        )
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
        rows = [(x, x.params[at[i]]) for x, at in zip(opened, chosen, strict=True)]
        arrays = (x.read("params", [(row, target)])[0] for x, row in rows)
        values.append(_mean(arrays, factors))
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


def _mean(arrays: Iterable[Any], factors: list[float] | int) -> Any:
    """The mean of arrays, read one at a time; the last one if they are not floats."""
    # So that no partial sum overflows, terms are divided by a power of two at first.
    total = 0.0 if isinstance(factors, int) else sum(map(abs, factors))
    power = 2.0 ** max(0, math.frexp(total)[1])
    mean: Any = None
    for n, x in enumerate(arrays):
        if not rx.is_inexact(x):
            mean = x
            continue
        # JAX does not promote floats of 8 bits.
        x = x.astype(rx.compute_dtype(x) if x.dtype.itemsize >= 4 else np.float32)
        if isinstance(factors, int):
            mean = x if mean is None else _between(mean, x, n + 1)
        else:
            part = x * (factors[n] / power)
            mean = part if mean is None else mean + part
    return mean * power if power > 1 and rx.is_inexact(mean) else mean


def _between(mean: Any, x: Any, n: int) -> Any:
    """The mean of n arrays, of which `x` is the last; `x` itself if all are equal."""
    xp = np if isinstance(x, np.ndarray) else jnp
    with np.errstate(over="ignore", invalid="ignore"):
        step = x - mean
        # The difference of large numbers of opposite signs overflows.
        apart = mean * ((n - 1) / n) + x / n
        return xp.where(xp.isfinite(step), mean + step / n, apart)
