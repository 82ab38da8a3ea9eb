"""States whose classes change after `init`, restored as they were saved.

The first weight makes a `WeightedMultiStepsState` of a `MultiStepsState`, and
`swap_averages` puts a `SwappedAverage` in the place of an average.
"""

from typing import Any

from jax.tree_util import GetAttrKey, SequenceKey, tree_map_with_path

from .._engine.base import ArrayTree, GradientTransformation, Params
from .._engine.trees.selection import path_names
from .._wrappers.accumulate import MultiStepsState, WeightedMultiStepsState, with_weight
from .._wrappers.averages import AverageState, SwappedAverage
from . import Entry, labels_of


# Classes with the fields of another one, under whose name they are matched.
AS = {WeightedMultiStepsState.__name__: MultiStepsState.__name__}


def is_weight(x: Entry) -> bool:
    """Whether this is the sum of weights, which is 0 in a state without one."""
    return x.owner in AS and x.own == ("weight",)


def in_form_of(saved: list[Entry], tx: Any, params: list[Entry]) -> Any:
    """`tx`, whose `init` makes the classes that were saved, where they may change."""
    paths = {x.names for x in params}
    swapped = {
        x.labels
        for x in saved
        if x.owner == AverageState.__name__
        and x.own[:2] == ("average", "average")
        and not paths.isdisjoint((x.own[2:], x.own[2:-1]))  # or an array's halves
    }
    weighted = {x.where for x in saved if is_weight(x)}
    plain = {x.where for x in saved if x.own == ("mini_step",)} - weighted
    if not (swapped or weighted):
        return tx

    def init(params: Params) -> ArrayTree:
        def one(path: tuple, x: Any) -> Any:
            if isinstance(x, MultiStepsState):
                x = below(path, x, "inner_opt_state")
                return with_weight(x) if weighted and _where(path) not in plain else x
            if isinstance(x, AverageState):
                x = below(path, x, "inner_state")
                if labels_of(_where(path)) in swapped:
                    return x._replace(average=SwappedAverage(x.average, params))
            return x

        def below(path: tuple, x: Any, field: str) -> Any:
            path = (*path, GetAttrKey(field))
            return x._replace(**{field: changed(path, getattr(x, field))})

        def changed(path: tuple, tree: ArrayTree) -> ArrayTree:
            return tree_map_with_path(
                lambda end, x: one((*path, *end), x), tree, is_leaf=_may_change
            )

        return changed((), tx.init(params))

    return GradientTransformation(init, tx.update)


def _may_change(x: Any) -> bool:
    return isinstance(x, MultiStepsState | AverageState)


def _where(path: tuple) -> tuple[str, ...]:
    keys = [key for key in path if not isinstance(key, SequenceKey)]
    return path_names(keys) if keys else ()
