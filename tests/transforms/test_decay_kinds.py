"""Weight decay of every kind, on every optimizer."""

import inspect
import itertools
import json
import math
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TREES, gradients, make, rows
from compare import assert_same_structure
from inside import ROWS, node_of
from keywords import keywords
from runs import compilations
from wrappers import WRAPPERS, refuses_decay

import stepax
import stepax.contrib


PEAK, W = 0.02, 0.1
RATE = stepax.linear_schedule(PEAK, 0.0, 10)

# Where u is what the optimizer adds to p without decay, at the rate a.
FORMULAS = {
    "coupled": lambda u, p, start, a: u,
    "decoupled": lambda u, p, start, a: u - a * W * p,
    "independent": lambda u, p, start, a: u - W * p,
    "corrected": lambda u, p, start, a: u - a**2 / PEAK * W * p,
    "cautious": lambda u, p, start, a: u - a * W * p * (u * p <= 0),
    "to_start": lambda u, p, start, a: u - a * W * (p - start),
}


def decay(kind: Any, amount: Any = W, **more) -> Any:
    peak = PEAK if kind == "corrected" else None
    return stepax.weight_decay(amount, kind, peak=peak, **more)


def params() -> Any:
    rng = np.random.RandomState(0)
    return {"w": jnp.asarray(rng.randn(3, 3), jnp.float32), "b": jnp.full((3, 3), 0.5)}


def follows(tx, plain, kind, decays=("w", "b"), rate=RATE, n=3) -> None:
    """Assert that each step is the formula of a kind, of the step without decay."""
    p = start = params()
    state, other = tx.init(p), plain.init(p)
    for i in range(n):
        g = gradients(p, i)
        u, state = tx.update(g, state, p, **keywords(g))
        h = {k: x + W * p[k] if kind == "coupled" and k in decays else x
             for k, x in g.items()}  # fmt: skip
        v, other = plain.update(h, other, p, **keywords(g))
        for k in p:
            now, first, step = (np.asarray(x[k], float) for x in (p, start, v))
            a = float(np.asarray(rate(i) if callable(rate) else rate))
            wanted = FORMULAS[kind](step, now, first, a) if k in decays else step
            # Sums of two roundings each, of terms that are at most 1.
            np.testing.assert_allclose(u[k], wanted, rtol=2e-5, atol=1e-6)
        p = jax.tree.map(jnp.add, p, u)


def takes(row, name) -> bool:
    return name in inspect.signature(row.factory).parameters


RATED = [x for x in rows(kind="optimizer", takes="learning_rate")]


def test_decays_that_an_optimizer_would_undo_are_refused():
    refused = 0
    for row in (x.values[0] for x in RATED):
        shared = inspect.getattr_static(ROWS[row.name].factory, "scalars").shared
        if "decay" in shared and takes(row, "weight_decay"):
            refused += 1
            with pytest.raises(
                ValueError, match=f"cannot be `weight.*{shared['decay']}"
            ):
                make(row, learning_rate=RATE, weight_decay=decay("cautious"))
    assert refused


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", FORMULAS)
@pytest.mark.parametrize("row", RATED)
def test_every_optimizer_decays_by_every_formula(row, kind):
    given = {"learning_rate": RATE}
    shared = inspect.getattr_static(ROWS[row.name].factory, "scalars").shared
    if not takes(row, "weight_decay"):
        plain = make(row, **given)
        if "decay" in shared and kind != "coupled":
            with pytest.raises(ValueError, match=f"after .*{shared['decay']}"):
                stepax.with_weight_decay(plain, decay(kind), RATE)
            return
        follows(stepax.with_weight_decay(plain, decay(kind), RATE), plain, kind)
        return
    if "decay" in shared and kind != "coupled":
        with pytest.raises(ValueError, match=f"cannot be `weight.*{shared['decay']}"):
            make(row, **given, weight_decay=decay(kind))
        return
    tx = make(row, **given, weight_decay=decay(kind))
    default = inspect.signature(row.factory).parameters["weight_decay"].default
    plain = make(row, **given, weight_decay=None if default is None else 0.0)
    follows(tx, plain, kind)


def why_not(factory) -> str:
    """Why what a factory makes follows only the decay that is coupled."""
    return factory.scalars.shared.get("decay", "")


