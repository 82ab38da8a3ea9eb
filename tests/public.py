"""The public modules and functions of Stepax, and the modules that Optax has, too."""

import inspect
import pkgutil
from collections.abc import Callable
from importlib import import_module

from inside import _MODULES, MOVED

import stepax


PUBLIC = sorted(
    module.name
    for module in pkgutil.walk_packages(stepax.__path__, "stepax.")
    if "._" not in module.name
)
PUBLIC.insert(0, "stepax")

# The ends of names that both libraries have.
MODULES = [
    "",
    ".assignment",
    ".contrib",
    ".losses",
    ".microbatching",
    ".perturbations",
    ".projections",
    ".schedules",
    ".second_order",
    ".transforms",
    ".tree",
    ".tree_utils",
]


def _functions() -> dict[str, Callable]:
    """The public functions, and the classes that are called as these are."""
    found = {}
    for module in (*_MODULES, "stepax.tree_utils", "stepax.experimental"):
        home = import_module(module)
        own = {k: getattr(home, k) for k in home.__all__ if k not in MOVED}
        found |= {f"{module}.{k}": x for k, x in own.items() if inspect.isfunction(x)}
    unique = {id(f): (name, f) for name, f in reversed(found.items())}
    return dict(sorted(unique.values()))


FUNCTIONS = _functions() | {"stepax.MultiSteps": import_module("stepax").MultiSteps}
