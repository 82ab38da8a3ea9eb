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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
from jax.tree_util import register_pytree_node


class Hyperparameter(NamedTuple):
    """The hyperparameter with this index."""

    at: int


# A number, a hyperparameter, or a function and the expressions of its arguments.  Equal
# expressions are one argument of the program, however often a trace forms them.
Expression: TypeAlias = Any


def evaluate(x: Expression, values: Sequence[float]) -> Any:
    """What an expression is for some values of all hyperparameters."""
    if isinstance(x, Hyperparameter):
        return values[x.at]
    if not isinstance(x, tuple):
        return x
    f, *arguments = x
    return f(*(evaluate(y, values) for y in arguments))


class Unmet(Exception):
    """A program was traced for types that need another number, or another answer."""


class Lifting:
    """The use of hyperparameters in a trace that finds out what a program needs.

    values: the values of the hyperparameters.
    slots: the expressions that met an array, in order.
    guards: the questions asked about numbers, and the answers.
    """

    def __init__(self, values: Sequence[float]):
        self.values = values
        self.slots: dict[Expression, None] = {}
        self.guards: dict[Expression, Any] = {}

    def number(self, at: int) -> "Lifted":
        """The hyperparameter with this index."""
        return Lifted(self, Hyperparameter(at))

    def known(self, asked: Expression) -> Any:
        """An answer for the current values, on which the trace depends from now on."""
        self.guards[asked] = evaluate(asked, self.values)
        return self.guards[asked]

    def argument(self, x: Expression) -> jax.Array:
        """The argument of the program that is this number."""
        self.slots[x] = None
        return jnp.asarray(evaluate(x, self.values))


class Given(Lifting):
    """The use of hyperparameters in the trace of a program; raises `Unmet`.

    arguments: by expression, the arguments of the program.
    answers: by question, what it was traced for.
    """

    def __init__(
        self,
        arguments: Mapping[Expression, jax.Array],
        answers: Mapping[Expression, Any],
    ):
        self.arguments, self.answers = arguments, answers

    def known(self, asked: Expression) -> Any:
        """The answer for which the program is traced."""
        return _of(self.answers, asked)

    def argument(self, x: Expression) -> jax.Array:
        """The argument of the program that is this number."""
        return _of(self.arguments, x)


def _of(known: Mapping[Expression, Any], x: Expression) -> Any:
    if x not in known:
        raise Unmet
    return known[x]


def _expression(x: Any) -> Expression:
    return x.of if isinstance(x, Lifted) else x


def _computed(f: Callable, swap: bool = False) -> Callable:
    """A method that computes `f` of two numbers, and can repeat that later."""

    def method(self, other):
        if not isinstance(other, int | float | Lifted):
            return NotImplemented  # an array's own method converts both to arrays
        pair = (other, self) if swap else (self, other)
        return Lifted(self.lifting, (f, *map(_expression, pair)))

    return method


def _asked(f: Callable) -> Callable:
    """A method that answers for the current values."""

    def method(self, *others):
        if not all(isinstance(x, int | float | Lifted) for x in others):
            return NotImplemented
        return self.lifting.known((f, self.of, *map(_expression, others)))

    return method


class Lifted:
    """A number in a trace that serves other values, too, which `of` computes."""

    # A cache must not hold it: it belongs to one trace.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, lifting: Lifting, of: Expression):
        self.lifting, self.of = lifting, of

    def __jax_array__(self) -> jax.Array:
        return self.lifting.argument(self.of)

    def __neg__(self):
        return Lifted(self.lifting, (operator.neg, self.of))

    def __abs__(self):
        return Lifted(self.lifting, (abs, self.of))

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
