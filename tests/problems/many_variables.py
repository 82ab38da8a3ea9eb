"""The problems of Moré, Garbow and Hillstrom for any number of variables, 21 to 35.

Moré, Garbow and Hillstrom, 1981, Testing unconstrained optimization software,
DOI 10.1145/355934.355936: each is a sum of squares of residuals f_i; starts and minima
are those of section 3, the latter with more digits where it prints six.  Liu and
Nocedal, 1989, DOI 10.1007/BF01589116, run these problems in sizes such as ours.
"""

import jax.numpy as jnp
import numpy as np

from .problem import Problem, indices, like, squares


def rosenbrock(x):
    odd, even = x[::2], x[1::2]
    return squares(10 * (even - odd**2), 1 - odd)


def powell_singular(x):
    a, b, c, d = x.reshape(-1, 4).T
    first = squares(a + 10 * b, 5**0.5 * (c - d))
    return first + squares((b - 2 * c) ** 2, 10**0.5 * (a - d) ** 2)


def penalty_1(x):
    return 1e-5 * squares(x - 1) + squares(squares(x) - 0.25)


def penalty_2(x):
    n = x.size
    i = np.arange(2, n + 1)
    y = like(x, np.exp(i / 10) + np.exp((i - 1) / 10))
    e = jnp.exp(x / 10)
    steps = squares(e[1:] + e[:-1] - y, e[1:] - like(x, np.exp(-0.1)))
    weighted = jnp.sum((n + 1 - indices(x)) * x**2) - 1
    return squares(x[0] - 0.2) + 1e-5 * steps + squares(weighted)


def variably_dimensioned(x):
    weighted = jnp.sum(indices(x) * (x - 1))
    return squares(x - 1, weighted, weighted**2)


def trigonometric(x):
    cosine = jnp.cos(x)
    rest = x.size - jnp.sum(cosine)
    return squares(rest + indices(x) * (1 - cosine) - jnp.sin(x))


def brown_almost_linear(x):
    return squares((x + jnp.sum(x) - (x.size + 1))[:-1], jnp.prod(x) - 1)


def discrete_boundary(x):
    h = 1 / (x.size + 1)
    wide = jnp.pad(x, 1)
    bend = 2 * x - wide[:-2] - wide[2:]
    return squares(bend + h**2 * (x + h * indices(x) + 1) ** 3 / 2)


def discrete_integral(x):
    h = 1 / (x.size + 1)
    t = h * indices(x)
    cube = (x + t + 1) ** 3
    before = jnp.cumsum(t * cube)
    after = jnp.sum((1 - t) * cube) - jnp.cumsum((1 - t) * cube)
    return squares(x + h * ((1 - t) * before + t * after) / 2)


def broyden_tridiagonal(x):
    wide = jnp.pad(x, 1)
    return squares((3 - 2 * x) * x - wide[:-2] - 2 * wide[2:] + 1)


def broyden_banded(x):
    # Neighbours from five before to one after, without the variable itself.
    band = jnp.convolve(x * (1 + x), like(x, [1, 0, 1, 1, 1, 1, 1]))[1:-5]
    return squares(x * (2 + 5 * x**2) + 1 - band)


def linear(x):
    """Of full rank, with m = 2 n."""
    mean = jnp.sum(x) / x.size  # 2 / m of the sum
    return squares(x - mean - 1) + x.size * squares(mean + 1)


def linear_rank_1(x):
    """With m = 2 n."""
    i = like(x, np.arange(1, 2 * x.size + 1))
    return squares(i * jnp.sum(indices(x) * x) - 1)


def linear_rank_1_zeros(x):
    """With zero columns and rows, and m = 2 n."""
    i = like(x, np.arange(1, 2 * x.size - 1))
    return squares(i * jnp.sum((indices(x) * x)[1:-1]) - 1) + 2


def chebyquad(x):
    """By T_i(y) = cos(i arccos y), continued by the recurrence outside [-1, 1]."""
    y = 2 * x - 1
    before, now, sums = jnp.ones_like(y), y, []
    for i in range(1, x.size + 1):
        integral = 0 if i % 2 else -1 / (i * i - 1)
        sums.append(jnp.mean(now) - integral)
        before, now = now, 2 * y * now - before
    return squares(jnp.stack(sums))


def alternating(n, *numbers):
    return np.tile(np.array(numbers, float), n // len(numbers))


# Number, function, sizes with minima, start of n variables.
TABLE = [
    (21, rosenbrock, {100: 0, 10_000: 0}, lambda n: alternating(n, -1.2, 1)),
    (22, powell_singular, {100: 0, 10_000: 0}, lambda n: alternating(n, 3, -1, 0, 1)),
    (
        23,
        penalty_1,
        {4: 2.24997750e-5, 10: 7.08765e-5, 1000: 9.68617543e-3},
        lambda n: np.arange(1.0, n + 1),
    ),
    (24, penalty_2, {4: 9.37629e-6, 10: 2.93660e-4}, lambda n: np.full(n, 0.5)),
    (
        25,
        variably_dimensioned,
        {10: 0, 100: 0},
        lambda n: 1 - np.arange(1.0, n + 1) / n,
    ),
    (26, trigonometric, {10: 0, 1000: 0}, lambda n: np.full(n, 1 / n)),
    (27, brown_almost_linear, {10: 0, 100: 0}, lambda n: np.full(n, 0.5)),
    (28, discrete_boundary, {10: 0}, lambda n: grid(n) * (grid(n) - 1)),
    (29, discrete_integral, {10: 0, 1000: 0}, lambda n: grid(n) * (grid(n) - 1)),
    (30, broyden_tridiagonal, {10: 0, 10_000: 0}, lambda n: -np.ones(n)),
    (31, broyden_banded, {10: 0, 10_000: 0}, lambda n: -np.ones(n)),
    (32, linear, {100: 100}, np.ones),
    (33, linear_rank_1, {10: 20 * 19 / (2 * 41)}, np.ones),
    (34, linear_rank_1_zeros, {10: (400 + 60 - 6) / (2 * 37)}, np.ones),
    (
        35,
        chebyquad,
        {7: 0, 8: 3.51687372568e-3, 10: 6.50395480088e-3},
        lambda n: grid(n),
    ),
]


def grid(n):
    return np.arange(1.0, n + 1) / (n + 1)


def collect() -> list[Problem]:
    found = []
    for number, fun, sizes, start in TABLE:
        for n, minimum in sizes.items():
            name = f"{fun.__name__.replace('_', ' ')} {n}"
            source = f"Moré, Garbow and Hillstrom 1981, problem {number}"
            found.append(Problem(name, fun, start(n), minimum, source))
    return found
