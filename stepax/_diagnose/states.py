"""What parameters and states are: their shapes, names, dtypes, sizes, and NaN."""

import inspect
import itertools as it
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.numerics import has_dtype
from .._engine.inspect import owned_arrays, part_name
from .._engine.trees.paths import join
from .._wrappers.readers import READERS
from .findings import Found, Problem
from .stages import (
    COMPLETE,
    Place,
    Stage,
    Track,
    accumulated,
    is_injection,
    kind_of,
    value_of,
)
from .trial import first_steps
from .view import View


# Of a whole name, and of a word in it, such as `token_embedding` or `LayerNorm_0`.
_VECTORS = ("bias", "scale", "lm_head")
_WORD = re.compile(r"embed\w*|norms?\d*|\w*norm")
_MANY = 16
# Arguments that choose parameters.
_CHOICES = ("mask", "weight_decay_mask", "freeze_mask", "param_labels")
_CHECKS = {"ZeroNansState": "zero_nans", "ApplyIfFiniteState": "apply_if_finite"}
_LARGE = 3
# A decay rate, where a factory has no default for it.
_DECAY = re.compile(r"b\d|decay")
# A step that is so many times as large as with other decay rates.
_EXPLODES = 30
_NOTHING = "no gradient enters the mean, and steps are divided by 0"
_NO_DEVIATION = "the mean is the gradient, and steps are divided by a deviation of 0"
_NO_LONGER = "an element whose gradient becomes 0 moves by its momentum over `eps`"
# Of 1 - b, relative; in float32 it is met by 0.9999, but not by 0.999.
_ROUNDED = 1e-4
# One that chooses by shape chooses another parameter if all have one of these.
_SHAPES = (None, (), (64,), (64, 64), (64, 64, 64))


def matrix_left_out(track: Track) -> Found:
    """Stacks of matrices, which the default choice of axes does not take."""
    shapes = [(path, x.shape) for path, x in track.leaves.items()]
    paths = tuple(path for path, n in shapes if len(n) > 2 and min(n[-2:]) >= _MANY)
    for part in [x.owner or x.part for x in track.stages if paths]:
        given = part.given.items()
        specs = [x for k, x in given if k.endswith("weight_dimension_numbers")]
        if specs[:1] == [None]:
            what = "does not take these stacks as matrices, but arrays of two axes"
            yield Problem(f"by default `{part.name}` {what}", paths)
            return


def matrix_taken_for_vectors(at: Place) -> Found:
    """Embeddings, heads and stacks of vectors that are orthogonalized."""
    if paths := tuple(path for path in at.matrices if _is_of_vectors(path)):
        what = "an embedding, a head, or a stack of biases or norm scales"
        yield Problem(f"{at.stage} takes {what} for a matrix", paths)


def _is_of_vectors(path: str) -> bool:
    split = re.sub(r"([a-z])([A-Z])", r"\1_\2", path).lower()
    is_word = any(map(_WORD.fullmatch, re.split(r"[^a-z0-9]+", split)))
    return is_word or any(name in _VECTORS for name in path.lower().split("/"))


def integers(track: Track) -> Found:
    """Parameters of integers that an optimizer is to train."""
    if track.stages and not any("freezes" in x.traits for x in track.stages):
        yield "these parameters are integers, without a gradient"


def nothing_trains(view: View) -> Found:
    """An optimizer whose parameters are all frozen."""
    found = [frozenset().union(*(x.traits for x in y.stages)) for y in view.tracks]
    is_still = bool(found) and all("freezes" in x for x in found)
    if is_still and any(kind_of(part) in COMPLETE for part in view.parts):
        paths = tuple(path for track in view.tracks for path in track.paths)
        yield Problem("`set_to_zero()` takes all parameters: nothing is trained", paths)


