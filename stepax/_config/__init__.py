"""The names that a configuration may hold, and the objects that they refer to.

These are the names of all public factories, of schedules, of a few public classes, and
of plain values of Python and NumPy.  A name is looked up in this table; nothing is
imported by name from anywhere else, so a configuration cannot run anything else.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from inspect import isfunction
from sys import modules
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._engine.factories.argument_checks import checks_of
from .._engine.factories.registry import ROWS
from .._engine.factories.scheduled import METRICS, SCHEDULES, WrappedSchedule
from .._engine.functions.calls import nearest
from .._engine.trees.errors import fields_of
from .._names import _MODULES
from .._transforms.decay_kinds import weight_decay
from .._wrappers.accumulate import MultiSteps
from .._wrappers.inject import inject_hyperparams


TARGET, ARGS, PARTIAL = "_target_", "_args_", "_partial_"
IGNORED = ("_convert_", "_recursive_")  # Hydra's; there is nothing to convert here
INJECT = "stepax.inject_hyperparams"
PAIR = "stepax.MultiSteps.gradient_transformation"


def array(values: Any, dtype: str) -> np.ndarray:
    found = np.dtype(jnp.dtype(dtype))
    if not (jnp.issubdtype(found, jnp.number) or found.kind == "b"):
        raise TypeError(f"an array of dtype `{dtype}` does not hold numbers")
    return np.asarray(values, found)


def jax_array(values: Any, dtype: str | None = None) -> jax.Array:
    """`array` on a device; without a dtype it is a weakly typed scalar."""
    return jnp.asarray(values if dtype is None else array(values, dtype))


_KINDS = [np.dtype(x).type for x in "?bhilBHILefdFD"]
SCALARS = {f"numpy.{t.__name__}": t for t in _KINDS}
VALUES: dict[str, Callable] = SCALARS | {
    "builtins.complex": complex,
    "builtins.dict": dict,
    "builtins.float": float,
    "builtins.list": list,
    "builtins.tuple": tuple,
    "jax.P": jax.P,
    "jax.numpy.asarray": jax_array,
    "numpy.asarray": array,
}


def is_record(x: object) -> bool:
    """Whether `x` is the class of a named tuple that is not a transformation."""
    fields = fields_of(x) if isinstance(x, type) and issubclass(x, tuple) else None
    return fields is not None and "init" not in fields


def is_factory(x: object) -> bool:
    """Whether the transformations that `x` makes know how they were made."""
    return checks_of(x) is not None


_OTHERS = (MultiSteps, WrappedSchedule, inject_hyperparams, weight_decay)


def public_name(x: Any) -> str | None:
    """The name of a public object in a configuration; `None` for other objects."""
    for home in _MODULES:
        if home in modules and vars(modules[home]).get(x.__name__) is x:
            return f"{home}.{x.__name__}"
    return None


def name_of(factory: Any) -> str:
    """The name of a factory or schedule; with its module if it is the user's."""
    return public_name(factory) or f"{factory.__module__}.{factory.__qualname__}"


DEPTH, MOST = 100, 10**6  # of what is nested, and of all values


class Names:
    """The names that may be used, including those of the user's factories."""

    def __init__(self, factories: Iterable[Callable]):
        self.own = {}
        self._left = MOST
        for f in factories:
            if not is_factory(f):
                raise TypeError(
                    f"`factories` holds {f!r}, whose calls are not recorded; decorate "
                    "it with `stepax.rules.rule()`"
                )
            self.own[name_of(f)] = f

    def require_end(self, path: tuple) -> None:
        """Raise if there is no end of values: where a list contains itself."""
        self._left -= 1
        if len(path) > DEPTH or self._left < 0:
            start = "".join(f"[{k!r}]" for k in path[:4])
            raise ValueError(
                f"{start}... is nested more than {DEPTH} deep, or has more than {MOST} "
                "values: does it contain itself?"
            )

    def find(self, name: str) -> Callable:
        """The object with this name; raises a `ValueError` for an unknown name."""
        if name == PAIR:
            return MultiSteps.gradient_transformation
        found = VALUES.get(name) or self.own.get(name) or _public(name)
        if found is None:
            last = name.rpartition(".")[2]
            hint = nearest(last, [*self.own, *ROWS, *SCHEDULES])
            raise ValueError(
                f"`{name}` is not a name in the registry{hint}; a configuration can "
                "name factories and schedules of Stepax, and those passed as "
                "`factories`"
            )
        return found


def function_name(x: Any) -> str | None:
    """The name of a public function of arrays and trees, which is data, too."""
    is_plain = isfunction(x) and not is_factory(x) and x not in SCHEDULES.values()
    name = public_name(x) if is_plain else None
    home = (name or "").rpartition(".")[0]
    return name if home in ("stepax", "stepax.tree") else None


def function(name: str) -> Callable | None:
    """The function with this `function_name`; it is not called."""
    home, _, last = name.rpartition(".")
    found = getattr(import_module(home), last, None) if home in _MODULES else None
    return found if function_name(found) == name else None


def _public(name: str) -> Callable | None:
    home, _, last = name.rpartition(".")
    for one in [home] if home else ["stepax", "stepax.contrib", "stepax.schedules"]:
        if one in _MODULES:
            found = vars(import_module(one)).get(last)
            is_made = found in [t[last] for t in (SCHEDULES, METRICS) if last in t]
            if found in _OTHERS or is_made or is_record(found) or is_factory(found):
                return found
    return None
