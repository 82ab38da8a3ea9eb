"""A griffe extension: what mkdocstrings shall know of Stepax beside what its files say.

Docstrings become Markdown; decorators and named tuples complete the definitions.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from enum import EnumType
from functools import cache
from importlib import import_module
from typing import Any

import griffe

from .docstrings import ROOT, markdown
from .names import Name, explained, members, parameters


# What modules say to those who read them.
LISTS = re.compile(r"; this module only lists names|\n\nThis module only lists.*", re.S)

# What types stand for that have no docstring of their own.
TYPES = {
    "ArrayTree": "A tree of arrays: any nesting that JAX registers, or a single array.",
    "COUNT": "The `scalars` of a rule that counts its steps.",
    "MaskOrFn": "A mask, a mapping from path patterns to one, or a function that "
    "makes one from the parameters; see `masked`.",
    "OptState": "The state of a transformation.",
    "Params": "The parameters that are trained.",
    "ScalarOrSchedule": "A number, a scalar array, or a schedule.",
    "Schedule": "A function from the step count to a number.",
    "Updates": "Gradients, or the updates that a transformation makes of them.",
}


@cache
def read() -> tuple[dict[str, Any], list[str]]:
    """What griffe knows of public names and modules; mistakes of their docstrings."""
    own = Docstrings()
    extensions = griffe.load_extensions(own)
    package = griffe.load("stepax", search_paths=[ROOT], extensions=extensions)
    return {x.path.strip("."): target(package, x) for x in subjects()}, own.wrong


def subjects() -> Iterator[Name]:
    """All that is explained: modules and their public names."""
    for module, names in explained().items():
        yield Name(module, "", import_module(module))
        yield from names


def target(package: griffe.Module, name: Name) -> griffe.Object:
    path = name.path.strip(".").partition(".")[2]
    found = package[path] if path else package
    return found.final_target if found.is_alias else found


class Docstrings(griffe.Extension):
    """Completes what griffe reads; `wrong` has a line for each mistake, with place."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def on_function(self, *, func: griffe.Function, **kwargs) -> None:
        func.returns = plain(func.returns)
        for x in func.parameters:
            x.annotation, x.default = plain(x.annotation), plain(x.default)

    def on_attribute(self, *, attr: griffe.Attribute, **kwargs) -> None:
        attr.annotation = plain(attr.annotation)

    def on_package(self, *, pkg: griffe.Module, **kwargs) -> None:
        for name in subjects():
            thing = target(pkg, name)
            complete(thing, name)
            known = members(name.value) | {"self"}
            self.wrong += rewrite(thing, name, known)
            for member in documented(thing) if thing.is_class else ():
                own = {x.name for x in getattr(member, "parameters", ())}
                self.wrong += rewrite(member, name, known | own)
            if not thing.is_module:
                said = f"\n\nSource: `{place(thing)}`, line {thing.lineno}."
                thing.docstring.value += said


def plain(x: Any) -> Any:
    """An expression without our private modules: `name` for `rx.name`."""
    if isinstance(x, list):
        return [plain(y) for y in x]
    if not isinstance(x, griffe.Expr):
        return x
    if isinstance(x, griffe.ExprAttribute) and is_private(x.first):
        name = x.last
        return griffe.ExprName(str(name.canonical_name), parent=x.first.parent)
    for field in dataclasses.fields(x):
        if field.name != "parent":
            setattr(x, field.name, plain(getattr(x, field.name)))
    return x


def is_private(x: Any) -> bool:
    return isinstance(x, griffe.ExprName) and x.canonical_path.startswith("stepax._")


def complete(thing: griffe.Object, name: Name) -> None:
    """Tell griffe what it cannot see in a definition."""
    if thing.is_function:
        as_decorated(thing, name)
        thing.docstring.value = inspect.getdoc(name.value)
    if hasattr(name.value, "_fields"):
        as_tuple(thing, name)
    said = thing.docstring.value if thing.docstring else TYPES.get(name.name, "")
    said = LISTS.sub("", said) if thing.is_module else said
    if type(name.value) is EnumType:
        said += "\n\n" + "\n".join(f"    {x.name} = {x.value!r}" for x in name.value)
    line = thing.docstring.lineno if thing.docstring else thing.lineno
    thing.docstring = griffe.Docstring(said, lineno=line, parent=thing)


def as_decorated(thing: griffe.Function, name: Name) -> None:
    """Decorators make factories of rules, and may require an argument."""
    for key, x in parameters(name.value).items():
        if x.default is x.empty:
            thing.parameters[key].default = None
    if str(plain(thing.returns)) == "Rule" and thing.decorators:
        thing.returns = "GradientTransformationExtraArgs"


def as_tuple(thing: griffe.Class, name: Name) -> None:
    """A named tuple takes its fields; griffe knows that of dataclasses alone."""
    either = griffe.ParameterKind.positional_or_keyword
    own = [griffe.Parameter("self", kind=either)]
    for field in (thing.all_members[x] for x in name.value._fields):
        said = {"annotation": field.annotation, "default": field.value}
        own.append(griffe.Parameter(field.name, kind=either, **said))
    init = griffe.Function("__init__", parameters=griffe.Parameters(*own))
    thing.set_member("__init__", init)


def documented(thing: griffe.Class) -> Iterator[griffe.Object]:
    """The public methods and properties of a class that say what they do."""
    for name, member in thing.members.items():
        if not name.startswith("_") and not member.is_alias and member.docstring:
            yield member


def rewrite(thing: griffe.Object, name: Name, known: set[str]) -> Iterator[str]:
    """Make a docstring Markdown; yields its mistakes, with file and line."""
    text, start = thing.docstring.value, thing.docstring.lineno or 1
    thing.extra["stepax"]["help"] = text
    wrong: dict[str, str] = {}
    thing.docstring.value = markdown(text, name, known, wrong)
    for written, said in wrong.items():
        before = text.partition(f"`{written}`")[0].count("\n")
        yield f"{place(thing)}:{start + before}: {said}"


def place(thing: griffe.Object) -> str:
    return thing.filepath.relative_to(ROOT).as_posix()


def signature(path: str, thing: griffe.Object) -> str:
    """How it is called, or what it stands for, in a line."""
    if thing.is_attribute:
        return f"{path} = {thing.value}"
    call = thing.members.get("__call__", thing) if thing.is_class else thing
    return call.signature(return_type=call.is_function, name=path) or path
