"""Systems of as many equations as unknowns, of Moré, Garbow and Hillstrom.

Moré, Garbow and Hillstrom, 1981, Testing unconstrained optimization software,
DOI 10.1145/355934.355936, in the sizes of MINPACK's test of HYBRD.  Those with more
residuals than unknowns are the gradients of the sums of their squares.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import many_variables as many, more_garbow_hillstrom as few
from .problem import indices, like


class System(NamedTuple):
    """A function of a vector that returns one of the same length, and a start."""

    name: str
    fun: Callable[[jax.Array], jax.Array]
    x0: np.ndarray


def stacked(fun: Callable) -> Callable:
    """The residuals that a function returns, as one vector."""
    return lambda x: jnp.concatenate([jnp.ravel(r) for r in fun(x)])


def chebyquad(x):
    y = 2 * x - 1
    before, now, means = jnp.ones_like(y), y, []
    for i in range(1, x.size + 1):
        means.append(jnp.mean(now) - (0 if i % 2 else -1 / (i * i - 1)))
        before, now = now, 2 * y * now - before
    return jnp.stack(means)


def brown_almost_linear(x):
    last = jnp.arange(x.size) == x.size - 1
    return jnp.where(last, jnp.prod(x) - 1, x + jnp.sum(x) - (x.size + 1))


def discrete_boundary(x):
    h = 1 / (x.size + 1)
    wide = jnp.pad(x, 1)
    bend = 2 * x - wide[:-2] - wide[2:]
    return bend + h**2 * (x + h * indices(x) + 1) ** 3 / 2


def discrete_integral(x):
    h = 1 / (x.size + 1)
    t = h * indices(x)
    cube = (x + t + 1) ** 3
    before = jnp.cumsum(t * cube)
    after = jnp.sum((1 - t) * cube) - jnp.cumsum((1 - t) * cube)
    return x + h * ((1 - t) * before + t * after) / 2


def trigonometric(x):
    cosine = jnp.cos(x)
    return x.size - jnp.sum(cosine) + indices(x) * (1 - cosine) - jnp.sin(x)


def broyden_tridiagonal(x):
    wide = jnp.pad(x, 1)
    return (3 - 2 * x) * x - wide[:-2] - 2 * wide[2:] + 1


def broyden_banded(x):
    band = jnp.convolve(x * (1 + x), like(x, [1, 0, 1, 1, 1, 1, 1]))[1:-5]
    return x * (2 + 5 * x**2) + 1 - band


def collect() -> list[System]:
    grid = many.grid
    rows = [
        ("Rosenbrock", stacked(few.rosenbrock), [-1.2, 1]),
        ("Powell singular", stacked(few.powell_singular), [3, -1, 0, 1]),
        ("Powell badly scaled", stacked(few.powell_badly_scaled), [0, 1]),
        ("Wood, gradient", jax.grad(few.total(few.wood)), [-3, -1, -3, -1]),
        ("helical valley", stacked(few.helical_valley), [-1, 0, 0]),
        ("Watson 6, gradient", jax.grad(few.total(few.watson)), [0] * 6),
        ("Watson 9, gradient", jax.grad(few.total(few.watson)), [0] * 9),
        *((f"Chebyquad {n}", chebyquad, grid(n)) for n in (5, 6, 7, 8, 9)),
        *(
            (f"Brown almost-linear {n}", brown_almost_linear, [0.5] * n)
            for n in (10, 30, 40)
        ),
        ("discrete boundary 10", discrete_boundary, grid(10) * (grid(10) - 1)),
        ("discrete integral 1", discrete_integral, grid(1) * (grid(1) - 1)),
        ("discrete integral 10", discrete_integral, grid(10) * (grid(10) - 1)),
        ("trigonometric 10", trigonometric, [0.1] * 10),
        (
            "variably dimensioned 10, gradient",
            jax.grad(many.variably_dimensioned),
            1 - np.arange(1, 11) / 10,
        ),
        ("Broyden tridiagonal 10", broyden_tridiagonal, [-1] * 10),
        ("Broyden banded 10", broyden_banded, [-1] * 10),
    ]
    return [System(name, fun, np.array(x0, float)) for name, fun, x0 in rows]
