"""Which rule runs on which leaf, if a hyperparameter differs between leaves."""

import functools as ft
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ..trees.labels import Scope
from .gradients import Gradients
from .rule import Rule


if TYPE_CHECKING:
    from .kernel import Leaf


# The labels of a leaf, one for each varied rule; `None` if no rule is varied.
LeafLabels: TypeAlias = tuple | None


class ByLeaf:
    """The rules of a pass, some of which are varied."""

    def __init__(self, rules: Sequence[Rule]):
        self.rules = rules
        varied = [n for n, rule in enumerate(rules) if rule.varied is not None]
        self.at = {n: place for place, n in enumerate(varied)}
        self.found: dict[tuple, Rule] = {}

    def labels(self, gradients: Gradients, scopes: Sequence[Scope]) -> list[LeafLabels]:
        """For each leaf, its labels for the varied rules; `None` out of scope."""
        columns = []
        for n in self.at:
            varied, scope = self.rules[n].varied, scopes[n]
            assert varied is not None
            found = iter(varied.labels(gradients.outline(scope)))
            within = [True] * len(gradients.leaves) if scope is None else scope
            columns.append([next(found, None) if on else None for on in within])
        return list(zip(*columns, strict=True))

    def label(self, n: int, labels: LeafLabels) -> Hashable:
        """The label of a leaf for one rule; `None` if the rule is not varied."""
        return None if labels is None or n not in self.at else labels[self.at[n]]

    def at_leaf(self, on: Sequence[int], labels: LeafLabels) -> list[Hashable]:
        """The labels of a leaf for some rules."""
        return [self.label(n, labels) for n in on]

    def rule(self, n: int, labels: LeafLabels) -> Rule:
        """The rule that runs on a leaf."""
        return self.of(n, self.label(n, labels))

    def of(self, n: int, label: Hashable) -> Rule:
        """The rule for a label."""
        if (n, label) not in self.found:
            self.found[n, label] = _of(self.rules[n], label)
        return self.found[n, label]

    def met(self, n: int, leaves: "Sequence[Leaf]") -> list:
        """The labels of the leaves that a rule changes, in order; `None` for all."""
        if n not in self.at:
            return [None]
        found: Any = {self.label(n, leaf.label) for leaf in leaves if n in leaf.on}
        return sorted(found - {None}) or [None]


def _of(rule: Rule, label: Hashable) -> Rule:
    """The rule that replaces a rule at leaves with a label."""
    if rule.varied is None or label is None:
        return rule
    one, origin = rule.varied.rule(label), rule.origin
    if one.origin is not None or origin is None:
        return one
    # It was made by the call that made the rule that it replaces.
    find = ft.partial(_find, origin.find)
    return replace(one, origin=replace(origin, at=(origin.at, label), find=find))


def _find(find: Callable, made: Any, at: tuple) -> Rule:
    index, label = at
    return find(made, index).varied.rule(label)
