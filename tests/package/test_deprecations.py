"""Every deprecated name still works, and says what replaces it."""

import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

import stepax
from stepax import second_order, tree_utils
from stepax._engine.functions.deprecated import DEPRECATED as TABLE


def loss(params: Any, x: Any, y: Any) -> Any:
    return jnp.sum((params * x - y) ** 2)


ONES = jnp.ones(2)
OLD: Any = tree_utils  # type checkers do not see its deprecated names

# How a program uses each; a name without a row here fails.
USES: dict[str, Callable[[], Any]] = {
    "DifferentiallyPrivateAggregateState": lambda: (
        stepax.DifferentiallyPrivateAggregateState
    ),
    "convex_kl_divergence": lambda: stepax.losses.convex_kl_divergence(ONES, ONES),
    "differentially_private_aggregate": lambda: stepax.differentially_private_aggregate,
    "dpsgd": lambda: stepax.dpsgd,
    "fisher_diag": lambda: second_order.fisher_diag(loss, ONES, ONES, ONES),
    "global_norm": lambda: stepax.global_norm(ONES),
    "hessian_diag": lambda: second_order.hessian_diag(loss, ONES, ONES, ONES),
    "hvp": lambda: second_order.hvp(loss, ONES, ONES, ONES, ONES),
    "inject_stateful_hyperparams": lambda: stepax.inject_stateful_hyperparams(
        stepax.sgd
    )(learning_rate=0.1),
    "optimistic_adam": lambda: stepax.optimistic_adam(0.1),
    "seed": lambda: stepax.add_noise(0.1, 0.5, seed=0),
    "tree_add_scalar_mul": lambda: OLD.tree_add_scalar_mul,
    "tree_l1_norm": lambda: OLD.tree_l1_norm,
    "tree_l2_norm": lambda: OLD.tree_l2_norm,
    "tree_linf_norm": lambda: OLD.tree_linf_norm,
    "tree_scalar_mul": lambda: OLD.tree_scalar_mul,
}


@pytest.mark.parametrize("name", TABLE)
def test_a_deprecated_name_works_and_names_its_successor(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert USES[name]() is not None
    said = [str(x.message) for x in caught if x.category is DeprecationWarning]
    assert any(f"`{name}` is deprecated" in x for x in said), said
    assert any(TABLE[name].new.partition("(")[0] in x for x in said), said


def test_no_row_is_left_of_a_name_that_is_gone():
    assert set(USES) == set(TABLE)
