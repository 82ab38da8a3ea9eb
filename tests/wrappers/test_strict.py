"""`strict_keywords` makes a keyword that nobody reads an error, and no more."""

import inspect
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import ARGUMENTS, make, rows
from inside import ROWS, build, node_of
from loops import each
from runs import compare, equal, jitted, many, parameters

import stepax
import stepax.contrib
from stepax import strict_keywords as strictly
from stepax.rules import Rule


strict: Any = strictly
lib: Any = stepax
theirs: Any = optax
P = {"w": np.ones(2, np.float32)}


def rule(*keywords):
    """A rule that multiplies by the keywords it reads."""

    def prepare(scalars, stat, extra):
        return np.prod([extra[k] for k in keywords]), ()

    return build(Rule(lambda g, p, ctx: (g * ctx,), prepare=prepare, reads=keywords))


def closure(*keywords, takes_more=True):
    """What a user writes, with these keywords in its signature."""

    def update(updates, state, params=None, **extra_args):
        return updates, state

    kinds = inspect.Parameter
    more = [kinds(k, kinds.KEYWORD_ONLY) for k in keywords]
    first = list(inspect.signature(update).parameters.values())
    last = first[3:] if takes_more else []
    update.__signature__ = inspect.Signature([*first[:3], *more, *last])
    return stepax.GradientTransformationExtraArgs(stepax.init_empty_state, update)


def positional():
    def update(updates, state, params=None, value=None):
        return updates, state

    return stepax.GradientTransformationExtraArgs(stepax.init_empty_state, update)


def plain(o):
    return o.GradientTransformation(o.init_empty_state, lambda u, s, p=None: (u, s))


def chained(tx):
    return stepax.chain(stepax.scale(1.0), stepax.chain(tx))


MASK = {"w": True}
multi = lambda tx: lib.MultiSteps(tx, 2)

# A transformation, and the keywords that it reads; `None` if nobody knows.
TABLE = {
    "optimizer": (stepax.adamw(1e-2), ""),
    "schedule": (stepax.sgd(lambda count: 0.1), ""),
    "rule": (rule("value"), "value"),
    "two rules": (stepax.chain(rule("value"), rule("value", "grad")), "value grad"),
    "masked": (stepax.masked(rule("value"), MASK), "value"),
    "partition": (
        stepax.partition({"a": rule("value"), "b": rule("loss")}, {"w": "a"}),
        "value loss",
    ),
    "named chain": (stepax.named_chain(("a", rule("value"))), "value"),
    "plain": (plain(stepax), ""),
    "plain of Optax": (plain(optax), ""),
    "plain, supported": (stepax.with_extra_args_support(plain(stepax)), ""),
    "closure": (closure("value", "grad"), "value grad"),
    "closure without more": (closure("value", takes_more=False), "value"),
    "closure that takes all": (closure(), None),
    "positional": (positional(), "value"),
    "chain of closures": (chained(closure("value")), "value"),
    "chain of one that takes all": (stepax.chain(rule("value"), closure()), None),
    "line search of Optax": (
        optax.scale_by_backtracking_linesearch(3),
        "value grad value_fn",
    ),
    "chain of Optax": (optax.chain(optax.scale(1.0)), None),
    "MultiSteps": (multi(rule("value")), "value weight"),
    "MultiSteps in a chain": (chained(multi(rule("value"))), "value weight"),
    "MultiSteps, a pair": (
        multi(rule("value")).gradient_transformation(),
        "value weight",
    ),
    "MultiSteps, supported": (
        lib.with_extra_args_support(multi(rule("value"))),
        "value weight",
    ),
    "MultiSteps of Optax": (theirs.MultiSteps(closure("value"), 2), "value"),
    "MultiSteps of what takes all": (multi(closure()), None),
    "finite": (stepax.apply_if_finite(chained(rule("value")), 2), "value"),
    "finite of a closure": (stepax.apply_if_finite(closure("value"), 2), "value"),
    "wrapper in wrapper": (
        lib.apply_if_finite(lib.MultiSteps(closure("value"), 2, weighted=True), 2),
        "value weight",
    ),
    "strict": (strict(rule("value")), "value"),
    "injected reader": (
        stepax.inject_hyperparams(
            lambda lr: stepax.chain(rule("value"), stepax.scale(lr))
        )(lambda count: 0.1),
        "value",
    ),
    "masked keywords": (
        stepax.masked(rule("value"), MASK, mask_compatible_extra_args=True),
        "value",
    ),
    "condition that sees all": (
        stepax.conditionally_mask(rule("value"), lambda step, **_: step > 0, True),
        None,
    ),
    "injected": (stepax.inject_hyperparams(stepax.adamw)(1e-2), ""),
    "injected schedule": (stepax.inject_hyperparams(stepax.sgd)(lambda t: 0.1), ""),
}


