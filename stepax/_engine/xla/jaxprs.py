"""Reads programs as JAX has traced them: what a value is computed from, and again.

Everything of a step that looks at equations is here.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun


# XLA rather writes a result of these than compute it twice.
_EXPENSIVE = {"div", "sqrt", "rsqrt", "exp", "log", "pow", "tanh", "atan2", "cbrt"}


def traced(f: Callable, *args: jax.Array) -> tuple[ClosedJaxpr, Callable, Callable]:
    """The program of `f`, a function that runs it, and one that rebuilds its result.

    The function takes arrays, and returns a list of them.
    """
    closed, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
    return closed, jaxpr_as_fun(closed), jax.tree.structure(shapes).unflatten


def programs_in(eqn: Any) -> Iterator[Jaxpr]:
    """The programs among the parameters of an equation, such as of its branches."""
    for value in eqn.params.values():
        for x in value if isinstance(value, tuple | list) else (value,):
            if isinstance(x, ClosedJaxpr | Jaxpr):
                yield x.jaxpr if isinstance(x, ClosedJaxpr) else x


def update_from(
    closed: ClosedJaxpr, slots: Sequence[jax.Array], *inputs: jax.Array
) -> jax.Array:
    """The update of a step, computed from these slots in place of its own.

    closed: from the inputs to an update and slots.
    """
    # The same program without the equations that produced its own slots; XLA removes
    # what only they used.
    jaxpr = closed.jaxpr
    u, *own = jaxpr.outvars
    # A slot that is passed through has no equation, and one of several results cannot
    # be replaced without the others: both stay as they are.
    alone = {var for eqn in jaxpr.eqns if len(eqn.outvars) == 1 for var in eqn.outvars}
    pairs = zip(own, slots, strict=True)
    given = {v: x for v, x in pairs if not isinstance(v, Literal) and v in alone}
    rest = [eqn for eqn in jaxpr.eqns if not given.keys() & set(eqn.outvars)]
    invars = [*jaxpr.invars, *given]
    after = jaxpr.replace(invars=invars, eqns=rest, outvars=[u])
    (found,) = jaxpr_as_fun(ClosedJaxpr(after, closed.consts))(*inputs, *given.values())
    return found


class Values:
    """The values of a program; equal ones have one number, since XLA computes one.

    inputs, outputs: their numbers.
    expensive: numbers of arrays that XLA does not compute twice.
    """

    def __init__(self, jaxpr: Any):
        self.numbers: dict[Any, int] = {}
        self.sources: dict[int, list[int]] = {}
        self.expensive: set[int] = set()
        self.inputs = [self._number(x) for x in jaxpr.invars]
        size = jaxpr.outvars[0].aval.size
        for eqn in jaxpr.eqns:
            sources = [self._number(x) for x in eqn.invars]
            for i, var in enumerate(eqn.outvars):
                name = (eqn.primitive, *sources, str(eqn.params), i)
                self.numbers[var] = number = self._number(name)
                self.sources[number] = sources
                if eqn.primitive.name in _EXPENSIVE and var.aval.size == size:
                    self.expensive.add(number)
        self.outputs = [self._number(x) for x in jaxpr.outvars]

    def _number(self, x: Any) -> int:
        key = (str(x.val), x.aval) if isinstance(x, Literal) else x
        return self.numbers.setdefault(key, len(self.numbers))

    def needed(self, wanted: Iterable[int], known: set[int]) -> set[int]:
        """What some values are computed from, without the sources of known ones."""
        seen: set[int] = set()
        pending = list(wanted)
        while pending:
            number = pending.pop()
            if number not in seen and number not in known:
                seen.add(number)
                pending += self.sources.get(number, ())
        return seen
