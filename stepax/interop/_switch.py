"""The switch under which `import optax` means Stepax.

A finder, first on `sys.meta_path`, answers for `optax` and all below it with modules
that have no content: each name is looked up in Stepax when it is asked for.
"""

import contextlib
import functools as ft
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import stepax

from .._engine.twin import TWINS
from . import _layout


class Alias(ModuleType):
    """Stands for a module of Optax; it may be given further attributes.

    homes: where its names are looked up.
    """

    def __init__(self, name: str, finder: "Finder"):
        super().__init__(name)
        self._finder = finder
        self._homes = finder.homes(name)
        self.__version__ = _layout.VERSION
        self.__file__ = stepax.__file__

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return self._starred()
        if not name.startswith("__"):
            module = self._finder.below(self.__name__, name)
            if module is not None:
                return module
            for home in self._homes:
                if hasattr(home, name):
                    return getattr(home, name)
        raise AttributeError(self._missing(name), name=name, obj=self)

    def _missing(self, name: str) -> str:
        where = [x.__name__ for x in self._finder.public if hasattr(x, name)]
        also = f"; `{where[0]}` has it" if where else ""
        asked = f"{self.__name__}.{name}"
        return f"Stepax stands for Optax here, and has no `{asked}`{also}"

    def __dir__(self) -> list[str]:
        names = {x for home in self._homes for x in dir(home)} | set(vars(self))
        names.update(self._finder.names_below(self.__name__))
        return sorted(x for x in names if not x.startswith("_"))

    def _starred(self) -> list[str]:
        """What `import *` gives: programs rely on the modules in private ones."""
        is_private = "._" in self.__name__
        is_given = lambda x: is_private or not isinstance(x, ModuleType)
        return [name for name in dir(self) if is_given(getattr(self, name))]


class Finder(MetaPathFinder, Loader):
    """Finds aliases; each is made once.

    public: our public modules.
    """

    def __init__(self):
        below = (x.name for x in pkgutil.iter_modules(stepax.__path__))
        names = [x for x in below if not x.startswith("_") and x != "interop"]
        self.public = [stepax, *(importlib.import_module(f"stepax.{x}") for x in names)]
        self.module = ft.cache(lambda name: Alias(name, self))

    def has(self, name: str) -> bool:
        """Whether there is an alias of this name."""
        parent, _, last = name.rpartition(".")
        return bool(self._ours(name)) or last in _private(parent)

    def below(self, parent: str, name: str) -> Alias | None:
        """The alias in a module, or if that is private and has none, beside it."""
        if self.has(f"{parent}.{name}"):
            return self.module(f"{parent}.{name}")
        is_beside = parent.startswith("optax._src.") and name in _private("optax._src")
        return self.module(f"optax._src.{name}") if is_beside else None

    def names_below(self, parent: str) -> list[str]:
        """The names for which `below` has an alias."""
        if parent == "optax":
            return [x.__name__.removeprefix("stepax.") for x in self.public[1:]]
        return _private("optax._src" if parent.startswith("optax._src.") else parent)

    def homes(self, name: str) -> list[Any]:
        """A public module is ours; a private one has all that we have."""
        if self._ours(name):
            return self._ours(name)
        near = self._ours(name.rpartition(".")[0])
        return [*near, *self.public, SimpleNamespace(**TWINS), _layout]

    def _ours(self, name: str) -> list[Any]:
        own = "stepax" + name.removeprefix("optax")
        return [module for module in self.public if module.__name__ == own]

    def find_spec(self, fullname, path=None, target=None):
        if _is_optax(fullname) and self.has(fullname):
            return ModuleSpec(fullname, self, origin=stepax.__file__, is_package=True)
        return None

    def create_module(self, spec):
        return self.module(spec.name)

    def exec_module(self, module):
        pass


def _private(package: str) -> list[str]:
    """Optax's private modules in a package."""
    return _layout.PRIVATE.get(package, "").split()


def _is_optax(name: str) -> bool:
    return name.partition(".")[0] == "optax"


class _Switch:
    """What to undo."""

    finder: Finder | None = None
    aside: dict[str, ModuleType] = {}


def install(*, replace: bool = False) -> None:
    """From now on `import optax` gives Stepax, wherever it is written.

    Covers `optax`, its public modules that Stepax has, and its private ones.
    `uninstall` undoes it; what was imported meanwhile keeps what it got.

    replace: whether to set Optax aside if it is loaded already; modules that hold it
        keep it.

    Raises a `RuntimeError` if Optax is loaded and `replace` is false.
    """
    if _Switch.finder is not None:
        return
    loaded = {k: m for k, m in sys.modules.items() if _is_optax(k)}
    if any(loaded.values()) and not replace:
        raise RuntimeError(_too_late(sys.modules.get("optax")))
    for name in loaded:
        del sys.modules[name]
    _Switch.finder, _Switch.aside = Finder(), loaded
    sys.meta_path.insert(0, _Switch.finder)


def uninstall() -> None:
    """From now on `import optax` gives Optax again; undoes `install`."""
    if _Switch.finder is None:
        return
    sys.meta_path.remove(_Switch.finder)
    for name in [k for k in sys.modules if _is_optax(k)]:
        del sys.modules[name]
    sys.modules.update(_Switch.aside)
    _Switch.finder, _Switch.aside = None, {}


@contextlib.contextmanager
def installed(*, replace: bool = False) -> Iterator[None]:
    """Within this context `import optax` gives Stepax.

    replace: as for `install`.

    Raises a `RuntimeError` if Optax is loaded and `replace` is false.
    """
    if _Switch.finder is not None:
        yield  # by someone else, who also uninstalls it
        return
    install(replace=replace)
    try:
        yield
    finally:
        uninstall()


def _too_late(optax: ModuleType | None) -> str:
    found = sys.modules.items()
    users = [k for k, m in found if getattr(m, "__dict__", {}).get("optax") is optax]
    by = f" by `{users[0]}`" if optax and users else ""
    return (
        f"Optax is already imported{by}; install Stepax in its place before that, "
        "run the program by `python -m stepax.interop.optax`, or set Optax aside with "
        "`replace=True`, which does not reach modules that hold it already"
    )
