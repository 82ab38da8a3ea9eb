"""Hyperparameters by path: a mapping from path patterns to numbers and schedules.

A factory never sees the mapping.  It is called once for each value, and the results are
merged: rules that differ become one rule with one state, which is varied by leaf
(`Varied`).  So a rule may use its hyperparameters freely, as long as its
scalars, which all leaves share, do not depend on them; if they do, the factory declares
it.

Another value, `Wraps`, wraps the result of the factory called without the argument.
"""

import inspect
import itertools as it
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import jax

from ..base import ArrayTree
from ..base.call import call_of
from ..base.node import Transformation, node_of, with_call
from ..functions.calls import frozen
from ..step.nest import Composite
from ..step.plan import build
from ..step.rule import Rule, Varied
from ..trees import selection


W = TypeVar("W", bound="Wraps")


class Wraps:
    """Such a value; `_transforms/decay_kinds.py` has the only subclass.

    amount: its hyperparameter: a number, a schedule, or a mapping from patterns.
    plain: the meaning of a number beside such values in a mapping.
    require_alike: raises if such values of one mapping cannot be combined.
    around: the result of a factory without the argument, wrapped by the value.
    """

    amount: Any
    plain: Callable[[Any], "Wraps"]
    require_alike: Callable[[str, Sequence[Any]], None]
    around: Callable[[Callable, inspect.BoundArguments], Transformation]

    def with_amount(self: W, amount: Any) -> W:
        return replace(cast(Any, self), amount=amount)


def amount_of(x: Any) -> Any:
    """The hyperparameter in a value, or the value itself."""
    return x.amount if isinstance(x, Wraps) else x


def with_amount(x: Any, amount: Any) -> Any:
    return x.with_amount(amount) if isinstance(x, Wraps) else amount


@dataclass(frozen=True, eq=False)
class ByPath:
    """The values of one hyperparameter.

    subject: the factory and the argument, for errors.
    values: pairs of patterns and numbers or schedules; the first match decides.
    rest: the value of leaves that no pattern matches, in a tuple; empty to raise for
        them.
    """

    subject: str
    values: Mapping[str, Any]
    rest: tuple = ()

    def map(self, f: Callable[[Any], Any]) -> "ByPath":
        values = {k: f(x) for k, x in self.values.items()}
        return replace(self, values=values, rest=tuple(map(f, self.rest)))

    @property
    def choices(self) -> list[tuple[str, Any]]:
        """Pairs of a name and a value; the last one may be for the rest."""
        alike = self
        if held := [x for x in self._all if isinstance(x, Wraps)]:
            alike = alike.map(lambda x: x if isinstance(x, Wraps) else held[0].plain(x))
            held[0].require_alike(self.subject, alike._all)
        if any(callable(amount_of(x)) for x in self._all):
            # So that either all parts have a step count, or none.
            alike = alike.map(_as_schedule)
        names = [*self.values, *("other",) * len(self.rest)]
        return list(zip(names, alike._all, strict=True))

    @property
    def _all(self) -> list:
        return [*self.values.values(), *self.rest]

    def labels(self, tree: ArrayTree) -> list:
        """For each leaf the index of its value; `None` if it is not an array."""
        is_open = bool(self.rest)
        return selection.resolve_patterns(
            list(self.values), tree, self.subject.replace("`", ""), is_open
        )


def _as_schedule(x: Any) -> Any:
    amount = amount_of(x)
    return x if callable(amount) else with_amount(x, lambda count: amount)


def made_by_path(
    mapped: Mapping[str, ByPath], make: Callable[[dict], Transformation]
) -> Transformation:
    """The result of a factory for arguments by path, called with one value for each."""
    choices = [x.choices for x in mapped.values()]
    names, made = {}, {}
    for label in it.product(*(range(len(x)) for x in choices)):
        chosen = [x[i] for x, i in zip(choices, label, strict=True)]
        names[label] = tuple(name for name, _ in chosen)
        values = [value for _, value in chosen]
        made[label] = make(dict(zip(mapped, values, strict=True)))

    def labels(tree):
        columns = [x.labels(tree) for x in mapped.values()]
        rows = zip(*columns, strict=True)
        return [None if None in row else row for row in rows]

    first = next(iter(mapped.values()))
    is_plain = _are_same(made)
    merge = _Merge(first.subject, labels, names, is_plain)
    if is_plain and not _runs_rules(next(iter(made.values()))):
        raise merge.refused("nothing in it would look at the paths")
    return merge.merged(made)


