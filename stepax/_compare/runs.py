"""Runs of transformations and of PyTorch's optimizers on the same gradients."""

import copy
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from .._engine.base import is_none
from .._engine.trees.apply import apply_updates
from .._engine.trees.paths import join


# PyTorch's names of what has another name here.
_NAMES = {"lr": "learning_rate", "alpha": "decay"}


def is_torch(tx: Any) -> bool:
    """Whether it is an optimizer of PyTorch, which is not imported for this."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(tx, torch.optim.Optimizer)


def paths_of(tree: Any) -> list[str]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_none)
    return [join(path) or "the array" for path, _ in leaves]


def run(tx: Any, gradients: Sequence, params: Any, options: Mapping) -> list[list]:
    """The arrays of the parameters after each step.

    options: those of PyTorch's optimizer that have other values.
    """
    if is_torch(tx):
        return _run_torch(tx, gradients, params, options)
    state, found = tx.init(params), []
    for g in gradients:
        updates, state = tx.update(g, state, params)
        params = apply_updates(params, updates)
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
    runs: Sequence[list[list]], start: Any, rtol: float
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
