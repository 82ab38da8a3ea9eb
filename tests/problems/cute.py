"""Large problems of CUTE, the collection that L-BFGS codes are compared on.

Bongartz, Conn, Gould and Toint, 1995, CUTE: constrained and unconstrained testing
environment, DOI 10.1145/200979.201043.  The formulas are those printed in Andrei,
2008, An unconstrained optimization test functions collection, Advanced Modeling and
Optimization 10(1); the minima are those of CUTE, with more digits than it prints.
"""

import jax.numpy as jnp
import numpy as np

from .many_variables import alternating
from .problem import Problem, indices, like, squares


def arwhead(x):
    head, last = x[:-1], x[-1]
    return jnp.sum((head**2 + last**2) ** 2 - 4 * head + 3)


def nondia(x):
    return squares(x[0] - 1) + 100 * squares(x[0] - x[:-1] ** 2)


def nondquar(x):
    middle = jnp.sum((x[:-2] + x[1:-1] + x[-1]) ** 4)
    return middle + squares(x[0] - x[1], x[-2] + x[-1])


def engval1(x):
    pairs = x[:-1] ** 2 + x[1:] ** 2
    return squares(pairs) + jnp.sum(3 - 4 * x[:-1])


def liarwhd(x):
    return 4 * squares(x**2 - x[0]) + squares(x - 1)


def tridia(x):
    i = indices(x)[1:]
    return squares(x[0] - 1) + jnp.sum(i * (2 * x[1:] - x[:-1]) ** 2)


def quartc(x):
    return jnp.sum((x - indices(x)) ** 4)


def dqdrtic(x):
    return squares(x[:-2]) + 100 * squares(x[1:-1], x[2:])


def edensch(x):
    a, b = x[:-1], x[1:]
    return 16 + jnp.sum((a - 2) ** 4 + (a * b - 2 * b) ** 2 + (b + 1) ** 2)


def cragglvy(x):
    a, b, c, d = x[:-3:2], x[1:-2:2], x[2:-1:2], x[3::2]
    first = (jnp.exp(a) - b) ** 4 + 100 * (b - c) ** 6
    return jnp.sum(first + (jnp.tan(c - d) + c - d) ** 4 + a**8 + (d - 1) ** 2)


def freuroth(x):
    a, b = x[:-1], x[1:]
    one = -13 + a + ((5 - b) * b - 2) * b
    return squares(one, -29 + a + ((b + 1) * b - 14) * b)


def bdqrtic(x):
    a, b, c, d = x[:-4], x[1:-3], x[2:-2], x[3:-1]
    far = a**2 + 2 * b**2 + 3 * c**2 + 4 * d**2 + 5 * x[-1] ** 2
    return squares(3 - 4 * a, far)


def power(x):
    return squares(indices(x) * x)


def genrose(x):
    return 1 + 100 * squares(x[1:] - x[:-1] ** 2) + squares(x[1:] - 1)


def cosine(x):
    return jnp.sum(jnp.cos(x[:-1] ** 2 - 0.5 * x[1:]))


def eg2(x):
    last = 0.5 * jnp.sin(x[-1] ** 2)
    return last + jnp.sum(jnp.sin(x[0] + x[:-1] ** 2 - 1))


def fletchcr(x):
    return 100 * squares(x[1:] - x[:-1] + 1 - x[:-1] ** 2)


def sinquad(x):
    middle = jnp.sin(x[1:-1] - x[-1]) - x[0] ** 2 + x[1:-1] ** 2
    return (x[0] - 1) ** 4 + squares(middle, x[-1] ** 2 - x[0] ** 2)


def dixon_3d(x):
    return squares(x[0] - 1, x[1:-1] - x[2:], x[-1] - 1)


def woods(x):
    a, b, c, d = x.reshape(-1, 4).T
    first = squares(10 * (b - a**2), 1 - a, 90**0.5 * (d - c**2), 1 - c)
    return first + squares(10**0.5 * (b + d - 2), (b - d) / 10**0.5)


def dixmaan(alpha, beta, gamma, delta, k1, k2, k3, k4):
    """Terms of x_i, of x_i x_{i+1}, of x_i x_{i+m} and of x_i x_{i+2m}; n = 3 m."""

    def fun(x):
        m = x.size // 3
        i = like(x, np.arange(1, x.size + 1) / x.size)
        a, b = x[:-1], x[1:]
        one = alpha * jnp.sum(i**k1 * x**2)
        two = beta * jnp.sum(i[:-1] ** k2 * a**2 * (b + b**2) ** 2)
        three = gamma * jnp.sum(i[: 2 * m] ** k3 * x[: 2 * m] ** 2 * x[m:] ** 4)
        return 1 + one + two + three + delta * jnp.sum(i[:m] ** k4 * x[:m] * x[2 * m :])

    return fun


# Section "DIXMAAN" of Andrei; Dixon and Maany, 1988, Hatfield technical report 206.
DIXMAAN = {
    "dixmaana": dixmaan(1, 0, 0.125, 0.125, 0, 0, 0, 0),
    "dixmaanb": dixmaan(1, 0.0625, 0.0625, 0.0625, 0, 0, 0, 1),
    "dixmaane": dixmaan(1, 0, 0.125, 0.125, 1, 0, 0, 1),
    "dixmaanf": dixmaan(1, 0.0625, 0.0625, 0.0625, 1, 0, 0, 1),
    "dixmaani": dixmaan(1, 0, 0.125, 0.125, 2, 0, 0, 2),
    "dixmaanl": dixmaan(1, 0.26, 0.26, 0.26, 2, 0, 0, 2),
}


def freuroth_start(n):
    return np.r_[0.5, -2.0, np.zeros(n - 2)]


def constant(number):
    return lambda n: np.full(n, float(number))


# Function, size, start, minimum.
TABLE = [
    (arwhead, 5000, constant(1), 0),
    (nondia, 5000, constant(-1), 0),
    (nondquar, 100, lambda n: alternating(n, 1, -1), 0),
    (engval1, 5000, constant(2), 5548.668419),
    (liarwhd, 10_000, constant(4), 0),
    (tridia, 1000, constant(1), 0),
    (quartc, 1000, constant(2), 0),
    (dqdrtic, 5000, constant(3), 0),
    (edensch, 2000, constant(8), 12003.284592),
    (cragglvy, 5000, lambda n: np.r_[1.0, np.full(n - 1, 2.0)], 1688.215306),
    (freuroth, 1000, freuroth_start, 121469.71011),
    (bdqrtic, 1000, constant(1), 3983.818),
    (power, 100, constant(1), 0),
    (genrose, 500, lambda n: np.arange(1.0, n + 1) / (n + 1), 1),
    (cosine, 1000, constant(1), -999),
    (eg2, 1000, constant(0), -998.947393),
    (fletchcr, 100, constant(0), 0),
    (sinquad, 5, constant(0.1), 0),
    (dixon_3d, 100, constant(-1), 0),
    (woods, 10_000, lambda n: alternating(n, -3, -1, -3, -1), 0),
]


def collect() -> list[Problem]:
    paper = "Bongartz, Conn, Gould and Toint 1995, {}"
    found = [
        Problem(f"{f.__name__.replace('_', '-')} {n}", f, start(n), minimum, paper)
        for f, n, start, minimum in TABLE
    ]
    found += [
        Problem(f"{name} 3000", f, np.full(3000, 2.0), 1, paper)
        for name, f in DIXMAAN.items()
    ]
    named = lambda p: p.source.format(p.name.split()[0].upper())
    return [p._replace(source=named(p)) for p in found]
