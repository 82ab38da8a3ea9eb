"""Classes that pass for those of Optax with the same name, and the reverse.

Most programs that use JAX have Optax loaded, because their libraries import it, and
those libraries ask `isinstance(tx, optax.GradientTransformation)`.  Subclassing would
force Optax to be imported first.  Instead an instance of ours answers `__class__`,
which `isinstance` consults after `type`, with a subclass of Optax's class of the same
name, if Optax happens to be loaded, and vice versa.  JAX's registry of trees looks at
`type` alone and never notices.
"""

import functools as ft
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast


# To a type checker our classes derive from Optax's, and are accepted where those are
# expected; where Optax is not installed, it treats the unresolved base as `Any`.
if TYPE_CHECKING:
    import optax as optax
else:

    class _Bases:
        """At run time each name, such as `optax.EmptyState`, is `NamedTuple`."""

        def __getattr__(self, name):
            return self if name == "contrib" else NamedTuple

    optax = _Bases()

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
    for home in filter(None, map(sys.modules.get, _HOMES)):
        # Not by `getattr`, which warns for a name that has moved.
        found = vars(home).get(name)
        # `stepax.interop.optax` presents our own classes as Optax's.
        if isinstance(found, type) and not isinstance(found, Meta):
            return found
    return None


class Meta(type):
    """Counts an instance of Optax's class of the same name as an instance of ours."""

    def __instancecheck__(cls, instance: object) -> bool:
        if cls.__name__ == _WIDE and _is_plain(instance):
            return False
        # By name, because Optax may be loaded after us, and need not be loaded at all.
        return type.__instancecheck__(cls, instance) or any(
            c.__name__ == cls.__name__ and c.__module__.partition(".")[0] == "optax"
            for c in type(instance).__mro__
        )


def _is_plain(x: object) -> bool:
    # Not by `isinstance`, which asks this.  Only our transformations have a node.
    node = getattr(x, "__dict__", {}).get("node")
    return getattr(node, "is_plain", False)


def _class(self):
    if "optax" not in sys.modules:
        return type(self)
    hidden = _WIDE if _is_plain(self) else ""
    known = (c for c in type(self).__mro__ if c.__name__ != hidden)
    found = ((_namesake(ours.__name__), ours) for ours in known)
    return next((_double(*x) for x in found if x[0]), type(self))


@ft.cache
def _double(theirs: Any, ours: Any) -> type:
    """A subclass of Optax's class that makes ours, as in `x.__class__(*x)`."""
    body = {
        "__module__": theirs.__module__,
        "__qualname__": theirs.__qualname__,
        "__new__": lambda cls, *args, **kwargs: ours(*args, **kwargs),
        "_make": classmethod(lambda cls, values: ours._make(values)),
    }
    return type(theirs.__name__, (theirs,), body)


def optax_compatible(cls: type[T]) -> type[T]:
    """Make a named tuple and Optax's class of the same name pass for each other."""
    # A new class, because `NamedTuple` accepts no metaclass.  It has the bases of a
    # named tuple, since programs check `type(x).__bases__ == (tuple,)`.
    body = {
        **vars(cls),
        "__qualname__": cls.__qualname__,
        "__class__": property(_class),
        # Pickle would otherwise ask `__class__`.
        "__reduce_ex__": lambda self, protocol: (type(self), tuple(self)),
    }
    made = cast(type[T], Meta(cls.__name__, cls.__bases__, body))
    COMPATIBLE[cls.__name__] = made
    return made
