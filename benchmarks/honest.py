"""How often does `minimize` report a success that a restart improves?

Run it with `python -m benchmarks.honest`; it takes three minutes.  2,940 runs: 14
functions, starts at distances of 1 to 1e6, offsets of the value of 0, 1e6 and 1e10,
float64 and float32.  Each success is continued from there by the same method with fresh
curvature, for at most 20 evaluations.  A fall of the value by more than

    tol max(1, |f|)  without an offset,   64 eps |f|  with one,

where tol is 1.5e-8 in float64 and 9.5e-7 in float32, shows that it was no success.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import stepax


OFFSETS = 0.0, 1e6, 1e10
EVALUATIONS = 20
_RANDOM = np.random.RandomState(0)
_X = _RANDOM.randn(30, 3)
_B = _X @ [1.0, -2.0, 0.5] + 0.3 * _RANDOM.standard_t(2, 30)
_COUNTS = _RANDOM.poisson(np.exp(_X @ [0.5, -0.3, 0.2]))


class Row(NamedTuple):
    """Runs of a function in a dtype that succeed, and those that a restart improves."""

    name: str
    dtype: str
    runs: int
    successes: int
    wrong: int
    evaluations: int
    worst: float


def of_data(loss):
    return lambda p: loss(jnp.asarray(_X, p.dtype) @ p)


FUNCTIONS: dict[str, tuple[Callable, int]] = {
    "rosenbrock": (
        lambda p: jnp.sum(100 * (p[1:] - p[:-1] ** 2) ** 2 + (1 - p[:-1]) ** 2), 2
    ),
    "exp of a square": (lambda p: jnp.exp(jnp.sum(p**2)), 2),
    "curved valley": (
        lambda p: 1e3 * (p[1] - jnp.sqrt(1 + p[0] ** 2)) ** 2 + p[0] ** 2 / 100, 2
    ),
    "least absolute deviations": (
        of_data(lambda z: jnp.mean(jnp.abs(z - _B.astype(z.dtype)))), 3
    ),
    "quartic": (lambda p: jnp.sum(jnp.arange(1.0, 6.0, dtype=p.dtype) * p**4), 5),
    "wood": (
        lambda p: (
            100 * (p[1] - p[0] ** 2) ** 2 + (1 - p[0]) ** 2
            + 90 * (p[3] - p[2] ** 2) ** 2 + (1 - p[2]) ** 2
            + 10.1 * ((p[1] - 1) ** 2 + (p[3] - 1) ** 2)
            + 19.8 * (p[1] - 1) * (p[3] - 1)
        ), 4,
    ),
    "log cosh": (
        of_data(lambda z: jnp.sum(jnp.logaddexp(z, -z)) + 0.01 * jnp.sum(z**2)), 3
    ),
    "poisson": (
        of_data(lambda z: jnp.sum(jnp.exp(z) - _COUNTS.astype(z.dtype) * z)), 3
    ),
    "quadratic of condition 1e6": (
        lambda p: jnp.sum(jnp.logspace(-3, 3, 10, dtype=p.dtype) * (p - 1) ** 2), 10
    ),
    "beale": (
        lambda p: sum(
            (c - p[0] * (1 - p[1] ** k)) ** 2
            for k, c in enumerate((1.5, 2.25, 2.625), 1)
        ), 2,
    ),
    "brown": (
        lambda p: (
            (p[0] - 1e6) ** 2 + (p[1] - 2e-6) ** 2 + (p[0] * p[1] - 2) ** 2
        ), 2,
    ),
    "student": (
        of_data(lambda z: jnp.sum(jnp.log1p((z - _B.astype(z.dtype)) ** 2))), 3
    ),
    "sum of exponentials": (
        lambda p: jnp.sum(jnp.exp(p) - p + jnp.exp(-p / 10)), 3
    ),
    "root of squares": (
        lambda p: jnp.sum(
            jnp.sqrt(1 + (jnp.arange(1, 6, dtype=p.dtype) * (p - 1)) ** 2)
        ), 5,
    ),
}  # fmt: skip


def starts(size: int, count: int, dtype: str) -> jax.Array:
    """`count` for each distance from 1 to 1e6, in random directions."""
    random = np.random.RandomState(1)
    directions = random.randn(7, count, size)
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    far = directions * 10.0 ** np.arange(7)[:, None, None]
    return jnp.asarray(far.reshape(-1, size), dtype)


def study(name: str, dtype: str, count: int, offsets=OFFSETS, **options: Any) -> Row:
    function, size = FUNCTIONS[name]
    fun = lambda p, offset: function(p) + offset.astype(p.dtype)
    one = lambda x, offset, n: stepax.minimize(
        fun, x, args=(offset,), max_steps=n, **options
    )
    run = jax.jit(jax.vmap(jax.vmap(one, (0, None, None)), (None, 0, None)))
    again = jax.vmap(one, (None, None, 0))
    rerun = jax.jit(jax.vmap(jax.vmap(again, (0, None, None)), (0, 0, None)))
    given = jnp.asarray(offsets, dtype)
    found = run(starts(size, count, dtype), given, jnp.asarray(15_000))
    more = rerun(found.params, given, jnp.arange(EVALUATIONS))
    values = jnp.where(more.evaluations <= EVALUATIONS, more.value, jnp.inf)
    fall = np.asarray(found.value - jnp.min(values, axis=-1), np.float64)
    allowed = tolerance(np.asarray(found.value, np.float64), given, dtype)
    is_wrong = np.asarray(found.success) & ~(fall <= allowed)
    ratio = np.max(np.where(is_wrong, fall / allowed, 0))
    return Row(
        name,
        dtype,
        found.value.size,
        int(found.success.sum()),
        int(is_wrong.sum()),
        int(found.evaluations.sum()),
        float(ratio),
    )


def tolerance(values: np.ndarray, offsets: Any, dtype: str) -> np.ndarray:
    eps = float(jnp.finfo(dtype).eps)
    tol = max(8 * eps, 2.0**-26)
    none = tol * np.maximum(1, np.abs(values))
    return np.where(np.asarray(offsets)[:, None] == 0, none, 64 * eps * np.abs(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5, help="starts at each distance")
    parser.add_argument("--dtype", nargs="*", default=["float64", "float32"])
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for dtype in given.dtype:
        for name in FUNCTIONS:
            print(*study(name, dtype, given.count), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
