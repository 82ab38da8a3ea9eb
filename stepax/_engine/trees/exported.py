"""State classes under stable names, so that `jax.export` can serialize steps.

An exported function holds the structures of its arguments and results, in which the
class of each named tuple has a name.  These names are the same in every release, so
that what one release has exported another one can run.
"""

import json
from collections.abc import Iterator
from typing import Any

import jax
import jax.export

from .packed import Layout, Packed, Segment


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
