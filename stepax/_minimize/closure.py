"""What a function closes over, as further inputs of its program.

Tracers have to be: a compiled program keeps none.  Large arrays are, because it would
keep a copy of what it holds as a constant.  `jax.closure_convert` does the former, but
keeps each function that it has seen.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun


# Entries of an array up to which it stays a constant, with which XLA may compute.
_SMALL = 1024


def open_closure(fun: Callable, *examples: Any) -> tuple[Callable, list]:
    """A function that takes a list of arrays, and that list, mostly empty.

    examples: arguments of `fun`, trees of arrays; the new function is for these shapes.
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
