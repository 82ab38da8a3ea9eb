"""Functions of Andrei's collection that are not in CUTE's part of this one.

Andrei, 2008, An unconstrained optimization test functions collection, Advanced Modeling
and Optimization 10(1), 147-161, which prints the functions and their starts.  Minima
that are not 0 are sums over the minima of single terms, or the lowest value that
SciPy's methods find in float64, with a gradient below 1e-9 of it.
"""

import jax.numpy as jnp
import numpy as np

from .many_variables import alternating
from .problem import Problem, indices, squares


def white_holst(x):
    odd, even = x[::2], x[1::2]
    return squares(10 * (even - odd**3), 1 - odd)


def extended_beale(x):
    a, b = x[::2], x[1::2]
    powers = [a * (1 - b**k) for k in (1, 2, 3)]
    return squares(1.5 - powers[0], 2.25 - powers[1], 2.625 - powers[2])


def perturbed_quadratic(x):
    return jnp.sum(indices(x) * x**2) + jnp.sum(x) ** 2 / 100


def almost_perturbed_quadratic(x):
    return jnp.sum(indices(x) * x**2) + (x[0] + x[-1]) ** 2 / 100


def quadratic_diagonal_perturbed(x):
    return jnp.sum(x) ** 2 + jnp.sum(indices(x) * x**2) / 100


def raydan_1(x):
    return jnp.sum(indices(x) / 10 * (jnp.exp(x) - x))


def diagonal_1(x):
    return jnp.sum(jnp.exp(x) - indices(x) * x)


def diagonal_2(x):
    return jnp.sum(jnp.exp(x) - x / indices(x))


def diagonal_3(x):
    return jnp.sum(jnp.exp(x) - indices(x) * jnp.sin(x))


def hager(x):
    return jnp.sum(jnp.exp(x) - jnp.sqrt(indices(x)) * x)


def generalized_tridiagonal_1(x):
    a, b = x[:-1], x[1:]
    return squares(a + b - 3) + jnp.sum((a - b + 1) ** 4)


def extended_tridiagonal_1(x):
    a, b = x[::2], x[1::2]
    return squares(a + b - 3) + jnp.sum((a - b + 1) ** 4)


def three_exponentials(x):
    a, b = x[::2], x[1::2]
    up, down = jnp.exp(a + 3 * b - 0.1), jnp.exp(a - 3 * b - 0.1)
    return jnp.sum(up + down + jnp.exp(-a - 0.1))


def extended_himmelblau(x):
    a, b = x[::2], x[1::2]
    return squares(a**2 + b - 11, a + b**2 - 7)


def block_diagonal_1(x):
    a, b = x[::2], x[1::2]
    return squares(a**2 + b**2 - 2, jnp.exp(a - 1) - b)


def maratos(x):
    a, b = x[::2], x[1::2]
    return jnp.sum(a) + 100 * squares(a**2 + b**2 - 1)


def cliff(x):
    a, b = x[::2], x[1::2]
    return jnp.sum(((a - 3) / 100) ** 2 - (a - b) + jnp.exp(20 * (a - b)))


def quadratic_penalty_1(x):
    head = x[:-1] ** 2
    return squares(head - 2) + (jnp.sum(x**2) - 0.5) ** 2


def quadratic_penalty_2(x):
    head = x[:-1]
    return squares(head**2 - jnp.sin(head)) + (jnp.sum(x**2) - 100) ** 2


def biggsb1(x):
    return squares(x[0] - 1, x[1:] - x[:-1], 1 - x[-1])


def nonscomp(x):
    return squares(x[0] - 1) + 4 * squares(x[1:] - x[:-1] ** 2)


def denschnb(x):
    a, b = x[::2], x[1::2]
    return squares(a - 2, (a - 2) * b, b + 1)


def denschnf(x):
    a, b = x[::2], x[1::2]
    one = 2 * (a + b) ** 2 + (a - b) ** 2 - 8
    return squares(one, 5 * a**2 + (b - 3) ** 2 - 9)


def generalized_quartic(x):
    a, b = x[:-1], x[1:]
    return squares(a, b + a**2)


def tquartic(x):
    return squares(x[0] - 1, x[0] ** 2 - x[1:] ** 2)


def psc1(x):
    a, b = x[::2], x[1::2]
    return squares(a**2 + b**2 + a * b, jnp.sin(a), jnp.cos(b))


def constant(number):
    return lambda n: np.full(n, float(number))


def pairs(*numbers):
    return lambda n: alternating(n, *numbers)


# Function, size, start, minimum.
TABLE = [
    (white_holst, 1000, pairs(-1.2, 1), 0),
    (extended_beale, 1000, pairs(1, 0.8), 0),
    (perturbed_quadratic, 1000, constant(0.5), 0),
    (almost_perturbed_quadratic, 1500, constant(0.5), 0),
    (quadratic_diagonal_perturbed, 200, constant(0.5), 0),
    (raydan_1, 100, constant(1), 100 * 101 / 20),
    (diagonal_1, 50, lambda n: np.full(n, 1 / n), -3088.404088870563),
    (diagonal_2, 1000, lambda n: 1 / np.arange(1.0, n + 1), 31.27464989754605),
    (diagonal_3, 100, constant(1), -4605.795020599644),
    (hager, 1000, constant(1), -44744.19132154461),
    (generalized_tridiagonal_1, 1000, constant(2), 997.2103074859908),
    (extended_tridiagonal_1, 1000, constant(2), 0),
    (three_exponentials, 1000, constant(0.1), 1279.633348329107),
    (extended_himmelblau, 1500, constant(1), 0),
    (block_diagonal_1, 1000, constant(0.1), 0),
    (maratos, 100, pairs(1.1, 0.1), -50.03121103483706),
    (cliff, 100, pairs(0, -1), 9.989330683884972),
    (quadratic_penalty_1, 100, constant(1), 390.0625),
    (quadratic_penalty_2, 100, constant(1), 0),
    (biggsb1, 200, constant(0), 0),
    (nonscomp, 1000, constant(3), 0),
    (denschnb, 1000, constant(1), 0),
    (denschnf, 1500, pairs(2, 0), 0),
    (generalized_quartic, 1000, constant(1), 0),
    (tquartic, 1000, constant(0.1), 0),
    (psc1, 1000, pairs(3, 0.1), 386.5995282481656),
]


def collect() -> list[Problem]:
    source = "Andrei 2008, under its name"
    return [
        Problem(f"{f.__name__.replace('_', ' ')} {n}", f, start(n), minimum, source)
        for f, n, start, minimum in TABLE
    ]
