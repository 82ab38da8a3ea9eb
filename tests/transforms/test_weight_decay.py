"""Weight decay: one pair of names, on every optimizer, for the parameters of a mask."""

import inspect
from typing import Any

import cases
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from compare import assert_same_structure
from inside import ROWS
from keywords import keywords
from runs import close, equal

import stepax
import stepax.contrib


RATE, DECAY = 0.05, 0.1
MASK = {"w": True, "b": False}

# Where decay is left to the loss, and why.
WITHOUT = {
    "lbfgs": "its line search measures the loss, which must hold the penalty, and its "
    "pairs of steps and gradients must be of one function",
    "lbfgsb": "likewise",
    "muown": "it trains the length of each output by itself",
    "scion": "`constrained` shrinks them, within a ball of radius `scales`",
}

# Where the weights do not decay by learning_rate * weight_decay * p, and why.
OTHERWISE = {
    "adadelta": "added to the gradient, as in Optax",
    "adopt": "from the second step on, as in the authors' program",
    "apollo": "of the new parameters, as in the authors' program",
    "cocob": "added to the gradient, on which it bets",
    "dadapt_adamw": "by the estimated learning rate, as in the paper",
    "dadapt_sgd": "added to the gradient, as in the authors' program",
    "dog": "added to the gradient, as in Optax",
    "dowg": "added to the gradient, as in Optax",
    "fromage": "the step is shortened by sqrt(1 + learning_rate²), as in the paper",
    "gpa_adamw": "what decays is the sequence z, as in the authors' code",
    "kl_shampoo": "of the new parameters, from the second step on, as in its code",
    "kl_soap": "likewise",
    "lamb": "the step has the length of the parameter, as in the paper",
    "laprop": "of the new parameters, as in the authors' program",
    "lars": "added to the gradient, as in the paper",
    "madgrad": "added to the gradient, as in the paper",
    "momo": "divided by 1 + learning_rate * weight_decay, as in the paper",
    "momo_adam": "divided by 1 + learning_rate * weight_decay, as in the paper",
    "prodigy": "by the estimated learning rate, as in the paper",
    "soap": "of the new parameters, from the second step on, as in the paper's code",
    "splus": "of the new parameters, at rates that depend on the shape, as in its code",
    "stable_adamw": "by the learning rate as it is clipped, as in the paper",
}

# The step at which decay begins, if that is not the first; from 0.
FIRST = {"adopt": 1, "kl_shampoo": 1, "kl_soap": 1, "soap": 1}


def default(row: Any, name: str) -> Any:
    return inspect.signature(row.factory).parameters[name].default


def takes(row: Any, name: str) -> bool:
    return name in inspect.signature(row.factory).parameters


def those(is_meant: Any = lambda row: True) -> Any:
    rows = [p for p in cases.rows(kind="optimizer") if p.id not in WITHOUT]
    rows = [p for p in rows if is_meant(p.values[0])]
    return pytest.mark.parametrize("row", rows)


def is_optional(row: Any) -> bool:
    return default(row, "weight_decay") is None


def decaying(row: Any, decay: Any = DECAY, **more: Any) -> Any:
    """An optimizer of a row whose weights decay."""
    if takes(row, "mask"):
        more.setdefault("mask", None)
    if takes(row, "silent_sgd_phase"):  # in which nothing moves
        more["silent_sgd_phase"] = False
    for name in {"learning_rate", "scaling"} - more.keys():
        if takes(row, name):
            more[name] = RATE
    return cases.make(row, weight_decay=decay, **more)


def plain(row: Any, **more: Any) -> Any:
    return decaying(row, None if is_optional(row) else 0.0, **more)


def parameters() -> Any:
    return {"w": cases.TREES["dict"]()["w"], "b": jnp.asarray([0.5, -1.5, 1.0])}


@pytest.fixture(autouse=True)
def operation_by_operation():
    """Programs that run once are not worth compiling."""
    with jax.disable_jit():
        yield


