"""A state keeps its structure and its types, in whatever form masks are given."""

import functools as ft
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.serialization
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
import pytest
from cases import make, types
from compare import assert_same_tree
from keywords import keywords
from loops import each
from mask_forms import (
    BOOLEANS,
    FORMS,
    STATIC,
    TAKERS,
    TREES,
    doubled,
    garden,
    matrix,
    options_beside,
    valued,
)

import stepax


FREEZE = {"a": False, "b": True}


# From a library and a specification of labels to a transformation with a state that
# shows what was cut; each around rules, and around what nobody looks into.
def _masked(o: Any, spec: Any, inner: Callable = lambda o, tx: tx) -> Any:
    return o.masked(inner(o, o.scale_by_adam()), valued(spec, BOOLEANS))


def _partition(o: Any, spec: Any, inner: Callable = lambda o, tx: tx) -> Any:
    members = {"a": inner(o, o.scale_by_adam()), "b": o.trace(0.9)}
    return o.partition(members, spec)


HOLDERS: dict[str, Callable[[Any, Any], Any]] = {
    "masked": _masked,
    "masked, opaque": ft.partial(_masked, inner=doubled),
    "masked the other way": lambda o, s: o.masked(o.trace(0.9), valued(s, FREEZE)),
    "masked twice": lambda o, s: o.masked(_masked(o, s), valued(s, BOOLEANS)),
    "partition": _partition,
    "partition, opaque": ft.partial(_partition, inner=doubled),
    "partition in masked": lambda o, s: o.masked(_partition(o, s), valued(s, FREEZE)),
    "selective_transform": lambda o, s: o.selective_transform(
        o.scale_by_adam(), freeze_mask=valued(s, FREEZE)
    ),
    "chain": lambda o, s: o.chain(
        o.add_decayed_weights(0.1, valued(s, BOOLEANS)),
        _partition(o, s),
        o.freeze(valued(s, BOOLEANS)),
    ),
}


def gradients(params):
    return jax.tree.map(lambda p: p if eqx.is_array(p) else None, params)


def after_steps(tx, params, state, g=None):
    """The state after three steps, as the carry of a loop, by tracing alone.

    A carry is promoted where a step changes its types, so that what comes out has other
    ones than what went in.  Types are all that a trace depends on, so one that keeps
    them once keeps them for ever.
    """
    g = gradients(params) if g is None else g
    arrays = eqx.filter(params, eqx.is_array)

    def step(state, _):
        return tx.update(g, state, arrays, **keywords(g))[1], None

    return jax.eval_shape(lambda s: jax.lax.scan(step, s, length=3)[0], state)


def check(tx, params, g=None):
    """The first state, which steps leave as it is."""
    state = tx.init(params)
    after = after_steps(tx, params, state, g)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert types(after) == types(state)
    return state


# --- every form, tree and way to cut ------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("tree", TREES)
def test_a_state_keeps_its_structure(tree, holder):
    params, tx = TREES[tree](), HOLDERS[holder]
    kept = set()
    for form in FORMS.values():
        state = check(tx(stepax, form(params)), params)
        kept.add(len(jax.tree.leaves(state)))
    assert len(kept) == 1  # all forms mean the same leaves


@pytest.mark.few(3)
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("tree", TREES)
def test_a_packed_state_keeps_its_structure(tree, holder):
    params = eqx.filter(TREES[tree](), eqx.is_array)
    packed = stepax.tree.pack(params)
    for form in STATIC.values():
        check(HOLDERS[holder](stepax, form(params)), packed, packed)


@pytest.mark.few(1)
@pytest.mark.parametrize("holder", HOLDERS)
def test_arrays_without_gradients_change_no_structure(holder):
    params = garden()
    g = gradients(params) | {"an array": None, "NamedTuple": gradients(params)["None"]}
    g["NamedTuple"] = jax.tree.map(lambda x: None, params["NamedTuple"])
    for form in FORMS.values():
        check(HOLDERS[holder](stepax, form(params)), params, g)


# Optax takes trees and functions that return them.
OPTAX_FORMS = [k for k in FORMS if "tree" in k.split(", ") or "prefix" in k]


