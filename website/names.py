"""The public names of Stepax, and where on the site each of them is explained."""

import builtins
import inspect
import keyword
import os
import pkgutil
import warnings
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from posixpath import relpath
from types import ModuleType
from typing import Any, NamedTuple

import jax

import stepax
from stepax._names import HOMES

from .subjects import is_optimizer, subject


os.environ.setdefault("KERAS_BACKEND", "jax")  # `stepax.interop.keras` imports Keras

# A name of two modules is explained with the more special one; in these only if no
# other has it.
GENERAL = ("stepax", "stepax.tree_utils")


class Name(NamedTuple):
    """A public name: the module and the name under which it is explained."""

    module: str
    name: str
    value: Any

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def page(self) -> str:
        """The page on which it is explained: its card, or one of the reference."""
        if is_optimizer(self.name, self.value):
            return f"cards/{self.name}.md"
        return f"reference/{subject(*self)}.md"

    def link(self, page: str) -> str:
        """A relative link to it from a staged page."""
        return f"{relpath(self.page, f'{page}/..')}#{self.path}"


INDEX = "reference/index.md"  # all modules with their names, and all subjects


def link_to_module(module: str, page: str) -> str:
    """A relative link from a staged page to what is said of a public module."""
    return f"{relpath(INDEX, f'{page}/..')}#{module}"


@cache
def modules() -> tuple[str, ...]:
    """The public modules, and `stepax` first."""
    found = pkgutil.walk_packages(stepax.__path__, "stepax.")
    return ("stepax", *sorted(m.name for m in found if "._" not in m.name))


@cache
def homes() -> dict[str, Name]:
    """From every public path, such as `stepax.chain`, to where it is explained."""
    places: dict[Any, list[Name]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for name in _all():
            own = getattr(name.value, "__name__", None)
            again = own == name.name or hasattr(import_module(name.module), str(own))
            again = again or inspect.isfunction(name.value)
            again = again or inspect.isclass(name.value)
            key = id(name.value) if again else name.name
            places.setdefault(key, []).append(name)
    return {x.path: min(xs, key=_rank) for xs in places.values() for x in xs}


def _rank(name: Name) -> tuple:
    is_own = getattr(name.value, "__name__", name.name) == name.name
    return not is_own, name.module in GENERAL, modules().index(name.module)


def _all() -> Iterator[Name]:
    for path in modules():
        module = import_module(path)
        for name in [*module.__all__, *_unlisted(module)]:
            value = getattr(module, name)
            if not inspect.ismodule(value):
                yield Name(path, name, value)


def _unlisted(module: ModuleType) -> list[str]:
    """The classes of states and results, which `dir` leaves out."""
    if module is not stepax:
        return []
    later = (name for names in HOMES.values() for name in names)
    found = (name for name in (*vars(stepax), *later) if not name.startswith("_"))
    known = set(stepax.__all__)
    return sorted({x for x in found if x not in known and _is_ours(getattr(stepax, x))})


def _is_ours(x: Any) -> bool:
    return inspect.isclass(x) and x.__module__.startswith("stepax.")


@cache
def explained() -> dict[str, list[Name]]:
    """From each module with a page to the names that are explained there."""
    found: dict[str, list[Name]] = {m: [] for m in modules()}
    for name in dict.fromkeys(x.path for x in homes().values()):
        found[homes()[name].module].append(homes()[name])
    return {m: names for m, names in found.items() if _has_page(m)}


def _has_page(module: str) -> bool:
    values = vars(import_module(module))
    return not all(inspect.ismodule(values.get(x)) for x in values["__all__"])


# Where a bare name is looked for, as in `adamw`.
BARE = (
    "stepax", "stepax.contrib", "stepax.losses", "stepax.schedules", "stepax.rules",
    "stepax.solve", "stepax.solve.constraints",
)  # fmt: skip


def find(written: str, module: str = "stepax") -> Name | str | None:
    """What `written` between backticks names, in a text about `module`.

    It returns a public name, the path of a public module, or `None` for anything else.
    Raises a `LookupError` if it is written as a name of Stepax, and is none.
    """
    path = written.partition("(")[0]
    is_file = path.endswith((".py", ".md"))
    if is_file or not all(part.isidentifier() for part in path.split(".")):
        return None
    first = path.partition(".")[0]
    if first == "stepax" or f"stepax.{first}" in modules() and "." in path:
        return _dotted(path if first == "stepax" else f"stepax.{path}")
    paths = [f"{m}.{path}" for m in (module, *BARE)]
    found = next((homes()[x] for x in paths if x in homes()), None)
    if found is None and module != "stepax" and _looks_like_a_name(path):
        raise LookupError(f"`{path}` is neither a public name nor an argument")
    return found


def _looks_like_a_name(path: str) -> bool:
    if "." in path:
        return False  # of another library, or of a value
    inside = "_" in path.strip("_") or path[:1].isupper() and path[1:2].islower()
    return inside and not path.startswith("_") and path not in ordinary()


def _dotted(path: str) -> Name | str | None:
    if path in modules():
        return path if _has_page(path) else None
    parent, _, attribute = path.rpartition(".")
    if path in homes():
        return homes()[path]
    if parent in homes() and hasattr(homes()[parent].value, attribute):
        return homes()[parent]  # a method or a field
    if any(part.startswith("_") for part in path.split(".")) or parent == "stepax":
        shown = getattr(stepax, attribute, None)
        if shown is not None or attribute.startswith("_"):
            return None
    raise LookupError(f"`{path}` is no public name")


# Names between backticks in docstrings that nobody can look up: keywords of functions
# that users write or of other libraries, and keys of a state.
SAID = frozenset(
    {
        "grad_fn", "jacobian_fn", "loss_fn", "max_logits", "norm_squared",
        "num_not_finite", "obj_fn", "outputs_fn", "out_sharding", "out_shardings",
        "sample_size", "should_skip", "small_squared_norm", "NamedTupleKey",
    }
)  # fmt: skip


@cache
def ordinary() -> frozenset[str]:
    """Words between backticks that are no names of Stepax: arguments, and Python's."""
    found = {*vars(builtins), *keyword.kwlist, *dir(jax), *dir(jax.sharding), *SAID}
    for name in homes().values():
        found |= members(name.value)
    return frozenset(found)


def members(value: Any) -> set[str]:
    """The arguments of a function, or the fields and methods of a class."""
    found = set(getattr(value, "__annotations__", ()))
    found |= {x for x in dir(value) if not x.startswith("_")}
    return found | set(parameters(value))


def parameters(value: Any) -> dict[str, inspect.Parameter]:
    """What it is called with; nothing if it cannot be called or Python cannot say."""
    try:
        return dict(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return {}
