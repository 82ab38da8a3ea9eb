"""Trees of any class type-check as parameters; a type checker reads this file, too."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import stepax


class Pair(NamedTuple):
    kernel: jax.Array
    bias: jax.Array


@jax.tree_util.register_dataclass
@dataclass
class Record:
    kernel: jax.Array
    bias: jax.Array


class Module(eqx.Module):
    kernel: jax.Array
    bias: jax.Array


def step_of_pair(tx: stepax.GradientTransformation, p: Pair) -> Pair:
    updates, _ = tx.update(p, tx.init(p), p)
    return stepax.apply_updates(p, updates)


def step_of_record(tx: stepax.GradientTransformation, p: Record) -> Record:
    updates, _ = tx.update(p, tx.init(p), p)
    return stepax.apply_updates(p, updates)


def step_of_module(tx: stepax.GradientTransformation, p: Module) -> Module:
    updates, _ = tx.update(p, tx.init(p), p)
    return stepax.apply_updates(p, updates)


STEPS: dict[Any, Any] = {
    Pair: step_of_pair,
    Record: step_of_record,
    Module: step_of_module,
}


@pytest.mark.parametrize("kind", STEPS)
def test_parameters_of_any_class_are_moved(kind):
    tx: stepax.GradientTransformation = stepax.chain(
        stepax.clip(1.0), stepax.adamw(stepax.linear_schedule(0.1, 0.0, 10))
    )
    p = kind(jnp.ones((2, 2)), jnp.ones(2))
    moved = STEPS[kind](tx, p)
    assert type(moved) is kind
    assert (moved.bias < p.bias).all()


def test_types_are_shipped():
    assert files(stepax).joinpath("py.typed").is_file()


def test_what_is_returned_has_a_type():
    p = Pair(jnp.ones((2, 2)), jnp.ones(2))
    tx: stepax.GradientTransformationExtraArgs = stepax.adam(1e-3)
    state: stepax.OptState = tx.init(p)
    norm: jax.Array = stepax.tree.norm(p)
    numbers: dict[str, Any] = stepax.hyperparams(tx, state)
    moved: stepax.tree.Migration = stepax.tree.migrate(state, state)
    assert norm > 0 and numbers and moved.fresh == ()
