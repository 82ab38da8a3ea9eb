"""The switch that makes `import optax` import Stepax.

A finder, first on `sys.meta_path`, provides `optax` and its submodules as empty
modules: each name is looked up in Stepax on access.  Processes that the program starts
inherit the switch by `PYTHONPATH`: Python runs `_children/sitecustomize.py` in them.
"""

import argparse
import contextlib
import functools as ft
import importlib
import os
import pkgutil
import runpy
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import stepax

from .. import _names
from .._engine.base import COMPATIBLE
from . import _layout
from ._signatures import like_optax, prepare


class Alias(ModuleType):
    """Replaces a module of Optax; further attributes can be set.

    homes: the modules in which its names are looked up.
    """

    def __init__(self, name: str, finder: "Finder"):
        super().__init__(name)
        self._finder = finder
        self._homes = finder.homes(name)
        self.__version__ = _layout.VERSION
        self.__file__ = stepax.__file__

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            # For `import *`; without modules if this one is public.
            left_out = self._finder.below(self.__name__)
            return [name for name in dir(self) if name not in left_out]
        if not name.startswith("__"):
            if self._finder.has(f"{self.__name__}.{name}"):
                return self._finder.module(f"{self.__name__}.{name}")
            # A definition in one home comes before a deprecated name in another.
            defining = [home for home in self._homes if name in vars(home)]
            for home in defining or self._homes:
                with contextlib.suppress(AttributeError):
                    return like_optax(getattr(home, name))
            if name in self._beside():
                return self._finder.module(f"optax._src.{name}")
        raise AttributeError(self._missing(name), name=name, obj=self)

    def _beside(self) -> list[str]:
        """Sibling modules, because programs rely on the imports within `_src`."""
        is_inside = self.__name__.startswith("optax._src.")
        return _private("optax._src") if is_inside else []

    def _missing(self, name: str) -> str:
        """Optax's error message, because programs look for it, with a suggestion."""
        home = (self._finder.ours(self.__name__) or [stepax])[0]
        hint = _names.hint(home.__name__, name).replace("`stepax", "`optax")
        said = f"module {self.__name__!r} has no attribute {name!r}"
        return f"{said}{hint} (Stepax replaces Optax here)"

    def __dir__(self) -> list[str]:
        # `dir` has names that are loaded lazily, and `vars` has hidden names.
        names = {x for home in self._homes for x in (*vars(home), *dir(home))}
        names.update(vars(self))
        names.update(self._beside(), self._finder.below(self.__name__))
        return sorted(x for x in names if not x.startswith("_"))


class Finder(MetaPathFinder, Loader):
    """Finds aliases; each is created once."""

    def __init__(self):
        below = (x.name for x in pkgutil.iter_modules(stepax.__path__))
        names = [x for x in below if not x.startswith("_") and x != "interop"]
        self.public = [stepax, *(importlib.import_module(f"stepax.{x}") for x in names)]
        self.module = ft.cache(lambda name: Alias(name, self))

    def has(self, name: str) -> bool:
        parent, _, last = name.rpartition(".")
        return bool(self.ours(name)) or last in _private(parent)

    def below(self, package: str) -> list[str]:
        """The names of the aliases in a package."""
        public = [x.__name__.rpartition(".")[2] for x in self.public[1:]]
        return _private(package) + (public if package == "optax" else [])

    def homes(self, name: str) -> list[Any]:
        """The modules behind an alias: ours if public, all of ours if private."""
        if self.ours(name):
            return self.ours(name)
        near = self.ours(name.rpartition(".")[0])
        return [*near, *self.public, SimpleNamespace(**COMPATIBLE), _layout]

    def ours(self, name: str) -> list[Any]:
        """Our module with the name of a public one of Optax; none for others."""
        own = "stepax" + name.removeprefix("optax")
        return [module for module in self.public if module.__name__ == own]

    def find_spec(self, fullname, path=None, target=None):
        if not (_is_optax(fullname) and self.has(fullname)):
            return None
        spec = ModuleSpec(fullname, self, origin=stepax.__file__, is_package=True)
        spec.submodule_search_locations = [_PLACE + fullname]
        return spec

    def create_module(self, spec):
        return self.module(spec.name)

    def exec_module(self, module):
        pass


# Begins the `__path__` of aliases, which is no place on a disk.
_PLACE = "stepax.interop.optax:"


class Listing:
    """Lists the modules of a package for `pkgutil`, which asks path hooks."""

    def __init__(self, path: str):
        if not path.startswith(_PLACE) or _Switch.finder is None:
            raise ImportError(f"{path} is not in Stepax")
        self._finder, self._package = _Switch.finder, path.removeprefix(_PLACE)

    def find_spec(self, fullname, target=None):
        return None  # the finder has found what there is

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """The name of each module, and whether there are any in it."""
        below = self._finder.below
        for name in sorted(below(self._package)):
            yield prefix + name, bool(below(f"{self._package}.{name}"))


