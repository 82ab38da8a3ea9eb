"""What is public: one row for each factory, written where it is defined.

Tests, the command line and the documentation read the rows; they ask for traits,
never for names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, ParamSpec, TypeVar

from .recipe import recipe


P = ParamSpec("P")
R = TypeVar("R")

Kind = Literal["optimizer", "transform", "wrapper", "measure"]


@dataclass(frozen=True)
class Row:
    """A public factory.

    kind: an optimizer descends by itself; a transform is a piece of one; a wrapper
        takes a transformation; a measure has the form of one, but returns a statistic.
    paper: where it comes from, as arXiv:number, DOI or address.
    holomorphic: whether it works for complex parameters.
    """

    name: str
    factory: Callable
    kind: Kind
    paper: str | None
    holomorphic: bool


ROWS: dict[str, Row] = {}


def public(
    kind: Kind = "transform", *, paper: str | None = None, holomorphic: bool = True
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Enter a factory into the registry, and remember the recipe of what it makes."""

    def enter(factory: Callable[P, R]) -> Callable[P, R]:
        made = recipe(factory)
        name = factory.__name__
        ROWS[name] = Row(name, made, kind, paper, holomorphic)
        return made

    return enter