def steps(tx: Any, gradients: Any, params: Any, n: int = 2) -> Any:
    """The updates of each step, and the states, the first included."""
    states, updates = [tx.init(params)], []
    for _ in range(n):
        u, state = tx.update(gradients, states[-1], params, **keywords(gradients))
        states.append(state)
        updates.append(u)
    return updates, states


def zeros(p: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, p)


def still(row: Any, p: Any) -> Any:
    """Gradients with which an optimizer does nothing but decay, or little else."""
    # Its rate is relative to the first gradient that is not zero.
    return jax.tree.map(jnp.ones_like, p) if row.name == "dadapt_sgd" else zeros(p)


def test_every_optimizer_takes_decay_or_says_why_not():
    names = {"weight_decay", "weight_decay_mask"}
    known = {row.name: row for row in ROWS.values() if row.kind == "optimizer"}
    assert WITHOUT.keys() | OTHERWISE.keys() <= known.keys()
    for name, row in known.items():
        assert all(takes(row, x) for x in names) == (name not in WITHOUT), name


@pytest.mark.few(1)
@those()
def test_weights_decay_where_the_mask_says(row):
    p = parameters()
    without, _ = steps(plain(row), still(row, p), p)
    found, _ = steps(decaying(row, weight_decay_mask=MASK), still(row, p), p)
    first = FIRST.get(row.name, 0)
    change = found[first]["w"] - without[first]["w"]
    if row.name in OTHERWISE:
        equal(jnp.sign(change), -jnp.sign(p["w"]))
    else:
        # Noise of the size of p is subtracted from itself.
        np.testing.assert_allclose(change, -RATE * DECAY * p["w"], 1e-5, 1e-8)
    for x, y in zip(found, without, strict=True):
        equal(x["b"], y["b"])


@pytest.mark.few(1)
@those(lambda row: row.name not in OTHERWISE)
def test_decay_leaves_the_step_alone(row):
    p = parameters()
    g = cases.gradients(p)
    without, _ = steps(plain(row), g, p, 1)
    found, _ = steps(decaying(row, weight_decay_mask=MASK), g, p, 1)
    wanted = without[0]["w"] - RATE * DECAY * p["w"]
    np.testing.assert_allclose(found[0]["w"], wanted, 1e-5, 1e-7)
    equal(found[0]["b"], without[0]["b"])


@pytest.mark.few(1)
@those()
def test_a_mask_of_all_is_none(row):
    p = parameters()
    g = zeros(p)
    found, _ = steps(decaying(row, weight_decay_mask=True), g, p)
    wanted, _ = steps(decaying(row), g, p)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, 1e-5, 1e-9)


@pytest.mark.few(2)
@those(lambda row: takes(row, "mask"))
def test_the_old_name_of_the_mask_means_the_same(row):
    p = parameters()
    g = cases.gradients(p)
    old = steps(decaying(row, mask=MASK), g, p)
    new = steps(decaying(row, weight_decay_mask=MASK), g, p)
    assert jax.tree.structure(old) == jax.tree.structure(new)
    jax.tree.map(equal, old, new)
    with pytest.raises(
        ValueError, match="`mask` and `weight_decay_mask` are two names"
    ):
        decaying(row, mask=MASK, weight_decay_mask=MASK)


@pytest.mark.few(2)
@those()
def test_schedules_of_rate_and_decay_that_are_constant_change_nothing(row):
    p = parameters()
    g = cases.gradients(p)
    names = [x for x in ("learning_rate", "scaling") if takes(row, x)]
    schedules = {name: lambda count: jnp.float32(RATE) for name in names}
    decay = lambda count: jnp.float32(DECAY)
    found, states = steps(decaying(row, decay, **schedules), g, p)
    wanted, _ = steps(decaying(row), g, p)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, 1e-5, 1e-8)
    structures = {jax.tree.structure(x) for x in states}
    assert len(structures) == 1
    assert cases.types(states[0]) == cases.types(states[-1])


