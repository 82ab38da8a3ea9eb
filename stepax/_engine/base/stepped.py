"""Whether calls were steps; Python booleans as far as it is known without running them.

A call in which `MultiSteps` only accumulates is not a step, nor is one in which a
wrapper rejects the gradients.
"""

import functools as ft
import operator
from collections.abc import Sequence
from typing import TypeAlias

import jax

from . import OptState


Known: TypeAlias = bool | jax.Array


def accumulates(old: OptState, new: OptState, extra: dict) -> jax.Array:
    """Whether a call of `MultiSteps` was a step; see `Closure.stepped`."""
    return new.gradient_step != old.gradient_step


def combined(found: Sequence[Known], is_any: bool) -> Known:
    """Whether all of some are true, or any."""
    if any(x is is_any for x in found):
        return is_any
    unknown = {id(x): x for x in found if not isinstance(x, bool)}
    if not unknown:
        return not is_any or not found
    return ft.reduce(operator.or_ if is_any else operator.and_, unknown.values())


def all_by_leaf(found: Sequence[Sequence[Known]]) -> list[Known]:
    """For each leaf whether all are true, computed once for leaves with the same."""
    known: dict[tuple, Known] = {}
    rows = [*zip(*found, strict=True)]
    for row in rows:
        key = tuple(map(id, row))
        if key not in known:
            known[key] = combined(row, False)
    return [known[tuple(map(id, row))] for row in rows]
