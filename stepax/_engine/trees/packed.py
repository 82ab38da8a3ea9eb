"""Many arrays packed into one vector for each dtype.

For hundreds of small arrays dispatch and compilation take longer than computation.  A
`Packed` is a tree whose arrays are concatenated to a few vectors, which are its leaves
for JAX: gradients, states and loops carry only these.  `step/packed_gradients.py` gives
the engine access to the single arrays.

Packed trees and the classes of states have names under which `jax.export` serializes
them, the same in every release: what one release has exported another one can run.
"""

import functools as ft
import itertools as it
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.export
from jax.tree_util import GetAttrKey, register_pytree_with_keys_class

from ..arrays.joined import cut, join, split
from ..arrays.numerics import has_dtype
from ..base import COMPATIBLE, ArrayTree
from .stacks import as_one


class Segment(NamedTuple):
    """The place of an array: its vector, and where it starts."""

    vector: int
    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The places of the arrays of a tree in its vectors; static.

    treedef: the structure of the tree.
    segments: one for each of its leaves, in flattening order.
    names: the names of the vectors, which are those of their dtypes.
    """

    treedef: Any
    segments: tuple[Segment, ...]
    names: tuple[str, ...]

    def __repr__(self):
        return f"<{len(self.segments)} arrays in {', '.join(self.names)}>"

    # Layouts are part of the tree structure of the arguments, so they are hashed
    # whenever a jitted function is called.
    def __hash__(self):
        return self._hash

    # The hash of a string differs between processes, so a pickled one is wrong.  It
    # is dropped on loading, because pickles that were saved before contain it.
    def __setstate__(self, state):
        self.__dict__.update(state)
        self.__dict__.pop("_hash", None)

    @ft.cached_property
    def _hash(self):
        return hash((self.treedef, self.segments, self.names))

    @ft.cached_property
    def groups(self) -> list[list[int]]:
        """The indices of the leaves in each vector, in the order of their places."""
        groups: list = [[] for _ in self.names]
        # An empty array comes before the array that starts at the same element.
        order = sorted(enumerate(self.segments), key=lambda x: (x[1].start, x[1].stop))
        for i, segment in order:
            groups[segment.vector].append(i)
        return groups

    @property
    def places(self) -> ArrayTree:
        """The tree, with the index of each leaf in its place."""
        return self.treedef.unflatten(range(len(self.segments)))

    def pack(self, leaves: Sequence) -> "Packed":
        """The tree with these leaves, which may all have the same leading axes."""
        vectors = []
        for group in self.groups:
            axes = leaves[group[0]].ndim - len(self.segments[group[0]].shape)
            vectors.append(join([leaves[i] for i in group], axes))
        return Packed(vectors, self)


def make_layout(
    treedef: Any, shapes: Sequence, groups: Mapping[str, Sequence]
) -> Layout:
    """The layout with the leaves of each group, given by index, in one vector."""
    segments = {}
    for n, group in enumerate(groups.values()):
        # One more than there are arrays: the last is the size of the vector.
        starts = it.accumulate([math.prod(shapes[i]) for i in group], initial=0)
        for i, start in zip(group, starts, strict=False):
            segments[i] = Segment(n, start, shapes[i])
    return Layout(treedef, tuple(segments[i] for i in range(len(shapes))), (*groups,))


@register_pytree_with_keys_class
class Packed:
    """A tree in a few vectors; made by `stepax.tree.pack`.

    vectors: one for each dtype; derived ones, as under `vmap`, may have leading axes.
    layout: the places of the arrays.

    >>> isinstance(stepax.tree.pack(params), stepax.tree.Packed)
    True
    """

    # A class, not a named tuple, in which JAX would treat the layout as a leaf.

    def __init__(self, vectors: Sequence, layout: Layout):
        self.vectors = tuple(vectors)
        self.layout = layout

    def __repr__(self):
        return f"Packed({list(self.vectors)}, {self.layout})"

    def tree_flatten_with_keys(self):
        keys = map(GetAttrKey, self.layout.names)
        return tuple(zip(keys, self.vectors, strict=True)), self.layout

    def tree_flatten(self):
        return self.vectors, self.layout

    @classmethod
    def tree_unflatten(cls, layout, vectors):
        return cls(vectors, layout)

    def unpack(self) -> ArrayTree:
        """The tree with single arrays."""
        leaves: list = [None] * len(self.layout.segments)
        for vector, group in zip(self.vectors, self.layout.groups, strict=True):
            shapes = [self.layout.segments[i].shape for i in group]
            # Specs of a sharding, `in_axes` and placeholders are not arrays: one of
            # them represents all arrays of its vector.
            is_node = not has_dtype(vector)
            parts = [vector] * len(group) if is_node else split(vector, shapes)
            for i, x in zip(group, parts, strict=True):
                leaves[i] = x
        return self.layout.treedef.unflatten(leaves)

    def outline(self) -> ArrayTree:
        """The tree, with shapes and dtypes in place of arrays."""
        # For masks and labels, which need no elements: nothing is sliced or traced.
        shapes = [
            jax.ShapeDtypeStruct(x.shape, self.vectors[x.vector].dtype)
            for x in self.layout.segments
        ]
        return self.layout.treedef.unflatten(shapes)

    def cut(self, cut: Callable) -> "Packed":
        """The tree without the leaves that `cut` removes from it."""
        kept, treedef = jax.tree.flatten(cut(self.layout.places))
        if treedef == self.layout.treedef:
            return self
        # `cut` was given indices, so what is left tells which leaves were kept.
        number = {i: n for n, i in enumerate(kept)}
        groups, vectors = {}, []
        for n, name in enumerate(self.layout.names):
            group = [i for i in self.layout.groups[n] if i in number]
            if group:
                groups[name] = [number[i] for i in group]
                # Contiguous leaves are one slice: XLA compiles each by itself.
                vectors.append(join([self.piece(*x) for x in self._spans(group)]))
        shapes = [self.layout.segments[i].shape for i in kept]
        return Packed(vectors, make_layout(treedef, shapes, groups))

    def piece(self, first: int, last: int) -> Any:
        """The part of a vector from one leaf to another."""
        segments = self.layout.segments
        vector = self.vectors[segments[first].vector]
        start, stop = segments[first].start, segments[last].stop
        is_whole = stop - start == vector.shape[-1]
        return vector if is_whole else cut(vector, start, stop)

    def _spans(self, group: list[int]) -> list[tuple[int, int]]:
        """The first and the last leaf of each contiguous run in a group."""
        segments = self.layout.segments
        pairs = it.pairwise(group)
        gaps = [(i, j) for i, j in pairs if segments[i].stop < segments[j].start]
        firsts = [group[0], *(j for _, j in gaps)]
        return list(zip(firsts, [*(i for i, _ in gaps), group[-1]], strict=True))


def outline(tree: ArrayTree) -> ArrayTree:
    """What masks see: for a packed tree and for stacks their shapes and dtypes."""
    return as_one(tree.outline() if isinstance(tree, Packed) else tree)


def is_packed(x: object) -> TypeGuard[Packed]:
    return isinstance(x, Packed)


def holds_packed(tree: object) -> bool:
    return any(map(is_packed, jax.tree.leaves(tree, is_leaf=is_packed)))


# The classes that have a name in exported functions, by that name.
EXPORTED: dict[str, type] = {}


def register_states() -> None:
    """Give a name to each class of states that has been defined by now."""
    for kind in _named_tuples(tuple):
        name = _stable_name(kind)
        if name not in EXPORTED:
            EXPORTED[name] = kind
            jax.export.register_namedtuple_serialization(kind, serialized_name=name)


def _stable_name(kind: type) -> str:
    # Without the module, which may change.
    return f"stepax.{kind.__name__}"


def _named_tuples(base: type) -> Iterator[type]:
    """Our public named tuples; of a class and its subclasses, the subclasses."""
    root = __name__.partition(".")[0]
    for kind in base.__subclasses__():
        if COMPATIBLE.get(kind.__name__, kind) is not kind:
            continue  # that of which `optax_compatible` made it, not yet collected
        if kind.__module__.partition(".")[0] == root and hasattr(kind, "_fields"):
            below = list(_named_tuples(kind))
            is_public = not kind.__name__.startswith("_")
            yield from below or [kind] * is_public


def _bytes_of(layout: Layout) -> bytes:
    try:
        tree = layout.treedef.serialize_using_proto()
    except ValueError as error:
        raise ValueError(
            f"a packed tree of {layout.treedef} cannot be exported, expected dicts "
            "with strings as keys, tuples, lists and `None`; do not pack it"
        ) from error
    segments = [tuple(x) for x in layout.segments]
    return json.dumps([tree.hex(), segments, layout.names]).encode()


def _layout_of(data: Any) -> Layout:
    tree, segments, names = json.loads(bytes(data))
    registry, tree = jax.tree_util.default_registry, bytes.fromhex(tree)
    treedef = jax.tree_util.PyTreeDef.deserialize_using_proto(registry, tree)
    found = (Segment(vector, start, tuple(shape)) for vector, start, shape in segments)
    return Layout(treedef, tuple(found), tuple(names))


jax.export.register_pytree_node_serialization(
    Packed,
    serialized_name=_stable_name(Packed),
    serialize_auxdata=_bytes_of,
    deserialize_auxdata=_layout_of,
)
