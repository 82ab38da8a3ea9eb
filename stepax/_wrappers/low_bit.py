"""States in 8 or 4 bits for each element.

Dettmers, Lewis, Shleifer and Zettlemoyer, 2022, 8-bit Optimizers via Block-wise
Quantization (arXiv:2110.02861), section 2.1; Li, Chen and Zhu, 2023, Memory Efficient
Optimizers with 4-bit States (arXiv:2309.01507), section 4.1, on codes of 0.  The codes
are those of `_engine/arrays/coding.py`, and differ from those of the papers.
"""

import functools as ft
import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any, NamedTuple, SupportsIndex

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.coding import Form, block_within, tile_within
from .._engine.arrays.stacked import Axes, Static, in_front, shape_of_one
from .._engine.step.coded_slots import coded, zeros
from .._engine.trees import stacks
from .lookahead import LookaheadParams


# Keyed by the number of elements that share a scale.
_BLOCKS = {8: 256, 4: 128}
_KEPT = 32
_KINDS = "float32", "bfloat16", "float16"

# The slots of other libraries' states, keyed by class, as these declare none.
_MEANS = {
    "EmaState": {"ema": rx.Slot()},
    "MuonState": {"mu": rx.Slot()},
    "ScaleByAdaDeltaState": {"e_g": rx.REAL, "e_x": rx.REAL},
    "ScaleByAdamState": {"mu": rx.Slot(), "nu": rx.REAL},
    "ScaleByAdanState": {"m": rx.Slot(), "v": rx.Slot(), "n": rx.REAL},
    "ScaleByAmsgradState": {"mu": rx.Slot(), "nu": rx.REAL},
    "ScaleByBeliefState": {"mu": rx.Slot(), "nu": rx.REAL},
    "ScaleByLionState": {"mu": rx.Slot()},
    "ScaleByNovogradState": {"mu": rx.Slot()},
    "ScaleByRmsState": {"nu": rx.REAL},
    "ScaleByRmsWithCountState": {"nu": rx.REAL},
    "TraceState": {"trace": rx.Slot()},
}