AROUND: dict[str, Any] = {
    "alone": lambda tx: tx,
    "chain": lambda tx: stepax.chain(stepax.clip(1.0), tx),
    "partition": lambda tx: stepax.partition({"a": tx}, "a"),
    "masked": lambda tx: stepax.masked(tx, {"w": True, "**": False}),
    "closure": lambda tx: stepax.apply_if_finite(tx, 2),
    "two": lambda tx: stepax.averages(stepax.chain(stepax.flatten(tx)), 0.9),
    "MultiSteps": lambda tx: stepax.MultiSteps(tx, 2),
}


def test_what_does_not_follow_a_decay_says_so_in_every_composition():
    refusing = [row for row in ROWS.values() if why_not(row.factory)]
    assert len(refusing) > 15
    for row in refusing:
        tx, says = make(row), rf"after `{row.name}`, as {why_not(row.factory)}"
        for around, kind in [
            *((x, "decoupled") for x in AROUND),
            ("alone", "cautious"),
        ]:
            with pytest.raises(ValueError, match=says):
                stepax.with_weight_decay(AROUND[around](tx), decay(kind), RATE)
        stepax.with_weight_decay(tx, decay("coupled"), RATE)
    with pytest.raises(ValueError, match="after `prodigy`, as its learning rate"):
        injected = stepax.inject_hyperparams(stepax.contrib.prodigy)(1.0)
        stepax.with_weight_decay(injected, W, RATE)


def shrunk(tx: Any, n: int = 6) -> Any:
    """The parameters after steps without gradients."""
    tx, p = stepax.with_extra_args_support(tx), params()
    p, state = jax.tree.map(lambda x: x.astype(jnp.bfloat16), p), tx.init(p)
    for _ in range(n):
        g = jax.tree.map(jnp.zeros_like, p)
        u, state = tx.update(g, state, p, **keywords(g))
        p = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), p, u)
    return jax.tree.map(np.float32, p)


@pytest.mark.few(2)
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_whatever_does_not_refuse_a_decay_follows_it(row):
    decays_as_said(lambda: make(row))


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPPERS)
def test_whatever_wrapper_does_not_refuse_a_decay_follows_it(name):
    decays_as_said(lambda: WRAPPERS[name](stepax.sgd(0.5)))


def decays_as_said(make_tx):
    plain = make_tx()
    if refuses_decay(plain):
        return  # as the test above says
    found, wanted = shrunk(stepax.with_weight_decay(make_tx(), W, 0.5)), shrunk(plain)
    # A wrapper may be idle in some calls.
    n = steps_in(plain, 6) if node_of(plain).may_idle else 6
    for k in found:
        # A decay of its own is 1e-2, or less, of this one; sums are in bfloat16.
        np.testing.assert_allclose(found[k], 0.95**n * wanted[k], rtol=0.04)


def steps_in(tx: Any, calls: int) -> int:
    """In how many calls parameters move."""
    p, n = params(), 0
    state = tx.init(p)
    for _ in range(calls):
        u, state = tx.update(p, state, p, **keywords(p))
        n += any(x.any() for x in jax.tree.leaves(u))
    return n


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", FORMULAS)
@pytest.mark.parametrize(
    "given",
    [
        "mask",
        "the mask of the optimizer",
        "mapping",
        "schedule",
        "number",
        "with_weight_decay",
    ],
)
def test_masks_mappings_and_schedules_are_followed(kind, given):
    mask, rate = {"w": True, "b": False}, PEAK if given == "number" else RATE
    plain = stepax.sgd(rate)
    match given:
        case "mask":
            tx = stepax.sgd(rate, weight_decay=decay(kind, mask=mask))
        case "the mask of the optimizer":
            tx = stepax.sgd(rate, weight_decay=decay(kind), weight_decay_mask=mask)
        case "mapping":
            tx = stepax.sgd(rate, weight_decay=decay(kind, {"b": 0.0, "**": W}))
        case "schedule" | "number":
            amount = (lambda count: W) if given == "schedule" else W
            tx = stepax.sgd(rate, weight_decay=decay(kind, amount, mask=mask))
        case _:
            tx = stepax.with_weight_decay(plain, decay(kind, mask=mask))
    follows(tx, plain, kind, ("w",), rate)


@pytest.mark.parametrize("kind", FORMULAS)
def test_rates_by_path_are_those_of_the_decay(kind):
    rates, mask = {"w": PEAK, "**": 0.5}, {"w": True, "b": False}
    tx = stepax.sgd(rates, weight_decay=decay(kind, mask=mask))
    follows(tx, stepax.sgd(rates), kind, ("w",), PEAK)
    plain = stepax.sgd({"w": PEAK, "b": PEAK})
    follows(stepax.with_weight_decay(plain, decay(kind)), plain, kind, rate=PEAK)


