"""What to write instead of a name that a public module does not have."""

import difflib
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any


_MODULES = (
    "stepax",
    "stepax.contrib",
    "stepax.losses",
    "stepax.schedules",
    "stepax.tree",
    "stepax.transforms",
    "stepax.projections",
    "stepax.distributed",
    "stepax.checkpoint",
    "stepax.microbatching",
    "stepax.perturbations",
    "stepax.assignment",
    "stepax.second_order",
    "stepax.experimental.aggregating",
)


def missing(module: str, name: str) -> AttributeError:
    """The error for `module.name`, with the nearest names that exist.

    The same name in another module is meant, if there is one, otherwise a similar one.
    Modules that are loaded on demand are imported to find it, but not for names with
    two underscores, which programs ask for to find out what a thing is.
    """
    said = f"module {module!r} has no attribute {name!r}"
    return AttributeError(said + hint(module, name))


def hint(module: str, name: str) -> str:
    """The names that could be meant by `module.name`; empty if there are none."""
    found = [] if name.startswith("__") else _nearest(module, name)
    return f"; did you mean {' or '.join(f'`{x}`' for x in found)}?" if found else ""


def attributes(module: str) -> tuple[Callable[[], list[str]], Callable[[str], Any]]:
    """The `__dir__` and the `__getattr__` of a public module.

    The one shows its public names and not what it imports; the other finds nothing, and
    says what is near.  Set them where type checkers do not look: a module with a
    `__getattr__` has every name for them.
    """

    def show():
        return import_module(module).__all__

    def find(name):
        raise missing(module, name)

    return show, find


def _nearest(module: str, name: str) -> list[str]:
    names = {home: import_module(home).__all__ for home in (*_MODULES, module)}
    elsewhere = [f"{home}.{name}" for home, known in names.items() if name in known]
    if elsewhere:
        return elsewhere[:1]
    homes = {x: home for home in reversed(_MODULES) for x in names[home]}
    homes |= dict.fromkeys(names[module], module)
    return [f"{homes[x]}.{x}" for x in _similar(name, homes)]


def _similar(name: str, known: Iterable[str]) -> list[str]:
    """At most two names that could be meant; case does not count."""
    lower = {x.lower(): x for x in known}
    found = difflib.get_close_matches(name.lower(), lower, n=2, cutoff=0.7)
    return [lower[x] for x in found]