def _private(package: str) -> list[str]:
    return _layout.PRIVATE.get(package, "").split()


def _is_optax(name: str) -> bool:
    return name.partition(".")[0] == "optax"


class _Switch:
    """The changes that `uninstall` has to undo."""

    finder: Finder | None = None
    aside: dict[str, ModuleType] = {}


def install(*, replace: bool = False) -> None:
    """Make `import optax` import Stepax, in this program and all libraries.

    Covers `optax`, its public modules that Stepax has, and its private ones, and
    processes that the program starts with its environment.
    `uninstall` undoes it; modules imported in between keep their references.

    replace: whether to replace Optax if it is already loaded; modules that hold a
        reference keep it.

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
    prepare(_Switch.finder.public)
    # Without the one that called this, in a process that a switched program started.
    named = [(getattr(x, "__name__", ""), x) for x in sys.meta_path]
    others = [x for name, x in named if name != "SwitchOfParent"]
    sys.meta_path[:] = [_Switch.finder, *others]
    sys.path_hooks.append(Listing)
    _pass_on()


def uninstall() -> None:
    """Undo `install`: `import optax` imports Optax again."""
    if _Switch.finder is None:
        return
    sys.meta_path.remove(_Switch.finder)
    for name in [k for k in sys.modules if _is_optax(k)]:
        del sys.modules[name]
    sys.modules.update(_Switch.aside)
    _Switch.finder, _Switch.aside = None, {}
    sys.path_hooks.remove(Listing)
    for path in [k for k in sys.path_importer_cache if k.startswith(_PLACE)]:
        del sys.path_importer_cache[path]
    _pass_on(undo=True)


_CHILDREN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_children")


def _pass_on(undo: bool = False) -> None:
    """Put the `sitecustomize` of children on their path, or take it off."""
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [x for x in others if x and x != _CHILDREN]
    found = others if undo else [_CHILDREN, *others]
    os.environ["PYTHONPATH"] = os.pathsep.join(found)
    if not found:
        del os.environ["PYTHONPATH"]


@contextlib.contextmanager
def installed(*, replace: bool = False) -> Iterator[None]:
    """A context in which `import optax` imports Stepax.

    replace: as for `install`.

    Raises a `RuntimeError` if Optax is loaded and `replace` is false.
    """
    if _Switch.finder is not None:
        yield  # already installed by another caller, who also uninstalls it
        return
    install(replace=replace)
    try:
        yield
    finally:
        uninstall()


def _too_late(optax: ModuleType | None) -> str:
    found = [(k, m) for k, m in sys.modules.items() if isinstance(m, ModuleType)]
    users = [k for k, m in found if vars(m).get("optax") is optax]
    by = f" by `{users[0]}`" if optax and users else ""
    return (
        f"Optax is already imported{by}; call `install` before that, run the program "
        "with `python -m stepax.interop.optax`, or replace Optax with `replace=True`, "
        "which does not affect modules that already hold a reference to it"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a script, module or text under the switch, as `python` itself would.

    arguments: command line arguments; `sys.argv` by default.
    """
    given = _parser().parse_args(arguments)
    install()
    sys.argv = ["-c" if given.command else given.target, *given.args]
    if given.command:
        _run_text(given.target, "<string>")
    elif given.target == "-":
        _run_text(sys.stdin.read(), "<stdin>")
    elif given.module:
        runpy.run_module(given.target, run_name="__main__", alter_sys=True)
    else:
        if not sys.flags.safe_path:
            sys.path[0] = os.path.dirname(os.path.abspath(given.target))
        runpy.run_path(given.target, run_name="__main__")


def _run_text(text: str, name: str) -> None:
    main = ModuleType("__main__")
    if not sys.flags.safe_path:
        sys.path[0] = ""
    sys.modules["__main__"] = main  # where pickles look for its classes
    exec(compile(text, name, "exec"), vars(main))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stepax.interop.optax",
        description="Run a program in which `import optax` imports Stepax, including "
        "in the libraries it uses.",
    )
    kind = parser.add_mutually_exclusive_group()
    add = lambda flag, name, what: kind.add_argument(
        flag, dest=name, action="store_true", help=f"the target is {what}"
    )
    add("-m", "module", "a module")
    add("-c", "command", "the text of a program")
    parser.add_argument(
        "target", help="a script, - for standard input, or what -m or -c says"
    )
    parser.add_argument(
        "args", nargs=argparse.REMAINDER, help="arguments of the program"
    )
    return parser
