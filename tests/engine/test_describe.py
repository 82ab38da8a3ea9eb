"""What `describe` and `hyperparams` say of a transformation."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from keywords import keywords
from rich.console import Console

import stepax


P = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
SHAPES = jax.eval_shape(lambda: P)
RATE = stepax.linear_schedule(1.0, 0.0, 10)


def sizes(tree):
    return sum(x.nbytes for x in jax.tree.leaves(tree) if hasattr(x, "nbytes"))


@pytest.mark.thinned
@pytest.mark.parametrize("tree", ["dict", "module, whole", "array", "empty"])
@pytest.mark.parametrize("row", cases.rows())
def test_bytes_are_those_of_the_first_state(row, tree):
    p = cases.TREES[tree]()
    tx = cases.make(row)
    found = stepax.describe(tx, p)
    assert found.whole.bytes == sizes(tx.init(p))
    assert found.whole.bytes == sum(found.parameters.values()) + found.shared
    assert json.loads(json.dumps(found.to_dict()))["shared"] == found.shared
    assert row.name in str(found)


@pytest.mark.thinned
@pytest.mark.parametrize("row", cases.rows(kind="optimizer"))
def test_shapes_will_do(row):
    tx = cases.make(row)
    arrays, shapes = stepax.describe(tx, P).to_dict(), stepax.describe(tx, SHAPES)
    assert arrays == shapes.to_dict()


@pytest.mark.parametrize("row", cases.rows(kind="wrapper", takes="inner"))
def test_the_state_of_what_is_wrapped_is_found(row):
    whole = stepax.describe(cases.make(row), P).whole
    inner = next(part for _, part in whole.lines() if "scale_by_adam(" in part.name)
    assert inner.bytes > 0 and inner.bytes <= whole.bytes


def leaves(found):
    """The paths that each part touches, by the path of its state."""
    return {part.path: part.paths for _, part in found.whole.lines()}


def test_a_path_that_ends_like_another_has_its_own_state():
    params = {"a": {"b": {"c": jnp.ones(8)}}, "b": {"c": jnp.ones(2)}, "c": jnp.ones(1)}
    found = stepax.describe(stepax.adam(0.1), params).parameters
    assert found == {"a/b/c": 64, "b/c": 16, "c": 8}


def test_masks_and_labels_are_resolved():
    decay = stepax.adamw(1e-3, mask={"b": False, "**": True})
    tx = stepax.partition(
        {"train": decay, "freeze": stepax.set_to_zero()}, {"w": "train", "b": "freeze"}
    )
    found = stepax.describe(tx, SHAPES)
    at = leaves(found)
    assert at["inner_states/train/inner_state"] == ("w",)
    assert at["inner_states/freeze/inner_state"] == ("b",)
    assert found.parameters == {"w": 96, "b": 0}
    masked = stepax.describe(decay, SHAPES)
    assert leaves(masked)["1/inner_state"] == ("w",)
    assert masked.whole.leaves == 2 and masked.whole.paths is None


def test_muon_says_which_arrays_are_matrices():
    at = leaves(stepax.describe(stepax.contrib.muon(1e-3), SHAPES))
    assert at["inner_states/muon/inner_state"] == ("w",)
    assert at["inner_states/adam/inner_state"] == ("b",)


def test_keywords_that_are_read_are_named():
    tx = stepax.chain(stepax.adam(1e-3), stepax.contrib.reduce_on_plateau())
    known = stepax.describe(tx, SHAPES)
    assert known.whole.reads == ("value",)
    assert [part.reads for part in known.whole.parts] == [(), ("value",)]
    unknown = stepax.describe(stepax.lbfgs(), SHAPES)
    assert unknown.whole.reads is None
    # The last column of the first table, without its heading.
    columns = [[row[-1] for row in x.tables()[0][1]] for x in (known, unknown)]
    assert columns[0] == ["value", "", "", "", "value"]
    assert columns[1][0] == "not known"


def test_hyperparameters_are_injected_scheduled_or_fixed():
    inner = stepax.inject_hyperparams(stepax.adamw)(RATE, b1=0.8)
    tx = stepax.chain(stepax.clip(2.0), inner, stepax.scale_by_schedule(RATE))
    found = stepax.describe(tx, SHAPES).to_dict()["hyperparams"]
    assert found["0/max_delta"] == {"value": 2.0, "kind": "fixed"}
    assert found["1/hyperparams/b1"]["kind"] == "injected"
    assert found["1/hyperparams/b1"]["value"] == pytest.approx(0.8)
    assert found["1/hyperparams/learning_rate"]["kind"] == "scheduled"
    assert found["2/step_size_fn"] == {"value": 1.0, "kind": "scheduled"}
    assert not any("inner_state" in path for path in found)


def test_a_state_gives_the_present_values():
    tx = stepax.inject_hyperparams(stepax.adam)(RATE, b1=0.8)
    state = stepax.tree.set(tx.init(P), b1=jnp.float32(0.5))
    for _ in range(3):
        _, state = tx.update(P, state, P)
    found = stepax.describe(tx, SHAPES, state=state).to_dict()["hyperparams"]
    assert found["hyperparams/b1"]["value"] == 0.5
    assert found["hyperparams/learning_rate"]["value"] == pytest.approx(0.8)
    assert stepax.hyperparams(tx, state)["hyperparams/b1"] == 0.5


@pytest.mark.thinned
@pytest.mark.parametrize("row", cases.rows())
def test_a_hyperparameter_is_read_by_the_name_that_only_one_part_gives_it(row):
    tx = stepax.chain(stepax.clip(1.0), cases.make(row))
    found = stepax.hyperparams(tx, tx.init(P))
    names = [path.rpartition("/")[2] for path in found]
    assert "0/max_delta" in found
    for path, name in zip(found, names, strict=True):
        if names.count(name) == 1:
            assert found[name] is found[path]
        else:
            with pytest.raises(KeyError, match=f"called `{name}`; write one of "):
                found[name]


def test_hyperparameters_that_a_jitted_step_returns_are_read_by_name_too():
    tx = stepax.chain(stepax.clip(1.0), stepax.adamw(RATE))
    found = jax.jit(lambda state: stepax.hyperparams(tx, state))(tx.init(P))
    assert found["learning_rate"] == found["1/2/learning_rate"] == 1.0
    assert jax.tree.map(lambda x: 2 * x, found)["learning_rate"] == 2.0
    with pytest.raises(KeyError, match="called `lerning_rate`; similar are 1/2/learn"):
        found["lerning_rate"]


FOREIGN = {
    "chain": lambda: optax.chain(optax.clip(1.0), optax.adam(1e-3)),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(1e-3), 2),
    "plain": lambda: optax.scale_by_adam(),
    "closure": lambda: stepax.GradientTransformation(
        lambda params: (), lambda g, s, p: g
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_of_others_it_says_what_their_state_says(name):
    tx = FOREIGN[name]()
    found = stepax.describe(tx, SHAPES)
    assert found.whole.bytes == sizes(tx.init(P))
    assert found.whole.leaves == 2
    assert stepax.hyperparams(tx, tx.init(P)) == {}


def test_injected_hyperparameters_of_optax_are_found():
    inner = optax.inject_hyperparams(optax.adam)(1e-3)
    theirs: Any = optax.MultiSteps(inner, 2).gradient_transformation()
    tx = stepax.chain(theirs)
    found = stepax.describe(tx, SHAPES).hyperparams
    rate = found["0/inner_opt_state/hyperparams/learning_rate"]
    assert (float(rate.value), rate.kind) == (pytest.approx(1e-3), "injected")


@pytest.mark.parametrize("wrong", [stepax.adam, 3, [stepax.adam(1e-3)]])
def test_what_is_no_transformation_is_refused(wrong):
    with pytest.raises(TypeError, match="`tx` of `describe` must be a gradient"):
        stepax.describe(wrong, P)
    with pytest.raises(TypeError, match="`tx` of `hyperparams` must be a gradient"):
        stepax.hyperparams(wrong, ())


def test_no_step_is_run_and_nothing_large_is_made():
    def update(updates, state, params=None):
        raise AssertionError("a step was run")

    tx = stepax.GradientTransformation(
        lambda params: jax.tree.map(jnp.zeros_like, params), update
    )
    huge = {"w": jax.ShapeDtypeStruct((10**6, 10**6), jnp.bfloat16)}
    found = stepax.describe(stepax.chain(stepax.adam(1e-3), tx), huge)
    assert found.parameters["w"] == 3 * 2 * 10**12
    assert "5.457 TiB" in str(found)


def test_the_first_lines_of_a_text():
    lines = str(stepax.describe(stepax.adamw(RATE), SHAPES)).splitlines()
    assert lines[0].split() == "part state at parameters state dtypes reads".split()
    assert lines[2].startswith("adamw(learning_rate=linear_schedule(")
    assert lines[3].startswith("  scale_by_adam() ")
    assert not any(line != line.rstrip() for line in lines)


def test_many_parameters_are_summed_up_in_a_text():
    p = {f"layer {i:02}": jnp.ones(i + 1) for i in range(30)}
    found = stepax.describe(stepax.adam(1e-3), p)
    assert len(found.parameters) == 30
    assert "10 more" in str(found) and "layer 29" in str(found)


def test_rich_shows_tables():
    console = Console(width=150, record=True, file=io.StringIO())
    tx = stepax.adamw(1e-3, mask={"w": True, "b": False})
    console.print(stepax.describe(tx, SHAPES))
    shown = console.export_text()
    assert "scale_by_adam()" in shown and "┃" in shown


@pytest.mark.slow
def test_text_needs_no_rich():
    code = (
        "import sys; sys.modules['rich'] = None\n"
        "import stepax\n"
        "print(stepax.describe(stepax.adam(1e-3), 1.0))"
    )
    root = Path(stepax.__file__).parents[1]
    said = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=root)
    assert said.startswith("part")


@pytest.mark.few(1)
@pytest.mark.parametrize("row", cases.rows(kind="optimizer"))
def test_hyperparameters_are_the_same_under_jit(row):
    tx = cases.make(row)
    state = tx.init(P)
    _, state = tx.update(P, state, P, **keywords(P))
    found = stepax.hyperparams(tx, state)
    # Numbers that are fixed, functions and strings are none of the program's.
    is_number = lambda x: isinstance(x, jax.Array | float | int)
    numbers = {k: x for k, x in found.items() if is_number(x)}
    assert numbers
    traced = jax.jit(lambda s: {k: stepax.hyperparams(tx, s)[k] for k in numbers})
    for k, x in traced(state).items():
        np.testing.assert_array_equal(x, np.asarray(numbers[k], x.dtype), err_msg=k)


def test_reading_a_rate_leaves_the_step_alone():
    tx = stepax.adamw(RATE)
    state = tx.init(P)
    before = jax.make_jaxpr(tx.update)(P, state, P)
    stepax.hyperparams(tx, state)
    stepax.describe(tx, P)
    assert str(jax.make_jaxpr(tx.update)(P, state, P)) == str(before)
