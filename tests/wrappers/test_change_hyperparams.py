"""Every number of every optimizer can change at run time, and recompiles nothing."""

import inspect
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import make, rows
from injection import inject, parameters
from keywords import keywords

import stepax


# Numbers that stay as they are, and why.
STATIC = {
    "memory_size": "a shape in the state",
    "rank": "a shape in the state",
    "min_dim_size_to_factor": "decides which shapes the state has",
    "block_size": "a shape in the state",
    "inverse_exponents": "a table, by the number of axes",
    "slice_p": "a shape in the state",
    "max_dim": "decides which shapes the state has",
    "max_precond_dim": "decides which shapes the state has",
    "partition": "a shape in the state",
    "ns_steps": "a shape in the state, and the length of a loop",
    "init_step": "a pair with a name; its number is read by `init` alone",
    "key": "the start of the noise, which then lives in the state",
    "max_size_triangular": "decides which shapes the state has",
    "min_ndim_triangular": "decides which shapes the state has",
    "seed": "the start of the noise, which then lives in the state",
    "warmup_steps": "makes a schedule; write one to change it",
    "first_step": "makes a schedule; write one to change it",
    "print_win_rate_every_n_steps": "how often something is printed",
}

# Values for numbers that are not used by default, and arrays for tuples of numbers.
VALUES = {
    "momentum": 0.8,
    "weight_decay": 0.01,
    "weight_decay_rate": 0.01,
    "learning_rate": 0.01,
    "adam_learning_rate": 0.02,
    "adam_eps": 1e-10,
    "optimism": 0.1,
    "beta3": 0.9,
    "b3": 0.8,
    "shampoo_beta": 0.9,
    "change_factor": 0.5,
    "consistent_rms": 0.2,
    "momentum_decay": 4e-3,
    "init_estim_sq_dist": 1e-3,
    "preconditioner_update_probability": 0.5,
    "betas": jnp.array([0.9, 0.999]),
    "eps": jnp.array([1e-30, 1e-16]),
    "ns_coeffs": jnp.array([3.4445, -4.775, 2.0315]),
}

OPTIMIZERS = rows(kind="optimizer")
everyone = pytest.mark.parametrize("row", OPTIMIZERS)


def takes_numbers(parameter: Any) -> bool:
    hint = str(parameter.annotation)
    is_other = parameter.annotation is bool or inspect.isfunction(parameter.default)
    return not is_other and ("float" in hint or "int" in hint)


def numeric(row: Any) -> set[str]:
    """The parameters of an optimizer that are numbers, or may be."""
    found = inspect.signature(row.factory).parameters.values()
    return {p.name for p in found if takes_numbers(p) and "dtype" not in p.name}


def filled(row: Any) -> tuple[Any, dict]:
    """An optimizer with a value for each number, injected, and its arguments."""
    known = inspect.signature(row.factory).parameters
    given = dict(make(row).call.bound.arguments)
    unused = (k for k in VALUES if k in known)
    given |= {k: VALUES[k] for k in unused if not isinstance(given[k], int | float)}
    if {"weight_decay", "weight_decay_rate"} <= known.keys():
        del given["weight_decay"]  # one of both, and the other is tested elsewhere
    return inject(row.factory)(**given), given


@pytest.mark.thinned
@everyone
def test_every_number_is_a_hyperparameter_or_a_reason_is_known(row):
    tx, given = filled(row)
    found = set(tx.init(parameters()).hyperparams)
    # With their defaults they are left out, so that the state is that of Optax's.
    added = {k for k, x in row.ranges.items() if x.is_added}
    assert numeric(row) & given.keys() - STATIC.keys() - added == found


def test_reasons_are_of_parameters_that_exist():
    known = [numeric(p.values[0]) for p in OPTIMIZERS]
    assert STATIC.keys() <= set().union(*known)


@pytest.mark.thinned
@everyone
def test_no_number_is_read_by_python_and_none_changes_its_type(row):
    # All of a state, its hyperparameters included, is traced here, and comes back as
    # it was: so one program is enough, whatever the numbers are.
    tx, _ = filled(row)
    p = parameters()
    state = jax.eval_shape(tx.init, p)
    step = lambda state: tx.update(p, state, p, **keywords(p))[1]
    new = jax.eval_shape(step, state)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    for x, y in zip(jax.tree.leaves(new), jax.tree.leaves(state), strict=True):
        assert (x.shape, x.dtype, x.weak_type) == (y.shape, y.dtype, y.weak_type)


@pytest.mark.thinned
@everyone
def test_an_optimizer_is_made_inside_of_a_jitted_step(row):
    p = parameters()
    given = dict(filled(row)[1])
    names = [k for k in given if k in numeric(row) - STATIC.keys()]
    numbers = {k: jnp.asarray(given[k]) for k in names if given[k] is not None}

    def step(numbers, state):
        tx = row.factory(**given | numbers)
        return stepax.with_extra_args_support(tx).update(p, state, p, **keywords(p))

    state = jax.eval_shape(lambda x: row.factory(**given | x).init(p), numbers)
    u, new = jax.eval_shape(step, numbers, state)
    assert jax.tree.structure(u) == jax.tree.structure(p)
    assert jax.tree.structure(new) == jax.tree.structure(state)


def test_a_jitted_step_that_takes_the_rate_is_traced_once():
    p, traces = parameters(), []

    @jax.jit
    def step(rate, state):
        traces.append(rate)
        return stepax.adamw(rate).update(p, state, p)

    state = stepax.adamw(0.1).init(p)
    for rate in 0.1, 0.2, 0.3:
        u, state = step(rate, state)
    assert len(traces) == 1


# A method for bounds goes to the minimum of its model, at no rate.
RATED = [p for k in ("learning_rate", "scaling") for p in rows(k, kind="optimizer")]


@pytest.mark.few(1)
@pytest.mark.parametrize("row", RATED)
def test_a_rate_set_in_the_state_is_that_of_the_next_step(row):
    arguments = dict(make(row).call.bound.arguments)
    name = "learning_rate" if "learning_rate" in arguments else "scaling"
    p = parameters()
    with jax.disable_jit():
        first, other = (
            inject(row.factory)(**arguments | {name: x}) for x in (0.1, 0.3)
        )
        state = stepax.tree.set(first.init(p), **{name: jnp.float32(0.3)})
        # What `init` made of the rate stays, as in Rprop.
        kept = other.init(p)._replace(inner_state=state.inner_state)
        found, new = first.update(p, state, p, **keywords(p))
        wanted, _ = other.update(p, kept, p, **keywords(p))
    assert new.hyperparams[name] == jnp.float32(0.3)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.project
def test_the_page_lists_what_is_static():
    page = Path(__file__).parents[2] / "docs" / "hyperparameters.md"
    assert all(f"`{name}`" in page.read_text() for name in STATIC)
