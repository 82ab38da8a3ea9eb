"""Textbook functions, and quadratics of known condition number.

Jamil and Yang, 2013, A literature survey of benchmark functions for global
optimization problems, arXiv:1308.4008, with functions and minima; it names no starts,
so these are ours, and in the basin of a minimum that it names.  Dixon and Price, 1989,
Truncated Newton method for sparse unconstrained optimization, DOI 10.1007/BF00940342.
"""

import jax.numpy as jnp
import numpy as np

from .problem import Problem, indices, like, squares


def himmelblau(x):
    return squares(x[0] ** 2 + x[1] - 11, x[0] + x[1] ** 2 - 7)


def cube(x):
    return squares(10 * (x[1] - x[0] ** 3), 1 - x[0])


def six_hump_camel(x):
    a, b = x
    return (4 - 2.1 * a**2 + a**4 / 3) * a**2 + a * b + (4 * b**2 - 4) * b**2


def goldstein_price(x):
    a, b = x
    one = 19 - 14 * a + 3 * a**2 - 14 * b + 6 * a * b + 3 * b**2
    two = 18 - 32 * a + 12 * a**2 + 48 * b - 36 * a * b + 27 * b**2
    return (1 + (a + b + 1) ** 2 * one) * (30 + (2 * a - 3 * b) ** 2 * two)


def branin(x):
    valley = x[1] - 5.1 / (4 * np.pi**2) * x[0] ** 2 + 5 / np.pi * x[0] - 6
    return valley**2 + 10 * (1 - 1 / (8 * np.pi)) * jnp.cos(x[0]) + 10


def styblinski_tang(x):
    return jnp.sum(x**4 - 16 * x**2 + 5 * x) / 2


def zakharov(x):
    weighted = jnp.sum(0.5 * indices(x) * x)
    return squares(x, weighted, weighted**2)


def dixon_price(x):
    i = indices(x)[1:]
    return squares(x[0] - 1) + jnp.sum(i * (2 * x[1:] ** 2 - x[:-1]) ** 2)


def trid(x):
    return squares(x - 1) - jnp.sum(x[1:] * x[:-1])


def quadratic(condition):
    """x' D x / 2, with D logarithmically spaced from 1 to the condition number."""

    def fun(x):
        d = like(x, np.logspace(0, np.log10(condition), x.size))
        return 0.5 * jnp.sum(d * x**2)

    return fun


def hilbert(x):
    n = np.arange(1, x.size + 1)
    matrix = like(x, 1 / (n[:, None] + n[None] - 1))
    return 0.5 * jnp.dot(x, jnp.matmul(matrix, x))


SURVEY = "Jamil and Yang 2013, under its name; the start is ours"
CUBE = "Leon 1966, as CUBE in the collection CUTE; the start is ours"
OWN = "its formula, with a minimum of 0 at 0; the start is ours"
TRID_50 = -50 * 54 * 49 / 6
LOWEST_CAMEL = -1.031628453489877
LOWEST_TANG = -39.16616570377142

# Name, function, start, minimum, source.
TABLE = [
    ("himmelblau", himmelblau, [0, 0], 0, SURVEY),
    ("cube", cube, [-1.2, -1], 0, CUBE),
    ("six hump camel", six_hump_camel, [-1, 1], LOWEST_CAMEL, SURVEY),
    ("goldstein price", goldstein_price, [0.5, -0.5], 3, SURVEY),
    ("branin", branin, [2.5, 5], 0.39788735772973816, SURVEY),
    ("styblinski tang 100", styblinski_tang, [-1] * 100, 100 * LOWEST_TANG, SURVEY),
    ("zakharov 100", zakharov, [1] * 100, 0, SURVEY),
    ("dixon price 10", dixon_price, [1] * 10, 0, "Dixon and Price 1989"),
    ("dixon price 1000", dixon_price, [1] * 1000, 0, "Dixon and Price 1989"),
    ("trid 50", trid, [0] * 50, TRID_50, SURVEY),
    ("quadratic 1e3 100", quadratic(1e3), [1] * 100, 0, OWN),
    ("quadratic 1e6 1000", quadratic(1e6), [1] * 1000, 0, OWN),
    ("hilbert 10", hilbert, [1] * 10, 0, OWN),
]


def collect() -> list[Problem]:
    return [
        Problem(name, fun, np.array(start, float), minimum, source)
        for name, fun, start, minimum, source in TABLE
    ]