@pytest.mark.few(2)
@those()
def test_schedules_are_followed(row):
    p = parameters()
    on = lambda count: jnp.where(count < 1, 0.0, DECAY)
    found, _ = steps(decaying(row, on), still(row, p), p)
    without, _ = steps(plain(row), still(row, p), p)
    np.testing.assert_allclose(found[0]["w"], without[0]["w"], 1e-6, 1e-9)
    assert not np.array_equal(found[1]["w"], without[1]["w"])


@pytest.mark.few(6)
@those(is_optional)
def test_without_decay_nothing_is_remembered_or_injected(row):
    p, tx = parameters(), plain(row)
    arguments = dict(tx.call.bound.arguments)
    state = stepax.inject_hyperparams(row.factory)(**arguments).init(p)
    assert not any("weight_decay" in name for name in state.hyperparams)
    ours = jax.eval_shape(tx.init, p)
    home = optax if hasattr(optax, row.name) else optax.contrib
    own = inspect.signature(getattr(home, row.name)).parameters
    with jax.numpy_dtype_promotion("standard"):
        kept = {k: x for k, x in arguments.items() if k in own}
        theirs = jax.eval_shape(getattr(home, row.name)(**kept).init, p)
    assert_same_structure(ours, theirs)


class Never(eqx.Module):
    """A callable tree."""

    w: Any
    b: Any

    def __call__(self, *args):
        raise AssertionError("it was called")


@pytest.mark.thinned
@those()
def test_a_callable_module_as_a_mask_is_not_called(row):
    p = Never(**parameters())
    tx = decaying(row, weight_decay_mask=Never(**MASK))
    injected = stepax.inject_hyperparams(row.factory)(**tx.call.bound.arguments)
    n = 1 + FIRST.get(row.name, 0)
    (*_, without), _ = steps(plain(row), still(row, p), p, n)
    for each in tx, injected:
        (*_, found), _ = steps(each, still(row, p), p, n)
        # An injected rate is rounded to float32 before it is squared: 2 parts in 10^5.
        np.testing.assert_allclose(found.b, without.b, 2e-5, 1e-9)
        assert not np.array_equal(found.w, without.w)


def equations(tx: Any, p: Any) -> int:
    update = lambda g, s, p: tx.update(g, s, p, **keywords(g))
    return len(jax.make_jaxpr(update)(p, tx.init(p), p).eqns)


@pytest.mark.thinned
@those(lambda row: is_optional(row) and row.name not in FIRST)
def test_decay_costs_a_product_and_a_sum_for_each_parameter(row):
    p = parameters()
    added = equations(decaying(row), p) - equations(plain(row), p)
    assert added == 2 * len(p)


def test_a_mask_that_fits_nothing_is_named():
    tx = stepax.sgd(RATE, weight_decay=DECAY, weight_decay_mask={"kernel": True})
    with pytest.raises(ValueError, match="`kernel`"):
        tx.init(parameters())


def test_adafactor_takes_one_kind_of_decay():
    with pytest.raises(ValueError, match="`weight_decay` and `weight_decay_rate`"):
        stepax.adafactor(RATE, weight_decay_rate=DECAY, weight_decay=DECAY)


@pytest.mark.slow
def test_private_descent_decays_without_looking_at_examples():
    p = parameters()
    g = jax.tree.map(lambda p: jnp.ones((5, *p.shape)), p)
    make = lambda **more: stepax.contrib.dpsgd(RATE, 1.0, 1.0, key=0, **more)
    (found,), _ = steps(make(weight_decay=DECAY, weight_decay_mask=MASK), g, p, 1)
    (without,), _ = steps(make(), g, p, 1)
    close(found["w"], without["w"] - RATE * DECAY * p["w"], rtol=1e-5)
    equal(found["b"], without["b"])


@pytest.mark.parametrize("lib", [stepax, optax])
def test_no_decay_of_an_infinite_parameter_is_no_nan(lib):
    p, tx = {"w": jnp.array([jnp.inf, 1.0])}, lib.add_decayed_weights(0.0)
    u, _ = tx.update({"w": jnp.ones(2)}, tx.init(p), p)
    np.testing.assert_array_equal(u["w"], [1.0, 1.0])
