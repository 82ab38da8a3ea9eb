"""What an update computes has the name of the part that computes it, in profiles."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from cases import make, rows
from inside import node_of
from keywords import keywords

import stepax
from stepax.rules import Rule


P = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}


def scopes(tx) -> list[str]:
    """Under what each equation of an update is found; it adds none of its own."""
    step = lambda g, s, p: tx.update(g, s, p, **keywords(g))
    found = jax.make_jaxpr(step)(P, tx.init(P), P).eqns
    return [str(eqn.source_info.name_stack) for eqn in found]


def parts_of(row, tx) -> set[str]:
    """The names of the rules that make it up; its own, if it is a closure."""
    return {r.name for r in rules(tx) if r.leaf} or {row.name}


def rules(tx) -> list:
    return [x for x in node_of(tx).parts() if isinstance(x, Rule)]


# Those that compute nothing here, and one that hands pairs on, which the tests do.
IDLE = ("identity", "stateless", "stateless_with_tree_map", "lookahead")


@pytest.mark.thinned
@pytest.mark.parametrize("row", [p for p in rows() if p.id not in IDLE])
def test_each_equation_is_named_after_its_part(row):
    tx = make(row, **({"bias_correction": False} if row.name == "sophia" else {}))
    found = scopes(tx)
    joined = " ".join(found)
    # What stands for the curvature here is a closure of ours.
    if "hessian_diagonal_fn" not in inspect.signature(row.factory).parameters:
        assert found and all(found)
    assert all(name in joined for name in parts_of(row, tx))


def test_parts_of_a_chain_are_told_apart():
    found = " ".join(
        scopes(stepax.chain(stepax.add_noise(1.0, 0.5, 0), stepax.adam(1)))
    )
    assert "add_noise" in found and "scale_by_adam_then_scale" in found


def test_a_compiled_step_shows_the_names():
    tx = stepax.adamw(1e-3)
    lowered = jax.jit(tx.update).lower(P, tx.init(P), P)
    assert "scale_by_adam_then_add_decayed_weights" in lowered.as_text(debug_info=True)
