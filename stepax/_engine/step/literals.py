"""Takes the numbers out of traced programs, so that these can be compared without them.

The bits must stay those of a program with its numbers.  XLA simplifies what it knows:
x / a becomes x * (1 / a), and up to JAX 0.10 x * a * b becomes x * (a * b), also if b
is a scalar that it does not know, and sums likewise.  The same is done here before the
numbers are taken out.  Those that vanish there, 0, 1 and -1, stay, and so do exponents,
which choose the function.  One thing is out of reach: of a * x + b * y LLVM fuses one
of the products with the sum, and may choose the other one, which is a difference in the
last bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np


class NotShareable(Exception):
    """There is something in a program that cannot be compared, such as a function."""


@dataclass(frozen=True)
class Place:
    """A value by its number: first come the inputs, then what each step returns."""

    at: int

    def read(self, values: list, numbers: dict) -> Any:
        return values[self.at]


@dataclass(frozen=True)
class Number:
    """A literal that was taken out, by its dtype and its place among those of it."""

    dtype: str
    at: int

    def read(self, values: list, numbers: dict) -> Any:
        return numbers[self.dtype][self.at]


@dataclass(frozen=True)
class Literal:
    """A literal that stays.

    given: as JAX has it, which may have a weak type.
    value: as NumPy has it, which computes in its dtype.
    key: equal for equal literals; NaN too.
    """

    given: Any = field(compare=False)
    value: Any = field(compare=False)
    key: tuple

    def read(self, values: list, numbers: dict) -> Any:
        return self.given

    @property
    def is_number(self) -> bool:
        return np.ndim(self.value) == 0 and jnp.issubdtype(
            self.value.dtype, jnp.inexact
        )


def _literal(given: Any, is_weak: bool = False) -> Literal:
    value = np.asarray(given)[()]
    key = value.dtype, value.shape, is_weak, value.tobytes()
    return Literal(given, value, key)


@dataclass(frozen=True)
class Step:
    """One operation.

    f: takes its operands, and returns a list.
    key: equal for equal operations.
    """

    f: Callable = field(compare=False)
    operands: tuple
    key: Any

    def run(self, values: list, numbers: dict) -> list:
        return self.f(*(x.read(values, numbers) for x in self.operands))


@dataclass(frozen=True)
class Program:
    """A traced program without its numbers; equal to those that do the same.

    inputs: the types of what it takes.
    """

    inputs: tuple
    steps: tuple[Step, ...]
    outputs: tuple

    def run(self, inputs: list, numbers: dict) -> list:
        values = list(inputs)
        for step in self.steps:
            values += step.run(values, numbers)
        return [x.read(values, numbers) for x in self.outputs]


def take_out(closed: Any, joins: bool) -> tuple[Program, dict[str, list], list]:
    """A traced program without its numbers; these, by their dtypes; and its constants.

    The constants, also of programs that it calls, become the first of its inputs.

    joins: whether XLA makes one product of x * a * b.

    Raises `NotShareable` for programs that cannot be compared.
    """
    jaxpr, recorder = closed.jaxpr, _Recorder(joins)
    consts = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    consts |= _nested_consts(jaxpr)
    known = [*consts, *jaxpr.invars]
    places = dict(zip(known, recorder.new(known), strict=True))
    recorder.consts = {x: places[x] for x in consts}
    outputs = recorder.walk(jaxpr, places)
    inputs = tuple(x.aval for x in known)
    program = Program(inputs, tuple(recorder.steps), tuple(outputs))
    return program, recorder.numbers, list(consts.values())


def _nested_consts(jaxpr: Any) -> dict:
    """The constants of all programs that are called in one: what they close over."""
    found = {}
    for closed in filter(None, map(_called, jaxpr.eqns)):
        found |= dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        found |= _nested_consts(closed.jaxpr)
    return found


class _Recorder:
    """Walks through a traced program, and through what is called in it."""

    def __init__(self, joins: bool):
        self.joins = joins
        self.consts: dict = {}  # of all programs, by their variables
        self.steps: list[Step] = []
        self.numbers: dict[str, list] = {}
        self.shapes: list[tuple] = []  # of all values
        # Of products and sums with a literal: of what they are, and with which literal.
        self.chains: dict[tuple, tuple] = {}

    def new(self, atoms: Sequence) -> list[Place]:
        """Places for the next values."""
        first = len(self.shapes)
        self.shapes += [x.aval.shape for x in atoms]
        return [Place(i) for i in range(first, len(self.shapes))]

    def add(self, f: Callable, operands: list, key: Any, atoms: Sequence) -> list:
        self.steps.append(Step(f, tuple(operands), key))
        return self.new(atoms)

    def walk(self, jaxpr: Any, env: dict) -> list:
        """Record the operations; returns the operands that are the results."""

        def read(x):
            return _literal(x.val, x.aval.weak_type) if hasattr(x, "val") else env[x]

        for eqn in jaxpr.eqns:
            operands = list(map(read, eqn.invars))
            if closed := _called(eqn):
                inner = closed.jaxpr
                given = zip(inner.invars, operands, strict=True)
                found = self.walk(inner, self.consts | dict(given))
            else:
                found = self.operation(eqn, operands)
            env.update(zip(eqn.outvars, found, strict=True))
        return list(map(read, jaxpr.outvars))

    def operation(self, eqn: Any, operands: list) -> list:
        name = eqn.primitive.name
        literals = [x for x in operands if isinstance(x, Literal)]
        if operands and len(literals) == len(operands):  # XLA computes it
            folded = _folded(eqn, literals)
            return [folded] if folded else self.bound(eqn, operands)
        if literals and literals[0].is_number and name in _WITH_LITERAL:
            kind, change, is_last = _WITH_LITERAL[name]
            if not is_last or operands[1] is literals[0]:
                x = operands[operands[0] is literals[0]]
                return self.joined(kind, x, change(literals[0].value), eqn.outvars)
        if name == "mul" and not literals:
            operands = self.regrouped(operands, eqn)
        exponent = operands[-1] if name == "pow" else None
        taken = [x if x is exponent else self.taken(x) for x in operands]
        return self.bound(eqn, taken)

    def joined(self, kind: str, x: Any, value: Any, atoms: Sequence) -> list:
        """A product or sum with a literal, joined with those that `x` is one of."""
        f, join = _JOINED[kind]
        if found := self.chains.get((kind, x)):
            with np.errstate(all="ignore"):
                x, value = found[0], f(found[1], value)
        operands = [x, self.taken(_literal(value))]
        (made,) = self.add(join, operands, kind, atoms)
        if self.joins:
            self.chains[kind, made] = x, value
        return [made]

    def regrouped(self, operands: list, eqn: Any) -> list:
        """The operands of (x * a) * b as those of x * (a * b), if b is a scalar."""
        for x, b in operands, operands[::-1]:
            found = self.chains.get(("mul", x))
            if found and self.shapes[x.at] != () and self.shapes[b.at] == ():
                scalar = [v for v in eqn.invars if v.aval.shape == ()]
                return [found[0], *self.joined("mul", b, found[1], scalar)]
        return operands

    def bound(self, eqn: Any, operands: list) -> list:
        """An operation as it is."""
        primitive, params = eqn.primitive, eqn.params

        def f(*operands):
            out = primitive.bind(*operands, **params)
            return list(out) if primitive.multiple_results else [out]

        return self.add(f, operands, (primitive, _frozen(params)), eqn.outvars)

    def taken(self, x: Any) -> Any:
        """An operand, of which a number is taken out."""
        if not isinstance(x, Literal) or not x.is_number or x.value in (0, 1, -1):
            return x
        dtype = str(x.value.dtype)
        same = self.numbers.setdefault(dtype, [])
        same.append(x.value)
        return Number(dtype, len(same) - 1)


def _same(x):
    return x


def _inverse(x):
    with np.errstate(all="ignore"):
        return x.dtype.type(1) / x


# What XLA makes of an operation with one literal: whether a product or a sum, of which
# number, and whether only if the literal comes second.
_WITH_LITERAL = {
    "mul": ("mul", _same, False),
    "div": ("mul", _inverse, True),
    "add": ("add", _same, False),
    "sub": ("add", np.negative, True),
}


# How literals are joined, and how arrays.
_JOINED = {
    "mul": (np.multiply, lambda x, y: [jnp.multiply(x, y)]),
    "add": (np.add, lambda x, y: [jnp.add(x, y)]),
}


def _folded(eqn: Any, operands: list) -> Literal | None:
    """The result of an operation on literals that rounds at most once."""
    name, x = eqn.primitive.name, operands[0].value
    if name == "select_n" and np.ndim(x) == 0:
        return operands[1 + int(x)]
    if not operands[0].is_number:
        return None
    if name == "neg":
        return _literal(-x)
    dtype = eqn.outvars[0].aval.dtype
    if name == "convert_element_type" and jnp.issubdtype(dtype, jnp.inexact):
        return _literal(x.astype(dtype))
    return None


# Primitives that call a traced program, and the parameter that has it.  Derivatives of
# functions with their own are not wanted in a program that runs right away.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}


def _called(eqn: Any) -> Any:
    """The traced program that an operation calls, if calling is all it does."""
    closed = eqn.params.get(_CALLS.get(eqn.primitive.name))
    if closed is None:
        return None
    given = [*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ())]
    if any(repr(x) != "UnspecifiedValue" for x in given):
        return None
    return None if eqn.params.get("compiler_options_kvs") else closed


def _frozen(x: Any) -> Any:
    """Equal for equal parameters of an operation."""
    if isinstance(x, dict):
        return tuple((k, _frozen(x[k])) for k in sorted(x))
    if isinstance(x, tuple | list):
        return tuple(map(_frozen, x))
    if hasattr(x, "eqns"):
        return _frozen_jaxpr(x)
    if hasattr(x, "jaxpr"):
        if x.consts:
            raise NotShareable
        return _frozen_jaxpr(x.jaxpr)
    if callable(x) and not isinstance(x, type | np.dtype):
        raise NotShareable  # it may hold anything
    try:
        hash(x)
    except TypeError:
        raise NotShareable from None
    return type(x), x


def _frozen_jaxpr(jaxpr: Any) -> tuple:
    """The body of a loop or a branch, in which numbers stay."""
    env = {}

    def read(x):
        if hasattr(x, "val"):
            return _literal(x.val, x.aval.weak_type)
        return env.setdefault(x, len(env))

    inputs = [(read(x), x.aval) for x in (*jaxpr.constvars, *jaxpr.invars)]
    rows = [
        (
            eqn.primitive,
            _frozen(eqn.params),
            tuple(map(read, eqn.invars)),
            tuple(map(read, eqn.outvars)),
        )
        for eqn in jaxpr.eqns
    ]
    return tuple(inputs), tuple(rows), tuple(map(read, jaxpr.outvars))
