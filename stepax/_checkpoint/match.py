"""Matching the arrays of a checkpoint to the places of a template."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from .._engine.arrays.joined import grouped
from .._engine.trees.errors import list_some, require_one_of
from . import Entry, param_of
from .place import AS, is_weight


@dataclass
class Match:
    """An assignment of arrays of a checkpoint to places of a template.

    chosen: for each place, the index of its array, or `None`.
    missing, extra, unclear: for errors: places without an array, arrays without a
        place, and places with several candidates.
    other: arrays that have another "shape" or "dtype" than their place, with both.
    """

    chosen: list[int | None]
    missing: list[Entry] = field(default_factory=list)
    extra: list[Entry] = field(default_factory=list)
    unclear: list[Entry] = field(default_factory=list)
    other: list[tuple[str, Entry, Entry]] = field(default_factory=list)


def match(old: list[Entry], new: list[Entry], params: Iterable[tuple]) -> Match:
    """Find the array of each place by its name.

    Arrays with the same name are paired if they are under the same wrappers, otherwise
    in order, if there are equally many on both sides.  The labels of `partition`, of
    `named_chain` and of averages are names, too; but a slot may be in another group of
    a `partition`, as its parameter tells it apart.  Only step counts go to several
    places: not hyperparameters, nor random keys.
    """
    old_groups = grouped(range(len(old)), lambda i: _name(old[i]))
    new_groups = grouped(range(len(new)), lambda j: _name(new[j]))
    params = set(params)
    result = Match([None] * len(new))
    taken = set()
    for name, places in new_groups.items():
        arrays = old_groups.get(name, [])
        is_slot = param_of(new[places[0]], params) is not None
        pairs = _pairs(old, new, arrays, places, is_slot)
        rest = [j for j in places if j not in pairs]
        if not is_slot and _is_one(old, arrays) and _may_share(new, rest):
            pairs |= {j: arrays[0] for j in rest}
            taken |= {*arrays}
        elif rest and len(pairs) < len(arrays):
            left = {_labels(old[i], is_slot) for i in {*arrays} - {*pairs.values()}}
            rest = [j for j in rest if _labels(new[j], is_slot) in left]
            result.unclear += [new[j] for j in rest]
            taken |= {*arrays} if rest else set()
        taken |= {*pairs.values()}
        for j, i in pairs.items():
            result.chosen[j] = i
    _judge(result, old, new, taken)
    return result


def _may_share(new: list, places: list) -> bool:
    """Whether an array may go to all places: a count, or to one without a label."""
    if len(places) == 1 and not new[places[0]].labels:
        return True
    some = [new[j] for j in places]
    are_counts = all(x.shape == () and "int" in x.dtype for x in some)
    return are_counts and not any(x.own[0] == "hyperparams" for x in some)


def _labels(entry: Entry, is_slot: bool) -> tuple[str, ...]:
    """The labels above a state, without those of groups for a slot of a parameter."""
    if not is_slot:
        return entry.labels
    above = ("", *entry.where)
    rows = zip(above, entry.where, strict=False)
    return tuple(x for up, x in rows if x in entry.labels and up != "inner_states")


def _name(x: Entry) -> tuple:
    return AS.get(x.owner, x.owner), x.own


def _pairs(old: list, new: list, arrays: list, places: list, is_slot: bool) -> dict:
    """A dict from places to arrays."""
    pairs: dict[int, int] = {}
    for key in lambda x: x.where, lambda x: (_labels(x, is_slot), x.where[-1:]):
        rest, left = _unpaired(pairs, places, arrays)
        there = grouped(left, lambda i, key=key: key(old[i]))
        for k, here in grouped(rest, lambda j, key=key: key(new[j])).items():
            if len(here) == len(found := there.get(k, [])):
                pairs |= zip(here, found, strict=True)
    rest, left = _unpaired(pairs, places, arrays)
    here, there = (
        {(x.where, _labels(x, is_slot)) for x in xs}
        for xs in ([new[j] for j in rest], [old[i] for i in left])
    )
    if len(rest) == len(left) and len(here) == len(there) == 1:
        (_, ours), (_, theirs) = *here, *there
        if ours == theirs or len(rest) == 1 and not (ours and theirs):
            pairs |= zip(rest, left, strict=True)
    return pairs


def _unpaired(pairs: dict, places: list, arrays: list) -> tuple[list, list]:
    used = {*pairs.values()}
    return [j for j in places if j not in pairs], [i for i in arrays if i not in used]


def _is_one(old: list, arrays: list) -> bool:
    """Whether there is one array, or several with equal values."""
    found = {(old[i].shape, old[i].dtype, old[i].digest) for i in arrays}
    return len(found) == 1 and (len(arrays) == 1 or old[arrays[0]].digest is not None)


def _judge(result: Match, old: list, new: list, taken: set[int]) -> None:
    unclear = {*result.unclear}
    for x, i in zip(new, result.chosen, strict=True):
        if i is None and x not in unclear and not is_weight(x):
            result.missing.append(x)
        elif i is not None and old[i].shape != x.shape and not _are_scales(old[i], x):
            result.other.append(("shape", old[i], x))
        elif i is not None and old[i].dtype != x.dtype and _are_codes(old[i], x):
            result.other.append(("dtype", old[i], x))
    result.extra = [x for i, x in enumerate(old) if i not in taken]


def _are_scales(old: Entry, new: Entry) -> bool:
    """Whether these are scales of the same array, for different blocks."""
    # If the arrays differ, so do the shapes of their codes.
    is_there = old.is_coded and new.is_coded and old.own[-1:] == ("scales",)
    return is_there and len(old.shape) == len(new.shape)


# Integers as narrow as these are codes, whose meaning a conversion would change, unless
# they are converted from or to integers that count.
_CODES = {"int8", "uint8", "int16", "uint16"}
_COUNTS = {"int32", "int64", "uint32", "uint64", "bool"}


def _are_codes(old: Entry, new: Entry) -> bool:
    kinds = {old.dtype, new.dtype}
    return not _CODES.isdisjoint(kinds) and _COUNTS.isdisjoint(kinds)


@dataclass
class Policy:
    """How to handle arrays that do not fit: "error", "fresh" and "drop"."""

    missing: str
    extra: str

    def __post_init__(self):
        require_one_of("missing", self.missing, ("error", "fresh"))
        require_one_of("extra", self.extra, ("error", "drop"))

    def check(self, what: str, params: Match, state: Match) -> None:
        """Raise an error that lists everything that does not fit."""
        missing, extra = params.missing + state.missing, params.extra + state.extra
        unclear, other = params.unclear + state.unclear, params.other + state.other
        problems: dict[str, list] = {
            f"of another {kind}": [
                f"{x} is {getattr(old, kind)}, expected {getattr(x, kind)}"
                for k, old, x in other
                if k == kind
            ]
            for kind in ("shape", "dtype")
        } | {
            "there are several candidates for": unclear,
            "missing": missing if self.missing == "error" else [],
            "extra": extra if self.extra == "error" else [],
        }
        if lines := [f"{k}: {list_some(x, MOST)}" for k, x in problems.items() if x]:
            pairs = [x for _, *pair in other for x in pair]
            # If parameters have other shapes, it is not how they are stored.
            is_other = any(kind == "shape" for kind, *_ in params.other)
            found = [] if is_other else [*missing, *extra, *unclear, *pairs]
            raise ValueError(f"{what} does not fit: {'; '.join(lines)}.{_hint(found)}")


MOST = 20  # names listed in an error


def _hint(found: list[Entry]) -> str:
    if any(x.is_coded for x in found):
        return (
            "  `codes` and `scales` can only be restored with the `low_bit_states` "
            "that saved them; `stepax.tree.dequantize` and `stepax.tree.quantize` "
            "convert a restored state to full precision and back"
        )
    if any(x.is_remainder for x in found):
        return (
            "  A state that was saved with a `remainder`, or without one, must be "
            "restored the same way; then `master_params` and `set_master_params` "
            "convert master weights, and `eval_params` returns an average"
        )
    return (
        '  `missing="fresh"` takes missing arrays from an initial state, '
        '`extra="drop"` ignores extra arrays, and `renamed={"old/path": '
        '"new/path"}` moves parameters and their slots, or renames labels; for another '
        "optimizer or other shapes restore as it was saved, and let "
        "`stepax.tree.migrate` carry it over"
    )
