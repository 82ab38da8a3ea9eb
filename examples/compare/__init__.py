"""Where two optimizers part on the same gradients, and which known difference it is.

    from examples.compare import compare

    print(compare(stepax.adamw(1e-3), torch_optimizer, gradients))

The differences are changes of one that may make it the other, alone or two at a time;
one is named only if the changed optimizer agrees with the other on all gradients.
"""

import copy
import itertools as it
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stepax

from . import edits
from .edits import Edit


_WHICH = "the first", "the second"


def is_none(x: Any) -> bool:
    return x is None


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


def compare(
    a: Any,
    b: Any,
    gradients: Sequence[stepax.Updates],
    params: stepax.Params = None,
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

    Raises a `ValueError` for a PyTorch optimizer with arrays of other shapes, and for
    no gradients; a `TypeError` if these are no sequence.
    """
    if not isinstance(gradients, Sequence):
        raise TypeError(
            f"`gradients` is of type {type(gradients).__name__}, expected a list with "
            "the gradients of each step"
        )
    if not gradients:
        raise ValueError("`gradients` is empty, expected those of at least one step")
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


def _random(gradients: stepax.Updates) -> stepax.Params:
    rng = np.random.default_rng(0)

    def draw(g):
        return None if g is None else jnp.asarray(rng.normal(size=g.shape), g.dtype)

    return jax.tree.map(draw, gradients, is_leaf=is_none)


def _fixed(runs: list, params: stepax.Params) -> tuple[str, ...]:
    """Arrays that move in one only; no change of arguments is needed for these."""
    first = jax.tree.leaves(params, is_leaf=is_none)
    kept = [list(map(np.array_equal, run[-1], first)) for run in runs]
    return tuple(
        f"{path} is kept fixed by {_WHICH[0] if one else _WHICH[1]}"
        for path, one, other in zip(paths_of(params), *kept, strict=True)
        if one != other
    )


def _causes(
    pair: tuple, gradients: Sequence, params: stepax.Params, rtol: float
) -> tuple:
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


# --- runs --------------------------------------------------------------------------


# PyTorch's names of what has another name here.
_NAMES = {"lr": "learning_rate", "alpha": "decay"}


def is_torch(tx: Any) -> bool:
    """Whether it is an optimizer of PyTorch, which is not imported for this."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(tx, torch.optim.Optimizer)


def paths_of(tree: stepax.ArrayTree) -> list[str]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_none)
    names = [jax.tree_util.keystr(x, simple=True, separator="/") for x, _ in leaves]
    return [name or "the array" for name in names]


def run(
    tx: Any, gradients: Sequence, params: stepax.Params, options: Mapping
) -> list[list]:
    """The arrays of the parameters after each step.

    options: those of PyTorch's optimizer that have other values.
    """
    if is_torch(tx):
        return _run_torch(tx, gradients, params, options)
    state, found = tx.init(params), []
    for g in gradients:
        updates, state = tx.update(g, state, params)
        params = stepax.apply_updates(params, updates)
        leaves = jax.tree.leaves(params, is_leaf=is_none)
        found.append([None if x is None else np.asarray(x) for x in leaves])
    return found


def _run_torch(tx, gradients, params, options):
    import torch

    twin = copy.deepcopy(tx)  # the user's keeps its parameters and its state
    leaves = jax.tree.leaves(params, is_leaf=is_none)
    ps = [p for group in twin.param_groups for p in group["params"]]
    shapes = [tuple(p.shape) for p in ps]
    if shapes != [np.shape(x) for x in leaves]:
        raise ValueError(
            f"the optimizer of PyTorch has arrays of the shapes {shapes}, but those of "
            f"the gradients are {[np.shape(x) for x in leaves]}: give gradients in the "
            "order and the shapes of `param_groups`"
        )
    for p, x in zip(ps, leaves, strict=True):
        p.data = torch.tensor(np.asarray(x))
    for group in twin.param_groups:
        group.update(options)
    found = []
    for g in gradients:
        for p, x in zip(ps, jax.tree.leaves(g, is_leaf=is_none), strict=True):
            is_fixed = x is None or not p.requires_grad
            p.grad = None if is_fixed else torch.tensor(np.asarray(x))
        twin.step()
        found.append([p.detach().numpy().copy() for p in ps])
    return found


def options_of(tx: Any, paths: Sequence[str]) -> dict[str, Any]:
    """The hyperparameters of PyTorch's optimizer by our names; by path if they vary."""
    rows = [_renamed(group) for group in tx.param_groups for _ in group["params"]]
    found = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        is_one = all(x == values[0] for x in values)
        found[name] = values[0] if is_one else dict(zip(paths, values, strict=True))
    return found


def _renamed(group):
    found = {_NAMES.get(k, k): x for k, x in group.items() if k != "params"}
    if "betas" in found:
        found["b1"], found["b2"] = found.pop("betas")[:2]
    return found


def first_difference(
    runs: Sequence[list[list]], start: stepax.Params, rtol: float
) -> tuple[int, int, float] | None:
    """The step, the leaf and the size of the first difference, as a share of the way.

    Sums of parameters and steps are rounded, by a few of the last bits in each step.
    """
    first = jax.tree.leaves(start, is_leaf=is_none)
    for t, (xs, ys) in enumerate(zip(*runs, strict=True)):
        worst = (0.0, -1)
        for i, (x, y, p) in enumerate(zip(xs, ys, first, strict=True)):
            if x is None or y is None or not np.size(x):
                continue
            x, y, p = (np.asarray(z, np.float64) for z in (x, y, p))
            way = max(np.abs(x - p).max(), np.abs(y - p).max())
            last = 4 * (t + 1) * np.finfo(xs[i].dtype).eps * np.abs(x).max()
            gap = np.abs(x - y).max()
            is_same = np.array_equal(x, y, equal_nan=True) or gap <= rtol * way + last
            if not is_same:
                worst = max(worst, (float(gap / way) if way else np.inf, i))
        if worst[1] >= 0:
            return t, worst[1], worst[0]
    return None
