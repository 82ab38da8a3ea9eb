"""Lifts literals out of traced programs, so that these can be compared without them.

A lifted literal becomes an argument, and the results must keep the bits that they have
with the literal.  XLA simplifies what is constant: x / a becomes x * (1 / a), and up to
JAX 0.10 x * a * b becomes x * (a * b), even if b is a scalar that is not constant; sums
likewise.  The same is done here before literals are lifted.  The literals 0, 1 and -1,
which XLA simplifies away, are not lifted, and neither are exponents, which choose the
function.  One thing is out of reach: of a * x + b * y LLVM contracts one product with
the sum to a fused multiply-add, and may choose the other one, which differs in the last
bit.
"""

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np


if TYPE_CHECKING:
    from jax.core import ShapedArray
    from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal as JaxLiteral, Var

    Atom: TypeAlias = Var | JaxLiteral


# The values of lifted literals, by dtype.
Lifted: TypeAlias = Mapping[str, Sequence]


class NotShareable(Exception):
    """Something in a program cannot be compared, such as a function."""


@dataclass(frozen=True)
class Place:
    """A value by its index: first come the inputs, then the results of each step."""

    at: int

    def read(self, values: list, lifted: Lifted) -> jax.Array:
        return values[self.at]


@dataclass(frozen=True)
class Hole:
    """A lifted literal, by its dtype and its index among those of that dtype."""

    dtype: str
    at: int

    def read(self, values: list, lifted: Lifted) -> jax.Array:
        return lifted[self.dtype][self.at]


@dataclass(frozen=True)
class Literal:
    """A literal of a program.

    given: as in the program, where it may be weakly typed.
    value: the same of NumPy, which computes in its dtype.
    key: equal for equal literals, NaN included.
    """

    given: object = field(compare=False)
    value: np.ndarray | np.generic = field(compare=False)
    key: tuple

    def read(self, values: list, lifted: Lifted) -> object:
        return self.given

    @property
    def is_inexact_scalar(self) -> bool:
        dtype = self.value.dtype
        return np.ndim(self.value) == 0 and jnp.issubdtype(dtype, jnp.inexact)


Operand: TypeAlias = Place | Hole | Literal


def _aval(x: "Atom") -> "ShapedArray":
    # A traced rule computes with arrays alone.
    return cast("ShapedArray", x.aval)


def _literal(given: object, is_weak: bool = False) -> Literal:
    value = np.asarray(given)[()]
    # Bytes, because NaN is not equal to itself, and 0.0 is equal to -0.0.
    key = value.dtype, value.shape, is_weak, value.tobytes()
    return Literal(given, value, key)


@dataclass(frozen=True)
class Step:
    """One operation.

    f: from its operands to a list of results.
    key: equal for equal operations.
    """

    # Not compared: it is a new closure for each operation; `key` stands for it.
    f: Callable[..., list] = field(compare=False)
    operands: tuple[Operand, ...]
    key: Hashable

    def run(self, values: list, lifted: Lifted) -> list:
        return self.f(*(x.read(values, lifted) for x in self.operands))


@dataclass(frozen=True)
class Program:
    """A traced program without its lifted literals; equal to those that do the same.

    inputs: the types of its inputs.
    """

    inputs: tuple
    steps: tuple[Step, ...]
    outputs: tuple[Operand, ...]

    def run(self, inputs: Sequence, lifted: Lifted) -> list:
        values = list(inputs)
        for step in self.steps:
            values += step.run(values, lifted)
        return [x.read(values, lifted) for x in self.outputs]


