"""`quadratic_program`: solutions, programs without one, derivatives, errors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems.quadratic import infeasible, kkt, program

import stepax
from stepax.solve import Status


solve: Any = stepax.solve.quadratic_program


def check_all(seeds: Any, sizes: Any) -> None:
    wrong = []
    for seed, n in zip(seeds, sizes, strict=True):
        cost, limits = program(seed, n)
        found = solve(*cost, **limits)
        error = kkt(cost, limits, found.params, found.multipliers)
        if found.code != 0 or not error <= 1e-8:
            wrong.append((seed, n, found.status, error))
        found = solve(*cost, **infeasible(limits))
        if found.code != Status.INFEASIBLE:
            wrong.append((seed, n, found.status))
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 12])
def test_random_programs_are_solved_and_infeasible_ones_named(n):
    with jax.enable_x64(True):
        check_all(range(12), 12 * [n])


@pytest.mark.slow
def test_a_solution_is_not_called_infeasible_by_the_second_round():
    with jax.enable_x64(True):
        check_all([15], [2])  # the one of the 200 below that was


@pytest.mark.slow("200 programs of ten sizes, each compiled twice")
def test_two_hundred_random_programs():
    with jax.enable_x64(True):
        sizes = np.geomspace(2, 200, 10).round().astype(int).tolist()
        check_all(range(200), [n for n in sizes for _ in range(20)])


EYE, ONES = np.eye(2), np.ones(2)
# Rows and bounds without limits, so that all of these are one compiled program.
NO_ROWS = np.zeros((2, 2))
FREE = {
    "equality": (NO_ROWS, np.zeros(2)),
    "inequality": (NO_ROWS, None, None),
    "bounds": (None, None),
}
# What has no solution, or not at all, or cannot be solved, and how it is named.
WITHOUT: dict[str, tuple[tuple, dict, Status]] = {
    "linear cost": ((0 * EYE, ONES), {}, Status.UNBOUNDED),
    "one flat direction": (
        (np.diag([1.0, 0]), np.array([1, -1e-3])),
        {"bounds": (0, None)},
        Status.UNBOUNDED,
    ),
    "between two rows": (
        (0 * EYE, -ONES),
        {"inequality": (np.array([[1.0, -1], [0, 0]]), -1, 1)},
        Status.UNBOUNDED,
    ),
    "flat beside a large cost": (
        (np.diag([1e2, 0]), np.array([1e2, -1])),
        {"equality": (np.array([[1.0, 0], [1, 0]]), 1.0)},
        Status.UNBOUNDED,
    ),
    "contradicting equalities": (
        (EYE, ONES),
        {"equality": (np.ones((2, 2)), np.array([1.0, 2]))},
        Status.INFEASIBLE,
    ),
    "a row beyond the bounds": (
        (EYE, ONES),
        {"inequality": (np.ones((2, 2)), 2.01, None), "bounds": (0, 1)},
        Status.INFEASIBLE,
    ),
    "neither feasible nor bounded": (
        (0 * EYE, -ONES),
        {"inequality": (np.array([[1.0, -1], [-1, 1]]), 1, None)},
        Status.INFEASIBLE,
    ),
    "crossed bounds": ((EYE, ONES), {"bounds": (1, 0)}, Status.INFEASIBLE),
    "above infinity": (
        (EYE, ONES),
        {"bounds": (np.inf, None)},
        Status.INFEASIBLE,
    ),
    "indefinite": (
        (np.diag([1.0, -1]), ONES),
        {"bounds": (-1, 1)},
        Status.INDEFINITE,
    ),
    "NaN": ((EYE, np.nan * ONES), {"bounds": (0, 1)}, Status.NOT_FINITE),
    "no steps": ((EYE, ONES), {"max_steps": 0}, Status.ITERATION_LIMIT),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("double", [False, True])
def test_what_has_no_solution_is_named(double):
    with jax.enable_x64(double):
        found = {k: solve(*c, **(FREE | more)) for k, (c, more, _) in WITHOUT.items()}
        got = {k: r.status for k, r in found.items()}
        assert got == {k: status for k, (_, _, status) in WITHOUT.items()}
        assert not any(bool(r.success) for r in found.values())


@pytest.mark.slow("random programs, whose conditions of optimality are checked")
def test_simple_programs_have_the_known_solution():
    inside = solve(EYE, [1, 2])
    np.testing.assert_allclose(inside.params, [-1, -2], rtol=1e-6)
    assert inside.multipliers == {}
    fixed = solve(EYE, ONES, bounds=([0.3, -5], [0.3, 5]), x0=ONES)
    np.testing.assert_allclose(fixed.params, [0.3, -1], rtol=1e-6)
    np.testing.assert_allclose(fixed.multipliers["bounds"], [-1.3, 0], rtol=1e-6)
    # Redundant rows; the sum of their multipliers is known.
    same = solve(EYE, ONES, equality=(np.ones((3, 2)), np.ones(3)))
    np.testing.assert_allclose(same.params, [0.5, 0.5], rtol=1e-5)
    np.testing.assert_allclose(sum(same.multipliers["equality"]), -1.5, rtol=1e-5)
    # The symmetric part of Q counts.
    skew = solve(np.array([[1.0, 2], [0, 2]]), ONES)
    np.testing.assert_allclose(skew.params, [-1, 0], atol=1e-5)


@pytest.mark.slow
def test_half_precision_is_computed_in_float32():
    found = solve(jnp.eye(2, dtype="bfloat16"), jnp.ones(2, "bfloat16"), bounds=(0, 1))
    assert found.params.dtype == jnp.float32
    np.testing.assert_allclose(found.params, 0, atol=1e-6)


def loss(arrays):
    q, c, a, b, g, high, low = arrays
    rows = {"equality": (a, b), "inequality": (g, None, high)}
    found = solve(q, c, **rows, bounds=(low, None))
    pulls = sum(jnp.sum(y**2) for y in found.multipliers.values())
    return jnp.sum(jnp.sin(found.params)) + found.value + pulls, found.multipliers


@pytest.mark.slow
def test_derivatives_are_those_of_differences():
    with jax.enable_x64(True):
        r = np.random.default_rng(3)
        root, g = r.normal(size=(2, 4, 4))
        a = np.ones((1, 4))
        limits = a, a @ np.full(4, 0.2), g, g @ np.full(4, 0.2) + 0.05, np.zeros(4)
        arrays = [jnp.asarray(x) for x in (root @ root.T, r.normal(size=4), *limits)]
        run = jax.jit(jax.value_and_grad(loss, has_aux=True))
        (_, multipliers), slopes = run(arrays)
        # Some of all kinds of limits are active.
        assert all((y != 0).any() for y in multipliers.values())
        for i, (x, slope) in enumerate(zip(arrays, slopes, strict=True)):
            x, d = np.asarray(x), r.normal(size=x.shape)
            at = lambda t, i=i, x=x, d=d: [*arrays[:i], x + t * d, *arrays[i + 1 :]]
            (up, _), _ = run(at(1e-6))
            (down, _), _ = run(at(-1e-6))
            difference = (up - down) / 2e-6
            np.testing.assert_allclose(np.sum(slope * d), difference, 1e-5, 1e-7)


@pytest.mark.slow
def test_a_batch_is_each_alone():
    with jax.enable_x64(True):
        c = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)))
        high = jnp.linspace(-0.5, 0.5, 5)
        one = lambda c, high: solve(EYE, c, bounds=(-0.2, high))
        found = jax.jit(jax.vmap(one))(c, high)
        alone = [one(*pair) for pair in zip(c, high, strict=True)]
        assert [r.status for r in alone] == found.status.tolist()
        assert len(set(found.status)) == 2  # the first one is infeasible
        pairs = [(r, x) for r, x in zip(alone, found.params, strict=True) if r.success]
        for r, x in pairs:
            np.testing.assert_allclose(x, r.params, atol=1e-12)


WRONG: dict[str, tuple[tuple, dict, type, str]] = {
    "a function": ((jnp.sum, ONES), {}, TypeError, "`Q` is a `function`"),
    "a batch": ((np.ones((3, 2, 2)), ONES), {}, ValueError, "use `jax.vmap`"),
    "another size": ((np.eye(3), ONES), {}, ValueError, "`Q` has shape"),
    "complex": ((1j * EYE, ONES), {}, TypeError, "expected real numbers"),
    "none": ((EYE, []), {}, ValueError, "`c` is empty"),
    "no pair": ((EYE, ONES), {"equality": EYE}, TypeError, r"a tuple \(A, b\)"),
    "no limit": ((EYE, ONES), {"equality": (EYE, None)}, TypeError, "`b` of `equ"),
    "a pair": ((EYE, ONES), {"inequality": (EYE, 1)}, TypeError, "G, lower, upper"),
    "rows": ((EYE, ONES), {"inequality": (np.eye(3), 0, 1)}, ValueError, "`G` of"),
    "limits": ((EYE, ONES), {"bounds": ([1.0], None)}, ValueError, "`lower` of"),
    "a NaN limit": ((EYE, ONES), {"bounds": (np.nan, 1)}, ValueError, "is NaN"),
    "a start": ((EYE, ONES), {"x0": 1.0}, ValueError, "`x0` has shape"),
    "a tolerance": ((EYE, ONES), {"tol": 0}, ValueError, "`tol` is 0"),
    "steps": ((EYE, ONES), {"max_steps": -1}, ValueError, "`max_steps` is -1"),
    "a word": ((EYE, ONES), {"A_eq": EYE}, TypeError, r"write `equality=\(A, b\)`"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case):
    args, more, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        solve(*args, **more)
