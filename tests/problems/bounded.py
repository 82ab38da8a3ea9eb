"""Problems with bounds.

Hock and Schittkowski, 1981, Test Examples for Nonlinear Programming Codes (DOI
10.1007/978-3-642-48320-2); Byrd, Lu, Nocedal and Zhu, 1995 (DOI 10.1137/0916069), whose
code comes with the chained problem of 25 variables; Moré and Toraldo, 1989, Algorithms
for bound constrained quadratic programming problems (DOI 10.1007/BF01396045); Averick,
Carter, Moré and Xue, 1992, The MINPACK-2 test problem collection; CUTE, Bongartz, Conn,
Gould and Toint, 1995 (DOI 10.1145/200979.201043).

Two published starts, of problems 2 and 45 of Hock and Schittkowski, are outside of the
bounds, and are moved to the nearest point within them before a run.
"""

import jax.numpy as jnp
import numpy as np

from .problem import Problem, like, squares


HS = "Hock and Schittkowski, 1981, problem {}"
CUTE = "CUTE, DOI 10.1145/200979.201043, {}"
FOUND = "; the minimum is the lowest value of SciPy's L-BFGS-B, with gtol of 1e-13"


def rosenbrock(x):
    return squares(10 * (x[1] - x[0] ** 2), 1 - x[0])


def hs3(x):
    return x[1] + 1e-5 * (x[1] - x[0]) ** 2


def hs4(x):
    return (x[0] + 1) ** 3 / 3 + x[1]


def mccormick(x):
    a, b = x[:-1], x[1:]
    return jnp.sum(jnp.sin(a + b) + (a - b) ** 2 - 1.5 * a + 2.5 * b + 1)


def wood(x):
    a, b, c, d = x
    hills = 100 * (b - a**2) ** 2 + (1 - a) ** 2 + 90 * (d - c**2) ** 2 + (1 - c) ** 2
    return hills + 10.1 * ((b - 1) ** 2 + (d - 1) ** 2) + 19.8 * (b - 1) * (d - 1)


def hs45(x):
    return 2 - jnp.prod(x) / 120


def hs110(x):
    logarithms = squares(jnp.log(x - 2), jnp.log(10 - x))
    return logarithms - jnp.prod(x) ** 0.2


def chained(x):
    return (x[0] - 1) ** 2 + 4 * squares(x[1:] - x[:-1] ** 2)


def hatfld_roots(x):
    return squares(x[0] - 1, x[:-1] - jnp.sqrt(x[1:]))


def hatfld_squares(x):
    return squares(x[0] - 1, x[2:] - x[1:-1] ** 2, x[-1] - 1)


def pspdoc(x):
    arm = lambda a, b, c: jnp.sqrt(1 + a**2 + (b - c) ** 2)
    return arm(x[0], x[1], x[2]) + arm(x[1], x[2], x[3])


def membrane(force):
    """The energy of an elastic membrane over the unit square, held at its boundary.

    (1/2) ∫ |∇v|² - force ∫ v   for v at the inner points of a grid, by linear elements
    """

    def energy(x):
        side = round(x.size**0.5)
        v = jnp.pad(x.reshape(side, side), 1)
        # The h² of the area and the 1 / h² of the squared slopes cancel.
        bent = (squares(v[1:] - v[:-1]) + squares(v[:, 1:] - v[:, :-1])) / 2
        return bent - force / (side + 1) ** 2 * jnp.sum(v)

    return energy


def grid(side):
    """The coordinates of the inner points of a grid, of shape (side, side) each."""
    inner = np.arange(1, side + 1) / (side + 1)
    return np.meshgrid(inner, inner, indexing="ij")


def torsion(side, force=5.0):
    """The stress in an elastic-plastic bar under torsion."""
    a, b = grid(side)
    room = np.minimum(np.minimum(a, 1 - a), np.minimum(b, 1 - b)).ravel()
    return membrane(force), room, -room, room


def obstacle(side, force=1.0):
    """An elastic membrane over an obstacle."""
    a, b = grid(side)
    hill = ((np.sin(3.2 * a) * np.sin(3.3 * b)) ** 3).ravel()
    return membrane(force), np.maximum(hill, 1.0), hill, np.full(hill.size, 2000.0)