@pytest.mark.few(2)
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("tree", TREES)
def test_states_are_structured_as_in_optax(tree, holder):
    params = eqx.filter(TREES[tree](), eqx.is_array)
    # Optax calls a module, and its `selective_transform` takes a function for true.
    is_alike = lambda name: (
        holder != "selective_transform"
        if "function" in name
        else not callable(FORMS[name](params))
    )
    forms = list(filter(is_alike, OPTAX_FORMS))
    if not forms:
        pytest.skip("Optax takes no form of such a tree")
    for name in forms:
        spec = FORMS[name](params)
        ours, theirs = HOLDERS[holder](stepax, spec), HOLDERS[holder](optax, spec)
        state, expected = ours.init(params), theirs.init(params)
        assert str(jax.tree.structure(state)) == str(jax.tree.structure(expected))
        # Members that branch take no states of Optax, where both would be mixed.
        firsts = [state] if "opaque" in holder else [state, expected]
        with jax.numpy_dtype_promotion("standard"):
            expected = jax.eval_shape(theirs.update, params, expected, params)[1]
        for before in firsts:
            after = jax.eval_shape(ours.update, params, before, params)[1]
            assert str(jax.tree.structure(after)) == str(jax.tree.structure(expected))


# --- every factory that takes a specification ---------------------------------------


def of_examples(g):
    """Gradients of two examples."""
    return jax.tree.map(lambda x: jnp.stack([x, x]), g)


# Functions are asked before a factory sees what they return, as the tests above show.
ASKED = [*STATIC, "Partial", "callable module"]


@pytest.mark.few(2)
@pytest.mark.parametrize("taker", TAKERS)
def test_whoever_takes_a_form_keeps_the_structure(taker):
    row, name, values = TAKERS[taker]
    params = garden()
    g = gradients(params)
    g = of_examples(g) if row.kind == "aggregate" else g
    options = options_beside(row, name)
    for form in ASKED:
        spec = valued(FORMS[form](params), values)
        check(make(row, **{name: spec}, **options), params, g)


@each(TAKERS)
def test_a_pattern_that_matches_nothing_is_named_by_init(taker):
    row, name, values = TAKERS[taker]
    spec = {"nothing/like/it": values["a"], "**": values["b"]}
    tx = make(row, **{name: spec}, **options_beside(row, name))
    with pytest.raises(ValueError, match="`nothing/like/it`"):
        tx.init({"w": matrix(), "o": {"w": matrix()}})


INJECTED = [k for k, taker in TAKERS.items() if taker[0].kind != "aggregate"]


@pytest.mark.few(8)
@pytest.mark.parametrize("taker", INJECTED)
def test_forms_may_be_arguments_of_an_injected_factory(taker):
    row, name, values = TAKERS[taker]
    params = TREES["NamedTuple"]()
    i = INJECTED.index(taker) % len(FORMS)  # each form at some factories
    form = list(FORMS.values())[i]
    # A function for numbers would be a schedule.
    static = [k for k in [name] if isinstance(values["a"], float)]
    injected = replace(row, factory=stepax.inject_hyperparams(row.factory, static))
    spec = valued(form(params), values)
    check(make(injected, **{name: spec}, **options_beside(row, name)), params)


# --- files ---------------------------------------------------------------------------


def filed():
    """What Flax and Orbax can write: they know no dataclasses and no Equinox modules.

    The names of their children are text.
    """
    trees = {k: make() for k, make in TREES.items() if k not in ("dataclass", "module")}
    return trees | {"more": [matrix(), {"x": matrix()}]}


def stepped(tx, params, state):
    """The state after three steps, with numbers."""
    step = jax.jit(tx.update)
    for _ in range(3):
        _, state = step(params, state, params)
    return state


@pytest.mark.slow
@pytest.mark.parametrize("holder", HOLDERS)
def test_files_of_a_trained_state_fit_the_first_one(holder, tmp_path):
    params = filed()
    txs = [HOLDERS[holder](stepax, form(params)) for form in FORMS.values()]
    # A file holds names and arrays alone: one state of each structure shows them all.
    by_structure = {jax.tree.structure(tx.init(params)): tx for tx in txs}
    assert len(by_structure) > 1
    with ocp.StandardCheckpointer() as saver:
        for i, tx in enumerate(by_structure.values()):
            first = tx.init(params)
            state = stepped(tx, params, first)
            data = flax.serialization.to_bytes(state)
            assert_same_tree(flax.serialization.from_bytes(first, data), state)
            saver.save(Path(tmp_path, str(i)), state)
            saver.wait_until_finished()
            assert_same_tree(saver.restore(Path(tmp_path, str(i)), first), state)
