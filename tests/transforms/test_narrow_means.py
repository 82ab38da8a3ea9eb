"""Means that stall in bfloat16: `describe` warns, and what it advises helps."""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import make, rows
from inside import members, node_of, of_parameters
from keywords import keywords

import stepax
from stepax.rules import Rule


NARROW = {"w": jnp.ones((4, 3), jnp.bfloat16), "b": jnp.ones(3, jnp.bfloat16)}
WIDE = jax.tree.map(lambda p: p.astype(jnp.float32), NARROW)


def means(tx):
    """The slots that hold squares or have a long memory; `None` if not all is rules."""
    found = list(node_of(tx).parts())
    rules = [x for x in found if isinstance(x, Rule)]
    if len(rules) < len(found):
        return None
    return {k for x in rules for k, s in x.slots.items() if s.is_wide or s.is_slow}


def stored_narrowly(tx, params):
    names = means(tx)
    if names is None:  # what the tables wrap is Adam
        names = {"nu"}
    return {
        name
        for name in names
        for _, part in stepax.tree.get_all_with_path(tx.init(params), name)
        if any(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(part))
    }


def warnings_of_means(tx, params):
    """Those of what is stored; others are of the transformation as a whole."""
    texts = stepax.describe(tx, params).warnings
    return [text for text in texts if " is stored in " in text]


def warned(tx, params):
    """The slots that are named in warnings."""
    texts = warnings_of_means(tx, params)
    assert all("master_weights(tx)" in text for text in texts)
    return {text.split("`")[1].split("/")[-1] for text in texts}


@pytest.mark.thinned
@pytest.mark.parametrize("row", rows())
def test_every_narrow_mean_is_warned_of_and_no_other(row):
    tx = make(row)
    assert warned(tx, NARROW) == stored_narrowly(tx, NARROW)
    assert warned(tx, WIDE) == set()


def test_adam_is_warned_of_in_any_nest():
    tx = stepax.chain(
        stepax.clip(1.0), stepax.masked(stepax.adamw(1e-3), {"w": True, "b": False})
    )
    (text,) = warnings_of_means(tx, NARROW)
    assert "nu` is stored in bfloat16" in text and '{"nu": "float32"}' in text
    assert text in str(stepax.describe(tx, NARROW))
    found = stepax.describe(tx, NARROW)
    assert found.to_dict()["warnings"] == list(found.warnings)
    assert warned(stepax.inject_hyperparams(stepax.adam)(1e-3), NARROW) == {"nu"}
    assert warned(stepax.MultiSteps(stepax.adam(1e-3), 2), NARROW) == {"nu"}


ADVICE = {
    "nothing": lambda tx: tx,
    "dtypes": lambda tx: stepax.with_state_dtypes(tx, {"nu": "float32"}),
    "masters": stepax.master_weights,
}


@pytest.mark.parametrize("name", ADVICE)
def test_what_is_advised_mends_it(name):
    """`nu` after gradients that grow from 1 to 2, against the formula."""
    tx, p = ADVICE[name](stepax.adam(1e-3)), jnp.ones(1, jnp.bfloat16)
    gs = jnp.repeat(jnp.array([[1.0], [2.0]], jnp.bfloat16), 500, 0)

    @jax.jit
    def run(gs):
        step = lambda state, g: tx.update(g, state, p)[::-1]
        return jax.lax.scan(step, tx.init(p), gs)[0]

    found = float(stepax.tree.get(run(gs), "nu")[0])
    wanted = (1 - 0.999**500) * (0.999**500 + 4)
    is_mended = abs(found / wanted - 1) < 1e-4  # of 1,000 roundings to float32
    assert is_mended == (name != "nothing")
    assert warned(tx, p) == (set() if is_mended else {"nu"})


def said(row):
    """The slots that a docstring says stall."""
    text = " ".join((inspect.getdoc(row.factory) or "").split())
    found = re.search(r"In bfloat16 ((?:`\w+`(?:, | and )?)+) stalls?\b", text)
    return set(re.findall(r"`(\w+)`", found[1])) if found else set()


@pytest.mark.project
@pytest.mark.few(16)
@pytest.mark.parametrize("row", [x for x in rows() if x.values[0].kind != "wrapper"])
def test_docstrings_name_what_stands_still(row):
    assert said(row) == warned(make(row), NARROW)


CHOICES = [
    pytest.param(row, k, id=f"{row.name}-{k}")
    for row in (x.values[0] for x in rows())
    for k, hint in of_parameters(row.factory).items()
    if all(x in hint for x in members(jax.typing.DTypeLike))
]


@pytest.mark.few(8)
@pytest.mark.parametrize("row, name", CHOICES)
def test_docstrings_name_what_stands_still_in_a_dtype_of_ones_own(row, name):
    assert warned(make(row, **{name: jnp.bfloat16}), WIDE) <= said(row)


def squares(tx):
    """The paths of what grows sixteenfold where the gradients grow fourfold."""

    def run(size):
        state = tx.init(WIDE)
        for i in range(1, 4):
            g = jax.tree.map(lambda p, i=i: jnp.full_like(p, size * i), WIDE)
            _, state = tx.update(g, state, WIDE, **keywords(WIDE))
        return jax.tree_util.tree_flatten_with_path(state)[0]

    for (path, x), (_, y) in zip(run(0.25), run(1.0), strict=True):
        if jnp.issubdtype(jnp.result_type(x), jnp.floating) and jnp.any(x != 0):
            # Of small numbers, such as `eps`, no more is in what is near to a square.
            if np.allclose(y, 16 * x, rtol=1e-2, atol=0):
                yield jax.tree_util.keystr(path, simple=True, separator="/")


@pytest.mark.few(1)
@pytest.mark.parametrize("row", rows())
def test_whatever_holds_squares_is_known_to_stand_still(row):
    tx = stepax.with_extra_args_support(make(row))
    stored = jax.tree_util.tree_flatten_with_path(jax.eval_shape(tx.init, NARROW))[0]
    narrow = {
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, x in stored
        if x.dtype == jnp.bfloat16
    }
    known = warned(tx, NARROW)
    assert all(known & set(path.split("/")) for path in narrow & {*squares(tx)})


def test_squares_are_found():
    assert set(squares(stepax.adam(0.1))) == {"0/nu/w", "0/nu/b"}
    assert not set(squares(stepax.sgd(0.1, 0.9)))
