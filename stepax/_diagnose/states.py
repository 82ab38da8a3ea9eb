"""What parameters and states are: their shapes, names, dtypes, sizes, and NaN."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._engine.arrays.numerics import has_dtype
from .._engine.inspect.components import Component, owned_arrays, part_name
from .._engine.step.plan import node_of
from .._engine.step.rule import Rule
from .._engine.trees import selection
from .._engine.trees.paths import join
from .findings import Found, Problem
from .stages import accumulated, is_injection, name_of, value_of, where
from .view import Place, Track, View


# Of a whole name, and of a word in it, such as `token_embedding` or `LayerNorm_0`.
_VECTORS = ("bias", "scale", "lm_head")
_WORD = re.compile(r"embed\w*|norms?\d*|\w*norm")
_MANY = 16
# Optimizers with a function `..._eval_params`, by the beginning of their names.
_AVERAGING = ("schedule_free", "gpa", "ema_nesterov", "splus")
_CHECKS = {"ZeroNansState": "zero_nans", "ApplyIfFiniteState": "apply_if_finite"}
_LARGE = 3
# One that chooses by shape chooses another parameter if all have one of these.
_SHAPES = (None, (), (64,), (64, 64), (64, 64, 64))


def matrix_left_out(track: Track) -> Found:
    """Stacks of matrices, which the default choice of axes does not take."""
    stacks = [x for x in track.leaves if len(x.shape) > 2]
    paths = tuple(x.path for x in stacks if min(x.shape[-2:]) >= _MANY)
    for part in [x.owner or x.part for x in track.stages if paths]:
        given = part.recipe.bound.arguments if name_of(part) else {}
        specs = [x for k, x in given.items() if k.endswith("weight_dimension_numbers")]
        if specs[:1] == [None]:
            what = "does not take these stacks as matrices, but arrays of two axes"
            yield Problem(f"by default `{name_of(part)}` {what}", paths)
            return


def matrix_taken_for_vectors(at: Place) -> Found:
    """Embeddings, heads and stacks of vectors that are orthogonalized."""
    if paths := tuple(path for path in at.matrices if _is_of_vectors(path)):
        what = "an embedding, a head, or a stack of biases or norm scales"
        yield Problem(f"{at.stage} takes {what} for a matrix", paths)


def _is_of_vectors(path: str) -> bool:
    names = path.split("/")
    split = re.sub(r"([a-z])([A-Z])", r"\1_\2", path).lower()
    is_word = any(map(_WORD.fullmatch, re.split(r"[^a-z0-9]+", split)))
    return is_word or any(name.lower() in _VECTORS for name in names)


def integers(track: Track) -> Found:
    """Parameters of integers that an optimizer is to train."""
    if track.stages and not any(x.name == "set_to_zero" for x in track.stages):
        yield "these parameters are integers, without a gradient"


def pattern_matches_nothing(view: View) -> Found:
    """Functions that choose parameters by their paths, and choose none."""
    found: dict[tuple, Problem] = {}  # a stage of an optimizer has its mask, too
    for part in view.parts if view.tracks else ():
        for name, choose, wanted in _choices(part):
            if wanted not in _chosen(choose, view, wanted):
                what = (
                    f"the label {wanted!r}" if name == "param_labels" else f"`{name}`"
                )
                message = f"{what} of `{name_of(part)}` selects no path"
                found.setdefault((choose, wanted), Problem(message, where(part)))
    yield from found.values()


def _choices(part: Component) -> Iterator[tuple[str, Callable, Any]]:
    """The masks and labels of a part that are functions, with what they may return."""
    given = part.recipe.bound.arguments if name_of(part) else {}
    for name in ("mask", "weight_decay_mask", "freeze_mask", "param_labels"):
        if inspect.isfunction(given.get(name)):
            for wanted in given["transforms"] if name == "param_labels" else (True,):
                yield name, given[name], wanted


def _chosen(choose: Callable, view: View, wanted: Any) -> set:
    """What a mask or labels choose, whatever the shapes are; `wanted` if they fail."""
    found: set = set()
    for shape in _SHAPES:
        new = lambda x, s=shape: jax.ShapeDtypeStruct(
            x.shape if s is None else s, x.dtype
        )
        try:
            found |= set(jax.tree.leaves(choose(jax.tree.map(new, view.shapes))))
        except Exception:
            return {wanted}
    return found


def narrow_mean(view: View) -> Found:
    """Averages whose dtype is too narrow.

    A step moves a mean with decay b by (1 - b) of its distance to the new value.
    bfloat16 has 8 bits of precision, so a change below 2^-9 of the mean is rounded
    away: with b = 0.999 Adam's `nu` stays at its first value, and steps are 65 % off
    after 1,000.
    """
    # A wrapper's state contains those of its members, each of which is visited itself.
    for part in filter(lambda x: x.is_leaf, view.parts[0].walk()):
        for name in _long_means(node_of(part.tx)):
            arrays = jax.tree.leaves(getattr(part.state, name, None))
            place = join((*part.path, name))
            for dtype in sorted({str(x.dtype) for x in arrays if _is_narrow(x)}):
                yield Problem(
                    f"`{place}` is stored in {dtype}, in which small changes are "
                    "rounded away, so that it stops moving",
                    (place,),
                    "keep it in float32 with "
                    f'`with_state_dtypes(tx, {{"{name}": "float32"}})`, or all with '
                    "`master_weights(tx)`",
                )


def _long_means(rule: object) -> list[str]:
    """The slots that hold squares or have a long memory."""
    # A closure declares no slots; `nu` is the usual name.  First moments may be narrow:
    # with b1 = 0.9 a step changes a tenth of the distance, which bfloat16 resolves.
    if not isinstance(rule, Rule):
        return ["nu"]
    return [k for k, slot in rule.slots.items() if slot.is_wide or slot.is_slow]


def _is_narrow(x: Any) -> bool:
    # By `finfo`, and not by the item size: float16 and the 8-bit floats count as well.
    is_floating = has_dtype(x) and jnp.issubdtype(x.dtype, jnp.floating)
    return is_floating and jnp.finfo(x.dtype).bits < 32


def eps_underflows(at: Place) -> Found:
    """An epsilon that is 0 in the dtype in which it is added."""
    given, dtype = _epsilons(at)
    for name, x in given.items():
        number = np.float64(value_of(x, otherwise=0))
        if number > 0 == number.astype(dtype):
            what = f"is 0 in {dtype.name}, in which it is added"
            yield f"`{name}={number:g}` of {at.stage} {what}"


def _epsilons(at: Place) -> tuple[Mapping[str, Any], np.dtype]:
    """The epsilons of a stage, and the dtype in which they are added."""
    if not at.stage.name:  # Optax computes in the dtype of the parameters
        dtypes = [x.dtype for x in at.track.leaves]
        narrowest = min(dtypes, key=lambda x: jnp.finfo(x).bits)
        return _of_optax(at.stage.part.tx.update), narrowest
    dtype: Any = jnp.float32  # rules compute in it, or in a wider one
    for part in filter(is_injection, at.stage.around):
        dtype = part.recipe.bound.arguments["dtype"] or dtype
    is_eps = lambda name: name.startswith("eps") or name.endswith("_eps")
    return {k: x for k, x in at.stage.given.items() if is_eps(k)}, np.dtype(dtype)


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


def nan_in_mean(view: View) -> Found:
    """Checks for NaN in an accumulation, which see only means of gradients."""
    is_check = lambda x: type(x).__name__ in _CHECKS
    foreign = [x for x in view.parts if x.recipe is None and accumulated(x) is not None]
    for part in foreign:
        what = f"inside of `{part_name(part)}` sees only the mean of the gradients"
        for x in filter(is_check, jax.tree.leaves(part.state, is_leaf=is_check)):
            yield Problem(f"`{_CHECKS[type(x).__name__]}` {what}", where(part))


def nan_after_mean(at: Place) -> Found:
    """Checks for NaN that come after an accumulation."""
    late = {x for y in at.before for x in y.around if accumulated(x) is not None}
    parts = (*at.stage.around, at.stage.part)
    own = [x for x in parts if name_of(x) in _CHECKS.values()]
    if own and late and not late & set(at.stage.around):
        what = "comes after the accumulation, whose mean a NaN has reached already"
        yield Problem(f"`{name_of(own[-1])}` {what}", where(own[-1]))


def large_state(view: View) -> Found:
    """Parameters in 16 bits with several times their bytes in float32."""
    size = lambda x: int(np.prod(x.shape)) * np.dtype(x.dtype).itemsize
    leaves = [x for track in view.tracks for x in track.leaves]
    narrow = {tuple(x.path.split("/")): x for x in leaves if x.dtype.itemsize <= 2}
    rows = owned_arrays(view.parts[0].state, selection.leaf_names(view.shapes))
    kept = sum(size(x) for at, x in rows if at in narrow and x.dtype == jnp.float32)
    own = sum(map(size, narrow.values()))
    if kept > _LARGE * own:
        what = f"takes {kept / own:.3g} times their bytes"
        message = f"the float32 state of 16-bit parameters {what}"
        yield Problem(message, tuple(x.path for x in narrow.values()))


def averages_without_swap(view: View) -> Found:
    """Optimizers whose parameters for evaluation are others than those in training."""
    for part in view.parts:
        name = name_of(part)
        calls = [f"contrib.{x}_eval_params" for x in _AVERAGING if name.startswith(x)]
        for call in ["swap_averages"] if name == "averages" else calls:
            message = f"with `{name}`, parameters in training are not those to evaluate"
            cure = f"evaluate and save those of `stepax.{call}`"
            yield Problem(message, where(part), cure)
            return