def lift_literals(
    closed: "ClosedJaxpr", joins: bool
) -> tuple[Program, dict[str, list], list]:
    """A traced program without its literals; these, by dtype; and its constants.

    The constants, also of programs that it calls, become the first of its inputs.

    joins: whether XLA computes x * a * b as x * (a * b).

    Raises `NotShareable` for a program that cannot be compared.
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
    return program, recorder.lifted, list(consts.values())


def _nested_consts(jaxpr: "Jaxpr") -> dict:
    """The constants of all programs that are called in one: what they close over."""
    found = {}
    for closed in filter(None, map(_called, jaxpr.eqns)):
        found |= dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        found |= _nested_consts(closed.jaxpr)
    return found


class _Recorder:
    """Walks through a traced program, and through those that it calls."""

    def __init__(self, joins: bool):
        self.joins = joins
        self.consts: dict = {}  # of all programs, by their variables
        self.steps: list[Step] = []
        self.lifted: dict[str, list] = {}
        self.shapes: list[tuple[int, ...]] = []  # of all values
        # Products and sums with a literal: (kind, result) -> (other operand, literal).
        # A further literal is joined with that one, as XLA would do.
        self.chains: dict[tuple, tuple] = {}

    def new(self, atoms: Sequence["Atom"]) -> list[Place]:
        """Places for the next values."""
        first = len(self.shapes)
        self.shapes += [_aval(x).shape for x in atoms]
        return [Place(i) for i in range(first, len(self.shapes))]

    def add(
        self,
        f: Callable[..., list],
        operands: Sequence[Operand],
        key: Hashable,
        atoms: Sequence["Atom"],
    ) -> list[Place]:
        self.steps.append(Step(f, tuple(operands), key))
        return self.new(atoms)

    def walk(self, jaxpr: "Jaxpr", env: dict) -> list:
        """Record the operations; returns the operands that are the results."""

        # Only literals have a `val`; their class is not public in all versions of JAX.
        def read(x):
            return _literal(x.val, x.aval.weak_type) if hasattr(x, "val") else env[x]

        for eqn in jaxpr.eqns:
            operands = list(map(read, eqn.invars))
            # What is called is recorded in place of the call: its literals are lifted,
            # too, and chains of products go on across the call.
            if closed := _called(eqn):
                inner = closed.jaxpr
                given = zip(inner.invars, operands, strict=True)
                found = self.walk(inner, self.consts | dict(given))
            else:
                found = self.operation(eqn, operands)
            env.update(zip(eqn.outvars, found, strict=True))
        return list(map(read, jaxpr.outvars))

    def operation(self, eqn: "JaxprEqn", operands: list) -> list:
        name = eqn.primitive.name
        literals = [x for x in operands if isinstance(x, Literal)]
        # XLA folds an operation on constants when it compiles.  Lifted operands would
        # be computed with at run time, and may round differently.
        if operands and len(literals) == len(operands):
            folded = _folded(eqn, literals)
            return [folded] if folded else self.bound(eqn, operands)
        if literals and literals[0].is_inexact_scalar and name in _WITH_LITERAL:
            kind, change, is_last = _WITH_LITERAL[name]
            if not is_last or operands[1] is literals[0]:
                x = operands[operands[0] is literals[0]]
                return self.joined(kind, x, change(literals[0].value), eqn.outvars)
        if name == "mul" and not literals:
            operands = self.regrouped(operands, eqn)
        # XLA computes x ** 0.5 as a square root, and x ** 2 as a product.
        exponent = operands[-1] if name == "pow" else None
        taken = [x if x is exponent else self.lift(x) for x in operands]
        return self.bound(eqn, taken)

    def joined(
        self,
        kind: str,
        x: Operand,
        value: np.ndarray | np.generic,
        atoms: Sequence["Atom"],
    ) -> list:
        """A product or sum with a literal, joined with a literal that `x` contains."""
        f, join = _JOINED[kind]
        if found := self.chains.get((kind, x)):
            # XLA folds to infinity and NaN silently, and so do we.
            with np.errstate(all="ignore"):
                x, value = found[0], f(found[1], value)
        operands = [x, self.lift(_literal(value))]
        (made,) = self.add(join, operands, kind, atoms)
        if self.joins:
            self.chains[kind, made] = x, value
        return [made]

    def regrouped(self, operands: list[Place], eqn: "JaxprEqn") -> list:
        """The operands of (x * a) * b as those of x * (a * b), if b is a scalar."""
        # As XLA does: one product of scalars is cheaper than one of arrays.
        for x, b in operands, operands[::-1]:
            found = self.chains.get(("mul", x))
            if found and self.shapes[x.at] != () and self.shapes[b.at] == ():
                scalar = [v for v in eqn.invars if _aval(v).shape == ()]
                return [found[0], *self.joined("mul", b, found[1], scalar)]
        return operands

    def bound(self, eqn: "JaxprEqn", operands: Sequence[Operand]) -> list[Place]:
        """An operation as it is."""
        # The closure outlives the trace, of which it must hold nothing but these.
        primitive, params = eqn.primitive, eqn.params

        def f(*operands):
            out = primitive.bind(*operands, **params)
            return list(out) if primitive.multiple_results else [out]

        return self.add(f, operands, (primitive, _frozen(params)), eqn.outvars)

    def lift(self, x: Operand) -> Operand:
        """The operand, or a hole for it if it is a literal to be lifted."""
        if not isinstance(x, Literal) or not x.is_inexact_scalar:
            return x
        if x.value in (0, 1, -1):
            return x
        dtype = str(x.value.dtype)
        same = self.lifted.setdefault(dtype, [])
        same.append(x.value)
        return Hole(dtype, len(same) - 1)


def _same(x):
    return x


def _inverse(x):
    with np.errstate(all="ignore"):
        return x.dtype.type(1) / x


# What XLA turns an operation with one literal into: a product or a sum, with which
# function of the literal, and whether only if the literal is the second operand.
_WITH_LITERAL = {
    "mul": ("mul", _same, False),
    "div": ("mul", _inverse, True),
    "add": ("add", _same, False),
    "sub": ("add", np.negative, True),
}


# How two literals are joined, and how an array and a literal.
_JOINED = {
    "mul": (np.multiply, lambda x, y: [jnp.multiply(x, y)]),
    "add": (np.add, lambda x, y: [jnp.add(x, y)]),
}


def _folded(eqn: "JaxprEqn", operands: list[Literal]) -> Literal | None:
    """The result of an operation on literals, if NumPy's is sure to have XLA's bits."""
    # Only operations that round at most once, which IEEE 754 fixes to the last bit.
    name, x = eqn.primitive.name, operands[0].value
    if name == "select_n" and np.ndim(x) == 0:
        return operands[1 + int(x)]
    if not operands[0].is_inexact_scalar:
        return None
    if name == "neg":
        return _literal(np.negative(x))
    dtype = _aval(eqn.outvars[0]).dtype
    if name == "convert_element_type" and jnp.issubdtype(dtype, jnp.inexact):
        return _literal(x.astype(dtype))
    return None


# Primitives that call a traced program, and the parameter that holds it.  Custom
# derivatives are not needed: the program runs right away, outside of `jax.grad`.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}


def _called(eqn: "JaxprEqn") -> "ClosedJaxpr | None":
    """The traced program that an operation calls, if it does nothing else."""
    closed = eqn.params.get(_CALLS.get(eqn.primitive.name, ""))
    if closed is None:
        return None
    # Shardings and compiler options apply to the call, and would be lost.  The value
    # that stands for no sharding is private to JAX, and known by how it is printed.
    given = [*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ())]
    if any(repr(x) != "UnspecifiedValue" for x in given):
        return None
    return None if eqn.params.get("compiler_options_kvs") else closed


def _frozen(x: object) -> Hashable:
    """A key that is equal for equal parameters of an operation.

    Raises `NotShareable` if there is none.
    """
    if isinstance(x, dict):
        return tuple((k, _frozen(x[k])) for k in sorted(x))
    if isinstance(x, tuple | list):
        return tuple(map(_frozen, x))
    if hasattr(x, "eqns"):
        return _frozen_jaxpr(cast("Jaxpr", x))
    if hasattr(x, "jaxpr"):
        closed = cast("ClosedJaxpr", x)
        if closed.consts:
            raise NotShareable
        return _frozen_jaxpr(closed.jaxpr)
    # A function may close over anything, an array of this optimizer among others.  The
    # mesh of a call inside of a branch is callable, too, as a decorator.
    is_value = isinstance(x, type | np.dtype | jax.sharding.Mesh)
    if callable(x) and not is_value and not _is_of_module(x):
        raise NotShareable
    try:
        hash(x)
    except TypeError:
        raise NotShareable from None
    # With the type: 1, 1.0 and True are equal, and have one hash.
    return type(x), x


def _is_of_module(f: object) -> bool:
    """Whether it is a function of a module, such as one of a random generator."""
    module = sys.modules.get(getattr(f, "__module__", None) or "")
    return getattr(module, getattr(f, "__qualname__", ""), None) is f


def _frozen_jaxpr(jaxpr: "Jaxpr") -> tuple:
    """A key for the body of a loop or a branch, whose literals are not lifted."""
    # Variables by the order in which they occur, because each trace makes new ones.
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
