"""Where two optimizers part on the same gradients, and which known difference it is.

The differences are changes of one that may make it the other, alone or two at a time;
one is named only if the changed optimizer agrees with the other on all gradients.
"""

import itertools as it
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._engine.base import Params, Updates, is_none
from .._engine.functions.calls import explain_misuse
from . import edits
from .edits import Edit
from .runs import first_difference, is_torch, options_of, paths_of, run


_WHICH = "the first", "the second"


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`: false if the optimizers agree, otherwise printed.

    step: the first step after which parameters differ, from 1 on; `None` if none does.
    path: the array that differs most after it.
    difference: largest difference there, as a share of the way that it has moved.
    causes: the known differences that explain it; none if no known ones do.
    """

    step: int | None = None
    path: str = ""
    difference: float = 0.0
    causes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.step is not None

    def __str__(self) -> str:
        if self.step is None:
            return "the optimizers agree"
        causes = self.causes or ("no known difference explains it",)
        first = f"step {self.step}, {self.path}: {self.difference:.2g} of the way"
        return "\n".join([first, *(f"- {x}" for x in causes)])


@explain_misuse
def compare(
    a: Any,
    b: Any,
    gradients: Sequence[Updates],
    params: Params = None,
    *,
    rtol: float = 1e-5,
) -> Comparison:
    """Where two optimizers part when they are given the same gradients.

    a, b: transformations, of any library, or an optimizer of `torch.optim` before its
        first step, which is copied; its parameters are the leaves of the gradients, in
        their order.
    gradients: one tree for each step.
    params: the parameters to start from; random ones if `None`.
    rtol: largest difference that counts as none, as a share of the way that an array
        has moved.

    What explains a difference is found by changes of what is known of either: values of
    arguments, coupled decay, the place of `eps`, corrections of the bias, Nesterov
    momentum, the order of a chain, schedules that are a step apart, signs, and options
    of PyTorch.

    Raises a `ValueError` for a PyTorch optimizer with arrays of other shapes.
    """
    if params is None:
        params = _random(gradients[0])
    pair = a, b
    plain = [run(tx, gradients, params, {}) for tx in pair]
    found = first_difference(plain, params, rtol)
    if found is None:
        return Comparison()
    step, leaf, difference = found
    path = paths_of(params)[leaf]
    causes = _fixed(plain, params) or _causes(pair, gradients, params, rtol)
    return Comparison(step + 1, path, difference, causes)


def _random(gradients: Updates) -> Params:
    rng = np.random.default_rng(0)

    def draw(g):
        return None if g is None else jnp.asarray(rng.normal(size=g.shape), g.dtype)

    return jax.tree.map(draw, gradients, is_leaf=is_none)


def _fixed(runs: list, params: Params) -> tuple[str, ...]:
    """Arrays that move in one only; no change of arguments is needed for these."""
    first = jax.tree.leaves(params, is_leaf=is_none)
    kept = [list(map(np.array_equal, run[-1], first)) for run in runs]
    return tuple(
        f"{path} is kept fixed by {_WHICH[0] if one else _WHICH[1]}"
        for path, one, other in zip(paths_of(params), *kept, strict=True)
        if one != other
    )


def _causes(pair: tuple, gradients: Sequence, params: Params, rtol: float) -> tuple:
    def agree(changes):
        try:
            runs = [_changed(pair, i, changes, gradients, params) for i in (0, 1)]
        except (TypeError, ValueError):  # arguments that exclude each other
            return False
        return first_difference(runs, params, rtol) is None

    for changes in _candidates(pair, paths_of(params)):
        if agree(changes):
            for one in changes:  # what is not needed explains nothing
                rest = [x for x in changes if x is not one]
                changes = rest if agree(rest) else changes
            return tuple(edit.words for _, edit in changes)
    return ()


def _changed(pair, side, changes, gradients, params):
    own = [edit for at, edit in changes if at == side]
    options = {k: v for x in own for k, v in x.options.items()}
    places = {k: v for x in own for k, v in x.arguments.items()}
    tx = edits.edited(pair[side], places) if places else pair[side]
    for x in own:
        tx = x.around(tx) if x.around else tx
    return run(tx, gradients, params, options)


def _candidates(pair: tuple, paths: list[str]) -> Iterator[list[tuple[int, Edit]]]:
    """Sets of changes of either of the two, the simplest first."""
    facts = [options_of(x, paths) if is_torch(x) else edits.known(x) for x in pair]
    values, kinds = [], []
    for side, tx in enumerate(pair):
        if is_torch(tx):
            kinds += [(side, edit) for edit in edits.of_torch(tx)]
            continue
        if not values:  # moving one side is enough
            which = _WHICH[side], _WHICH[1 - side]
            some = edits.toward(tx, facts[1 - side], which)
            values = [(side, edit) for edit in some]
        kinds += [(side, edit) for edit in edits.structural(tx, facts[1 - side])]
    yield from ([x] for x in values)
    yield values
    for n in (1, 2):
        for some in it.combinations(kinds, n):
            yield [*some]
            if values:
                yield [*values, *some]
