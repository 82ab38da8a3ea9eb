"""The registry of public factories, with a row for each, added at its definition.

Tests, the command line and the documentation read the rows, and select by traits, never
by names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeVar

from ..functions.calls import explain_misuse
from ..functions.deprecated import is_replaced
from ..functions.signatures import share_explanations
from .ranges import Range
from .recorded import FactoryDecorator, as_factory


P = ParamSpec("P")
R = TypeVar("R")

Kind = Literal[
    "optimizer", "transform", "wrapper", "measure", "aggregate", "functional"
]


@dataclass(frozen=True)
class Row:
    """A public factory.

    kind: an "optimizer" descends by itself; a "transform" is a piece of one; a
        "wrapper" takes a transformation; a "measure" has the form of a transformation,
        but returns a statistic; an "aggregate" takes per-example gradients, and returns
        one update; a "functional" is an optimizer that reads functions of its
        parameters.
    paper: its source, as arXiv:number, DOI or address.
    holomorphic: whether it works for complex parameters.
    matrices_only: whether it raises for arrays that are not matrices.
    ranges: of the arguments whose ranges differ from `ranges.RANGES`.
    """

    name: str
    factory: Callable
    kind: Kind
    paper: str | None
    holomorphic: bool
    ranges: Mapping[str, Range]
    matrices_only: bool = False

    @property
    def deprecated(self) -> bool:
        """Whether another factory has replaced it."""
        return is_replaced(self.name)


ROWS: dict[str, Row] = {}


def public(
    kind: Kind = "transform",
    *,
    paper: str | None = None,
    holomorphic: bool = True,
    matrices_only: bool = False,
    ranges: Mapping[str, Range] | None = None,
    shared: Mapping[str, str] | None = None,
    static: tuple[str, ...] = (),
) -> FactoryDecorator:
    """Add a factory to the registry, and record the recipes of its results.

    ranges: of the arguments whose ranges differ from `ranges.RANGES`.
    shared: learning rates and decays that cannot differ by path, and why; and, under
        "decay", why it does not support weight decay after its step.
    static: whole numbers with which it counts in Python, and which may not be traced.
    """

    def enter(factory: Callable) -> Any:
        share_explanations(factory)
        own = ranges or {}
        is_piece = kind not in ("optimizer", "wrapper", "functional")
        made = as_factory(
            factory, own, shared=shared or {}, is_piece=is_piece, static=static
        )
        name = factory.__name__
        ROWS[name] = Row(name, made, kind, paper, holomorphic, own, matrices_only)
        return made

    return enter


@explain_misuse
def rule(
    *, paper: str | None = None, ranges: Mapping[str, Range] | None = None
) -> FactoryDecorator:
    """Make a factory of transformations from a function that returns a `Rule`.

    The function may also return a pair of functions, as a wrapper does.

    The transformations are printed, compared, hashed and pickled as the call that made
    them; their hyperparameters are checked, can be injected, and are listed by
    `describe`.  `stepax.testing.check` tests it.

    paper: its source, as arXiv:number, DOI or address; available as `factory.paper`.
    ranges: the ranges of its arguments by name, outside of which values raise; the
        range of a name that Stepax itself uses, such as `b1`, is known.

    >>> @stepax.rules.rule()
    ... def descent(learning_rate):
    ...     return stepax.rules.Rule(lambda g, p, ctx: (-learning_rate * g,))
    >>> tx = descent(0.1)
    """

    def enter(factory: Callable) -> Any:
        # Not shared: a user's rule may branch on the value of an array.
        made = as_factory(factory, ranges or {}, shares=False)
        vars(made)["paper"] = paper
        return made

    return enter
