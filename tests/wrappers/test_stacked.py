"""`stacked` means the numbers of the tree in which each array is split."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import make, rows
from compare import leaves
from stacks import AXES, ELSEWHERE, params, trained

import stepax
import stepax.contrib
from stepax._engine.base.node import node_of


# Sums over arrays of a stack may be added in another order, and products be batched.
TOLERANCE = 1e-12


def is_random(row: Any) -> bool:
    """Whether it draws for each array of the tree, of which a stack is one."""
    # Apollo's and PSGD's directions are equal for all arrays of a shape.
    return row.name in ("add_noise", "noisy_sgd", "stochastic_rounding")


def extra(tx: Any) -> dict:
    return {"value": jnp.float64(1.0), "value_fn": lambda p: jnp.float64(1.0)}


def assert_same(tx: Any, tree: Any, axes: Any, **extra: Any) -> None:
    unrolled = trained(tx, tree, unrolled=axes, **extra)
    found = stepax.tree.unstack(trained(stepax.stacked(tx, axes), tree, **extra), axes)
    assert jax.tree.structure(found) == jax.tree.structure(unrolled)
    for x, y in zip(leaves(found), leaves(unrolled), strict=True):
        if x.dtype == "float64":
            scale = max(np.abs(y).max(initial=0), 1e-3)
            np.testing.assert_allclose(x, y, rtol=0, atol=TOLERANCE * scale)
        else:
            np.testing.assert_array_equal(x, y)


def is_elementwise(tx: Any) -> bool:
    return all(getattr(part, "elementwise", False) for part in node_of(tx).parts())


CASES = [x for x in rows() if not is_random(x.values[0])]


@pytest.mark.thinned
@pytest.mark.parametrize("row", CASES)
def test_a_stack_is_trained_as_its_arrays_are(row, x64):
    tx = make(row)
    assert_same(tx, params(), AXES, **extra(tx))


@pytest.mark.thinned
@pytest.mark.parametrize("row", CASES)
def test_the_axes_may_be_anywhere(row, x64):
    tx = make(row)
    more = extra(tx)
    tree = params(elsewhere=True)
    found, _ = trained(stepax.stacked(tx, ELSEWHERE), tree, 2, **more)
    wanted, _ = trained(tx, tree, 2, unrolled=ELSEWHERE, **more)
    pairs = zip(
        *map(leaves, (stepax.tree.unstack(found, ELSEWHERE), wanted)), strict=True
    )
    for x, y in pairs:
        np.testing.assert_allclose(x, y, rtol=0, atol=TOLERANCE * np.abs(y).max())
