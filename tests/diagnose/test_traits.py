"""What `diagnose` knows of each factory is what a measurement shows."""

import inspect
import math
from typing import Any, NamedTuple

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import examine
from keywords import keywords

import stepax
import stepax.contrib
from stepax._diagnose.view import View


# Which do not return a number times the gradient's direction in first steps, and why.
OTHERS = {
    "stateless": "a function of the user",
    "stateless_with_tree_map": "a function of the user",
    "schedule_free_radam": "silent in the first steps",
    "scion": "its decay is larger than its step",
}
# Rules that normalize, but not in first steps, or not exactly.
RECTIFIED = ("scale_by_radam", "radam", "scale_by_novograd")
# One clips to what is usual, which grows with gradients; one always clips.
CLIPPING = ("clip_by_recent_norm", "scale_by_mars_correction")
WORDS: dict[str, Any] = {"value": 1.0, "value_fn": lambda p: 1.0}


def _arrays(seed: int) -> Any:
    draw = np.random.RandomState(seed)
    return {"w": jnp.asarray(draw.randn(6, 5), "float32")}


P, G = _arrays(0), _arrays(1)


def _after(tx: Any, size: float) -> np.ndarray:
    """The update of the third step."""
    state, g = tx.init(P), jax.tree.map(lambda g: size * g, G)
    u = g
    for _ in range(3):
        words = {
            k: x
            for k, x in WORDS.items()
            if k in (stepax.describe(tx, P).whole.reads or WORDS)
        }
        u, state = tx.update(
            g, state, P, **words, **({"grad": g} if "value_fn" in words else {})
        )
    return np.asarray(u["w"], float).ravel()


def _view(tx: Any) -> View:
    return examine(tx, P, View)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "row", cases.rows(kind="optimizer") + cases.rows(kind="transform")
)
def test_signs_are_those_of_steps(row):
    tx = cases.make(row)
    (track,) = _view(tx).tracks
    signs = [stage.sign for stage in track.stages]
    if row.name in OTHERS:
        return
    u, g = _after(tx, 1.0), np.asarray(G["w"]).ravel()
    assert None not in signs
    assert np.sign(u @ g) == math.prod(x for x in signs if x is not None)


@pytest.mark.few(2)
@pytest.mark.parametrize("row", cases.rows(kind="transform"))
def test_what_normalizes_does_not_grow_with_gradients(row):
    tx = cases.make(row)
    (track,) = _view(tx).tracks
    if row.name in (*OTHERS, *RECTIFIED, *CLIPPING, "set_to_zero", "freeze"):
        return
    is_known = any(stage.normalizes for stage in track.stages)
    clips = any("clip" in stage.name for stage in track.stages)
    ratio = np.linalg.norm(_after(tx, 100.0)) / np.linalg.norm(_after(tx, 1.0))
    # Shampoo's powers, PSGD and MADGRAD's roots grow with less than the gradient.
    assert (ratio < 10) == (is_known or clips)


DECAYS = "b1", "b2", "b3", "decay"
# What comes after the division takes its size away, or what comes before is never 0.
TAMED = ("lamb", "mars")


def _largest(tx: Any) -> float:
    """Of the updates while a gradient is there, and of those after it is gone."""

    def step(state, g):
        words = {k: x for k, x in WORDS.items() if k != "value_fn"}
        u, state = tx.update(g, state, P, **words)
        return state, jnp.max(jnp.abs(u["w"]))

    gs = jax.tree.map(
        lambda g: jnp.stack([g, g, jnp.where(g > 0, g, 0), 0.1 * g, 0 * g] * 3), G
    )
    return float(jax.jit(lambda: jax.lax.scan(step, tx.init(P), gs)[1].max())())


@pytest.mark.few(4)
@pytest.mark.parametrize("row", cases.rows(kind="optimizer"))
def test_decay_rates_with_which_steps_explode_are_named(row):
    names = [k for k in DECAYS if k in inspect.signature(row.factory).parameters]
    if row.name == "adahessian":
        pytest.skip("it divides by what a function of the user estimates")
    if not names or "value_fn" in (
        stepax.describe(cases.make(row), P).whole.reads or ()
    ):
        pytest.skip("it has none, or searches along a line")
    usual = _largest(cases.make(row))
    for name in names:
        for rate in (0.0, 1.0):
            try:
                tx = cases.make(row, **{name: rate})
            except ValueError:
                continue
            is_said = "variance-of-nothing" in stepax.diagnose(tx, P).codes
            found = _largest(tx)
            assert is_said or found <= 100 * usual, (name, rate)
            assert not is_said or found > 10 * usual or row.name in TAMED, (name, rate)


def _moved(row: Any, every: int) -> np.ndarray:
    """The parameters after three steps on the means of some gradients each."""
    steps = stepax.MultiSteps(stepax.sgd(0.1), every).gradient_transformation()
    tx, p = stepax.chain(steps, cases.make(row)), P
    state = tx.init(p)
    for g in (g for seed in (1, 2, 3) for g in [_arrays(seed)] * every):
        u, state = tx.update(g, state, p, **keywords(g))
        p = stepax.apply_updates(p, u)
    return np.asarray(p["w"], float)


@pytest.mark.few(3)
@pytest.mark.parametrize("row", cases.rows(kind="transform"))
def test_what_keeps_something_of_calls_that_accumulate_is_told(row):
    kept = jax.eval_shape(cases.make(row).init, P)
    if not any(x.ndim for x in jax.tree.leaves(kept)):
        pytest.skip("it keeps nothing of gradients")
    steps = stepax.MultiSteps(stepax.sgd(0.1), 4).gradient_transformation()
    found = stepax.diagnose(stepax.chain(steps, cases.make(row)), P)
    if not any(code.endswith("in-micro-steps") for code in found.codes):
        np.testing.assert_allclose(_moved(row, 2), _moved(row, 1), rtol=1e-4, atol=1e-5)


class _State(NamedTuple):
    nu: Any


@stepax.rules.rule()
def divided(b2=0.99):
    """By the root of a mean of squares, as a user may write it."""

    def leaf(g, p, ctx, nu):
        nu = b2 * nu + (1 - b2) * g * g
        return g / (jnp.sqrt(nu) + 1e-8), nu

    return stepax.rules.Rule(leaf, _State, slots={"nu": stepax.rules.Slot()})


@pytest.mark.parametrize(("rate", "found"), [(1.0, True), (0.99, False)])
def test_decay_rates_of_a_users_rule_are_tried(rate, found):
    tx = stepax.chain(divided(rate), stepax.scale(-0.1))
    assert ("variance-of-nothing" in stepax.diagnose(tx, P).codes) is found
