"""A state that another optimizer made is refused, in our words, by whatever wraps."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from cases import make, rows
from inside import ROWS, Closure, node_of
from keywords import keywords
from wrappers import FAMILIES, WRAPPERS

import stepax


def parameters():
    return {"w": jnp.full((2, 2), 0.5), "b": jnp.full((2, 2), 0.25)}


def _around_adamw(wrap):
    return lambda: wrap(stepax.adamw(1e-2))


# The second is that of an Adam which flat parameters had.
OURS = re.compile("made by another|call `update|and the gradients differ in structure")

MEASURES = [
    pytest.param(row, id=row.name) for row in ROWS.values() if row.kind == "measure"
]

# All wrappers of the table, and all rows: those that measure or aggregate, too.
WRAPPING: dict[str, Callable[[], Any]] = {
    **{name: _around_adamw(wrap) for name, wrap in WRAPPERS.items()},
    **{
        f"row {p.id}": (lambda row=p.values[0]: make(row)) for p in rows(kind="wrapper")
    },
}


def foreign(state: Any) -> dict[str, Any]:
    """States of others, and what is left of a state that was taken apart."""
    made = {name: tx().init(parameters()) for name, tx in FAMILIES.items()}
    made |= {name: tx().init(parameters()) for name, tx in WRAPPING.items()}
    made |= {
        "a rule": stepax.scale_by_adam().init(parameters()),
        "nothing": (),
        "None": None,
        "EmptyState": stepax.EmptyState(),
        "a dict": {},
        "a list": [],
        "a number": jnp.ones([]),
        "parameters": parameters(),
    }
    if isinstance(state, tuple):
        made |= {"too short": (*state[:-1],), "too long": (*state, ())}
        made |= {"without names": (*state,)} if hasattr(state, "_fields") else {}
    kind = type(state)
    is_like = lambda x: type(x) is kind and hasattr(x, "_fields")
    # A state in full precision is not another one: it goes on as it is.
    structure = lambda x: jax.tree.structure(stepax.tree.dequantize(x))
    same = structure(state)
    return {
        name: x for name, x in made.items() if structure(x) != same and not is_like(x)
    }


def test_every_wrapper_refuses_the_state_of_a_rule():
    """What the next test asks of all states, of one that is like many."""
    p = parameters()
    state = stepax.scale_by_adam().init(p)
    for name, make_one in WRAPPING.items():
        tx = make_one()
        if jax.tree.structure(tx.init(p)) == jax.tree.structure(state):
            continue
        with pytest.raises(ValueError) as raised:
            tx.update(p, state, p, **keywords(p))
        assert OURS.search(str(raised.value)), f"{name}: {raised.value}"


@pytest.mark.few(1)
@pytest.mark.parametrize("name", WRAPPING)
def test_a_state_of_another_is_refused(name):
    tx, p = WRAPPING[name](), parameters()
    own = tx.init(p)
    tx.update(p, own, p, **keywords(p))
    others = foreign(own)
    assert len(others) > 40
    for other, state in others.items():
        try:
            tx.update(p, state, p, **keywords(p))
        except ValueError as error:
            assert OURS.search(str(error)), f"{other}: {error}"
        except TypeError as error:  # of codes, which `lazy_rows` takes from no one
            assert "omit `low_bit_states`" in str(error), f"{other}: {error}"
        else:
            raise AssertionError(f"the state `{other}` was taken")


KEEPING = [p for p in [*rows(), *MEASURES] if p.values[0].kind != "wrapper"]


@pytest.mark.few(54)
@pytest.mark.parametrize("row", KEEPING)
def test_whoever_keeps_a_state_refuses_others(row):
    """What is no wrapper runs rules, which say it in one place: a few states do."""
    tx, p = make(row), parameters()
    own = jax.tree.structure(tx.init(p))
    if own.num_leaves == 0:
        pytest.skip("it keeps nothing")
    chained = stepax.chain(stepax.scale(1.0), stepax.scale_by_adam()).init(p)
    for state in None, {}, jnp.ones([]), stepax.MultiSteps(tx, 2).init(p), chained:
        if jax.tree.structure(state) != own:
            with pytest.raises(ValueError, match=OURS):
                tx.update(p, state, p, **keywords(p))


@pytest.mark.few(16)
@pytest.mark.parametrize(
    "tx",
    [pytest.param(lambda row=p.values[0]: make(row), id=p.id) for p in KEEPING]
    + [pytest.param(make_, id=name) for name, make_ in WRAPPING.items()],
)
def test_whoever_reads_hyperparameters_refuses_the_state_of_another(tx):
    tx, p = tx(), parameters()
    node, own = node_of(tx), jax.tree.structure(tx.init(p))
    if own.num_leaves == 0 or (isinstance(node, Closure) and not node.callees):
        pytest.skip("it keeps nothing, or what it keeps is known to it alone")
    chained = stepax.chain(stepax.scale(1.0), stepax.scale_by_adam()).init(p)
    for state in {}, jnp.ones([]), p, stepax.scale_by_lion().init(p), chained:
        if jax.tree.structure(state) == own:
            continue
        for read in (
            stepax.hyperparams,
            lambda tx, s: stepax.describe(tx, p, state=s),
        ):
            with pytest.raises(ValueError, match="made by another"):
                read(tx, state)


def _without_state(g, s, p=None):
    return jax.tree.map(jnp.negative, g), s


@pytest.mark.few(8)
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=[*WRAPPERS])
def test_a_state_of_none_is_that_of_a_transformation_without_one(wrap):
    inner = stepax.GradientTransformation(lambda _: None, _without_state)
    p = parameters()
    try:
        tx = wrap(inner)
        state = tx.init(p)
    except TypeError as error:
        pytest.skip(f"it takes ours alone: {error}")
    described = stepax.describe(tx, p, state=state)
    assert stepax.hyperparams(tx, state).keys() == described.hyperparams.keys()
    assert described.whole.name
