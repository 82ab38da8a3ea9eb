"""Functions of `stepax.interop`, and the functions that they wrap."""

from collections.abc import Callable
from typing import TypeVar, cast


T = TypeVar("T")

# From each wrapper, whose signature hides the parameters that Optax lacks, to what it
# wraps.  Filled by `interop`, which the engine must not import.
ORIGINALS: dict[Callable, Callable] = {}


def original(f: T) -> T:
    """The function that `f` wraps; `f` itself if it is no wrapper."""
    try:
        return cast(T, ORIGINALS.get(cast(Callable, f), cast(Callable, f)))
    except TypeError:
        return f  # not hashable, and therefore no function of ours
