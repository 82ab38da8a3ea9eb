"""Runs what JAX traces in NumPy, so that nothing is compiled.

Nine tenths of the time of a random program are XLA's, as no two programs are alike.
What NumPy does otherwise than XLA, such as a power of an integer, XLA does, operation
by operation; each of these is compiled once for all programs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal


@dataclass(frozen=True)
class Typed:
    """A tree of arrays: their types, which may be weak, and their values."""

    types: Any
    values: list

    @classmethod
    def of(cls, tree: Any) -> "Typed":
        types = jax.eval_shape(lambda x: x, tree)
        return cls(types, list(map(host, jax.tree.leaves(tree))))

    def tree(self) -> Any:
        return jax.tree.structure(self.types).unflatten(self.values)

    def parts(self) -> "list[Typed]":
        """Those of a tuple."""
        values, found = iter(self.values), []
        for types in self.types:
            found.append(Typed(types, [next(values) for _ in jax.tree.leaves(types)]))
        return found


def in_numpy(f: Callable) -> Callable[..., Typed]:
    """The function of typed trees; it is traced once for the same types."""
    jitted = jax.jit(f)

    def call(*args: Typed) -> Typed:
        traced = jitted.trace(*(x.types for x in args))
        with np.errstate(all="ignore"):
            values = closed(traced.jaxpr, [x for arg in args for x in arg.values])
        return Typed(traced.out_info, values)

    return call


def host(x: Any) -> Any:
    """An array of NumPy, or a random key, of which NumPy knows nothing."""
    is_key = jnp.issubdtype(getattr(x, "dtype", float), jax.dtypes.prng_key)
    return x if is_key else np.asarray(x, jnp.result_type(x))


def closed(program: ClosedJaxpr, args: list) -> list:
    return run(program.jaxpr, list(map(host, program.consts)), args)


def run(program: Jaxpr, consts: list, args: list) -> list:
    found = dict(zip([*program.constvars, *program.invars], consts + args, strict=True))
    read = lambda x: host_literal(x) if isinstance(x, Literal) else found[x]
    for eqn in program.eqns:
        outs = one(eqn, list(map(read, eqn.invars)))
        found.update(zip(eqn.outvars, outs, strict=True))
    return list(map(read, program.outvars))


def host_literal(x: Literal) -> np.ndarray:
    return np.asarray(x.val, dtype_of(x))


def dtype_of(x: Any) -> Any:
    return x.aval.dtype


def one(eqn: JaxprEqn, args: list) -> list:
    name = eqn.primitive.name
    if name in CALLS:
        return closed_or_not(eqn.params[CALLS[name]], args)
    if name in LOOPS:
        return LOOPS[name](args, **eqn.params)
    if f := arithmetic(eqn):
        return [np.asarray(f(*args, **eqn.params), dtype_of(eqn.outvars[0]))]
    outs = eqn.primitive.bind(*map(device, args), **eqn.params)
    return list(map(host, outs if eqn.primitive.multiple_results else [outs]))


def device(x: Any) -> Any:
    return jnp.asarray(x) if isinstance(x, np.ndarray) else x


def closed_or_not(program: Any, args: list) -> list:
    if isinstance(program, ClosedJaxpr):
        return closed(program, args)
    return run(program, [], args)


# --- control flow ---------------------------------------------------------------------


CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}
CALLS |= {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}


def cond(args: list, branches: tuple, **_: Any) -> list:
    at, *rest = args
    return closed(branches[int(np.clip(int(at), 0, len(branches) - 1))], rest)


def while_loop(
    args: list,
    cond_nconsts: int,
    cond_jaxpr: ClosedJaxpr,
    body_nconsts: int,
    body_jaxpr: ClosedJaxpr,
) -> list:
    seen, args = args[:cond_nconsts], args[cond_nconsts:]
    consts, carry = args[:body_nconsts], args[body_nconsts:]
    while closed(cond_jaxpr, seen + carry)[0]:
        carry = closed(body_jaxpr, consts + carry)
    return carry


def scan(
    args: list,
    jaxpr: ClosedJaxpr,
    length: int,
    reverse: bool,
    num_consts: int,
    num_carry: int,
    **_: Any,
) -> list:
    consts, args = args[:num_consts], args[num_consts:]
    carry, xs = args[:num_carry], args[num_carry:]
    outs = []
    for i in reversed(range(length)) if reverse else range(length):
        found = closed(jaxpr, consts + carry + [host(x[i]) for x in xs])
        carry = found[:num_carry]
        outs.append(found[num_carry:])
    rows = zip(*(outs[::-1] if reverse else outs), strict=True)
    return carry + [stack(row) for row in rows]


def stack(row: tuple) -> Any:
    return host(np.stack(row) if isinstance(row[0], np.ndarray) else jnp.stack(row))


LOOPS: dict[str, Callable[..., list]] = {
    "cond": cond,
    "while": while_loop,
    "scan": scan,
}


# --- arithmetic -----------------------------------------------------------------------


def of(f: Callable) -> Callable:
    """Without what NumPy need not know, as how exact a function has to be."""
    return lambda *args, **_: f(*args)


def broadcast_in_dim(
    x: np.ndarray, *_: Any, shape: tuple, broadcast_dimensions: tuple, **params: Any
) -> np.ndarray:
    ones = [1] * len(shape)
    for axis, n in zip(broadcast_dimensions, x.shape, strict=True):
        ones[axis] = n
    return np.broadcast_to(x.reshape(ones), shape)


def sliced(
    x: np.ndarray, start_indices: tuple, limit_indices: tuple, strides: tuple | None
) -> np.ndarray:
    return x[tuple(map(slice, start_indices, limit_indices, strides or x.ndim * (1,)))]


def reduced(f: np.ufunc) -> Callable:
    return lambda x, axes, **_: f.reduce(x, axis=axes)


# Of numbers of any kind.
ANY: dict[str, Callable] = {
    "add": of(np.add),
    "add_any": of(np.add),
    "sub": of(np.subtract),
    "mul": of(np.multiply),
    "neg": of(np.negative),
    "square": of(np.square),
    "abs": of(np.abs),
    "real": of(np.real),
    "imag": of(np.imag),
    "conj": of(np.conj),
    "complex": lambda x, y: x + 1j * y,
    "eq": of(np.equal),
    "ne": of(np.not_equal),
    "and": of(np.bitwise_and),
    "or": of(np.bitwise_or),
    "not": of(np.invert),
    "copy": of(np.array),
    "stop_gradient": of(np.array),
    "select_n": lambda which, *cases: np.where(which, *cases[::-1]),
    "broadcast_in_dim": broadcast_in_dim,
    "reshape": lambda x, *_, new_sizes, **params: x.reshape(new_sizes),
    "squeeze": lambda x, dimensions: np.squeeze(x, dimensions),
    "slice": sliced,
    "concatenate": lambda *xs, dimension: np.concatenate(xs, dimension),
    "reduce_sum": reduced(np.add),
}
# Of what is not complex.
REAL: dict[str, Callable] = {
    "max": of(np.maximum),
    "min": of(np.minimum),
    "lt": of(np.less),
    "le": of(np.less_equal),
    "gt": of(np.greater),
    "ge": of(np.greater_equal),
    "is_finite": of(np.isfinite),
    "reduce_and": reduced(np.logical_and),
    "reduce_or": reduced(np.logical_or),
}
# To what is a real number with a point.
FLOAT: dict[str, Callable] = {
    "div": of(np.divide),
    "rem": of(np.fmod),
    "pow": of(np.power),
    "integer_pow": lambda x, y: np.power(x, float(y)),
    "sqrt": of(np.sqrt),
    "rsqrt": of(lambda x: 1 / np.sqrt(x)),
    "cbrt": of(np.cbrt),
    "sin": of(np.sin),
    "cos": of(np.cos),
    "exp": of(np.exp),
    "log": of(np.log),
    "log1p": of(np.log1p),
    "expm1": of(np.expm1),
    "sign": of(np.sign),
    "floor": of(np.floor),
}


def arithmetic(eqn: JaxprEqn) -> Callable | None:
    """What NumPy does as XLA does it."""
    name = eqn.primitive.name
    out, *dtypes = map(dtype_of, (*eqn.outvars, *eqn.invars))
    to = lambda kind: jnp.issubdtype(out, kind)
    has = lambda kind: any(jnp.issubdtype(x, kind) for x in (out, *dtypes))
    if has(jax.dtypes.extended) or (name == "select_n" and len(dtypes) > 3):
        return None
    if name in ANY:
        return ANY[name]
    if name == "convert_element_type":
        # An integer out of range, and of what is not finite, is XLA's own.
        widens = all(to(x) or not has(x) for x in (jnp.inexact, jnp.complexfloating))
        return of(np.asarray) if widens else None
    if has(jnp.complexfloating):
        return None
    return REAL.get(name) or (FLOAT.get(name) if to(jnp.floating) else None)
