"""Error messages with the path of the leaf."""

# Callers pass trees and indices of leaves, not paths: these are computed here, for
# errors only, so that a step without errors does not pay for them.

from collections.abc import Iterable

import jax
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from ..base import is_none
from .packed import holds_packed


def paths(tree: object) -> list[str]:
    """The path of each leaf, `None` included, in flattening order."""
    return [keystr(path) or "the root" for path, _ in _with_path(tree)]


def _with_path(tree: object) -> list:
    # `None` is a leaf in all of the engine, as it marks a parameter without a gradient.
    return tree_flatten_with_path(tree, is_leaf=is_none)[0]


def list_some(names: Iterable[object], most: int = 5) -> str:
    """The first few names, and the number of further ones."""
    listed = [str(x) for x in names]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def require_one_of(name: str, found: object, known: Iterable[object]) -> None:
    """Raise unless an argument is one of the known choices."""
    choices = list(known)
    if found not in choices:
        raise ValueError(f"`{name}` is {found!r}, expected one of {choices}")


def mismatch(name: str, found: object, reference: str, wanted: object) -> ValueError:
    """The error for a structure that differs from the expected one, with the places."""
    have, want = paths(found), paths(wanted)
    lines = [f"`{name}` and {reference} differ in structure"]
    only = [p for p in have if p not in set(want)]
    missing = [p for p in want if p not in set(have)]
    if only:
        lines.append(f"only in `{name}`: {list_some(only)}")
    if missing:
        lines.append(f"only in {reference}: {list_some(missing)}")
    # The same paths, so the containers differ: a list for a tuple, or another class.
    if not only and not missing:
        lines.append(f"`{name}` is {_kind(found)}, {reference} is {_kind(wanted)}")
    # A frequent mistake that the paths do not show: both name the same parameters.
    if holds_packed(found) != holds_packed(wanted):
        lines.append(
            "only one of them is packed: use `stepax.tree.pack` or `stepax.tree.unpack`"
        )
    return ValueError("; ".join(lines))


def _kind(tree: object) -> str:
    # Cut off: the structure of a model fills a screen.
    text = str(jax.tree.structure(tree, is_leaf=is_none))
    return text if len(text) < 200 else f"{text[:200]}…"


def foreign_state(name: str, kind: type, state: object) -> ValueError:
    """The error for a state that is not the named tuple `kind`, which `name` needs."""
    return ValueError(
        f"`{name}` needs a state `{kind.__name__}`, but was given {describe(state)}; "
        "was this state made by another optimizer?"
    )


def fields_of(x: object) -> tuple[str, ...] | None:
    """The fields of a named tuple, or of a class of them; `None` for anything else."""
    return getattr(x, "_fields", None)


def require_state(name: str, kind: type, state: object) -> None:
    """Raise unless a state is the named tuple `kind`, or Optax's of that name."""
    # By name, so that Optax's states and restored ones pass; the fields are looked at,
    # too, because Optax's class of that name may be from another version.
    kinds = [x.__name__ for x in type(state).__mro__]
    fields = fields_of(kind) or ()
    if kind.__name__ not in kinds or not all(hasattr(state, k) for k in fields):
        raise foreign_state(name, kind, state)


def not_floating(name: str, path: str, dtype: np.dtype) -> TypeError:
    """The error for a gradient of integers or booleans."""
    return TypeError(
        f"`{name}` trains floating-point numbers, but the gradient at {path} is of "
        f"dtype {dtype}; cast it and its parameter, or exclude them with `masked` or "
        "with `None` as the gradient"
    )


def require_states(owner: str, number: int, state: object) -> None:
    """Raise unless a state is a plain tuple of `number` states."""
    # A list is as good: checkpoint libraries return one for a tuple.
    is_named = fields_of(state) is not None
    given = len(state) if isinstance(state, tuple | list) and not is_named else None
    if given != number:
        found = describe(state) if given is None else f"{given} states"
        raise ValueError(
            f"{owner} was given {found} as its state; was this state made by another "
            "optimizer?"
        )


def describe(x: object) -> str:
    """A short description of an unexpected value."""
    # Not its `repr`: that of a state or a model holds all of its arrays.
    fields = fields_of(x)
    if fields is not None:
        return f"a `{type(x).__name__}` of fields ({', '.join(fields)})"
    if isinstance(x, tuple | list | dict):
        return f"a {type(x).__name__} of {len(x)}"
    return f"a `{type(x).__name__}`"
