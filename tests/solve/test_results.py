"""Results are printed alike, and know SciPy's names of their fields."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import stepax


def results() -> dict[str, Any]:
    one = jnp.ones(())
    return {
        "minimize": stepax.minimize(lambda x: (x - 2) ** 2, one),
        "least_squares": stepax.least_squares(lambda x: x - 2, one),
        "root` and `fixed_point": stepax.root(lambda x: x - 2, one),
    }


def test_every_result_is_printed_and_names_what_scipy_names():
    for solver, found in results().items():
        shown = repr(found)
        assert "message: Converged" in shown and "params: 2." in shown
        for theirs, ours in ("x", "params"), ("nfev", "evaluations"):
            with pytest.raises(AttributeError) as caught:
                getattr(found, theirs)
            said = f"the result of `{solver}` has no `{theirs}`: it is `{ours}`"
            assert str(caught.value) == said
        with pytest.raises(AttributeError, match="has no `y`; it has params, value"):
            _ = found.y


def test_traced_and_batched_results_are_printed():
    seen = []

    def run(x):
        found = stepax.root(lambda x: x - 2, x)
        seen.append(repr(found))
        return found

    batch = jax.vmap(run)(jnp.ones(2))
    assert seen[0].startswith("SolveResult(params=") and "2 CONVERGED" in repr(batch)
