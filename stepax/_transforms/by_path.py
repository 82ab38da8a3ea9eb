"""Factors of the updates by path, and by depth."""

import functools as ft
import re
from collections.abc import Callable, Sequence

from jax.typing import ArrayLike

from .._engine.base import ArrayTree, GradientTransformationExtraArgs, ScalarOrSchedule
from .._engine.factories.ranges import AT_LEAST_0
from .._engine.factories.registry import public
from .._engine.step.rule import Rule, Varied, unchanged
from .._engine.trees import errors, selection
from .scale import scale_by_learning_rate


@public()
def scale_by_path(factors: ScalarOrSchedule) -> GradientTransformationExtraArgs:
    """Multiply by a factor that depends on the path: u = factor(path) g.

    factors: a mapping from path patterns to scalars or schedules; the first pattern
        that matches decides, and other leaves keep their updates.  Patterns are as in
        masks: "encoder/layers/*", or a name at any depth.

    Raises a `ValueError` for a pattern that matches nothing.
    """
    return scale_by_learning_rate(factors, flip_sign=False)


@public(ranges={"decay": AT_LEAST_0})
def scale_by_depth(
    decay: ArrayLike,
    layers: str | Callable[[str], int | None],
    *,
    before: str | Sequence[str] = (),
) -> Rule:
    """Multiply by a factor that decays from the last layer to the first.

        u = decay^(last - i) g in layer i, where `last` is the largest
        u = decay^(last - first + 1) g    before the first layer
        u = g                         elsewhere, such as in the head

    decay: the factor from each layer to the one before it, at least 0.
    layers: the path of a layer with "{}" for its number, as in "encoder/layers/{}" or
        "blocks_{}", where other names may be patterns; or a function from the path of
        a leaf to the number of its layer, `None` elsewhere.
    before: patterns of the leaves before the layers, such as "embed/**".

    Raises a `ValueError` if no leaf is in a layer, or if a pattern matches nothing.
    """
    ahead = (before,) if isinstance(before, str) else tuple(before)

    @ft.cache
    def rule(power: int) -> Rule:
        return Rule(lambda g, p, ctx: (decay**power * g,), elementwise=True)

    number = layers if callable(layers) else _numbered(layers)
    labels = ft.partial(_powers, number, ahead)
    keep = Rule(unchanged, elementwise=True)
    return Rule(keep.leaf, elementwise=True, varied=Varied(labels, rule))


def _powers(number: Callable, ahead: tuple, tree: ArrayTree) -> list:
    """The power of the factor for each leaf."""
    paths = ["/".join(path) for path in selection.leaf_names(tree)]
    if not paths:
        return []
    numbers = list(map(number, paths))
    found = [i for i in numbers if i is not None]
    if not found:
        raise ValueError(
            f"`layers` of `scale_by_depth` matches no leaf of {errors.list_some(paths)}"
        )
    what = "before of scale_by_depth"
    first = selection.resolve_patterns(ahead, tree, what, is_open=True)
    start = max(found) - min(found) + 1
    pairs = zip(numbers, first, strict=True)
    return [
        max(found) - i if i is not None else 0 if j in (None, len(ahead)) else start
        for i, j in pairs
    ]


def _numbered(layers: str) -> Callable[[str], int | None]:
    """A function from a path to the number of its layer."""
    if not isinstance(layers, str) or layers.count("{}") != 1:
        raise ValueError(
            '`layers` of `scale_by_depth` must be a path with one "{}" for the number '
            f'of the layer, such as "encoder/layers/{{}}", but is {layers!r}'
        )
    names = layers.split("/")
    n = next(i for i, name in enumerate(names) if "{}" in name)
    form = re.escape(names[n]).replace(r"\{\}", r"(\d+)")

    def number(path):
        here = path.split("/")
        others = [(*x[:n], *x[n + 1 : len(names)]) for x in (names, here)]
        found = re.fullmatch(form, here[n]) if len(here) >= len(names) else None
        return int(found[1]) if found and selection.is_match(*others) else None

    return number
