"""Chains run their members in order, in one walk, with states as Optax has them."""

import functools as ft
from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import types
from runs import compare, eager, equal, jitted, many, parameters

import stepax


# One walk is compiled as one function, in which a product and a sum may be rounded once
# where Optax's program rounds twice: two ulps a step, of moments that are carried on.
close = ft.partial(np.testing.assert_allclose, rtol=3e-6, atol=1e-9)


def plain(factor):
    """What a user writes: a pair of functions without keywords."""

    def update(updates, state, params=None):
        return jax.tree.map(lambda g: g * factor, updates), state + 1

    return lambda o: o.GradientTransformation(
        lambda p: jnp.zeros([], jnp.int32), update
    )


MASK = {"w": True, "b": False}

# Each takes the library, ours or Optax, so that one row serves as its own oracle.
CHAINS = {
    "identities": lambda o: o.chain(o.identity(), o.identity()),
    "two": lambda o: o.chain(o.clip_by_global_norm(0.5), o.adam(1e-2)),
    "nested": lambda o: o.chain(
        o.chain(o.chain(o.scale(2.0)), o.scale_by_adam()),
        o.chain(o.add_decayed_weights(0.1), o.chain(o.clip(0.5), o.scale(-0.1))),
    ),
    "totals": lambda o: o.chain(
        o.scale(3.0),
        o.clip_by_global_norm(1.0),
        o.chain(o.scale(0.5), o.clip_by_global_norm(0.1), o.scale_by_adam()),
        o.scale_by_schedule(lambda count: -0.1 / (1.0 + count)),
    ),
    "masks": lambda o: o.chain(
        o.masked(o.chain(o.scale(2.0), o.trace(0.9)), MASK),
        o.partition(
            {"a": o.adam(0.1), "b": o.chain(o.scale(0.5))}, {"w": "a", "b": "b"}
        ),
        o.add_decayed_weights(0.1, MASK),
    ),
    "plain members": lambda o: o.chain(
        plain(0.5)(o),
        o.scale_by_adam(),
        plain(3.0)(o),
        o.chain(plain(2.0)(o), o.clip(0.1)),
    ),
    "names": lambda o: o.named_chain(
        ("clip", o.clip(0.5)),
        ("inner", o.named_chain(("adam", o.scale_by_adam()), ("lr", o.scale(-0.1)))),
        ("chain", o.chain(o.add_decayed_weights(0.1), o.scale(0.5))),
    ),
}


def names(tree):
    """The types of a state and all within it."""
    inner = tree.values() if isinstance(tree, dict) else tree
    within = [names(x) for x in inner] if isinstance(tree, tuple | dict) else []
    return type(tree).__name__, within


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CHAINS)
def test_updates_and_states_are_optax_s(name):
    p, gs = parameters(), many(4)
    u, state = jitted(CHAINS[name](stepax), gs, p)
    v, alone = eager(CHAINS[name](stepax), gs, p)
    compare(close, (u, state), (v, alone))
    with jax.numpy_dtype_promotion("standard"):
        w, wanted = jitted(CHAINS[name](optax), gs, p)
    compare(close, u, w)
    compare(close, state, wanted)
    assert types(state) == types(wanted)
    assert names(state) == names(wanted)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CHAINS)
def test_nesting_changes_nothing(name):
    p, gs = parameters(), many(3)
    tx = CHAINS[name](stepax)
    u, state = jitted(stepax.chain(stepax.chain(tx)), gs, p)
    v, wanted = jitted(tx, gs, p)
    compare(equal, u, v)
    compare(equal, state[0][0], wanted)


def test_an_empty_named_chain_does_nothing():
    p, tx = parameters(), stepax.chain(stepax.named_chain())
    assert tx.init(p) == (OrderedDict(),)
    u, state = tx.update(p, tx.init(p))
    compare(equal, u, p)
    assert state == (OrderedDict(),)


@pytest.mark.parametrize("library", [stepax, optax])
def test_an_empty_chain_is_refused(library):
    """As of a configuration whose parts were all left out."""
    with pytest.raises(ValueError):
        library.chain(*[])


def test_members_of_optax_may_stand_anywhere():
    p, gs = parameters(), many(3)
    members = lambda o: [o.clip_by_global_norm(0.5), o.scale_by_adam(), o.scale(-0.1)]
    ours, theirs = members(stepax), members(optax)
    with jax.numpy_dtype_promotion("standard"):
        wanted = jitted(optax.chain(*theirs), gs, p)
        for mixed in (
            [ours[0], theirs[1], ours[2]],
            [theirs[0], ours[1], theirs[2]],
            [stepax.chain(ours[0]), optax.chain(theirs[1]), ours[2]],
        ):
            compare(close, jitted(stepax.chain(*mixed), gs, p), wanted)
            compare(close, jitted(optax.chain(*mixed), gs, p), wanted)


def test_the_state_of_optax_s_chain_goes_on():
    p, g = parameters(), many(1)[0]
    make = lambda o: o.chain(o.clip(1.0), o.adam(1e-2), o.identity())
    state = make(optax).init(p)
    u, new = make(stepax).update(g, state, p)
    v, wanted = make(stepax).update(g, make(stepax).init(p), p)
    compare(equal, (u, new), (v, wanted))


def test_neighbours_share_a_walk():
    p = parameters()
    tx = stepax.chain(stepax.chain(stepax.scale(2.0)), stepax.adam(1e-2))
    jaxpr = jax.make_jaxpr(tx.update)(p, tx.init(p), p)
    walks = [e for e in jaxpr.eqns if "_then_" in e.params.get("name", "")]
    assert len(walks) == len(jax.tree.leaves(p))