@rx.traits("stores")
@rx.public("wrapper", paper="arXiv:2110.02861")
def low_bit_states(
    inner: rx.TransformationLike,
    bits: int | Mapping[str, int] = 8,
    *,
    block: SupportsIndex | None = None,
    min_size: int = 4096,
    mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Store parts of a state in 8 or 4 bits for each element.

        s = the largest |x| of a block,   n = the largest code
        x = sign(c) (c / n)² s;   x = (c / n)⁴ s for moments that are never negative

    with c rounded to nearest; above n / 2 those of the second kind in 8 bits are right
    on average.  Arithmetic is that of the inner transformation, in float32.  The state
    has the structure of the inner state, with `codes` and `scales` for an array;
    `tree.dequantize` converts it back.  Jit `init` to save memory.

    Use 4 bits for decays up to 0.9, as in Adam and SGD: with longer memory, such as
    Lion's 0.99 or Muon's 0.95, rounding dominates.

    inner: the transformation, of any library.
    bits: 8, 4, or 32 for no compression: for all moving averages, or a dict from names
        of fields of the state; others are not compressed.
    block: elements along the last axis that share a scale, at least 2; as few as a
        quarter where only that divides it.  `None` means up to 256 for 8 bits and 128
        for 4, of several rows where an axis is short, so that eight devices can share
        either axis.
    min_size: smaller arrays are not compressed, nor are those that no block divides,
        or dtypes other than float32, bfloat16 and float16.
    mask: the parameters whose state is compressed; see `masked`.

    Raises a `ValueError` for other values of `bits` and `block`; `init` raises one for
    unknown names, or if nothing is a moving average, and lists the names.

    >>> tx = stepax.low_bit_states(stepax.adamw(1e-3), bits=8)
    """
    tx = rx.with_keywords(inner, "`inner` of `low_bit_states`")
    how = _How(_checked_bits(bits), _checked_block(block), min_size, mask)
    # Done once, not at each step: `init` of a placeholder.
    found = ft.cache(lambda: rx.slots_like_params(tx))

    def init(params):
        parts, treedef = found()
        values = treedef.flatten_up_to(tx.init(params))
        rows = zip(values, parts, how.chosen(parts), strict=True)
        # The state of `lookahead` is that of an optimizer of the fast parameters.
        ps = params.fast if isinstance(params, LookaheadParams) else params
        which = how.leaves(ps)
        return treedef.unflatten(how.stored(*row, ps, which) for row in rows)

    if isinstance(tx, rx.Transformation) and tx.node.keeps_dtypes:
        return rx.with_init(tx, init)

    def update(updates, state, params=None, **extra_args):
        given = _opened_foreign(*found(), state)
        if given is state:
            return tx.update(updates, state, params, **extra_args)
        u, new = rx.promote_freely(tx.update)(updates, given, params, **extra_args)
        new = rx.keep_dtypes(rx.stored_like(new, state), state)
        return rx.keep_dtypes(u, rx.like_updates(updates, tx)), new

    return rx.transformation(init, update, inner={"": tx}, hands_on="")


def _opened_foreign(
    parts: list[rx.Part | None], treedef: Any, state: rx.OptState
) -> rx.OptState:
    """The state, with what other libraries and closures read in full precision."""
    # Rules open their own slots.
    foreign = [part is not None and part.slot is None for part in parts]
    if not any(foreign):
        return state
    values = treedef.flatten_up_to(state)
    pairs = list(zip(values, foreign, strict=True))
    if not any(on and rx.holds_codes(x) for x, on in pairs):
        return state
    return treedef.unflatten(rx.dequantize(x) if on else x for x, on in pairs)


class _How(NamedTuple):
    """How states are stored; the arguments of `low_bit_states`."""

    bits: int | dict[str, int]
    block: int | None
    min_size: int
    mask: rx.MaskOrFn

    def chosen(self, parts: list[rx.Part | None]) -> list[int]:
        """The number of bits for each part of a state."""
        slots = {i: _slot(part) for i, part in enumerate(parts) if part}
        able = {i: x for i, x in slots.items() if x.alike and x.encode is None}
        names = {parts[i].name for i in able}  # type: ignore[union-attr]
        listed = f"the slots shaped like the parameters are {sorted(names)}"
        if isinstance(self.bits, dict):
            if unknown := [name for name in self.bits if name not in names]:
                raise ValueError(f"`low_bit_states` is given {unknown}, but {listed}")
            bits = {i: self.bits.get(parts[i].name, _KEPT) for i in able}  # type: ignore
        else:
            means = [i for i, slot in able.items() if slot.kind == "average"]
            if not means:
                raise ValueError(
                    "`low_bit_states`: nothing in this state is a moving average, and "
                    f"{listed}; give `bits` by name to store others"
                )
            bits = dict.fromkeys(means, self.bits)
        return [bits.get(i, _KEPT) for i in range(len(parts))]

    def leaves(self, params: rx.Params) -> list:
        """For each parameter its stack axes if slots are compressed, else `None`."""
        if rx.holds_packed(params):
            raise TypeError(
                "`low_bit_states` cannot store packed parameters, as blocks must end "
                "where arrays do: omit `stepax.tree.pack`"
            )
        ps, treedef = jax.tree.flatten(params, is_leaf=rx.is_none)
        mask = True if self.mask is None else self.mask
        on = rx.selection.resolve_mask(mask, params) if ps else []
        pairs = zip(on, stacks.of_leaves(params), strict=True)
        return treedef.unflatten(Static(axes) if x else None for x, axes in pairs)

    def stored(self, x: Any, part: rx.Part | None, bits: int, params, which) -> Any:
        """A part of a state, with coded arrays."""
        if part is None or bits == _KEPT:
            return x
        slot = _slot(part)
        is_zero = part.slot is not None and slot.make is jnp.zeros_like

        def one(x, stack, p):
            is_signed = not slot.is_positive
            form = self._form(x, p, bits, is_signed, stack.axes) if stack else None
            if form is None:
                return x
            p = rx.as_array(p)
            if is_zero:
                return zeros(p, form, slot.in_leaf)
            return coded(p, x, form, slot.in_leaf)

        xs, treedef = jax.tree.flatten(x, is_leaf=rx.is_absent)
        try:
            beside = [treedef.flatten_up_to(tree) for tree in (which, params)]
        except (ValueError, TypeError):
            return x  # not shaped like a parameter
        return treedef.unflatten(map(one, xs, *beside))

    def _form(
        self, x: Any, p: Any, bits: int, is_signed: bool, axes: Axes
    ) -> Form | None:
        """How a slot is coded; `None` if it is left uncompressed."""
        if not (rx.is_array(x) and rx.is_array(p)) or jnp.shape(x) != jnp.shape(p):
            return None
        is_kind = all(str(jnp.result_type(y)) in _KINDS for y in (x, p))
        shape = shape_of_one(jnp.shape(p), axes)
        if not is_kind or not shape or math.prod(shape) < self.min_size:
            return None
        # Depends on the shape alone: a state is the same whatever `init` knows of
        # shardings.
        if self.block is None:
            tile = tile_within(shape, _BLOCKS[bits], bits)
        else:
            block = block_within(shape[-1], self.block, bits)
            tile = None if block is None else (block, 1)
        if tile is None:
            return None
        is_whole = axes == in_front(axes) or (
            tile[1] == 1 and jnp.ndim(p) - 1 not in axes
        )
        if not is_whole:
            raise ValueError(
                f"`low_bit_states` inside of `stacked` cannot divide an array of shape "
                f"{jnp.shape(p)} with stack axes {axes} into blocks: put it outside, "
                "or give a `block`, unless the last axis is one of them"
            )
        return Form(bits, is_signed, *tile)


def _slot(part: rx.Part) -> rx.Slot:
    """The slot of a part of a state; an unknown one is not a moving average."""
    if part.slot is not None:
        return part.slot
    return _MEANS.get(part.owner, {}).get(part.name, rx.Slot(kind="other"))


def _checked_bits(bits: Any, name: str = "") -> Any:
    if isinstance(bits, Mapping):
        return {k: _checked_bits(x, f" for `{k}`") for k, x in bits.items()}
    if not _is_whole(bits) or bits not in (*_BLOCKS, _KEPT):
        raise ValueError(
            f"`low_bit_states`: `bits`{name} must be 4, 8, or 32 for no compression, "
            f"but is {bits!r}"
        )
    return int(bits)


def _checked_block(block: Any) -> int | None:
    if block is not None and (not _is_whole(block) or block < 2):
        raise ValueError(
            "`low_bit_states`: `block` must be a whole number of at least 2, but is "
            f"{block!r}"
        )
    return block


def _is_whole(x: object) -> bool:
    return isinstance(x, Integral) and not isinstance(x, bool)
