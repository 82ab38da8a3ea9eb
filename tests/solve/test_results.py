"""Results are printed alike, and know SciPy's names of their fields."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import stepax
from stepax.solve import Result


def results() -> dict[str, Any]:
    one = jnp.ones(())
    return {
        "minimize": stepax.minimize(lambda x: (x - 2) ** 2, one),
        "least_squares": stepax.solve.least_squares(lambda x: x - 2, one),
        "root": stepax.solve.root(lambda x: x - 2, one),
    }


def test_every_result_is_printed_and_answers_to_names_of_scipy():
    for solver, found in results().items():
        shown = repr(found)
        assert "message: Converged" in shown and "params: 2." in shown
        assert found.x is found.params and found.message == found.status.message
        assert (found.nit, found.nfev) == (found.steps, found.evaluations)
        is_value = solver == "minimize"
        assert found.fun is (found.value if is_value else found.residuals)
        assert isinstance(found, Result) and found.success
        with pytest.raises(AttributeError, match="a result has no `maxcv`: it is `vi"):
            getattr(found, "maxcv")  # noqa: B009 (type checkers know better)
        with pytest.raises(AttributeError, match="no `y`; it has params, value"):
            getattr(found, "y")  # noqa: B009


def test_traced_and_batched_results_are_printed():
    seen = []

    def run(x):
        found = stepax.solve.root(lambda x: x - 2, x)
        seen.append(repr(found))
        return found

    batch = jax.vmap(run)(jnp.ones(2))
    assert seen[0].startswith("Result(params=") and "2 CONVERGED_BY_RESIDUAL" in repr(
        batch
    )
