"""Factors of the updates by path, and by depth."""

import functools as ft
import re
from collections.abc import Callable, Sequence

from .._engine import rules as rx
from .._engine.base import ArrayTree
from .scale import scale_by_learning_rate


@rx.public()
def scale_by_path(factors: rx.ScalarOrSchedule) -> rx.GradientTransformationExtraArgs:
    """Multiply by a factor that depends on the path: u = factor(path) g.

    factors: a mapping from path patterns to scalars or schedules; the first pattern
        that matches decides, and other leaves keep their updates.  Patterns are as in
        masks: "encoder/layers/*", or a name at any depth.

    Raises a `ValueError` for a pattern that matches nothing.
    """
    return scale_by_learning_rate(factors, flip_sign=False)


@rx.public(ranges={"decay": rx.AT_LEAST_0})
def scale_by_depth(
    decay: rx.ArrayLike,
    layers: str | Callable[[str], int | None],
    *,
    before: str | Sequence[str] = (),
) -> rx.Rule:
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
    def rule(power: int) -> rx.Rule:
        return rx.Rule(lambda g, p, ctx: (decay**power * g,), elementwise=True)

    number = layers if callable(layers) else _numbered(layers)
    labels = ft.partial(_powers, number, ahead)
    keep = rx.Rule(rx.unchanged, elementwise=True)
    return rx.Rule(keep.leaf, elementwise=True, varied=rx.Varied(labels, rule))


def _powers(number: Callable, ahead: tuple, tree: ArrayTree) -> list:
    """The power of the factor for each leaf."""
    paths = ["/".join(path) for path in rx.selection.leaf_names(tree)]
    if not paths:
        return []
    numbers = list(map(number, paths))
    found = [i for i in numbers if i is not None]
    if not found:
        raise ValueError(
            "`layers` of `scale_by_depth` matches no leaf of "
            f"{rx.errors.list_some(paths)}"
        )
    what = "before of scale_by_depth"
    first = rx.selection.resolve_patterns(ahead, tree, what, is_open=True)
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
        return int(found[1]) if found and rx.selection.is_match(*others) else None

    return number
