"""The matrix products of a step, and nothing else: what it takes at least."""

import itertools as it
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params


def products_of(equations: Any, times: int = 1) -> Iterator[tuple[tuple, int]]:
    """Each product of a traced program, and how often it runs.

    Of the branches of a conditional all are counted, and of a loop without a known
    number of rounds one round.
    """
    for equation in equations:
        if equation.primitive.name == "dot_general":
            kinds = tuple((x.aval.shape, x.aval.dtype) for x in equation.invars)
            chosen = ("dimension_numbers", "precision", "preferred_element_type")
            how = tuple((key, equation.params[key]) for key in chosen)
            yield (kinds, how), times
        rounds = equation.params.get("length", 1)  # of a `scan`
        for inner in jaxprs_in_params(equation.params):
            yield from products_of(inner.eqns, times * rounds)


def alone(traced: Any) -> Callable[[int], None]:
    """A function that takes this many times all products of a traced step, in turn."""
    counts: Counter = Counter()
    for product, times in products_of(traced.jaxpr.eqns):
        counts[product] += times
    calls = [(_program(*product), times) for product, times in counts.items()]

    def run(n):
        for (program, arguments), times in calls:
            for _ in it.repeat(None, n * times):
                jax.block_until_ready(program(*arguments))

    return run


def _program(kinds, how):
    arguments = [jnp.full(shape, 0.01, dtype) for shape, dtype in kinds]
    product = lambda x, y: jax.lax.dot_general(x, y, **dict(how))
    return jax.jit(product).lower(*arguments).compile(), arguments
