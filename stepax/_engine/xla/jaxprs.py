"""Reads programs as JAX has traced them: what a value is computed from, and again.

All that looks at equations is here.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import (
    ClosedJaxpr as ClosedJaxpr,
    Jaxpr,
    Literal,
    Var,
    jaxpr_as_fun as jaxpr_as_fun,
)

from ..arrays.numerics import has_dtype


# XLA rather writes a result of these than compute it twice.
_EXPENSIVE = {"div", "sqrt", "rsqrt", "exp", "log", "pow", "tanh", "atan2", "cbrt"}


def traced(f: Callable, *args: jax.Array) -> tuple[ClosedJaxpr, Callable, Callable]:
    """The program of `f`, what runs it on arrays, and what rebuilds its result."""
    closed, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
    return closed, jaxpr_as_fun(closed), jax.tree.structure(shapes).unflatten


def programs_in(eqn: Any) -> Iterator[Jaxpr]:
    """The programs among the parameters of an equation, such as of its branches."""
    for value in eqn.params.values():
        for x in value if isinstance(value, tuple | list) else (value,):
            if isinstance(x, ClosedJaxpr | Jaxpr):
                yield x.jaxpr if isinstance(x, ClosedJaxpr) else x


def bytes_made(jaxpr: Jaxpr) -> int:
    """The size of all that the equations of a program make."""
    total = 0
    for eqn in jaxpr.eqns:
        total += sum(map(bytes_made, programs_in(eqn)))
        total += sum(_bytes(x.aval) for x in eqn.outvars)
    return total


def _bytes(aval: Any) -> int:
    if not has_dtype(aval):
        return 0  # a token of an effect
    is_key = jnp.issubdtype(aval.dtype, jax.dtypes.extended)
    return aval.size * (8 if is_key else aval.dtype.itemsize)


class Placements(NamedTuple):
    """The specs that a program itself gives to arrays, or `None`.

    read: of the arguments, as it reads them.
    firm: of the results, those that always apply.
    loose: those that extend that of the parameter which the result follows.
    is_read: whether each result is computed from arguments.
    """

    read: list
    firm: list
    loose: list
    is_read: list[bool]


def placements(jaxpr: Jaxpr) -> Placements:
    """Where a program places its arguments and results."""
    firm, loose, parts, seen = {}, {}, {}, set(jaxpr.invars)
    for eqn in jaxpr.eqns:
        given = [x for x in eqn.invars if isinstance(x, Var)]
        if not seen.isdisjoint(given):
            seen.update(eqn.outvars)
        place: Any = eqn.params.get("sharding", eqn.params.get("dst_sharding"))
        if eqn.primitive.name in ("sharding_constraint", "reshard"):
            firm[eqn.outvars[0]] = place.spec
            for x in given:
                parts.setdefault(x, place.spec)
        elif eqn.primitive.name in ("device_put", "convert_element_type"):
            for x, moved in zip(eqn.invars, eqn.outvars, strict=True):
                if isinstance(x, Var):
                    firm[moved], loose[moved] = firm.get(x), loose.get(x)
        elif eqn.primitive.name == "rev":
            loose[eqn.outvars[0]] = firm.get(eqn.invars[0])
        elif eqn.primitive.name == "broadcast_in_dim":
            loose[eqn.outvars[0]] = loose.get(eqn.invars[0]) if given else None
        elif eqn.params.get("name") == "_where":
            # Those of `shard_like` and `shared_like`: like what is never taken, a
            # parameter or an array that is placed itself, or like one in reverse.
            like = eqn.invars[1]
            firm[eqn.outvars[0]] = firm.get(like) if isinstance(like, Var) else None
            found = [loose.get(x) for x in eqn.invars[1:] if isinstance(x, Var)]
            loose[eqn.outvars[0]] = next(filter(None, found), None)
    made = [None if isinstance(x, Literal) else x for x in jaxpr.outvars]
    return Placements(
        [parts.get(x) for x in jaxpr.invars],
        [firm.get(x) for x in made],
        [loose.get(x) for x in made],
        [x in seen for x in made],
    )


def update_from(
    closed: ClosedJaxpr, slots: Sequence[jax.Array], *inputs: jax.Array
) -> jax.Array:
    """The update of a step, `closed`, computed from these slots in place of its own."""
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
