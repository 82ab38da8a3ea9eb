"""Which sums over devices XLA joins into one, as it does on a CPU.

XLA visits what results wait for, in the order of operands.  It takes the first sum, and
with it those of its kind that follow, up to one that waits for what it took.  Then it
begins again, with what is joined as one.
"""

from typing import NamedTuple


_MOST_JOINED = 256


class Sum(NamedTuple):
    """A sum over devices.

    kind: equal for sums that may be joined.
    waits: numbers of the sums that have to be complete before it, in order.
    """

    kind: tuple
    waits: tuple[int, ...]


def joined(sums: list[Sum], last: tuple[int, ...]) -> list[list[int]]:
    """The numbers of the sums that are joined, in order; results wait for `last`."""
    found = _Joining(sums, last)
    order, left = found.order(), set(range(len(sums)))
    while left:
        group = found.next_group(order, left)
        left.difference_update(group)
        if len(group) > 1:
            found.join(group)
            order = found.order()
    return [found.groups[i] for i in order]


class _Joining:
    """groups: the sums that are one, by the first of them; place: the first of each."""

    def __init__(self, sums: list[Sum], last: tuple[int, ...]):
        self.sums, self.last = sums, last
        self.place = list(range(len(sums)))
        self.groups = {i: [i] for i in self.place}

    def join(self, group: list[int]) -> None:
        for i in group:
            self.place[i] = group[0]
            del self.groups[i]
        self.groups[group[0]] = group

    def waits(self, i: int) -> list[int]:
        """The groups that a group waits for, in order."""
        return [self.place[k] for j in self.groups[i] for k in self.sums[j].waits]

    def order(self) -> list[int]:
        """The groups, each after those that it waits for."""
        done: dict[int, None] = {}
        entered: set[int] = set()
        stack = [self.place[i] for i in reversed(self.last)]
        while stack:
            if stack[-1] in entered:
                done.setdefault(stack.pop())
            else:
                entered.add(stack[-1])
                stack += reversed(self.waits(stack[-1]))
        return list(done)

    def next_group(self, order: list[int], left: set[int]) -> list[int]:
        """The sums that are joined next, of those that are left."""
        found: list[int] = []
        after: set[int] = set()  # these and what waits for them
        for i in order:
            if not found and i not in left:
                continue
            if is_late := not after.isdisjoint(self.waits(i)):
                after.add(i)
            if i in left and self.sums[i].kind == self.sums[(found or [i])[0]].kind:
                if is_late or len(found) == _MOST_JOINED:
                    break
                found.append(i)
                after.add(i)
        return found


def read_by(step: int, found: list[dict[int, int]]) -> dict[int, int]:
    """The sums that a step waits for, in order, from those of what it reads.

    Each comes with the step that reads it, as a negative number, or with 0 if this is
    the first.  XLA merges elementwise steps from the last one on: what a later one
    reads is before what an earlier one does.
    """
    distinct = {id(x): x for x in found}.values()
    pairs = [(k, at or -step) for x in distinct for k, at in x.items()]
    pairs.sort(key=lambda pair: pair[1])
    new: dict[int, int] = {}
    for k, at in pairs:
        new.setdefault(k, at)
    return new