def pattern_matches_nothing(view: View) -> Found:
    """Functions that choose parameters by their paths, and choose none."""
    found: dict[tuple, Problem] = {}  # a stage of an optimizer has its mask, too
    for part, name in it.product(view.parts if view.tracks else (), _CHOICES):
        given, is_label = part.given, name == "param_labels"
        if not inspect.isfunction(choose := given.get(name)):
            continue
        for wanted in given["transforms"] if is_label else (True,):
            if wanted not in _chosen(choose, view, wanted):
                what = f"the label {wanted!r}" if is_label else f"`{name}`"
                message = f"{what} of `{part.name}` selects no path"
                found.setdefault((choose, wanted), Problem(message, (part.place,)))
    yield from found.values()


def _chosen(choose: Callable, view: View, wanted: Any) -> set:
    """What a mask or labels choose, whatever the shapes are; `wanted` if they fail."""

    def shaped(x, shape):
        return jax.ShapeDtypeStruct(x.shape if shape is None else shape, x.dtype)

    leaves, treedef = jax.tree.flatten(view.shapes)
    trees = [treedef.unflatten(shaped(x, shape) for x in leaves) for shape in _SHAPES]
    try:
        return set(jax.tree.leaves([choose(tree) for tree in trees]))
    except Exception:
        return {wanted}


def narrow_mean(view: View) -> Found:
    """Averages whose dtype is too narrow.

    A step moves a mean with decay b by (1 - b) of its distance to the new value.
    bfloat16 has 8 bits of precision, so a change below 2^-9 of the mean is rounded
    away: with b = 0.999 Adam's `nu` stays at its first value, and steps are 65 % off
    after 1,000.
    """
    # A wrapper's state contains those of its members, each of which is visited itself.
    for part in [x for x in view.parts if x.is_leaf]:
        rule, names = rx.node_of(part.tx), ["nu"]  # a closure declares no slots
        if isinstance(rule, rx.Rule):
            # First moments may be narrow: with b1 = 0.9 a step changes a tenth of the
            # distance, which bfloat16 resolves.
            names = [
                k for k, slot in rule.slots.items() if slot.is_wide or slot.is_slow
            ]
        for name in names:
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
        dtypes = [x.dtype for x in at.track.leaves.values()]
        narrowest = min(dtypes, key=lambda x: jnp.finfo(x).bits)
        return _of_optax(at.stage.part.tx.update), narrowest
    dtype: Any = jnp.float32  # rules compute in it, or in a wider one
    for part in filter(is_injection, at.stage.around):
        dtype = part.given["dtype"] or dtype
    given = at.stage.given.items()
    own = {k: x for k, x in given if k.startswith("eps") or k.endswith("_eps")}
    return own, np.dtype(dtype)


def _of_optax(f: Any, depth: int = 4) -> dict[str, Any]:
    """The epsilons that functions of Optax hold in their closures."""
    is_theirs = inspect.isfunction(f) and (f.__module__ or "").startswith("optax.")
    if not is_theirs or not depth:
        return {}
    held = inspect.getclosurevars(f).nonlocals
    found = {k: x for k, x in held.items() if k.startswith("eps")}
    for x in held.values():
        for inner in x if isinstance(x, tuple | list) else (x,):
            found |= _of_optax(inner, depth - 1)
    return found


def nan_in_mean(view: View) -> Found:
    """Checks for NaN in an accumulation, which see only means of gradients."""

    def checks(x):
        return type(x).__name__ in _CHECKS

    foreign = [x for x in view.parts if x.call is None and accumulated(x) is not None]
    for part in foreign:
        what = f"inside of `{part_name(part)}` sees only the mean of the gradients"
        for x in filter(checks, jax.tree.leaves(part.state, is_leaf=checks)):
            yield Problem(f"`{_CHECKS[type(x).__name__]}` {what}", (part.place,))


def nan_after_mean(at: Place) -> Found:
    """Checks for NaN that come after an accumulation."""
    late = {x for y in at.before for x in y.around if accumulated(x) is not None}
    parts = (*at.stage.around, at.stage.part)
    own = [x for x in parts if x.name in _CHECKS.values()]
    if own and late and not late & set(at.stage.around):
        what = "comes after the accumulation, whose mean a NaN has reached already"
        yield Problem(f"`{own[-1].name}` {what}", (own[-1].place,))


