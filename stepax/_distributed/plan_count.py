"""The work and communication of a program on a mesh, read from its types.

In a program that is traced with explicit axes, the type of every value contains its
sharding.  So each reduction along a sharded axis, and each `reshard`, determines a
collective: nothing is compiled, and the mesh may be abstract.
"""

import itertools as it
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from .._engine.arrays.placement import axis_names
from .._engine.xla.jaxprs import programs_in
from .plan_join import Sum, joined, read_by


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
    not_counted: names of what is not among them.
    """

    exchanges: list[Exchange] = field(default_factory=list)
    work: float = 0.0
    work_once: float = 0.0
    temporaries: int = 0
    not_counted: set[str] = field(default_factory=set)


@dataclass
class _Step:
    """An equation, after calls have been inlined.

    read, made: numbers of its operands and results.
    inner: what its own programs, those of a loop for example, do.
    turn: how many sums over devices have to be complete before it can run.
    """

    eqn: Any
    read: list[int]
    made: list[int]
    inner: list[Counts] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    turn: int = 0


def count(program: ClosedJaxpr, sizes: dict[str, int]) -> Counts:
    """The counts of one device for a program; sizes: of the axes of the mesh."""
    return _Reader(sizes).counts(program.jaxpr)


class _Reader:
    """Reads programs, each one once, for the share of one device."""

    def __init__(self, sizes: dict[str, int]):
        self.sizes = sizes
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
            step.exchanges = list(self._exchanges(step.eqn))
        groups = _sums(steps, returned)
        work, once = map(sum, zip(*map(self._work, steps), (0.0, 0.0), strict=True))
        found = [x for step in steps for inner in step.inner for x in inner.exchanges]
        found += [x for step in steps for x in step.exchanges if not _is_sum(x)]
        found += [xs[0]._replace(bytes=sum(x.bytes for x in xs)) for xs in groups]
        steps = sorted(steps, key=lambda step: step.turn)
        results = set(returned)
        peak = self._peak(steps, results)
        return Counts(found, work, once, peak, _not_counted(steps, results))

    def _work(self, step: _Step) -> tuple[float, float]:
        """The operations of a step, and the same with each loop counted once."""
        if not (inner := [(x.work, x.work_once) for x in step.inner]):
            alone = self._operations(step.eqn)
            return alone, alone
        work, once = max(inner)
        return step.eqn.params.get("length", 1) * work, once

    def _inlined(self, jaxpr: Jaxpr) -> tuple[list[_Step], list[int]]:
        """The equations of a program, and what it returns.

        Calls that contain collectives are inlined, since their sums may be joined with
        others.  Of equations that compute the same values only the first is kept.
        """
        steps: list[_Step] = []
        fresh, known = it.count(), {}

        def walk(jaxpr, values):
            env = dict(zip(jaxpr.invars, values, strict=True))
            env.update((x, next(fresh)) for x in jaxpr.constvars)

            def number(x):
                return -1 if isinstance(x, Literal) else env[x]

            for eqn in jaxpr.eqns:
                read = list(map(number, eqn.invars))
                inner = _programs(eqn) if eqn.primitive.name in _CALLS else ()
                if called := [x for x in inner if self.counts(x).exchanges]:
                    made = walk(called[0], read)
                else:
                    key = _key(eqn, read)
                    made = known.get(key) or [next(fresh) for _ in eqn.outvars]
                    if key not in known:
                        steps.append(_Step(eqn, read, made))
                        known[key] = made
                env.update(zip(eqn.outvars, made, strict=True))
            return list(map(number, jaxpr.outvars))

        returned = walk(jaxpr, [next(fresh) for _ in jaxpr.invars])
        return steps, list(dict.fromkeys(returned))

    def _numbers(self, aval: Any) -> int:
        """The number of elements of an array on one device."""
        return math.prod(aval.shape) // self._ways(it.chain(*_spec(aval)))

    def _bytes(self, aval: Any) -> int:
        return self._numbers(aval) * aval.dtype.itemsize

    def _exchanges(self, eqn: Any) -> Iterator[Exchange]:
        """The collectives that an equation becomes."""
        name = eqn.primitive.name
        if name in ("reshard", "sharding_constraint"):
            yield from self._moves(eqn)
            return
        # XLA sums along the axes of an array one by one, starting with the last.
        kind, sums = "all-reduce", _summed(eqn)[::-1]
        if name in _MANUAL:
            kind = _MANUAL[name]
            sums = [axis_names(eqn.params.get("axes", eqn.params.get("axis_name")))]
        for axes in filter(None, map(self._several, sums)):
            for x in eqn.outvars:
                yield Exchange(
                    kind, axes, self._bytes(x.aval), (name, str(x.aval.dtype))
                )

    def _moves(self, eqn: Any) -> Iterator[Exchange]:
        """The collectives that bring an array from one sharding to another."""
        (x, *_), (made, *_) = eqn.invars, eqn.outvars
        after = {k: i for i, names in enumerate(_spec(made.aval)) for k in names}
        before = [(k, i) for i, names in enumerate(_spec(x.aval)) for k in names]
        n = self._bytes(made.aval)
        turned = [(k, i, after.get(k, i)) for k, i in before if self._several([k])]
        turned = [x for x in turned if x[1] != x[2]]
        # At once, if no axis of the array both gives and takes.
        at_once = {i for _, i, _ in turned}.isdisjoint(to for *_, to in turned)
        for _, names in it.groupby(turned, lambda x: at_once or x[1:]):
            yield Exchange("all-to-all", tuple(k for k, *_ in names), n)
        gone = [[k for k in names if k not in after] for names in _spec(x.aval)]
        # The axes of the array are moved one by one, the first axis last.
        for axes in filter(None, map(self._several, gone)):
            yield Exchange("all-gather", axes, n)
            n //= self._ways(axes)

    def _operations(self, eqn: Any) -> float:
        """The floating-point operations of an equation, counted as XLA does."""
        name = eqn.primitive.name
        if not eqn.outvars:
            return 0.0
        n = self._numbers(eqn.outvars[0].aval)
        if name in _ELEMENTWISE:
            return float(n)
        if name == "dot_general":
            (over, _), _ = eqn.params["dimension_numbers"]
            whole = math.prod(eqn.invars[0].aval.shape[i] for i in over)
            return 2.0 * n * whole / self._ways(it.chain(*_summed(eqn)))
        if _is_reduction(eqn):
            return float(self._numbers(eqn.invars[0].aval) - n)
        return 0.0

    def _peak(self, steps: list[_Step], returned: set[int]) -> int:
        """The most bytes at once of values that are kept, but not returned."""
        last = {x: i for i, step in enumerate(steps) for x in step.read}
        twice = _read_again(steps)
        ends: dict[int, int] = defaultdict(int)
        most = now = 0
        late: set[int] = set()  # computed from kept values, not from operands alone
        for i, step in enumerate(steps):
            is_kept = _is_kept(step)
            if is_kept or not late.isdisjoint(step.read):
                late.update(step.made)
            for x, var in zip(step.made, step.eqn.outvars, strict=True):
                stays = is_kept or (x in twice and x in late)
                if stays and x in last and x not in returned:
                    n = self._bytes(var.aval)
                    now, ends[last[x]] = now + n, ends[last[x]] + n
            inside = max((x.temporaries for x in step.inner), default=0)
            most, now = max(most, now + inside), now - ends[i]
        return most

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


def _sums(steps: list[_Step], returned: Iterable[int]) -> list[list[Exchange]]:
    """The sums over devices, joined as by XLA, in order; sets the turn of each step."""
    sums: list[Sum] = []
    exchanges: list[Exchange] = []
    before: list[tuple[int, ...]] = []
    after: dict[int, dict[int, int]] = {}
    results = set(returned)
    for i, step in enumerate(steps, 1):
        found = read_by(i, [after[x] for x in step.read if x in after])
        waits = tuple(found)
        before.append(waits)
        for x in filter(_is_sum, step.exchanges):
            exchanges.append(x)
            sums.append(Sum((x.axes, x.how), waits))
            waits = (len(sums) - 1,)
        if not _is_merged(step) or not results.isdisjoint(step.made):
            found = dict.fromkeys(waits, 0)
        if found:
            after.update(dict.fromkeys(step.made, found))
    last = dict.fromkeys(k for x in returned for k in after.get(x, ()))
    groups = joined(sums, tuple(last))
    turn = {i: n for n, group in enumerate(groups, 1) for i in group}
    for step, waits in zip(steps, before, strict=True):
        step.turn = max(map(turn.__getitem__, waits), default=0)
    return [[exchanges[i] for i in group] for group in groups]


def _is_merged(step: _Step) -> bool:
    """Whether a step is computed in the loop of what reads it, as elementwise ones."""
    is_whole = step.eqn.primitive.name in _KEPT or _is_reduction(step.eqn)
    return not (is_whole or step.exchanges)


def _not_counted(steps: list[_Step], returned: set[int]) -> set[str]:
    """What may be kept as well, but depends on what a compiler fuses and copies."""
    found = {name for step in steps for x in step.inner for name in x.not_counted}
    times = Counter(x for step in steps for x in set(step.read))
    again = {x for x, n in times.items() if n > 1}
    again.update(x for step in steps if _is_reduction(step.eqn) for x in step.read)
    for step in steps:
        if _is_kept(step):
            found.add("copies and work space of products, loops and moves")
        elif step.eqn.primitive.name in _RANDOM:
            found.add("random bits")
        elif step.inner or returned.issuperset(step.made):
            continue
        elif _is_reduction(step.eqn) or not step.eqn.outvars[0].aval.shape:
            found.add("numbers and sums")
        elif not again.isdisjoint(step.made):
            found.add("elementwise results that are read again")
    return found


def _is_kept(step: _Step) -> bool:
    """Whether a compiler writes the results to memory, other than sums."""
    moves = [x for x in step.exchanges if not _is_sum(x)]
    return step.eqn.primitive.name in _KEPT or bool(moves)


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
        return iter([eqn.params["branches"][at[0] if at else -1].jaxpr])
    return programs_in(eqn)


def _key(eqn: Any, read: list[int]) -> Any:
    """Equal for equations that compute the same values, which XLA computes once."""
    if eqn.primitive.name == "optimization_barrier":
        return object()  # what stands behind two of them is computed twice
    constants = [_constant(x) for x in eqn.invars if isinstance(x, Literal)]
    key = eqn.primitive, *eqn.params.values(), *read, *constants
    try:
        hash(key)
    except TypeError:
        return eqn, *read  # a parameter that cannot be compared
    return key


def _constant(x: Literal) -> tuple[str, str]:
    # As text, since -0.0 equals 0.0.
    return str(x.aval), repr(np.asarray(x.val).item())


def _needed(steps: list[_Step], returned: Iterable[int]) -> list[_Step]:
    """The steps whose results are read, in order."""
    wanted, kept = set(returned), []
    for step in reversed(steps):
        if wanted.intersection(step.made):
            wanted.update(step.read)
            kept.append(step)
    return kept[::-1]


def _spec(aval: Any) -> list[tuple]:
    """The mesh axes along each axis of an array."""
    found = [axis_names(x) for x in aval.sharding.spec]
    return [*found, *[()] * (len(aval.shape) - len(found))]


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
_RANDOM = {"random_bits", "threefry2x32", "rng_bit_generator"}
# What a compiler writes to memory, as it does not compute it in the loop of its reader.
_KEPT = set(
    "dot_general shard_map concatenate cond while scan sort fft cholesky qr eigh svd "
    "triangular_solve lu cumsum cumprod gather scatter scatter-add".split()
)
