"""More of CUTE: small, badly scaled problems, and large coupled ones.

Bongartz, Conn, Gould and Toint, 1995, CUTE: constrained and unconstrained testing
environment, DOI 10.1145/200979.201043.
"""

import jax.numpy as jnp
import numpy as np

from .cute import dixmaan
from .problem import Problem, indices, like, squares


def schmvett(x):
    a, b, c = x[:-2], x[1:-1], x[2:]
    hill = 1 / (1 + (a - b) ** 2) + jnp.sin((np.pi * b + c) / 2)
    return -jnp.sum(hill + jnp.exp(-(((a + c) / b - 2) ** 2)))


def tointgss(x):
    a, b, c = x[:-2], x[1:-1], x[2:]
    bell = jnp.exp(-((a - b) ** 2) / (0.1 + c**2))
    return jnp.sum((10 / x.size + c**2) * (2 - bell))


def scattered(x, f):
    """Half of sum i (f(x_i) + f(x_j) + ...)^2 with j = (k i - 1) mod n + 1."""
    n, i = x.size, np.arange(1, x.size + 1)
    at = [(k * i - 1) % n for k in (1, 2, 3, 5, 7, 11)]
    return indices(x), sum(f(x[j]) for j in at)


def sparsine(x):
    i, total = scattered(x, jnp.sin)
    return jnp.sum(i * total**2) / 2


def sparsqur(x):
    i, total = scattered(x, jnp.square)
    return jnp.sum(i * total**2) / 8


def extrosnb(x):
    return squares(x[0] + 1) + 100 * squares(x[1:] - x[:-1] ** 2)


def eigenvalues(matrix):
    """Q and D with Q D Q' = A and Q Q' = I."""

    def fun(x):
        n = len(matrix)
        d, q = x[:n], x[n:].reshape(n, n)
        one = jnp.matmul(q * d[None], q.T) - like(x, matrix)
        return squares(one, jnp.matmul(q, q.T) - jnp.eye(n, dtype=x.dtype))

    n = len(matrix)
    return fun, np.r_[np.ones(n), np.eye(n).ravel()]


def matrix_root(n):
    """B with B B = A, for A that has a root of alternating entries."""
    root = np.sin(np.arange(1, n * n + 1) ** 2.0).reshape(n, n)
    square = root @ root

    def fun(x):
        b = x.reshape(n, n)
        return squares(jnp.matmul(b, b) - like(x, square))

    return fun, (
        root - 0.8 * np.sin(np.arange(1, n * n + 1) ** 2.0).reshape(n, n)
    ).ravel()


def minimal_surface(side):
    """The area of a surface whose boundary is a saddle."""
    t = np.linspace(0, 1, side)
    edge = 1 + 8 * t[:, None] + 4 * (1 - t[None])
    inner = np.zeros((side, side), bool)
    inner[1:-1, 1:-1] = True

    def fun(x):
        z = like(x, edge).at[1:-1, 1:-1].set(x.reshape(side - 2, side - 2))
        one, two = z[1:, 1:] - z[:-1, :-1], z[1:, :-1] - z[:-1, 1:]
        wide = (side - 1) ** 2
        return jnp.sum(jnp.sqrt(1 + 0.5 * wide * (one**2 + two**2))) / wide

    return fun, np.zeros((side - 2) ** 2)


def sisser(x):
    a, b = x
    return 3 * a**4 - 2 * (a * b) ** 2 + 3 * b**4


def brkmcc(x):
    a, b = x
    circle = a**2 / 4 + b**2
    line = a - 2 * b + 1
    return squares(a - 2, b - 1) + 0.04 / (1 - circle) + 5 * line**2


def zangwil2(x):
    a, b = x
    return (16 * a**2 + 16 * b**2 - 8 * a * b - 56 * a - 256 * b + 991) / 15


def himmelbg(x):
    a, b = x
    return jnp.exp(-a - b) * (2 * a**2 + 3 * b**2)