def _are_same(made: Mapping[Hashable, Any]) -> bool:
    first, *others = made.values()
    return all(is_same(first, tx) for tx in others)


def _runs_rules(tx: Any) -> bool:
    return isinstance(node_of(tx), Rule | Composite)


@dataclass(frozen=True)
class _Merge:
    """subject: for errors.  names: names of the labels, one for each argument.

    is_plain: whether all values are equal; rules are varied nevertheless, so that they
        look at the paths.
    """

    subject: str
    labels: Callable[[ArrayTree], list]
    names: Mapping[Hashable, tuple[str, ...]]
    is_plain: bool

    def merged(self, made: Mapping[Hashable, Any]) -> Any:
        """One transformation, merged from those for each label."""
        first = next(iter(made.values()))
        if _are_same(made) and not (self.is_plain and _runs_rules(first)):
            return first
        nodes = {label: node_of(tx) for label, tx in made.items()}
        node: Any = next(iter(nodes.values()))
        if len({_form(x) for x in nodes.values()}) > 1:
            raise self.refused("its values make transformations of different kinds")
        if isinstance(node, Rule):
            return _with_call(build(self.rule(made, nodes)), first)
        if not isinstance(node, Composite):
            known = call_of(first)
            what = f"`{known.name}`" if known else "a part of it"
            raise self.refused(f"{what} runs its own step for all leaves")
        every: Any = nodes.values()
        rows = [x.members for x in every]
        members = tuple(
            self.merged(dict(zip(nodes, column, strict=True)))
            for column in zip(*rows, strict=True)
        )
        node = node.changed(members=members)
        return _with_call(build(node), first)

    def rule(self, made: Mapping, rules: Mapping) -> Rule:
        # Labels of equal rules are merged, as each combination of leaf and label is
        # traced.
        same = {}
        for label, tx in made.items():
            known = (x for x in same.values() if is_same(made[x], tx))
            same[label] = next(known, label)

        def labels(tree):
            return [None if x is None else same[x] for x in self.labels(tree)]

        calls = {
            self.name([x for x, y in same.items() if y == label]): tx.call
            for label, tx in made.items()
            if same[label] == label and call_of(tx)
        }
        first = next(iter(rules.values()))
        return replace(first, varied=Varied(labels, rules.__getitem__, calls))

    def name(self, labels: list) -> str:
        """The patterns of some labels, for the arguments that distinguish them."""
        columns = list(zip(*(self.names[x] for x in labels), strict=True))
        all_columns = zip(*self.names.values(), strict=True)
        pairs = zip(columns, all_columns, strict=True)
        told = [set(x) for x, every in pairs if set(x) != set(every)]
        return " and ".join("|".join(sorted(x)) for x in told)

    def refused(self, why: str) -> TypeError:
        return TypeError(
            f"{self.subject} must be one number or schedule here, not a mapping: "
            f"{why}; use `partition` with an optimizer for each group of parameters"
        )


def _form(node: Any) -> tuple:
    """Equal for nodes whose states are alike."""
    if isinstance(node, Rule):
        return Rule, node.State, tuple(node.slots), tuple(node.scalars)
    return type(node), len(node.members) if isinstance(node, Composite) else None


def _with_call(tx: Transformation, like: Any) -> Transformation:
    call = call_of(like)
    return tx if call is None else with_call(tx, call.titled(f"{call.name} by path"))


def is_same(a: Any, b: Any) -> bool:
    """Whether two values that were passed on, or two transformations, are the same.

    Arrays are compared by identity: their elements may be traced, or still computed.
    """
    if a is b:
        return True
    if type(a) is not type(b) or isinstance(a, jax.Array):
        return False
    one, two = (call_of(x) for x in (a, b))
    if one is not None and two is not None:
        return one.build is two.build and is_same(
            dict(one.bound.arguments), dict(two.bound.arguments)
        )
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(is_same(a[k], b[k]) for k in a)
    try:
        return frozen(a) == frozen(b)
    except TypeError:
        return False
