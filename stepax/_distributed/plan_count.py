"""The work and communication of a program on a mesh, read from its types.

In a program that is traced with explicit axes, the type of every value contains its
sharding.  So each reduction along a sharded axis, and each `reshard`, determines a
collective: nothing is compiled, and the mesh may be abstract.
"""

import itertools as it
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal


class Exchange(NamedTuple):
    """One collective.

    axes: the mesh axes that it crosses.
    bytes: size of its result on one device.
    how: sums with the same operation and dtype may be joined into one collective.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    how: tuple[str, ...] = ()


@dataclass
class Counts:
    """exchanges: the collectives; one in a branch or a loop counts once.
    work: floating-point operations on one device, with the most costly branch, and with
        each loop as many times as it is known to run.
    work_once: `work` with each loop counted once, as XLA does.
    temporaries: the most bytes of intermediate arrays on one device at once.
    """

    exchanges: list[Exchange] = field(default_factory=list)
    work: float = 0.0
    work_once: float = 0.0
    temporaries: int = 0


@dataclass
class _Step:
    """An equation, after calls have been inlined.

    read, made: numbers of its operands and results.
    inner: the counts of its inner programs, such as those of a loop.
    waits: the sums over devices that have to be complete before it can run.
    """

    eqn: Any
    read: list[int]
    made: list[int]
    inner: list[Counts] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    waits: frozenset[int] = frozenset()


class _Sum(NamedTuple):
    """A sum over devices, and the sums that have to be complete before it."""

    exchange: Exchange
    waits: frozenset[int]

    @property
    def kind(self) -> tuple:
        """Equal for sums that XLA may join."""
        return self.exchange.axes, self.exchange.how


def count(program: ClosedJaxpr, sizes: dict[str, int]) -> Counts:
    """The counts of one device for a program.

    sizes: the number of devices along each axis of the mesh.
    """
    return _Reader(_Shards(sizes)).counts(program.jaxpr)


class _Reader:
    """Reads programs, each one once."""

    def __init__(self, shards: "_Shards"):
        self.shards = shards
        self.known: dict[Jaxpr, Counts] = {}

    def counts(self, jaxpr: Jaxpr) -> Counts:
        if jaxpr not in self.known:
            self.known[jaxpr] = self._counts(jaxpr)
        return self.known[jaxpr]

    def _counts(self, jaxpr: Jaxpr) -> Counts:
        steps, returned = self._inlined(jaxpr)
        steps = _needed(steps, returned)
        for step in steps:
            step.inner = list(map(self.counts, _programs(step.eqn)))
            step.exchanges = list(self.shards.exchanges(step.eqn))
        sums = _sums(steps)
        groups = _in_turn(sums)
        work, once = map(sum, zip(*map(self._work, steps), (0.0, 0.0), strict=True))
        found = [x for step in steps for inner in step.inner for x in inner.exchanges]
        found += [x for step in steps for x in step.exchanges if not _is_sum(x)]
        found += [_joined([sums[i].exchange for i in group]) for group in groups]
        steps = _in_order(steps, groups)
        return Counts(found, work, once, _peak(steps, returned, self.shards))

    def _work(self, step: _Step) -> tuple[float, float]:
        """The operations of a step, and the same with each loop counted once."""
        if not (inner := [(x.work, x.work_once) for x in step.inner]):
            alone = self.shards.operations(step.eqn)
            return alone, alone
        work, once = max(inner)
        return step.eqn.params.get("length", 1) * work, once

    def _inlined(self, jaxpr: Jaxpr) -> tuple[list[_Step], set[int]]:
        """The equations of a program, and its results.

        Calls that contain collectives are inlined, since their sums may be joined with
        others.  Of equations that compute the same values only the first is kept.
        """
        steps: list[_Step] = []
        fresh, known = it.count(), {}

        def walk(jaxpr, values):
            env = dict(zip(jaxpr.invars, values, strict=True))
            env.update((x, next(fresh)) for x in jaxpr.constvars)
            number = lambda x: -1 if isinstance(x, Literal) else env[x]
            for eqn in jaxpr.eqns:
                read = list(map(number, eqn.invars))
                if self._is_open(eqn):
                    (inner,) = _programs(eqn)
                    made = walk(inner, read)
                else:
                    key = _key(eqn, read)
                    made = known.get(key) or [next(fresh) for _ in eqn.outvars]
                    if key not in known:
                        steps.append(_Step(eqn, read, made))
                        known[key] = made
                env.update(zip(eqn.outvars, made, strict=True))
            return list(map(number, jaxpr.outvars))

        returned = walk(jaxpr, [next(fresh) for _ in jaxpr.invars])
        return steps, set(returned)

    def _is_open(self, eqn: Any) -> bool:
        if eqn.primitive.name not in _CALLS:
            return False
        return any(self.counts(x).exchanges for x in _programs(eqn))


class _Shards:
    """The share of an array that one device has, and the resulting collectives."""

    def __init__(self, sizes: dict[str, int]):
        self.sizes = sizes

    def numbers(self, aval: Any) -> int:
        """The number of elements of an array on one device."""
        return math.prod(aval.shape) // self._ways(it.chain(*_spec(aval)))

    def bytes(self, aval: Any) -> int:
        return self.numbers(aval) * aval.dtype.itemsize

    def exchanges(self, eqn: Any) -> Iterator[Exchange]:
        """The collectives that an equation becomes."""
        name = eqn.primitive.name
        if name in ("reshard", "sharding_constraint"):
            yield from self._moves(eqn)
            return
        # XLA sums along the axes of an array one by one, starting with the last.
        kind, sums = "all-reduce", _summed(eqn)[::-1]
        if name in _MANUAL:
            kind = _MANUAL[name]
            sums = [_names(eqn.params.get("axes", eqn.params.get("axis_name")))]
        for axes in filter(None, map(self._several, sums)):
            for x in eqn.outvars:
                yield Exchange(
                    kind, axes, self.bytes(x.aval), (name, str(x.aval.dtype))
                )

    def _moves(self, eqn: Any) -> Iterator[Exchange]:
        """The collectives that bring an array from one sharding to another."""
        (x, *_), (made, *_) = eqn.invars, eqn.outvars
        after = {k: i for i, names in enumerate(_spec(made.aval)) for k in names}
        before = [(k, i) for i, names in enumerate(_spec(x.aval)) for k in names]
        n = self.bytes(made.aval)
        if turned := self._several(k for k, i in before if after.get(k, i) != i):
            yield Exchange("all-to-all", turned, n)
        gone = [[k for k in names if k not in after] for names in _spec(x.aval)]
        # The axes of the array are moved one by one, the first axis last.
        for axes in filter(None, map(self._several, gone)):
            yield Exchange("all-gather", axes, n)
            n //= self._ways(axes)

    def operations(self, eqn: Any) -> float:
        """The floating-point operations of an equation, counted as XLA does."""
        name = eqn.primitive.name
        if not eqn.outvars:
            return 0.0
        n = self.numbers(eqn.outvars[0].aval)
        if name in _ELEMENTWISE:
            return float(n)
        if name == "dot_general":
            (over, _), _ = eqn.params["dimension_numbers"]
            whole = math.prod(eqn.invars[0].aval.shape[i] for i in over)
            return 2.0 * n * whole / self._ways(it.chain(*_summed(eqn)))
        if _is_reduction(eqn):
            return float(self.numbers(eqn.invars[0].aval) - n)
        return 0.0

    def _ways(self, names: Iterable[str]) -> int:
        return math.prod(self.sizes[x] for x in names)

    def _several(self, names: Iterable[Any]) -> tuple[str, ...]:
        """The mesh axes along which there are several devices."""
        return tuple(x for x in names if isinstance(x, str) and self.sizes[x] > 1)


def _summed(eqn: Any) -> list[tuple]:
    """The mesh axes along each axis that an equation sums over."""
    if eqn.primitive.name == "dot_general":
        (over, _), _ = eqn.params["dimension_numbers"]
    elif _is_reduction(eqn):
        over = eqn.params["axes"]
    else:
        return []
    spec = _spec(eqn.invars[0].aval)
    return [spec[i] for i in over]


def _is_reduction(eqn: Any) -> bool:
    name = eqn.primitive.name
    return name.startswith(("reduce_", "argm")) and "axes" in eqn.params


def _is_sum(x: Exchange) -> bool:
    return x.kind == "all-reduce"


def _sums(steps: list[_Step]) -> list[_Sum]:
    """The sums over devices; also sets the sums that each step waits for."""
    sums: list[_Sum] = []
    after: dict[int, frozenset[int]] = {}
    none: frozenset[int] = frozenset()
    for step in steps:
        waits = none
        for found in (after.get(x, none) for x in step.read):
            # Most sets are the same object, so there is little to merge.
            waits = waits if found is waits or not found else found | waits
        step.waits = waits
        for x in filter(_is_sum, step.exchanges):
            sums.append(_Sum(x, waits))
            waits = frozenset([len(sums) - 1])
        after.update(dict.fromkeys(step.made, waits))
    return sums


def _in_turn(sums: list[_Sum]) -> list[list[int]]:
    """The sums that XLA joins: successive ones of one kind, until one has to wait."""
    groups: list[list[int]] = []
    before: list[set[int]] = []  # the groups that each group waits for
    place: dict[int, int] = {}
    open_group: dict[tuple, int] = {}
    for i, x in enumerate(sums):
        waits = {place[j] for j in x.waits}
        while more := {k for j in waits for k in before[j]} - waits:
            waits |= more
        at = open_group.get(x.kind, -1)
        if at < 0 or at in waits:
            at = open_group[x.kind] = len(groups)
            groups.append([])
            before.append(set())
        groups[at].append(i)
        before[at] |= waits
        place[i] = at
    return groups


def _joined(xs: list[Exchange]) -> Exchange:
    return xs[0]._replace(bytes=sum(x.bytes for x in xs))


def _in_order(steps: list[_Step], groups: list[list[int]]) -> list[_Step]:
    """The steps, each after the joined sums that it waits for."""
    if not groups:
        return steps
    turn = {i: n for n, group in enumerate(groups, 1) for i in group}
    different = {step.waits for step in steps}
    last = {x: max(map(turn.__getitem__, x), default=0) for x in different}
    return sorted(steps, key=lambda step: last[step.waits])


def _peak(steps: list[_Step], returned: set[int], shards: _Shards) -> int:
    """The largest number of bytes at once of values that are kept, but not returned."""
    last = {x: i for i, step in enumerate(steps) for x in step.read}
    twice = _read_again(steps)
    ends: dict[int, int] = defaultdict(int)
    most = now = 0
    for i, step in enumerate(steps):
        is_kept = step.eqn.primitive.name in _KEPT or bool(step.exchanges)
        for x, var in zip(step.made, step.eqn.outvars, strict=True):
            if (is_kept or x in twice) and x in last and x not in returned:
                n = shards.bytes(var.aval)
                now, ends[last[x]] = now + n, ends[last[x]] + n
        inside = max((x.temporaries for x in step.inner), default=0)
        most, now = max(most, now + inside), now - ends[i]
    return most


def _read_again(steps: list[_Step]) -> set[int]:
    """Values that a reduction reads, and that another step reads after its result."""
    # Other values are computed where they are needed, fused into the loop of their
    # reader.
    reduced: set[int] = set()
    for step in reversed(steps):
        if _is_reduction(step.eqn) or reduced.intersection(step.made):
            reduced.update(step.read)
    found: set[int] = set()
    heights: dict[int, int] = {}
    for step in steps:
        at = max((heights.get(x, 0) for x in step.read), default=0)
        found.update(x for x in step.read if x in reduced and heights.get(x, at) < at)
        heights.update(dict.fromkeys(step.made, at + _is_reduction(step.eqn)))
    return found


def _programs(eqn: Any) -> Iterator[Jaxpr]:
    """The programs among the parameters of an equation."""
    # Of alternatives by platform, that of a CPU, or the last one, which is the default.
    if platforms := eqn.params.get("branches_platforms"):
        at = [i for i, names in enumerate(platforms) if names and "cpu" in names]
        yield eqn.params["branches"][at[0] if at else -1].jaxpr
        return
    for value in eqn.params.values():
        for x in value if isinstance(value, tuple | list) else (value,):
            if isinstance(x, ClosedJaxpr | Jaxpr):
                yield x.jaxpr if isinstance(x, ClosedJaxpr) else x


def _key(eqn: Any, read: list[int]) -> Any:
    """Equal for equations that compute the same values."""
    constants = [_constant(x) for x in eqn.invars if isinstance(x, Literal)]
    key = eqn.primitive, *eqn.params.values(), *read, *constants
    try:
        hash(key)
    except TypeError:
        return eqn  # a parameter that cannot be compared
    return key


def _constant(x: Literal) -> tuple[str, str]:
    value: Any = x.val
    # As text, since -0.0 equals 0.0.
    return str(x.aval), repr(value.item() if hasattr(value, "item") else value)


def _needed(steps: list[_Step], returned: set[int]) -> list[_Step]:
    """The steps whose results are read, in order."""
    wanted, kept = set(returned), []
    for step in reversed(steps):
        if wanted.intersection(step.made):
            wanted.update(step.read)
            kept.append(step)
    return kept[::-1]


def _spec(aval: Any) -> list[tuple]:
    """The mesh axes along each axis of an array."""
    found = [_names(x) for x in aval.sharding.spec]
    return [*found, *[()] * (len(aval.shape) - len(found))]


def _names(entry: Any) -> tuple:
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, tuple | list) else (entry,)


_CALLS = {"jit", "pjit", "closed_call", "core_call", "remat", "checkpoint", "remat2"}
_CALLS |= {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
_MANUAL = {
    **dict.fromkeys(("psum", "psum2", "psum_invariant", "pmax", "pmin"), "all-reduce"),
    **dict.fromkeys(("all_gather", "all_gather_invariant"), "all-gather"),
    **dict.fromkeys(("reduce_scatter", "psum_scatter"), "reduce-scatter"),
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
}
_ELEMENTWISE = set(
    "add sub mul div neg max min abs sign floor ceil round select_n eq ne lt le gt ge "
    "and or not xor convert_element_type clamp rem is_finite integer_pow square "
    "add_any shift_left shift_right_logical shift_right_arithmetic nextafter "
    "population_count clz".split()
)
# Operations whose results are written to memory, as they are not fused into their
# reader.
_KEPT = set(
    "dot_general shard_map concatenate cond while scan sort fft cholesky qr eigh svd "
    "triangular_solve lu cumsum cumprod gather scatter scatter-add".split()
)