def engval2(x):
    a, b, c = x
    one, two = a**2 + b**2 + c**2 - 1, a**2 + b**2 + (c - 2) ** 2 - 1
    four = a**3 + 3 * b**2 + (5 * c - a + 1) ** 2 - 36
    # The third power of the first variable, as CUTE has it.
    return squares(one, two, a + b + c - 1, a + b - c + 1, four)


def denschnd(x):
    a, b, c = x
    one, two = a**2 + b**3 - c**4, 2 * a * b * c
    return squares(one, two, 2 * a * b - 3 * b * c + a * c)


def hairy(x):
    a, b = x
    hair = jnp.sin(7 * a) ** 2 * jnp.cos(7 * b) ** 2
    cup = jnp.sqrt(0.01 + (a - b) ** 2) + jnp.sqrt(0.01 + a**2)
    return 30 * hair + 100 * cup


def heart6(x):
    # Data of CUTE's HEART6LS.
    mux, muy, a_, b_, c_, d_ = -0.816, -0.017, -1.826, -0.754, -4.839, -3.259
    e_, f_ = -14.023, 15.467
    a, c, t, u, v, w = x
    b, d = mux - a, muy - c
    return squares(
        t * a + u * b - v * c - w * d - a_,
        v * a + w * b + t * c + u * d - b_,
        a * (t**2 - v**2) - 2 * c * t * v + b * (u**2 - w**2) - 2 * d * u * w - c_,
        c * (t**2 - v**2) + 2 * a * t * v + d * (u**2 - w**2) + 2 * b * u * w - d_,
        a * t * (t**2 - 3 * v**2)
        + c * v * (v**2 - 3 * t**2)
        + b * u * (u**2 - 3 * w**2)
        + d * w * (w**2 - 3 * u**2)
        - e_,
        c * t * (t**2 - 3 * v**2)
        - a * v * (v**2 - 3 * t**2)
        + d * u * (u**2 - 3 * w**2)
        - b * w * (w**2 - 3 * u**2)
        - f_,
    )


def polynomial(degree, decades):
    """Least squares of a power series, in the form of CUTE's PALMER problems."""
    t = np.linspace(-1, 1, 40)
    y = np.exp(-2 * t) * np.cos(3 * t) * 10**decades
    powers = (2 * t)[:, None] ** np.arange(degree)

    def fun(x):
        return squares(jnp.matmul(like(x, powers), x) - like(x, y))

    return fun, np.ones(degree)


def growth(x):
    """Fitted growth of a logistic curve, badly scaled: K, r, and a start."""
    t = np.arange(0.0, 12.0)
    y = 5000 / (1 + 40 * np.exp(-0.6 * t)) + 20 * np.cos(5 * t)
    return squares(x[0] / (1 + x[1] * jnp.exp(-x[2] * like(x, t))) - like(x, y)) / 12


def michaelis(x):
    """Enzyme kinetics in molar units: a rate of 1e-6 and a constant of 1e-4."""
    s = np.logspace(-5, -3, 15)
    v = 2e-6 * s / (3e-4 + s) * (1 + 0.03 * np.cos(7 * np.arange(15)))
    return squares((x[0] * like(x, s) / (x[1] + like(x, s)) - like(x, v)) / like(x, v))


def thurber(x):
    """A ratio of cubics, as NIST's Thurber has it."""
    t = np.linspace(-3, 2, 37)
    p, q = [1288.0, 1491, 583, 75], [0.97, 0.4, 0.05]
    top, low = np.polyval(p[::-1], t), 1 + t * np.polyval(q[::-1], t)
    y = top / low + 3 * np.cos(9 * t)
    s = like(x, t)
    top = x[0] + s * (x[1] + s * (x[2] + s * x[3]))
    low = 1 + s * (x[4] + s * (x[5] + s * x[6]))
    return squares(top / low - like(x, y))


