"""Closed-over values of a function as additional inputs of its program.

Tracers must be inputs, since a compiled program cannot keep them.  Large arrays are
inputs, too, because a program would keep a copy of a constant.  `jax.closure_convert`
handles tracers, but keeps every function that it has seen alive.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer

from .._engine.xla.jaxprs import ClosedJaxpr, jaxpr_as_fun


# Arrays of up to this many elements stay constants, which XLA can fold.
_SMALL = 1024


def open_closure(fun: Callable, *examples: Any) -> tuple[Callable, list]:
    """A function with closed-over arrays as a further argument, and these arrays.

    examples: arguments of `fun`, trees of arrays; the result is for these shapes only.
    """
    closed, out = jax.make_jaxpr(fun, return_shape=True)(*examples)
    treedef = jax.tree.structure(out)
    leads = [isinstance(x, Tracer) or x.size > _SMALL for x in closed.consts]
    jaxpr, pairs = closed.jaxpr, list(zip(closed.consts, leads, strict=True))
    kept = [x for x, is_input in pairs if not is_input]

    def opened(*args):
        *args, given = args
        more, rest = iter(given), iter(kept)
        consts = [next(more) if is_input else next(rest) for is_input in leads]
        run = jaxpr_as_fun(ClosedJaxpr(jaxpr, consts))
        return treedef.unflatten(run(*jax.tree.leaves(args)))

    return opened, [x for x, is_input in pairs if is_input]
