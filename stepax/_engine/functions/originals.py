"""Functions of `stepax.interop`, and the functions that they wrap."""

from collections.abc import Callable
from typing import TypeVar, cast


T = TypeVar("T")

# From each wrapper, whose signature hides the parameters that Optax does not have, to
# the function that it wraps.  Filled by `interop`, which the engine must not import.
ORIGINALS: dict[Callable, Callable] = {}


def original(f: T) -> T:
    """The function that `f` wraps; `f` itself if it is not a wrapper."""
    try:
        return cast(T, ORIGINALS.get(cast(Callable, f), cast(Callable, f)))
    except TypeError:
        return f  # not hashable, and therefore not a function of ours