def more_toraldo(n=60, digits=3.0, degeneracy=3.0):
    """A strictly convex quadratic with a known minimum, a third of it at bounds.

    A = M D M with a reflection M and eigenvalues from 1 to 10^digits; the multipliers
    of the bounds are from 10^-degeneracy to 1.
    """
    random = np.random.RandomState(0)
    y = random.uniform(-1, 1, n)
    y = y / np.linalg.norm(y)
    eigenvalues = 10 ** (digits * np.arange(n) / (n - 1))
    best = random.uniform(-1, 1, n)
    multiplier = 10 ** (-degeneracy * random.uniform(0, 1, n))
    at_lower, at_upper = np.arange(n) % 6 == 0, np.arange(n) % 6 == 3
    slope = np.where(at_lower, multiplier, np.where(at_upper, -multiplier, 0))

    def times(x, y, eigenvalues):
        turn = lambda x: x - 2 * (y @ x) * y
        return turn(eigenvalues * turn(x))

    b = times(best, y, eigenvalues) - slope

    def quadratic(x):
        Ax = times(x, like(x, y), like(x, eigenvalues))
        return x @ Ax / 2 - like(x, b) @ x

    minimum = best @ times(best, y, eigenvalues) / 2 - b @ best
    lower, upper = np.where(at_lower, best, -1.0), np.where(at_upper, best, 1.0)
    return quadratic, (lower + upper) / 2, minimum, lower, upper


def bounded(name, fun, x0, minimum, source, lower, upper):
    """A problem; a bound may be a scalar."""
    x0 = np.asarray(x0, float)
    lower, upper = (np.broadcast_to(b, x0.shape).astype(float) for b in (lower, upper))
    return Problem(name, fun, x0, minimum, source, lower, upper)


def collect():
    quadratic, middle, lowest, low, high = more_toraldo()
    inf, ones, i = np.inf, np.ones, np.arange(1, 26)
    bar, room, less, more = torsion(9)
    sheet, above, hill, sky = obstacle(9)
    return [
        bounded("hs1", rosenbrock, [-2, 1], 0.0, HS.format(1), [-inf, -1.5], inf),
        bounded(
            "hs2", rosenbrock, [-2, 1], 0.0504261879, HS.format(2), [-inf, 1.5], inf
        ),
        bounded("hs3", hs3, [10, 1], 0.0, HS.format(3), [-inf, 0], inf),
        bounded("hs4", hs4, [1.125, 0.125], 8 / 3, HS.format(4), [1, 0], inf),
        bounded(
            "hs5",
            mccormick,
            [0, 0],
            -np.sqrt(3) / 2 - np.pi / 3,
            HS.format(5),
            [-1.5, -3],
            [4, 3],
        ),
        bounded("hs38", wood, [-3, -1, -3, -1], 0.0, HS.format(38), -10, 10),
        bounded("hs45", hs45, 2 * ones(5), 1.0, HS.format(45), 0, i[:5]),
        bounded(
            "hs110", hs110, 9 * ones(10), -45.77846971, HS.format(110), 2.001, 9.999
        ),
        bounded(
            "chained rosenbrock 25",
            chained,
            3 * ones(25),
            0.0,
            "the first driver of L-BFGS-B, DOI 10.1137/0916069",
            np.where(i % 2 == 1, 1, -100),
            100,
        ),
        bounded(
            "hatflda",
            hatfld_roots,
            0.1 * ones(4),
            0.0,
            CUTE.format("HATFLDA"),
            1e-7,
            inf,
        ),
        bounded(
            "hatfldb",
            hatfld_roots,
            0.1 * ones(4),
            0.00557280900,
            CUTE.format("HATFLDB"),
            1e-7,
            [inf, 0.8, inf, inf],
        ),
        bounded(
            "hatfldc 25",
            hatfld_squares,
            0.9 * ones(25),
            0.0,
            CUTE.format("HATFLDC"),
            [0] * 24 + [-inf],
            [10] * 24 + [inf],
        ),
        bounded(
            "pspdoc",
            pspdoc,
            3 * ones(4),
            1 + np.sqrt(2),
            CUTE.format("PSPDOC"),
            -inf,
            [-1, inf, inf, inf],
        ),
        bounded(
            "mccormick 50",
            mccormick,
            np.zeros(50),
            -46.466191836089,
            CUTE.format("MCCORMCK") + FOUND,
            [-1.5] * 49 + [-3],
            [4] * 49 + [3],
        ),
        bounded(
            "more-toraldo 60",
            quadratic,
            middle,
            lowest,
            "Moré and Toraldo, 1989, section 5, DOI 10.1007/BF01396045",
            low,
            high,
        ),
        bounded(
            "torsion 81",
            bar,
            room,
            -0.40821716589862,
            "MINPACK-2, 4.1" + FOUND,
            less,
            more,
        ),
        bounded(
            "obstacle 81",
            sheet,
            above,
            1.1624410386222,
            CUTE.format("OBSTCLAE") + FOUND,
            hill,
            sky,
        ),
    ]