def large_state(view: View) -> Found:
    """Parameters in 16 bits with several times their bytes in float32."""
    leaves = [row for track in view.tracks for row in track.leaves.items()]
    narrow = {path: x for path, x in leaves if x.dtype.itemsize <= 2}
    rows = owned_arrays(view.parts[0].state, rx.selection.leaf_names(view.shapes))
    own = sum(x.size * x.dtype.itemsize for x in narrow.values())
    kept = sum(
        4 * math.prod(x.shape)
        for names, x in rows
        if x.dtype == jnp.float32 and "/".join(names or ()) in narrow
    )
    if own and kept > _LARGE * own:
        what = f"takes {kept / own:.3g} times their bytes"
        message = f"the float32 state of 16-bit parameters {what}"
        yield Problem(message, tuple(narrow))


def averages_without_swap(view: View) -> Found:
    """Optimizers whose parameters for evaluation are others than those in training."""
    for part in view.parts:
        if type(part.state).__name__ in READERS:
            what = "parameters in training are not those to evaluate"
            yield Problem(f"with `{part.name}`, {what}", (part.place,))
            return


def not_opened(view: View) -> Found:
    """Transformations of other libraries, of which only the functions are known."""
    kinds = rx.Rule | rx.Composite
    paths = tuple(
        part.place
        for part in view.parts
        if part.call is None
        and not part.parts
        and not isinstance(rx.node_of(part.tx), kinds)
    )
    if paths:
        were = "transformation was" if len(paths) == 1 else "transformations were"
        yield Problem(f"{len(paths)} {were} not opened, and may do anything", paths)


def variance_of_nothing(view: View) -> Found:
    """Divisors that are 0: deviations from the gradient itself, means of nothing."""
    # A stage may be in several tracks, and is tried once.
    for stage in dict.fromkeys(x for track in view.tracks for x in track.stages):
        for message in _explosions(stage):
            tracks = [track for track in view.tracks if stage in track.stages]
            yield Problem(message, tuple(path for x in tracks for path in x.paths))


def _explosions(stage: Stage) -> Iterator[str]:
    if (call := stage.call) is None:
        return
    for name, parameter in call.bound.signature.parameters.items():
        rate, usual = value_of(call.bound.arguments[name]), parameter.default
        if usual is parameter.empty and _DECAY.fullmatch(name):
            usual = 0.9
        is_decay = isinstance(usual, float) and 0.5 < usual <= 1
        # Within half of float32's rounding error below 1.
        end = [x for x in (0, 1) if rate is not None and abs(rate - x) <= 2**-25]
        if not is_decay or not end or rate == usual:
            continue
        found, others = first_steps(call, {}), first_steps(call, {name: usual})
        large = [not x <= _EXPLODES * max(others, default=np.inf) for x in found]
        if any(large):
            what = _NOTHING if end == [1] else _NO_DEVIATION if large[0] else _NO_LONGER
            yield f"with `{name}={end[0]}` of {stage} {what}"


def decay_is_rounded(view: View) -> Found:
    """Decay rates in a state, so close to 1 that float32 changes 1 - b."""
    for part in filter(is_injection, view.parts):
        given = part.call.bound.arguments
        kept = part.state.hyperparams if part.state else {}
        known = inspect.signature(given["inner_factory"]).bind_partial(
            *given["args"], **given["kwargs"]
        )
        known.apply_defaults()
        for name, b in known.arguments.items():
            if name not in kept or not isinstance(b, float) or not 0 < b < 1:
                continue
            gap = abs(float(np.asarray(b, kept[name].dtype)) - b) / (1 - b)
            if gap > _ROUNDED:
                message = f"`{name}={b:g}` is injected in {kept[name].dtype}, in which"
                message += f" 1 - {name} is off by {gap:.1e}"
                cure = f"keep it a number of Python: `static_args=('{name}',)`"
                place = join(part.path) or "inject_hyperparams"
                yield Problem(message, (place,), cure)