def curly(width):
    def fun(x):
        n = x.size
        total = jnp.cumsum(jnp.pad(x, (1, 0)))
        ends = np.minimum(np.arange(n) + width + 1, n)
        q = total[ends] - total[:-1]
        return jnp.sum(q * (q * (q**2 - 20) - 0.1))

    return fun


THURBER = 161.8906743610532


def second_difference(n):
    return 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)


def ramp(n):
    return np.arange(1.0, n + 1) / (n + 1)


def constant(number):
    return lambda n: np.full(n, float(number))


# Name, function, size, start, minimum.
TABLE = [
    ("schmvett", schmvett, 1000, constant(0.5), -2994),
    ("tointgss", tointgss, 1000, constant(3), 9.98),
    ("sparsine", sparsine, 50, constant(0.5), 0),
    ("sparsqur", sparsqur, 1000, constant(0.5), 0),
    ("extrosnb", extrosnb, 10, constant(-1.2), 0),
    ("dixmaanh", dixmaan(1, 0.26, 0.26, 0.26, 1, 0, 0, 1), 1500, constant(2), 1),
    ("dixmaanj", dixmaan(1, 0.0625, 0.0625, 0.0625, 2, 0, 0, 2), 1500, constant(2), 1),
    ("sisser", sisser, 2, lambda n: [1.0, 0.1], 0),
    ("brkmcc", brkmcc, 2, lambda n: [2.0, 2.0], 0.1690426791964503),
    ("zangwil2", zangwil2, 2, lambda n: [3.0, 8.0], -18.2),
    ("himmelbg", himmelbg, 2, lambda n: [0.5, 0.5], 0),
    ("engval2", engval2, 3, lambda n: [1.0, 2.0, 0.0], 0),
    ("denschnd", denschnd, 3, constant(10), 0),
    ("hairy", hairy, 2, lambda n: [-5.0, -7.0], 20),
    ("heart6", heart6, 6, lambda n: [0.0, 0, 1, 1, 1, 1], 0),
    ("curly 5", curly(5), 100, lambda n: 1e-4 * ramp(n), -10031.6290241331),
]
# Name, what makes the function and its start, minimum.
MADE = [
    ("eigenvalues, diagonal", lambda: eigenvalues(np.diag(np.arange(1.0, 11))), 0),
    ("eigenvalues, tridiagonal", lambda: eigenvalues(second_difference(10)), 0),
    ("matrix root", lambda: matrix_root(30), 0),
    ("minimal surface", lambda: minimal_surface(32), 9),
]
# The same, of a form that CUTE has, with data of our own; the minimum is the lowest
# value that SciPy's methods and ours find in float64, or that of least squares.
OURS = [
    ("growth", lambda: (growth, [3000.0, 20, 0.4]), 184.5373423473339),
    ("michaelis", lambda: (michaelis, [1e-6, 1e-4]), 0.006597453090353219),
    ("thurber", lambda: (thurber, [1000, 1000, 400, 40, 0.7, 0.3, 0.03]), THURBER),
    ("polynomial", lambda: polynomial(6, 0), 0.1294275113258),
    ("polynomial, large", lambda: polynomial(8, 3), 70.5326329067701),
]


def collect() -> list[Problem]:
    paper = "Bongartz, Conn, Gould and Toint 1995, {}"
    rows = [(name, (f, start(n)), m, paper) for name, f, n, start, m in TABLE]
    rows += [(name, make(), m, paper) for name, make, m in MADE]
    rows += [
        (name, make(), m, "as in CUTE, {}, with other data") for name, make, m in OURS
    ]
    found = []
    for name, (f, x0), minimum, source in rows:
        x0 = np.asarray(x0, float)
        where = source.format(name.split(",")[0].upper())
        found.append(Problem(f"{name} {x0.size}", f, x0, float(minimum), where))
    return found
