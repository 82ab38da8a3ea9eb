"""Models that scan over layers, under an optimizer that looks at whole arrays."""

import itertools as it

import jax

from .._engine import rules as rx
from .._engine.inspect import part_name
from .findings import Found, Problem
from .stages import Stage
from .view import View


_FEWEST = 3
# Where arrays without vectors beside them are hardly those of attention.
_WORDS = ("layer", "block", "expert", "moe", "scan", "stack")


def layers_as_one(view: View) -> Found:
    """Layers that a model scans over, taken for one array."""
    leaves = jax.tree.leaves(view.shapes, is_leaf=rx.is_none)
    pairs = zip(view.paths, leaves, strict=True)
    nodes = _stacks({path: x for path, x in pairs if x is not None})
    for at in view.places:
        if not _looks_at_arrays(at.stage):
            continue
        scope = at.stage.part.scope
        axes = scope.axes if scope is not None else None
        pairs = zip(view.paths, axes or [], strict=False)
        taken = {path for path, stack in pairs if stack}  # as `stacked` shows them
        name = part_name(at.stage.owner or at.stage.part).partition("(")[0]
        for node, paths in nodes.items():
            if found := [x for x in paths if x in at.track.leaves and x not in taken]:
                is_all = len(paths) == sum(map(bool, view.paths))
                others = "" if is_all else ', "**": None'
                yield Problem(
                    f"`{name}` looks at whole arrays, and takes all layers in `{node}` "
                    "for one",
                    tuple(found),
                    f'use `stepax.stacked(tx, {{"{node}/**": 0{others}}})`',
                )


def _looks_at_arrays(stage: Stage) -> bool:
    """Whether its update of an element depends on others of the array."""
    given = {**stage.given, **(stage.owner.given if stage.owner else {})}
    what = "weight_dimension_numbers"
    if any(x is not None for k, x in given.items() if k.endswith(what)):
        return False  # it was told
    return stage.name != "grokfast_ma" and any(
        x.batched or (x.leaf and not x.elementwise and not x.sanitizes)
        for x in stage.rules
    )


def _stacks(shapes: dict[str, jax.ShapeDtypeStruct]) -> dict[str, list[str]]:
    """The outermost nodes that seem to hold stacks, and the paths of their arrays."""
    found: dict[str, list[str]] = {}
    nodes = [
        path.split("/")[:n] for path in shapes for n in range(1, path.count("/") + 1)
    ]
    for node in sorted({"/".join(x) for x in nodes}, key=lambda x: x.count("/")):
        below = {k: x.shape for k, x in shapes.items() if k.startswith(f"{node}/")}
        is_inside = any(node.startswith(f"{above}/") for above in found)
        if not is_inside and _is_stack(node, below):
            found[node] = list(below)
    return found


def _is_stack(node: str, below: dict[str, tuple[int, ...]]) -> bool:
    """Whether the arrays of a node seem to be matrices and vectors of several layers.

    below: their shapes, by their paths.
    """
    shapes = list(below.values())
    if len(shapes) < _FEWEST or min(map(len, shapes)) < 2:
        return False
    vectors = {shape[1] for shape in shapes if len(shape) == 2}
    sides = set(it.chain(*(shape[1:] for shape in shapes if len(shape) > 2)))
    number = {shape[0] for shape in shapes}
    if len(number) > 1 or number <= {0, 1} or not sides:
        return False
    if vectors:
        return vectors <= sides
    # Attention alone has three axes, too, but a longer first one; kernels have shorter.
    is_named = any(word in node.lower() for word in _WORDS)
    is_named = is_named and not any("conv" in path.lower() for path in below)
    return is_named and number.pop() < min(sides)