@pytest.mark.parametrize("case", TABLE)
def test_reads_says_which_keywords_are_read(case):
    tx, wanted = TABLE[case]
    assert node_of(tx).keywords() == (
        None if wanted is None else frozenset(wanted.split())
    )


# A function would be called.
CALLS_NOTHING = [k for k, (_, read) in TABLE.items() if "value_fn" not in (read or "")]


@pytest.mark.few(11)
@pytest.mark.parametrize("case", CALLS_NOTHING)
def test_only_what_nobody_reads_is_an_error(case):
    tx, wanted = TABLE[case]
    tx = stepax.GradientTransformationExtraArgs(tx.init, tx.update)
    checked = strict(TABLE[case][0])
    state = checked.init(P)
    more = {k: np.float32(2.0) for k in (wanted or "").split()}
    if wanted is None:
        more = {"value": np.float32(1.0), "anything": 1}
    with jax.numpy_dtype_promotion("standard"):
        found, expected = (x.update(P, state, P, **more) for x in (checked, tx))
        assert jax.tree.leaves(found)
        compare(equal, found, expected)
        if wanted is None:
            return
        with pytest.raises(TypeError, match="reads the keyword `anything`"):
            checked.update(P, state, P, **more, anything=1)


WRAPPING = ("inner", "optimizer", "transforms", "args")
WRAPPERS = [
    row
    for row in (x.values[0] for x in rows())
    if set(WRAPPING) & set(inspect.signature(row.factory).parameters)
]


@pytest.mark.parametrize("row", WRAPPERS, ids=lambda row: row.name)
@pytest.mark.parametrize(
    "member", [rule("value"), closure("value")], ids=["rule", "tx"]
)
def test_wrappers_read_what_is_in_them(row, member, monkeypatch):
    both = {"a": member, "b": member}
    inside = {
        "transforms": both,
        "args": (member,),
        "inner": member,
        "optimizer": member,
    }
    for name, x in inside.items():
        monkeypatch.setitem(ARGUMENTS, name, lambda x=x: x)
    try:
        found = node_of(make(row)).keywords()
    except TypeError as error:  # `stacked` takes what the engine runs
        assert "cannot be applied to the arrays of a stack" in str(error)
        return
    assert found is None or "value" in found


LEAVES = [
    row
    for row in (x.values[0] for x in rows())
    if not set(WRAPPING) & set(inspect.signature(row.factory).parameters)
    # A line search hands whatever it is given to the caller's own function.
    and not hasattr(make(row).init({}), "learning_rate")
]


@each(LEAVES)
def test_it_is_known_what_every_factory_reads(row):
    assert node_of(make(row)).keywords() is not None


def test_nothing_else_changes():
    p, gs = parameters(), many(3)
    tx = stepax.chain(stepax.clip_by_global_norm(1.0), stepax.adamw(1e-2))
    compare(equal, jitted(strict(tx), gs, p), jitted(tx, gs, p))
    assert jax.tree.structure(strict(tx).init(p)) == jax.tree.structure(tx.init(p))
    u, _ = strict(plain(stepax)).update(P, stepax.EmptyState())
    compare(equal, u, P)


MESSAGES = {
    "near": (
        stepax.masked(closure("value", "grad"), MASK),
        "vlaue",
        "no part of `masked\\(.*` reads the keyword `vlaue`; did you mean `value`\\? "
        "the keywords that are read: `grad`, `value`",
    ),
    "far": (
        stepax.chain(rule("value")),
        "step_number",
        "no part of `chain\\(.*` reads the keyword `step_number`; the keywords that "
        "are read: `value`",
    ),
    "none": (
        stepax.adam(1e-2),
        "value",
        "no part of `adam\\(learning_rate=0.01\\)` reads the keyword `value`; the "
        "keywords that are read: none",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_the_message_names_the_nearest_keyword(case):
    tx, name, message = MESSAGES[case]
    checked = strict(tx)
    for update in (checked.update, jax.jit(checked.update)):
        with pytest.raises(TypeError, match=f"^{message}(\n|$)"):
            update(P, checked.init(P), P, **{name: jnp.float32(1.0)})


def test_a_class_is_no_transformation():
    with pytest.raises(TypeError, match=r"`inner` of `strict_keywords` .*`adam\("):
        strict(stepax.adam)


def test_equal_arguments_make_equal_transformations():
    tx = strict(stepax.adam(1e-2))
    assert repr(tx) == "strict_keywords(inner=adam(learning_rate=0.01))"
    assert tx == strict(stepax.adam(1e-2)) and hash(tx) == hash(
        strict(stepax.adam(1e-2))
    )
    assert tx != stepax.adam(1e-2)
    assert pickle.loads(pickle.dumps(tx)) == tx
    assert isinstance(tx, optax.GradientTransformationExtraArgs)
    assert "strict" not in ROWS  # the tests of all rows pass keywords that few read