def reader(*keywords):
    """Multiplies by the keywords that it names."""

    def update(updates, state, params=None, **extra_args):
        factor = np.prod([extra_args[k] for k in keywords])
        return jax.tree.map(lambda g: g * float(factor), updates), state

    return stepax.GradientTransformationExtraArgs(stepax.init_empty_state, update)


@pytest.mark.parametrize("outer", [stepax.chain, optax.chain])
def test_each_member_gets_all_keywords(outer):
    inner = stepax.chain(
        reader("a"), plain(1.0)(stepax), stepax.chain(reader("a", "b"))
    )
    tx = outer(stepax.scale(1.0), stepax.masked(inner, True), reader("b"))
    u, _ = tx.update(jnp.ones(2), tx.init(jnp.ones(2)), a=2.0, b=3.0, unread=4)
    equal(u, [36.0, 36.0])


def test_a_member_may_change_the_tree():
    def stack(updates, state, params=None):
        return [updates["w"], {"b": updates["b"]}, None], state

    def back(updates, state, params=None):
        return {"w": updates[0], "b": updates[1]["b"]}, state

    make = lambda f: stepax.GradientTransformation(stepax.init_empty_state, f)
    around = stepax.chain(make(stack), stepax.scale(2.0), make(back))
    tx = stepax.chain(stepax.clip(1.0), around, stepax.scale_by_adam())
    alike = stepax.chain(stepax.clip(1.0), stepax.scale(2.0), stepax.scale_by_adam())
    p, gs = parameters(), many(2)
    compare(close, jitted(tx, gs, p)[0], jitted(alike, gs, p)[0])


def test_states_are_tuples_and_ordered_dicts():
    p = parameters()
    for o in (stepax, optax):
        assert type(o.chain(o.scale(1.0)).init(p)) is tuple
    tx = stepax.named_chain(("z", stepax.scale(1.0)), ("a", stepax.clip(1.0)))
    _, state = tx.update(p, tx.init(p))
    assert type(state) is OrderedDict and list(state) == ["z", "a"]


def test_pairs_may_be_lists_and_names_anything():
    named_chain: Any = stepax.named_chain
    tx = named_chain(["a", stepax.scale(2.0)], (1, stepax.scale(3.0)))
    u, state = tx.update(jnp.ones(1), tx.init(jnp.ones(1)))
    equal(u, [6.0])
    assert list(state) == ["a", 1]


P = {"w": np.ones(2, np.float32)}
lib: Any = stepax  # for calls that are no good on purpose
ADAM, SCALE = stepax.adam(1e-2), stepax.scale(1.0)


def update_with(tx, state):
    return tx.update(P, state, P)


ERRORS = {
    "no call": (
        lambda: lib.chain(SCALE, stepax.adam),
        TypeError,
        r"argument 1 of `chain` .* `init` and `update`, but is `adam` of type "
        r"`function`; did you mean `adam\(\.\.\.\)`\?$",
    ),
    "a list": (lambda: lib.chain([SCALE]), TypeError, r"unpack a list with `\*`$"),
    "a number": (
        lambda: lib.chain(1.0),
        TypeError,
        "argument 0 of `chain` must be a gradient transformation.*of type `float`$",
    ),
    "no pair": (
        lambda: lib.named_chain(("a", SCALE), SCALE),
        TypeError,
        r"argument 1 of `named_chain` must be a pair of .*but is `scale\(",
    ),
    "three": (
        lambda: lib.named_chain(("a", SCALE, SCALE)),
        TypeError,
        "argument 0 of `named_chain` must be a pair",
    ),
    "no call in a pair": (
        lambda: lib.named_chain(("a", stepax.adam)),
        TypeError,
        r"`a` in `named_chain` must be .* did you mean `adam\(\.\.\.\)`",
    ),
    "a name twice": (
        lambda: lib.named_chain(("a", SCALE), ("b", SCALE), ("a", SCALE)),
        ValueError,
        r"names in `named_chain` must be unique.*: \['a'\]$",
    ),
    "too many states": (
        lambda: update_with(lib.chain(SCALE), lib.chain(SCALE, SCALE).init(P)),
        ValueError,
        "a chain of 1 transformations was given 2 states as its state; was this state "
        "made by another optimizer",
    ),
    "no tuple": (
        lambda: update_with(lib.chain(SCALE), ADAM.init(P)[0]),
        ValueError,
        r"a chain of 1 .* was given a `ScaleByAdamState` of fields \(count, mu, nu\)",
    ),
    "another optimizer's": (
        lambda: update_with(lib.chain(stepax.trace(0.9)), (ADAM.init(P)[0],)),
        ValueError,
        r"`trace` expects a state `TraceState` of fields \(trace\), but was given a "
        "`ScaleByAdamState`",
    ),
    "other names": (
        lambda: update_with(lib.named_chain(("a", SCALE)), {"b": ()}),
        ValueError,
        r"a chain of \['a'\] was given \['b'\] as its state",
    ),
    "no names": (
        lambda: update_with(lib.named_chain(("a", SCALE)), ((),)),
        ValueError,
        r"a chain of \['a'\] was given a tuple of 1 as its state",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_say_what_is_wrong(case):
    call, kind, message = ERRORS[case]
    with pytest.raises(kind, match=message):
        call()


def test_a_schedule_is_no_transformation():
    for schedule in (stepax.linear_schedule(1.0, 0.0, 10), lambda count: 0.1):
        with pytest.raises(TypeError, match="`scale_by_learning_rate"):
            stepax.chain(stepax.scale_by_adam(), schedule)  # type: ignore[arg-type]