def test_kinds_may_differ_by_path():
    """AdamC: corrected for normalized layers, as always for the others."""
    kinds = {"b": decay("decoupled"), "**": decay("corrected")}
    tx, p = stepax.adamw(RATE, weight_decay=kinds), params()
    plain = stepax.adamw(RATE, weight_decay=0.0)
    u, _ = tx.update(p, tx.update(p, tx.init(p), p)[1], p)
    v, _ = plain.update(p, plain.update(p, plain.init(p), p)[1], p)
    a: Any = RATE(1)
    np.testing.assert_allclose(u["b"], v["b"] - a * W * p["b"], rtol=1e-5)
    np.testing.assert_allclose(u["w"], v["w"] - a**2 / PEAK * W * p["w"], rtol=1e-5)
    mixed = stepax.adamw(RATE, weight_decay={"b": 0.0, "**": decay("corrected")})
    u, _ = mixed.update(p, mixed.init(p), p)
    assert_same_structure(mixed.init(p), tx.init(p))


ALONE = "coupled", "to_start"


@pytest.mark.few(1)
@pytest.mark.parametrize("rate", [PEAK, RATE], ids=["number", "schedule"])
def test_each_pair_of_kinds_by_path_is_both_or_named(rate):
    kinds: dict[str, Any] = {k: decay(k) for k in FORMULAS} | {"number": W}
    p, u = params(), {}
    second = lambda tx: tx.update(p, tx.update(p, tx.init(p), p)[1], p)[0]
    for name, x in kinds.items():
        u[name] = second(stepax.adamw(rate, weight_decay=decay("decoupled")
                                      if name == "number" else x))  # fmt: skip
    for one, two in itertools.product(kinds, repeat=2):
        given: Any = {"w": kinds[one], "**": kinds[two]}
        make_tx = lambda: stepax.adamw(rate, weight_decay=given)  # noqa: B023
        if one != two and (one in ALONE or two in ALONE):
            with pytest.raises(ValueError, match=r"\['.* by path, but '(coup|to_)"):
                make_tx()
            continue
        wanted = u if (one, two) != ("number", "number") else {
            "number": second(stepax.adamw(rate, weight_decay=W))
        }  # fmt: skip
        found = second(make_tx())
        for k, kind in (("w", one), ("b", two)):
            np.testing.assert_allclose(found[k], wanted[kind][k], 1e-6, err_msg=kind)


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", FORMULAS)
def test_the_other_optimizer_of_muon_keeps_its_own_decay(kind):
    p = {"w": params()["w"], "b": jnp.ones(3)}
    tx = stepax.contrib.muon(PEAK, weight_decay=decay(kind))
    plain = stepax.contrib.muon(PEAK)
    u, _ = tx.update(p, tx.init(p), p)
    v, _ = plain.update(p, plain.init(p), p)
    np.testing.assert_allclose(u["b"], v["b"], rtol=1e-6)
    if kind != "coupled":  # which does not turn the direction of the gradient p
        step, now = np.asarray(v["w"]), np.asarray(p["w"])
        wanted = FORMULAS[kind](step, now, now, PEAK)
        np.testing.assert_allclose(u["w"], wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", FORMULAS)
@pytest.mark.parametrize("tree", ["None leaf", "empty", "0-d", "module, whole"])
def test_any_tree_decays(kind, tree):
    p = TREES[tree]()
    tx = stepax.adamw(PEAK, weight_decay=decay(kind))
    state = tx.init(p)
    u, new = tx.update(gradients(p), state, p)
    assert_same_structure(new, state)
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(u))


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64"])
@pytest.mark.parametrize("kind", FORMULAS)
def test_dtypes_are_kept(kind, dtype):
    p = jax.tree.map(lambda x: x.astype(dtype), params())
    tx = stepax.adamw(RATE, weight_decay=decay(kind))
    state = tx.init(p)
    u, new = jax.jit(tx.update)(p, state, p)
    assert_same_structure(new, state)
    assert {x.dtype for x in jax.tree.leaves(u)} == {jnp.dtype(dtype)}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", FORMULAS)
