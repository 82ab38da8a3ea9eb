"""What a signature of a public function shows: short types."""

import inspect
import pydoc
import typing
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from inside import _MODULES, NAMES, text
from loops import each
from public import FUNCTIONS

from stepax import GradientTransformationExtraArgs
from stepax.rules import Rule


# What Python prints of types where it does not know their names.
LONG = ("typing.", "jax.jaxlib", "jax._src", "collections.abc", "stepax._", " at 0x")


every_function = each(FUNCTIONS)


def annotations(f: Callable) -> dict[str, Any]:
    signature = inspect.signature(f)
    found = {k: p.annotation for k, p in signature.parameters.items()}
    found["return"] = signature.return_annotation
    return {k: x for k, x in found.items() if x is not inspect.Signature.empty}


def test_all_modules_are_looked_at():
    assert len(FUNCTIONS) > 280
    homes = {name.rpartition(".")[0] for name in FUNCTIONS}
    again = {"stepax.schedules", "stepax.transforms"}  # what `stepax` itself has
    assert homes >= set(_MODULES) - again


@every_function
def test_a_signature_is_printed_with_short_types(name):
    f = FUNCTIONS[name]
    signature = inspect.signature(f)
    for shown in (str(signature), *map(str, signature.parameters.values())):
        assert not [x for x in LONG if x in shown], shown
    head = pydoc.plain(pydoc.render_doc(f)).split("\n", 3)[2]
    assert not [x for x in LONG if x in head], head


@every_function
def test_annotations_are_the_types_and_the_text_means_them(name):
    f = FUNCTIONS[name]
    plain = inspect.unwrap(f.__init__ if inspect.isclass(f) else f)
    known = NAMES | vars(typing) | vars(import_module("jax")) | plain.__globals__
    known |= {"jax": import_module("jax")} | _classes(annotations(f).values())
    hints = typing.get_type_hints(plain)
    if hints.get("return") is Rule:  # of which the decorator makes one
        hints["return"] = GradientTransformationExtraArgs
    for key, annotation in annotations(f).items():
        assert annotation == hints[key] or annotation is None
        if annotation not in (Callable, None):
            assert eval(text(annotation), known) == annotation, text(annotation)


def _classes(types: Any) -> dict[str, Any]:
    """The classes that annotations are made of, by name."""
    found = {}
    for x in types:
        found |= {x.__name__: x} if isinstance(x, type) else {}
        parts = x if isinstance(x, list) else typing.get_args(x)
        origin = typing.get_origin(x)
        found |= {origin.__name__: origin} if isinstance(origin, type) else {}
        found |= _classes([] if origin is typing.Literal else parts)
    return found


def test_what_is_said_of_types():
    said: Mapping[Any, str] = {
        int | None: "int | None",
        Callable[[int], float] | str: "Callable[[int], float] | str",
        Callable[..., Any]: "Callable[..., Any]",
        NAMES["ScalarOrSchedule"] | None: "ScalarOrSchedule | None",
        NAMES["ArrayLike"] | NAMES["Schedule"]: "ArrayLike | Schedule",
        typing.Literal["a", 1]: "Literal['a', 1]",
    }
    assert {x: text(x) for x in said} == said


def test_a_changed_signature_is_printed_short_too():
    signature = inspect.signature(FUNCTIONS["stepax.adamw"])
    rate = signature.parameters["learning_rate"]
    assert str(rate) == "learning_rate: ScalarOrSchedule"
    changed = signature.replace(parameters=[rate.replace(default=0.1)])
    assert str(changed) == (
        "(learning_rate: ScalarOrSchedule = 0.1) -> GradientTransformationExtraArgs"
    )
