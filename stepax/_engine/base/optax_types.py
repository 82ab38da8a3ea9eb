"""Makes `isinstance` treat our classes as Optax's, and vice versa, by name.

Most programs that use JAX have Optax loaded, because their libraries import it, and
those libraries ask `isinstance(tx, optax.GradientTransformation)`.  Subclassing would
force Optax to be imported first.  Instead an instance answers `__class__`, which
`isinstance` consults after `type`, with Optax's class of the same name, if Optax
happens to be loaded.  JAX's registry of trees looks at `type` alone and never notices.
"""

import sys
from typing import TypeVar, cast


T = TypeVar("T")

# Where Optax keeps classes that are not at its top level.
_HOMES = ("optax", "optax.contrib", "optax.transforms", "optax.schedules")

# A class whose instances our transformations with `is_plain` are not: in Optax, the
# pieces of an optimizer that read no keywords are not of this class.
_WIDE = "GradientTransformationExtraArgs"

# Our classes that Optax has too, by name.
COMPATIBLE: dict[str, type] = {}


def _namesake(name: str) -> type | None:
    """Optax's class of this name, if Optax is loaded."""
    for home in _HOMES:
        # Not by `getattr`, which warns for a name that has moved.
        found = getattr(sys.modules.get(home), "__dict__", {}).get(name)
        # `stepax.interop.optax` presents our own classes as Optax's.
        if isinstance(found, type) and not isinstance(found, _Meta):
            return found
    return None


class _Meta(type):
    """Counts an instance of Optax's class of the same name as an instance of ours."""

    def __instancecheck__(cls, instance: object) -> bool:
        if cls.__name__ == _WIDE and getattr(instance, "is_plain", False) is True:
            return False
        # By name, because Optax may be loaded after us, and need not be loaded at all.
        return type.__instancecheck__(cls, instance) or any(
            c.__name__ == cls.__name__ and c.__module__.partition(".")[0] == "optax"
            for c in type(instance).__mro__
        )


def _class(self):
    if "optax" not in sys.modules:
        return type(self)
    hidden = _WIDE if getattr(self, "is_plain", False) else ""
    known = (c.__name__ for c in type(self).__mro__)
    found = (_namesake(name) for name in known if name != hidden)
    return next(filter(None, found), type(self))


def _reduce(self, protocol):
    return type(self), tuple(self)  # pickle would otherwise ask `__class__`


def optax_compatible(cls: type[T]) -> type[T]:
    """Make a named tuple and Optax's class of the same name pass for each other."""
    # A subclass, because a metaclass cannot be given to `NamedTuple` itself.
    body = {
        "__slots__": (),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__class__": property(_class),
        "__reduce_ex__": _reduce,
    }
    made = cast(type[T], _Meta(cls.__name__, (cls,), body))
    COMPATIBLE[cls.__name__] = made
    return made
