"""What Optax has and Stepax has not: names and arguments, by module.

CI also runs this with the newest Optax, to list what the next release adds.
"""

import inspect
import types
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

from public import MODULES

import stepax


def new_in(theirs: types.ModuleType, ours: types.ModuleType) -> Iterator[str]:
    """Each public name of a module, or argument of one, that ours does not have."""
    for name, x in vars(theirs).items():
        if name.startswith("_") or inspect.ismodule(x):
            continue
        place = f"{theirs.__name__}.{name}"
        if not hasattr(ours, name):
            yield place
        elif inspect.isfunction(x):
            known = inspect.signature(getattr(ours, name)).parameters
            missing = [k for k in inspect.signature(x).parameters if k not in known]
            yield from (f"{place}({k})" for k in missing)


def modules() -> Iterator[tuple[types.ModuleType, types.ModuleType]]:
    for path in MODULES:
        if find_spec(f"optax{path}"):
            yield import_module(f"optax{path}"), import_module(f"stepax{path}")


# What its modules import from Python and JAX, and does not list itself.
OTHERS = {
    "Callable",
    "Sequence",
    "Any",
    "Optional",
    "Union",
    "NamedTuple",
    "annotations",
}


def test_stepax_has_all_names_and_arguments_of_optax():
    found = [x for theirs, ours in modules() for x in new_in(theirs, ours)]
    assert [x for x in found if x.rpartition(".")[2] not in OTHERS] == []


def test_a_new_name_and_a_new_argument_are_listed():
    newer = types.ModuleType("optax")
    exec("def adam(learning_rate, shine=1.0): ...\ndef shiny(): ...", vars(newer))
    assert [*new_in(newer, stepax)] == ["optax.adam(shine)", "optax.shiny"]
