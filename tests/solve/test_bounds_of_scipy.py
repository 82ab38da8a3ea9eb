"""Bounds mean what they mean in the function of SciPy that has the same name."""

from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
from loops import each
from scipy import optimize

import stepax


CENTER = np.array([1.5, 1.2], np.float32)
START = jnp.array([0.7, 2.5])
LOWER, UPPER = [0.0, 2.0], [1.0, 3.0]  # as pairs, [0, 2] to [1, 3]
NESTED: dict[str, Any] = {
    "lists in a tuple": (LOWER, UPPER),
    "lists in a list": [LOWER, UPPER],
    "tuples in a tuple": (tuple(LOWER), tuple(UPPER)),
    "tuples in a list": [tuple(LOWER), tuple(UPPER)],
    "with `None`": ([0.0, None], [None, 3.0]),
}
SIDES: dict[str, Any] = {
    "arrays": (jnp.array(LOWER), jnp.array(UPPER)),
    "NumPy's": tuple(np.array([LOWER, UPPER])),
    "a number and a list": (-9.0, UPPER),
    "a list and a number": (LOWER, None),
    "SciPy's": cast(Any, optimize.Bounds)(LOWER, UPPER),  # typed as of numbers
}


def squares(p):
    return jnp.sum((p - CENTER) ** 2)


def residuals(p):
    return p - CENTER


@pytest.mark.few(2)
@pytest.mark.parametrize("form", NESTED)
def test_least_squares_takes_a_pair_of_sides(form):
    given = NESTED[form]
    start = np.array([0.5, 2.5])
    sides = [
        [none if x is None else x for x in side]
        for side, none in zip(given, (-np.inf, np.inf), strict=True)
    ]
    theirs = optimize.least_squares(lambda p: p - CENTER, start, bounds=sides)
    ours = stepax.solve.least_squares(residuals, jnp.array(start), bounds=given)
    np.testing.assert_allclose(ours.params, theirs.x, atol=1e-4)


def test_a_bracket_is_a_pair_of_sides():
    found = stepax.solve.root(residuals, START, bracket=([0.0, 1.0], [2.0, 3.0]))
    np.testing.assert_allclose(found.params, CENTER, rtol=1e-6)


@each([form for form in NESTED if form.startswith("lists")] + ["with `None`"])
def test_what_minimize_may_read_in_two_ways_is_refused(form):
    said = r"may be \(lower, upper\) or a pair for each of two parameters"
    with pytest.raises(ValueError, match=said):
        stepax.minimize(squares, START, bounds=NESTED[form])


@each([form for form in NESTED if form.startswith("tuples")])
def test_minimize_takes_tuples_as_pairs(form):
    found = stepax.minimize(squares, jnp.array([1.0, 2.0]), bounds=NESTED[form])
    np.testing.assert_allclose(found.params, [1.5, 1.2], atol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("form", SIDES)
def test_both_take_sides_that_are_no_pairs(form):
    start = jnp.array([0.5, 2.5])
    ours = stepax.minimize(squares, start, bounds=SIDES[form])
    fit = stepax.solve.least_squares(residuals, start, bounds=SIDES[form])
    wanted = [
        1.5 if form == "a list and a number" else 1.0,
        1.2 if form == "a number and a list" else 2.0,
    ]
    np.testing.assert_allclose(ours.params, wanted, atol=1e-4)
    np.testing.assert_allclose(fit.params, wanted, atol=1e-4)


def test_lists_of_another_length_are_sides():
    start, sides = jnp.ones(3), ([0.0, 0.5, 0.5], [2.0, 3.0, 4.0])
    found = stepax.minimize(lambda p: jnp.sum(p**2), start, bounds=sides)
    np.testing.assert_allclose(found.params, sides[0], atol=1e-6)


@each([(((0.0, 1.0), (2.0, 3.0)),), [(0.0, 2.0), (1.0, 3.0)], [(0.0, None)] * 2])
def test_a_quadratic_program_refuses_pairs(bounds):
    with pytest.raises(
        ValueError, match=r"may be \(lower, upper\), or a pair for each"
    ):
        stepax.solve.quadratic_program(jnp.eye(2), jnp.ones(2), bounds=bounds)
