"""Hyperparameters whose values a compiled program takes as arguments.

A rule computes with Python scalars: it branches on them, and takes `1 - b1` in double
precision before anything is rounded.  In a trace they become literals, so another value
needs another program.  A `Lifted` represents such a scalar while a program is traced
that should serve other values, too.

Arithmetic with Python's numbers is done in double precision as usual; it is recorded,
and repeated for other values.  A number that meets an array becomes an argument of the
program.  A comparison, or a conversion to a Python number, returns the result for the
current value, and is recorded as a guard: the program does not serve values for which
the result differs.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
from jax.tree_util import register_pytree_node


# A function from the values of all hyperparameters to a number, or to what a guard
# compares.
Expression: TypeAlias = Callable[[Sequence[float]], Any]


class Lifting:
    """The use of hyperparameters in one trace.

    values: the values of the hyperparameters.
    given: the arguments that replace `slots`; `None` while these are determined.
    slots: the numbers that met an array, in order.
    guards: the questions asked about numbers, and the answers.
    """

    def __init__(
        self, values: Sequence[float], given: Sequence[jax.Array] | None = None
    ):
        self.values, self.given = values, given
        self.slots: list[Expression] = []
        self.guards: list[tuple[Expression, Any]] = []

    def number(self, at: int) -> "Lifted":
        """The hyperparameter with this index."""
        return Lifted(self, operator.itemgetter(at))

    def known(self, ask: Expression) -> Any:
        """An answer for the current values, on which the trace depends from now on."""
        answer = ask(self.values)
        self.guards.append((ask, answer))
        return answer


def _expression(x: Any) -> Expression:
    return x.of if isinstance(x, Lifted) else lambda values: x


def _computed(f: Callable, swap: bool = False) -> Callable:
    """A method that computes `f` of two numbers, and can repeat that later."""

    def method(self, other):
        if not isinstance(other, int | float | Lifted):
            return NotImplemented  # an array's own method converts both to arrays
        pair = (other, self) if swap else (self, other)
        one, two = map(_expression, pair)
        return Lifted(self.lifting, lambda values: f(one(values), two(values)))

    return method


def _asked(f: Callable) -> Callable:
    """A method that answers for the current values."""

    def method(self, *others):
        if not all(isinstance(x, int | float | Lifted) for x in others):
            return NotImplemented
        parts = [self.of, *map(_expression, others)]
        return self.lifting.known(lambda values: f(*(part(values) for part in parts)))

    return method


class Lifted:
    """A number in a trace that serves other values, too.

    of: a function from the values of all hyperparameters to this number.
    """

    # A cache must not hold it: it belongs to one trace.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, lifting: Lifting, of: Expression):
        self.lifting, self.of = lifting, of
        self.value = of(lifting.values)
        self.at: int | None = None

    def __jax_array__(self) -> jax.Array:
        if self.at is None:
            self.at = len(self.lifting.slots)
            self.lifting.slots.append(self.of)
        given = self.lifting.given
        return jnp.asarray(self.value) if given is None else given[self.at]

    def __neg__(self):
        return Lifted(self.lifting, lambda values: -self.of(values))

    def __abs__(self):
        return Lifted(self.lifting, lambda values: abs(self.of(values)))

    __add__, __radd__ = _computed(operator.add), _computed(operator.add, True)
    __sub__, __rsub__ = _computed(operator.sub), _computed(operator.sub, True)
    __mul__, __rmul__ = _computed(operator.mul), _computed(operator.mul, True)
    __pow__, __rpow__ = _computed(operator.pow), _computed(operator.pow, True)
    __truediv__ = _computed(operator.truediv)
    __rtruediv__ = _computed(operator.truediv, True)

    __eq__, __ne__ = _asked(operator.eq), _asked(operator.ne)
    __lt__, __le__ = _asked(operator.lt), _asked(operator.le)
    __gt__, __ge__ = _asked(operator.gt), _asked(operator.ge)
    __bool__, __float__, __int__ = _asked(bool), _asked(float), _asked(int)
    __ceil__, __floor__, __repr__ = map(_asked, (math.ceil, math.floor, repr))


# Jitted functions of JAX take trees, and would raise otherwise.
register_pytree_node(
    Lifted,
    lambda x: ((x.__jax_array__(),), None),
    lambda _, children: cast(Any, children[0]),  # the array, in place of the number
)
