"""Functions that are shown under other signatures, and what they stand for."""

from typing import Any


# From functions of `stepax.interop` to those of which they hide parameters.
ORIGINALS: dict[Any, Any] = {}


def original(f: Any) -> Any:
    """The function that `f` stands for; `f` itself if it stands for none."""
    try:
        return ORIGINALS.get(f, f)
    except TypeError:
        return f  # not hashable, and therefore no function of ours