def test_packed_and_batched_steps_are_the_same(kind):
    p, tx = params(), stepax.adamw(RATE, weight_decay=decay(kind))
    wanted, _ = tx.update(p, tx.init(p), p)
    packed = stepax.tree.pack(p)
    found, _ = tx.update(packed, tx.init(packed), packed)
    for x, y in zip(
        jax.tree.leaves(stepax.tree.unpack(found)), jax.tree.leaves(wanted), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=2e-6, atol=1e-9)
    twice = jax.tree.map(lambda x: jnp.stack([x, x]), p)
    batched = jax.vmap(lambda p: tx.update(p, tx.init(p), p)[0])(twice)
    np.testing.assert_allclose(batched["w"][1], wanted["w"], rtol=2e-6, atol=1e-9)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", FORMULAS)
def test_an_injected_decay_is_changed_without_compiling(kind):
    p = params()
    tx = stepax.inject_hyperparams(stepax.adamw)(RATE, weight_decay=decay(kind))
    step = jax.jit(tx.update)
    _, state = step(p, tx.init(p), p)
    state = stepax.tree.set(state, weight_decay=0.0)
    with compilations() as compiled:
        u, _ = step(p, state, p)
    assert compiled == []
    plain = stepax.inject_hyperparams(stepax.adamw)(RATE, weight_decay=0.0)
    v, _ = plain.update(p, plain.update(p, plain.init(p), p)[1], p)
    if kind != "coupled":  # of which the first step was another one
        np.testing.assert_allclose(u["w"], v["w"], rtol=1e-5)


def test_only_the_start_is_remembered():
    p = params()
    for kind in FORMULAS:
        state = stepax.sgd(PEAK, weight_decay=decay(kind)).init(p)
        kept = [x for x in jax.tree.leaves(state) if jnp.ndim(x)]
        assert len(kept) == (2 if kind == "to_start" else 0)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    p = jax.device_put({"w": jnp.ones((8, 2))}, split)
    state = stepax.sgd(PEAK, weight_decay=decay("to_start")).init(p)
    assert stepax.tree.get(state, "start")["w"].sharding.is_equivalent_to(split, 2)


def test_it_is_shown_compared_and_pickled_as_its_call():
    tx = stepax.adamw(PEAK, weight_decay=decay("corrected", mask={"w": True}))
    shown = "weight_decay(0.1, kind='corrected', mask={'w': True}, peak=0.02)"
    assert repr(tx) == f"adamw(learning_rate=0.02, weight_decay={shown})"
    assert tx == pickle.loads(pickle.dumps(tx))
    assert tx != stepax.adamw(PEAK, weight_decay=decay("decoupled", mask={"w": True}))
    data = stepax.to_config(tx)
    assert data["weight_decay"]["_target_"] == "stepax.weight_decay"
    assert stepax.from_config(json.loads(json.dumps(data))) == tx


SGD: Any = stepax.sgd
DECAY: Any = stepax.weight_decay  # wrong arguments are given on purpose


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: DECAY(W, "l2"), ValueError,
         "`kind` is 'l2', expected one of .'coupled', 'decoupled', 'independent'"),
        (lambda: DECAY(W, "corrected"), ValueError, "`peak`, the largest learning"),
        (lambda: DECAY(W, peak=1.0), ValueError, "`kind` is 'decoupled' and `peak`"),
        (lambda: DECAY(W, "corrected", peak=0), ValueError, "`peak` must be above 0"),
        (lambda: DECAY(W, "corrected", peak="1"), TypeError, "`peak` must be a number"),
        (lambda: SGD(1.0, weight_decay=DECAY("0.1")), TypeError,
         "`sgd`: `weight_decay` must be a number .* write 0.1 without quotes"),
        (lambda: SGD(1.0, weight_decay=DECAY(math.nan)), ValueError, "be a finite"),
        (lambda: SGD(1.0, weight_decay=DECAY({})), ValueError, "is an empty mapping"),
        (lambda: SGD(1.0, weight_decay=DECAY({"w": "1"})), TypeError,
         r"`weight_decay\['w'\]` must be a number"),
        (lambda: SGD(DECAY(W)), TypeError, "`learning_rate` must be a number"),
        (lambda: SGD(1.0, weight_decay=DECAY(W, mask={}), weight_decay_mask={}),
         ValueError, "is given twice, to `weight_decay` and as `weight_decay_mask`"),
        (lambda: stepax.add_decayed_weights(DECAY(W)), TypeError,
         "there is no `learning_rate`; use `with_weight_decay`"),
        (lambda: stepax.with_weight_decay(stepax.scale(-1.0), DECAY(W)), ValueError,
         "is multiplied by the learning rate, which is `None`: give `learning_rate`"),
    ],
)  # fmt: skip
def test_a_wrong_decay_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
