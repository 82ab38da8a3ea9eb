"""Which rule runs on which leaf, where a hyperparameter is not the same for all."""

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

from ..trees.labels import Scope
from .gradients import Gradients
from .rule import Rule


# Of a leaf: one for each varied rule; `None` if no rule is varied.
LeafLabels: TypeAlias = tuple | None


class ByLeaf:
    """The rules of a pass, of which some are varied."""

    def __init__(self, rules: Sequence[Rule]):
        self.rules = rules
        varied = [n for n, rule in enumerate(rules) if rule.varied is not None]
        self.at = {n: place for place, n in enumerate(varied)}

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
        """The label of a leaf for one rule; `None` for one that is not varied."""
        return None if labels is None or n not in self.at else labels[self.at[n]]

    def at_leaf(self, on: Sequence[int], labels: LeafLabels) -> list[Hashable]:
        """The labels of a leaf for some rules."""
        return [self.label(n, labels) for n in on]

    def groups(self, n: int, at: Sequence[int], labels: Sequence[LeafLabels]) -> dict:
        """Some leaves, by index, grouped by their labels for one rule."""
        found: dict = {}
        for i in at:
            found.setdefault(self.label(n, labels[i]), []).append(i)
        return found

    def rule(self, n: int, labels: LeafLabels) -> Rule:
        """The rule that runs on a leaf."""
        return self.of(n, self.label(n, labels))

    def of(self, n: int, label: Hashable) -> Rule:
        """The rule for a label."""
        rule = self.rules[n]
        return rule.varied.rule(label) if rule.varied and label is not None else rule

    def met(self, n: int, active: Sequence, labels: Sequence[LeafLabels]) -> list:
        """The labels of the leaves that a rule changes, in order; `None` for all."""
        if n not in self.at:
            return [None]
        pairs = zip(active, labels, strict=True)
        found: Any = {self.label(n, x) for on, x in pairs if n in on} - {None}
        return sorted(found) or [None]
