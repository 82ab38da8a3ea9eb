"""What acts once a step acts in no call that is none.

Accumulations wait, and checks refuse; whatever is around them then has nothing to do.
So a run with such calls ends where one without them does.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import types
from runs import compare, everyhow
from wrappers import WRAPPERS

import stepax
import stepax.contrib


def parameters():
    return {"w": jnp.arange(1.0, 5.0).reshape(2, 2), "b": jnp.full(2, -1.5)}


def gradients(size: float = 1.0):
    """Those of three steps."""
    signs = ((1, -1), (2, 1), (-1, 2))
    both = lambda x, y: {"w": jnp.full((2, 2), size * x), "b": jnp.full(2, size * y)}
    return [both(*pair) for pair in signs]


def steps(tx: Any, k: Any, **options: Any) -> Any:
    return stepax.MultiSteps(tx, k, **options).gradient_transformation()


def decaying(tx: Any, kind: Any, amount: Any = 0.1, **options: Any) -> Any:
    decay = stepax.weight_decay(amount, kind, **options)
    return stepax.with_weight_decay(tx, decay, 0.1)


def outer(tx: Any, every: int, **options: Any) -> Any:
    far = stepax.sgd(0.7, momentum=0.9)
    return stepax.contrib.diloco(tx, far, every, **options)


FALLING = stepax.linear_schedule(0.2, 0.0, 4)
ACTING: dict[str, Callable[[Any], Any]] = {
    "decoupled": lambda tx: decaying(tx, "decoupled"),
    "scheduled": lambda tx: decaying(tx, "independent", FALLING),
    "corrected": lambda tx: decaying(tx, "corrected", peak=0.2),
    "cautious": lambda tx: decaying(tx, "cautious"),
    "to_start": lambda tx: decaying(tx, "to_start"),
    "masked": lambda tx: decaying(tx, "decoupled", mask={"w": True, "b": False}),
    "by path": lambda tx: decaying(tx, "decoupled", {"w": 0.1, "**": 0.2}),
    "ema": lambda tx: stepax.averages(tx, 0.5),
    "uniform": lambda tx: stepax.averages(tx, None, start=1),
    "several": lambda tx: stepax.averages(tx, {"a": 0.5, "b": 0.9}),
    "in bits": lambda tx: stepax.averages(tx, 0.5, remainder=16),
    "every other": lambda tx: stepax.averages(tx, 0.5, every=2),
    "ema_nesterov": lambda tx: stepax.contrib.ema_nesterov(tx, 0.5),
    "gpa": lambda tx: stepax.contrib.gpa(tx, 0.7, 0.9),
    "outer": lambda tx: outer(tx, 2),
    "outer each": lambda tx: outer(tx, 1),
    "outer in parts": lambda tx: outer(tx, 3, fragments=2),
    "outer late": lambda tx: outer(tx, 2, delay=1),
    "rollback": lambda tx: stepax.rollback(tx, 2, 4.0, 3),
    "proximal": lambda tx: stepax.chain(
        tx, stepax.proximal(stepax.solve.prox.l1(0.5), 0.1)
    ),
    "proximal of trees": lambda tx: stepax.chain(
        tx, stepax.proximal(stepax.solve.prox.group_l2(0.5), FALLING)
    ),
    "both": lambda tx: stepax.averages(decaying(tx, "decoupled"), 0.5),
}


def twice(g, junk):
    return [g, g]


def bad_first(g, junk):
    return [jax.tree.map(lambda x: jnp.nan * x, g), g]


def junk_last(g, junk):
    return [g, junk]


def junk_first(g, junk):
    return [junk, g]


def of_optax(tx: Any) -> Any:
    pair: Any = optax.MultiSteps(tx, 2).gradient_transformation()
    return pair


# Each with the calls that it makes one step of.
IDLE: dict[str, tuple[Callable[[Any], Any], Callable]] = {
    "MultiSteps": (lambda tx: steps(tx, 2), twice),
    "MultiSteps in MultiSteps": (
        lambda tx: steps(steps(tx, 2), 2),
        lambda g, junk: [g] * 4,
    ),
    "a schedule of calls": (lambda tx: steps(tx, lambda t: 2 + 0 * t), twice),
    "Optax's MultiSteps": (of_optax, twice),
    "the class": (lambda tx: stepax.MultiSteps(tx, 2), twice),
    "skip_not_finite": (
        lambda tx: steps(tx, 1, should_skip_update_fn=stepax.skip_not_finite),
        bad_first,
    ),
    "apply_if_finite": (lambda tx: stepax.apply_if_finite(tx, 3), bad_first),
    "skip_spikes": (lambda tx: stepax.skip_spikes(tx), bad_first),
    "dynamic_loss_scale": (
        lambda tx: stepax.dynamic_loss_scale(tx, 1.0),
        bad_first,
    ),
    "conditionally_mask": (
        lambda tx: stepax.conditionally_mask(tx, lambda step, **_: step % 2 == 0),
        junk_last,
    ),
    "told by a keyword": (
        lambda tx: stepax.conditionally_mask(
            tx, lambda step, value, **_: (step % 2 == 0) & (value > 0), True
        ),
        junk_last,
    ),
    "sam": (
        lambda tx: stepax.contrib.sam(tx, stepax.sgd(0.0)),
        junk_first,
    ),
    "apply_if_finite(MultiSteps)": (
        lambda tx: stepax.apply_if_finite(steps(tx, 2), 3),
        lambda g, junk: [g, *bad_first(g, junk)],
    ),
    "MultiSteps(apply_if_finite)": (
        lambda tx: steps(stepax.apply_if_finite(tx, 3), 2),
        lambda g, junk: [*bad_first(g, junk), g, g],
    ),
    "skip_spikes(apply_if_finite)": (
        lambda tx: stepax.skip_spikes(stepax.apply_if_finite(tx, 3)),
        bad_first,
    ),
}


def run(tx, gs, p):
    """The last parameters and state."""

    @jax.jit
    def step(g, state, p):
        u, state = tx.update(g, state, p, value=jnp.float32(1.0))
        return stepax.apply_updates(p, u), state

    first = state = tx.init(p)
    for g in gs:
        p, state = step(g, state, p)
    assert types(state) == types(first)
    return p, state


def same(x, y):
    np.testing.assert_allclose(x, y, rtol=2e-6, atol=1e-6)


# The states inside, and what is about calls: the values that `rollback` was told, and
# how far it is on its way back.
NOT_OWN = "inner_state", "kept_state", "recent", "accepted", "settling"


def own(state: Any) -> Any:
    """What a state has beside those of transformations inside."""
    if isinstance(state, dict):
        return {k: own(x) for k, x in state.items()}
    if type(state) is tuple:
        return own(state[-1])  # of a chain with what acts last
    if not hasattr(state, "_asdict"):
        return state
    return {k: own(x) for k, x in state._asdict().items() if k not in NOT_OWN}


def check(around: Callable, name: str) -> None:
    idle, calls = IDLE[name]
    gs = gradients()
    junk = jax.tree.map(lambda x: 7 * x, gs[0])
    with jax.numpy_dtype_promotion("standard"):  # as Optax needs it
        more = [x for g in gs for x in calls(g, junk)]
        found, state = run(around(idle(stepax.sgd(0.1))), more, parameters())
        wanted, other = run(around(stepax.sgd(0.1)), gs, parameters())
    compare(same, found, wanted)
    compare(same, own(state), own(other))


@pytest.mark.few(3)
@pytest.mark.parametrize("name", IDLE)
@pytest.mark.parametrize("acting", ACTING)
def test_what_acts_once_a_step_does_not_act_in_other_calls(acting, name):
    try:
        ACTING[acting](IDLE[name][0](stepax.sgd(0.1)))
    except ValueError as error:
        assert "`weight_decay` cannot be" in str(error)
        return
    check(ACTING[acting], name)


# What counts calls, in the numbers of Optax or since that is what it does; and parts
# with leaves of their own, which the test after this one is about.
BY_CALL = {
    *("MultiSteps", "skip_not_finite", "skip_large_updates", "apply_if_finite"),
    *("conditionally_transform", "conditionally_mask", "skip_spikes", "sam"),
    *("lookahead", "schedule_free", "mechanize", "reduce_on_plateau"),
    *("dynamic_loss_scale", "mars_correction", "grokfast_ma", "hyperball"),
    *("with_state_dtypes", "low_bit_states", "partition", "masked"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("between", [k for k in WRAPPERS if k not in BY_CALL])
def test_calls_are_known_through_every_other_wrapper(between):
    wrap = WRAPPERS[between]
    try:
        check(lambda tx: stepax.averages(wrap(tx), 0.5), "MultiSteps")
    except AssertionError as error:
        error.add_note(f"if `{between}` acts in each call, it belongs in `BY_CALL`")
        raise


def two_parts(tx: Any) -> Any:
    return stepax.partition({"a": tx, "b": stepax.sgd(0.1)}, {"w": "a", "b": "b"})


def two_masks(tx: Any) -> Any:
    mask = lambda on: {"w": on, "b": not on}
    first = stepax.masked(tx, mask(True))
    return stepax.chain(first, stepax.masked(stepax.sgd(0.1), mask(False)))


@pytest.mark.few(2)
@everyhow
@pytest.mark.parametrize("parts", [two_parts, two_masks])
def test_each_part_decays_in_its_own_steps(run, parts):
    around = lambda k: decaying(parts(steps(stepax.sgd(0.1), k)), "decoupled")
    p, calls = parameters(), [g for g in gradients() for _ in range(2)]
    found, _ = run(around(2), calls, p)
    wanted, _ = run(around(1), gradients(), p)
    each, _ = run(around(1), calls, p)
    same(found["w"][1::2], wanted["w"])
    assert not found["w"][::2].any()
    same(found["b"], each["b"])


def left_out(tx: Any) -> Any:
    return stepax.masked(tx, {"w": True, "b": False})


@pytest.mark.few(2)
@pytest.mark.parametrize("parts", [two_parts, two_masks, left_out])
@pytest.mark.parametrize("acting", ACTING)
def test_parts_inside_an_accumulation_wait_leaf_by_leaf(acting, parts):
    around, waiting = ACTING[acting], parts(steps(stepax.sgd(0.1), 2))
    calls = [g for g in gradients() for _ in range(2)]
    found, state = run(around(steps(waiting, 2)), calls, parameters())
    wanted, other = run(around(waiting), gradients(), parameters())
    compare(same, found, wanted)
    compare(same, own(state), own(other))


@pytest.mark.slow
def test_an_average_of_parts_follows_the_calls_in_which_any_moves():
    tx = stepax.averages(two_parts(steps(stepax.sgd(0.1), 2)), None)
    calls = [g for g in gradients() for _ in range(2)]
    p, state = run(tx, calls, parameters())
    q, sums = parameters(), []
    plain = two_parts(steps(stepax.sgd(0.1), 2))
    for n in range(1, len(calls) + 1):
        sums.append(run(plain, calls[:n], q)[0])
    mean = jax.tree.map(lambda *xs: sum(xs) / len(xs), *sums)
    compare(same, stepax.eval_params(state, p), mean)


def test_a_return_of_rollback_does_not_decay():
    tx = decaying(stepax.rollback(stepax.sgd(0.1), 1, 2.0, 1), "decoupled")
    p, g = parameters(), gradients()[0]
    state, start = tx.init(p), p
    for value in (1.0, 1.0, 100.0):
        before = p
        u, state = tx.update(g, state, p, value=jnp.float32(value))
        p = stepax.apply_updates(p, u)
    assert (p["w"] != before["w"]).all()
    kept = state[0].kept_params
    compare(same, p, kept)
    assert (kept["w"] != start["w"]).any()


@pytest.mark.parametrize("parts", [two_parts, two_masks, lambda tx: tx])
def test_packed_parameters_wait_too(parts):
    """Also where only some of the arrays of a vector wait."""
    tx = decaying(parts(steps(stepax.sgd(0.1), 2)), "decoupled")
    calls = [g for g in gradients() for _ in range(2)]
    wanted, _ = run(tx, calls, parameters())
    found, _ = run(
        tx, list(map(stepax.tree.pack, calls)), stepax.tree.pack(parameters())
    )
    compare(same, stepax.tree.unpack(found), wanted)
