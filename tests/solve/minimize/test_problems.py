"""The collection of problems for minimizers: published minima, values and sources."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest


ALL = {p.name: p for p in problems.collect()}

# The first of each function; the others differ from it in the number of variables.
FIRST = {p.fun: p for p in reversed(ALL.values()) if p.x0.size <= 1200}


def test_collection_is_as_large_as_it_says():
    learning = problems.collect(files=("learning",))
    sizes = [p.x0.size for p in ALL.values()]
    assert len(ALL) == len(problems.collect()) >= 100
    assert len(learning) >= 8 and (min(sizes), max(sizes)) == (2, 10_000)
    assert [p.name for p in problems.collect("watson*")] == [
        f"watson {n}" for n in (6, 9, 12)
    ]


FURTHER = problems.collect(files=problems.FURTHER)


def test_every_problem_has_a_source():
    every = [*ALL.values(), *FURTHER]
    assert len({p.name for p in every}) == len(every) >= 150
    assert all(p.source for p in every)
    assert all(p.x0.ndim == 1 and np.isfinite(p.minimum) for p in every)


# Where the minima of further problems are by their formulas.
FURTHER_AT = {
    "white holst 1000": [1] * 1000,
    "extended beale 1000": [3, 0.5] * 500,
    "raydan 1 100": [0] * 100,
    "diagonal 1 50": np.log(np.arange(1, 51)),
    "diagonal 2 1000": -np.log(np.arange(1, 1001)),
    "hager 1000": np.log(np.arange(1, 1001)) / 2,
    "extended himmelblau 1500": [3, 2] * 750,
    "nonscomp 1000": [1] * 1000,
    "biggsb1 200": [1] * 200,
    "denschnb 1000": [2, -1] * 500,
    "dixmaanh 1500": [0] * 1500,
    "sparsqur 1000": [0] * 1000,
}


def test_further_minima_are_those_of_the_formulas(x64):
    rows = [p for p in FURTHER if p.name in FURTHER_AT]
    assert len(rows) == len(FURTHER_AT)
    points = [np.asarray(FURTHER_AT[p.name], float) for p in rows]
    starts = [jnp.asarray(p.x0) for p in rows]
    found = run([p.fun for p in rows] * 2, points + starts)
    for p, lowest, first in zip(rows, found, found[len(rows) :], strict=False):
        size = max(1, abs(p.minimum))
        assert abs(lowest - p.minimum) <= 1e-12 * size < first - p.minimum, p.name


def run(functions, points):
    """What each function has at its point, in one program."""

    @jax.jit
    def all_of_them(points):
        return [f(x) for f, x in zip(functions, points, strict=True)]

    # Without optimization it compiles in half of the time.
    quick: Any = {"xla_backend_optimization_level": 0}
    compiled: Any = all_of_them.lower(points).compile(quick)
    return compiled(points)


@pytest.mark.slow
def test_value_and_gradient_at_the_start_are_finite():
    some = list(FIRST.values())
    starts = [jnp.asarray(p.x0, jnp.float32) for p in some]
    found = run([jax.value_and_grad(p.fun) for p in some], starts)
    for p, (value, grad) in zip(some, found, strict=True):
        assert value.dtype == grad.dtype == jnp.float32, p.name
        assert value.shape == () and np.isfinite(value), p.name
        assert np.all(np.isfinite(grad)) and np.any(grad), p.name
        assert value > p.minimum, p.name


# Where the papers say that the minima are.  Other digits are cut off in `ROUNDED`,
# with what that makes of the value.
EXACT = {
    "rosenbrock": [1, 1],
    "brown badly scaled": [1e6, 2e-6],
    "beale": [3, 0.5],
    "helical valley": [1, 0, 0],
    "gulf": [50, 25, 1.5],
    "box": [1, 10, 1],
    "powell singular": [0] * 4,
    "wood": [1] * 4,
    "rosenbrock 100": [1] * 100,
    "powell singular 100": [0] * 100,
    "variably dimensioned 10": [1] * 10,
    "trigonometric 10": [0] * 10,
    "brown almost linear 10": [1] * 10,
    "linear 100": [-1] * 100,
    "arwhead 5000": [1] * 4999 + [0],
    "nondia 5000": [1] * 5000,
    "liarwhd 10000": [1] * 10_000,
    "quartc 1000": range(1, 1001),
    "tridia 1000": 0.5 ** np.arange(1000),
    "genrose 500": [1] * 500,
    "cosine 1000": [0.25 + (0.0625 + np.pi) ** 0.5] * 1000,
    "sinquad 5": [1] * 5,
    "woods 10000": [1] * 10_000,
    "dixmaana 3000": [0] * 3000,
    "dixmaanl 3000": [0] * 3000,
    "himmelblau": [3, 2],
    "cube": [1, 1],
    "goldstein price": [0, -1],
    "zakharov 100": [0] * 100,
    "dixon price 10": 2.0 ** -(1 - 0.5 ** np.arange(10)),
    "trid 50": np.arange(1, 51) * (50 - np.arange(50)),
}
ROUNDED = {
    "freudenstein roth": ([11.41277, -0.89681], 1e-4),
    "powell badly scaled": ([1.098e-5, 9.106], 1e-4),
    "jennrich sampson": ([0.2578, 0.2578], 1e-2),
    "branin": ([np.pi, 2.275], 1e-9),
    "six hump camel": ([-0.0898, 0.7126], 1e-6),
    "styblinski tang 100": ([-2.903534] * 100, 1e-9),
}


def test_published_minimizers_have_the_minima(x64):
    points = [np.asarray(x, float) for x in EXACT.values()]
    points += [np.asarray(x, float) for x, _ in ROUNDED.values()]
    names = [*EXACT, *ROUNDED]
    found = run([ALL[name].fun for name in names], points)
    for name, value in zip(names, found, strict=True):
        minimum = ALL[name].minimum
        within = ROUNDED[name][1] if name in ROUNDED else 1e-12
        assert abs(value - minimum) <= within * max(1, abs(minimum)), (name, value)


# Values at the start, as the papers and the tables of CUTE print them.
AT_START = {
    "rosenbrock": 24.2,
    "freudenstein roth": 400.5,
    "beale": 14.203125,
    "helical valley": 2500,
    "powell singular": 215,
    "wood": 19192,
    "rosenbrock 100": 50 * 24.2,
    "powell singular 100": 25 * 215,
    "woods 10000": 2500 * 19192,
    "arwhead 5000": 3 * 4999,
    "liarwhd 10000": 585 * 10_000,
    "engval1 5000": 59 * 4999,
    "himmelblau": 170,
    "broyden tridiagonal 10": 21,
    "broyden banded 10": 360,
    "watson 6": 30,
}


def test_values_at_the_start_are_those_of_the_formulas(x64):
    starts = [ALL[name].x0 for name in AT_START]
    found = run([ALL[name].fun for name in AT_START], starts)
    np.testing.assert_allclose(found, list(AT_START.values()), rtol=1e-12)
