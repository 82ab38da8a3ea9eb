"""Messages that name the leaf.  Paths are computed only when something is wrong."""

from collections.abc import Iterable
from typing import Any

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from ..base.protocol import is_none
from .packed import Packed


def paths(tree: Any) -> list[str]:
    """The path of each leaf, `None` included, in flattening order."""
    return [keystr(path) or "the root" for path, _ in _with_path(tree)]


def _with_path(tree: Any) -> list:
    return tree_flatten_with_path(tree, is_leaf=is_none)[0]


def list_some(names: Iterable[object], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    listed = [str(x) for x in names]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def mismatch(name: str, found: Any, reference: str, wanted: Any) -> ValueError:
    """The structure of `found` differs from that of `wanted`; says where."""
    have, want = paths(found), paths(wanted)
    lines = [f"`{name}` and {reference} differ in structure"]
    only = [p for p in have if p not in set(want)]
    missing = [p for p in want if p not in set(have)]
    if only:
        lines.append(f"only in `{name}`: {list_some(only)}")
    if missing:
        lines.append(f"only in {reference}: {list_some(missing)}")
    if not only and not missing:
        lines.append(f"`{name}` is {_kind(found)}, {reference} is {_kind(wanted)}")
    if _holds_packed(found) != _holds_packed(wanted):
        lines.append(
            "only one of them is packed: use `stepax.tree.pack` or `stepax.tree.unpack`"
        )
    return ValueError("; ".join(lines))


def _holds_packed(tree: Any) -> bool:
    is_packed = lambda x: isinstance(x, Packed)
    return any(map(is_packed, jax.tree.leaves(tree, is_leaf=is_packed)))


def _kind(tree: Any) -> str:
    text = str(jax.tree.structure(tree, is_leaf=is_none))
    return text if len(text) < 200 else f"{text[:200]}…"


def foreign_state(name: str, kind: Any, state: Any) -> ValueError:
    """`state` is none of the named tuple `kind`, which `name` needs."""
    return ValueError(
        f"`{name}` needs a state `{kind.__name__}`, but was given {describe(state)}; "
        "was this state made by another optimizer?"
    )


def require_state(name: str, kind: Any, state: Any) -> None:
    """Raise unless a state is of the named tuple `kind`, or Optax's of that name."""
    kinds = [x.__name__ for x in type(state).__mro__]
    if kind.__name__ not in kinds or not all(hasattr(state, k) for k in kind._fields):
        raise foreign_state(name, kind, state)


def not_floating(name: str, path: str, dtype: Any) -> TypeError:
    """A gradient of integers, or of booleans, which no step can follow."""
    return TypeError(
        f"`{name}` trains floating-point numbers, but the gradient at {path} is of "
        f"dtype {dtype}; cast it and its parameter, or leave them out: by `masked`, or "
        "by `None` as the gradient"
    )


def require_states(owner: str, number: int, state: Any) -> None:
    """Raise unless a state is so many states, in a tuple without names."""
    is_plain = isinstance(state, tuple | list) and not hasattr(state, "_fields")
    if not is_plain or len(state) != number:
        found = f"{len(state)} states" if is_plain else describe(state)
        raise ValueError(
            f"{owner} was given {found} as its state; was this state made by another "
            "optimizer?"
        )


def describe(x: Any) -> str:
    """A short name for a value that should not be there."""
    fields = getattr(x, "_fields", None)
    if fields is not None:
        return f"a `{type(x).__name__}` of fields ({', '.join(fields)})"
    if isinstance(x, tuple | list | dict):
        return f"a {type(x).__name__} of {len(x)}"
    return f"a `{type(x).__name__}`"
