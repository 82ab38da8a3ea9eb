"""What is stored: dtypes, sizes, averages, integers, and where NaN is seen."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._engine.base.protocol import is_none
from .._engine.inspect.components import Component
from .._engine.inspect.names import part_name
from .._engine.inspect.narrow_means import warnings
from .._engine.inspect.owners import owned_arrays
from .findings import Problem
from .stages import (
    Stage,
    Track,
    View,
    accumulated,
    is_injection,
    name_of,
    value_of,
    where,
)


# What returns the parameters for evaluation.
_AVERAGES = {
    "averages": "swap_averages",
    "schedule_free": "contrib.schedule_free_eval_params",
    "schedule_free_sgd": "contrib.schedule_free_eval_params",
    "schedule_free_adamw": "contrib.schedule_free_eval_params",
    "schedule_free_radam": "contrib.schedule_free_eval_params",
    "gpa": "contrib.gpa_eval_params",
    "gpa_adamw": "contrib.gpa_eval_params",
    "ema_nesterov": "contrib.ema_nesterov_eval_params",
    "splus": "contrib.splus_eval_params",
}
_CHECKS = {"zero_nans": "ZeroNansState", "apply_if_finite": "ApplyIfFiniteState"}
_LARGE = 3
# One that chooses by shape chooses another parameter if all have one of these.
_SHAPES = (None, (), (64,), (64, 64), (64, 64, 64))


def narrow_mean(view: View) -> Iterator[Problem]:
    """Averages whose dtype is too narrow."""
    for text in warnings(view.parts[0]):
        what, _, cure = text.partition(": ")
        yield Problem(what, (what.split("`")[1],), cure)


def eps_underflows(view: View) -> Iterator[Problem]:
    """An epsilon that is 0 in the dtype in which it is added."""
    for track, _, stage, _ in view.placed():
        given, dtype = _epsilons(track, stage)
        for name, value in given.items():
            value = value_of(value)
            if isinstance(value, float) and value > 0 == np.asarray(value).astype(
                dtype
            ):
                what = f"is 0 in {dtype.name}, in which it is added"
                yield Problem(f"`{name}={value:g}` of {stage} {what}", track.paths)


def _epsilons(track: Track, stage: Stage) -> tuple[Mapping[str, Any], np.dtype]:
    """The epsilons of a stage, and the dtype in which they are added."""
    if not stage.name:  # Optax computes in the dtype of the parameters
        dtypes = [leaf.dtype for leaf in track.leaves if leaf.is_float]
        narrowest = min(dtypes, key=lambda x: jnp.finfo(x).bits, default=jnp.float32)
        return _of_optax(stage.part.tx.update), np.dtype(narrowest)
    dtype: Any = jnp.float32  # rules compute in it, or in a wider one
    for part in filter(is_injection, stage.around):
        dtype = part.recipe.bound.arguments["dtype"] or dtype
    is_eps = lambda name: name.startswith("eps") or name.endswith("_eps")
    return {k: x for k, x in stage.given.items() if is_eps(k)}, np.dtype(dtype)


def _of_optax(f: Any, depth: int = 4) -> dict[str, Any]:
    """The epsilons that functions of Optax hold in their closures."""
    if not inspect.isfunction(f) or not f.__module__.startswith("optax.") or not depth:
        return {}
    held = inspect.getclosurevars(f).nonlocals
    found = {k: x for k, x in held.items() if k.startswith("eps")}
    for x in held.values():
        for inner in x if isinstance(x, tuple | list) else (x,):
            found |= _of_optax(inner, depth - 1)
    return found


def accumulation_of_nan(view: View) -> Iterator[Problem]:
    """Checks for NaN that do not see the gradients of single micro-batches."""
    for part in view.parts:
        is_foreign = accumulated(part) is not None and part.recipe is None
        kinds = set(_kinds(part.state)) if is_foreign else set()
        for name in [k for k, kind in _CHECKS.items() if kind in kinds]:
            what = f"inside of `{part_name(part)}` sees only the mean of the gradients"
            yield Problem(f"`{name}` {what}", where(part))
    for _, before, stage, _ in view.placed():
        late = {x for y in before for x in y.around if accumulated(x) is not None}
        own = [x for x in (*stage.around, stage.part) if name_of(x) in _CHECKS]
        if own and late and not late & set(stage.around):
            what = "comes after the accumulation, whose mean a NaN has reached already"
            yield Problem(f"`{name_of(own[-1])}` {what}", where(own[-1]))


def _kinds(state: Any) -> Iterator[str]:
    """The names of the named tuples in a state."""
    yield type(state).__name__
    children, _ = jax.tree.flatten(state, is_leaf=lambda x: x is not state)
    for child in children:
        if child is not state:
            yield from _kinds(child)


def integers(view: View) -> Iterator[Problem]:
    """Parameters of integers that an optimizer is to train."""
    for track in view.tracks:
        paths = tuple(leaf.path for leaf in track.leaves if not leaf.is_float)
        is_frozen = any(stage.name == "set_to_zero" for stage in track.stages)
        if paths and track.stages and not is_frozen:
            yield Problem("these parameters are integers, without a gradient", paths)


def averages_without_swap(view: View) -> Iterator[Problem]:
    """Optimizers whose parameters for evaluation are others than those in training."""
    for part in view.parts:
        if call := _AVERAGES.get(name_of(part)):
            what = "parameters in training are not those to evaluate"
            cure = f"evaluate and save those of `stepax.{call}`"
            yield Problem(f"with `{name_of(part)}`, {what}", where(part), cure)
            return


def large_state(view: View) -> Iterator[Problem]:
    """Parameters in 16 bits with several times their bytes in float32."""
    size = lambda x: int(np.prod(x.shape)) * np.dtype(x.dtype).itemsize
    leaves = [x for x in view.leaves if x and x.is_float and x.dtype.itemsize <= 2]
    names = {x.names for x in leaves}
    rows = owned_arrays(view.parts[0].state, [x.names for x in view.leaves if x])
    kept = sum(size(x) for at, x in rows if at in names and x.dtype == jnp.float32)
    own = sum(map(size, leaves))
    if kept > _LARGE * own:
        what = f"takes {kept / own:.3g} times their bytes"
        message = f"the float32 state of 16-bit parameters {what}"
        yield Problem(message, tuple(x.path for x in leaves))


def pattern_matches_nothing(view: View) -> Iterator[Problem]:
    """Functions that choose parameters by their paths, and choose none."""
    seen = set()
    for part in view.parts if any(view.leaves) else ():
        for name, choose, wanted in _choices(part):
            found = _chosen(choose, view)
            if (
                found is not None
                and wanted not in found
                and (choose, wanted) not in seen
            ):
                seen.add((choose, wanted))  # a stage of an optimizer has it, too
                what = (
                    f"the label {wanted!r}" if name == "param_labels" else f"`{name}`"
                )
                message = f"{what} of `{name_of(part)}` selects no path"
                yield Problem(message, where(part))


def _choices(part: Component) -> Iterator[tuple[str, Callable, Any]]:
    """The masks and labels of a part that are functions, with what they may return."""
    given = part.recipe.bound.arguments if name_of(part) else {}
    for name in ("mask", "weight_decay_mask", "freeze_mask", "param_labels"):
        if inspect.isfunction(given.get(name)):
            for wanted in given["transforms"] if name == "param_labels" else (True,):
                yield name, given[name], wanted


def _chosen(choose: Callable, view: View) -> set | None:
    """The values of a mask or label function, whatever the shapes are."""
    found = set()
    try:
        for shape in _SHAPES:
            new = lambda x, s=shape: jax.ShapeDtypeStruct(
                x.shape if s is None else s, x.dtype
            )
            keep = lambda x, new=new: None if x is None else new(x)
            tree = jax.tree.map(keep, view.tree, is_leaf=is_none)
            found |= set(jax.tree.leaves(choose(tree)))
    except Exception:
        return None
    return found
