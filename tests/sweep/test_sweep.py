"""A sweep makes the runs of a loop in one program; what its result tells of them."""

import json
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from matplotlib.image import imread
from runs import compilations

import stepax


RATES = [1e-3, 1e-2, 1e-1, 1.0]
MATRIX = np.array([[2.0, 0.3], [0.3, 0.5]], np.float32)


def loss(params, key):
    """A noisy bowl whose minimum is at one."""
    noise = 0.1 * jax.random.normal(key, (2,))
    return jnp.sum((MATRIX @ (params["w"] - 1.0 + noise)) ** 2)


def init(key):
    return {"w": jax.random.normal(key, (2,))}


def looped(loss, init, tx, steps, seed):
    """The losses of one run, with a step in a loop of Python."""
    init_key, data_key = jax.random.split(jax.random.key(seed))
    params = init(init_key)
    state, losses = tx.init(params), []
    for key in jax.random.split(data_key, steps):
        value, grads = jax.value_and_grad(loss)(params, key)
        updates, state = tx.update(grads, state, params)
        params = stepax.apply_updates(params, updates)
        losses.append(value)
    return np.asarray(losses)


@pytest.mark.slow
@pytest.mark.parametrize("vectorize", [False, True])
def test_runs_are_those_of_a_loop(vectorize):
    grid = {"learning_rate": RATES, "weight_decay": [0.0, 0.1]}
    options: dict = {"seeds": 2, "vectorize": vectorize}
    found = stepax.sweep(loss, init, stepax.adamw, grid, 6, **options)
    assert found.losses.shape == (8, 2, 6)
    assert found.points[1] == {"learning_rate": 1e-3, "weight_decay": 0.1}
    for i, seed in (0, 0), (5, 1), (7, 0):
        tx = stepax.adamw(**found.points[i])
        # The loop runs the same float32 operations in other groups: a few roundings of
        # losses of the order of one, carried on over six steps.
        wanted = looped(loss, init, tx, 6, seed)
        np.testing.assert_allclose(found.losses[i, seed], wanted, rtol=1e-5, atol=1e-6)


def sgd(learning_rate, nesterov=False, momentum=0.9, form="sgd"):
    make = {"sgd": stepax.sgd, "rms": stepax.rmsprop}[form]
    return make(learning_rate, momentum=momentum, nesterov=nesterov)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("grid", "programs"),
    [
        ({"learning_rate": RATES}, 1),
        ({"learning_rate": np.geomspace(1e-3, 1, 5), "momentum": [0.5, 0.9]}, 1),
        ({"learning_rate": RATES, "nesterov": [False, True]}, 2),
        ({"learning_rate": [0.1], "nesterov": [True] * 3}, 1),
        ({"learning_rate": RATES, "form": ["sgd", "rms"]}, 2),
        ({"learning_rate": [1, 0.5], "momentum": [None, 0.9, 0.5]}, 2),
        ({"learning_rate": [stepax.constant_schedule(0.1), 0.1, 0.2]}, 2),
    ],
    ids=["rates", "array", "booleans", "equal", "strings", "none", "schedules"],
)
def test_a_program_is_compiled_for_each_static_value(grid, programs):
    with compilations() as found:
        result = stepax.sweep(loss, init, sgd, grid, 3)
    assert len(found) == programs
    assert np.isfinite(result.losses).all()


def test_a_number_that_has_to_be_known_is_static():
    def make_tx(learning_rate, count):
        return stepax.chain(*[stepax.scale(0.5)] * count, stepax.sgd(learning_rate))

    grid = {"learning_rate": [0.1, 0.2, 0.4], "count": [0, 1]}
    with compilations() as found:
        result = stepax.sweep(loss, init, make_tx, grid, 4)
    assert len(found) == 2
    np.testing.assert_allclose(result.losses[3], result.losses[0], rtol=1e-6)


def test_fractions_are_traced_and_fractions():
    def make_tx(warmup):
        rate = stepax.schedules.warmup_stable_decay_schedule(
            0.1, warmup, None, 0.25, total_steps=8
        )
        return stepax.sgd(rate)

    with compilations() as found:
        result = stepax.sweep(loss, init, make_tx, {"warmup": [0.25, 0.5, 2]}, 8)
    assert len(found) == 1
    np.testing.assert_array_equal(result.losses[0], result.losses[2])
    assert not np.allclose(result.losses[0], result.losses[1], rtol=1e-3)


class Model(eqx.Module):
    w: jax.Array
    steps: jax.Array
    name: str
    f: Any = jnp.tanh


class Pair(NamedTuple):
    a: Any
    b: Any


TREES = {
    "scalar": lambda key: 1.0,
    "array": lambda key: jax.random.normal(key, (3,)),
    "bfloat16": lambda key: jax.random.normal(key, (3,), jnp.bfloat16),
    "two dtypes": lambda key: Pair(jnp.ones(2), jnp.ones(2, jnp.float16)),
    "none": lambda key: {"a": None, "b": [jnp.ones(2), ()]},
    "module": lambda key: Model(jnp.ones(2), jnp.int32(3), "name"),
    "complex": lambda key: jnp.ones(2, jnp.complex64),
    "empty array": lambda key: [jnp.ones((0, 2)), jnp.ones(1)],
    "numpy": lambda key: {"a": np.ones(2, np.float32), "key": jax.random.key(0)},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("tree", TREES)
def test_parameters_may_be_any_tree(tree):
    def bowl(params, key):
        xs = filter(eqx.is_inexact_array, jax.tree.leaves(params))
        far = [jnp.sum(jnp.abs(x - 0.5) ** 2).astype(jnp.float32) for x in xs]
        return jnp.sum(jnp.stack(far))

    found = stepax.sweep(bowl, TREES[tree], stepax.sgd, {"learning_rate": [0.1]}, 12)
    assert found.losses.dtype == np.float32
    assert found.losses[0, 0, -1] < 0.2 * found.losses[0, 0, 0]


def test_what_an_optimizer_asks_for_is_given():
    search = lambda max_backtracking_steps: stepax.chain(
        stepax.sgd(1.0),
        stepax.scale_by_backtracking_linesearch(max_backtracking_steps),
    )
    bowl = lambda params, key: jnp.sum((params["w"] - 1) ** 2)
    found = stepax.sweep(bowl, init, search, {"max_backtracking_steps": [20]}, 12)
    assert found.final[0, 0] < 1e-3 * found.losses[0, 0, 0]


def test_optax_is_swept_as_well():
    with jax.numpy_dtype_promotion("standard"):
        with compilations() as count:
            theirs = stepax.sweep(loss, init, optax.adam, {"learning_rate": RATES}, 5)
    ours = stepax.sweep(loss, init, stepax.adam, {"learning_rate": RATES}, 5)
    assert len(count) == 1
    np.testing.assert_allclose(theirs.losses, ours.losses, rtol=1e-5)


def fragile(learning_rate):
    """Not a number above a rate of one half."""
    bad = lambda u: jnp.where(learning_rate > 0.5, jnp.nan, u)
    spoil = lambda updates, params: jax.tree.map(bad, updates)
    return stepax.chain(stepax.sgd(learning_rate), stepax.stateless(spoil))


def test_what_diverges_does_not_stop_others():
    grid = {"learning_rate": [0.1, 0.9, 0.2]}
    for vectorize in False, True:
        found = stepax.sweep(loss, init, fragile, grid, 8, vectorize=vectorize)
        assert found.diverged.tolist() == [[False], [True], [False]]
        assert np.isfinite(found.losses[[0, 2]]).all()
        assert found.best in (found.points[0], found.points[2])
    assert "1 of 1" in found.table().splitlines()[3]
    assert found.to_dict()["final"][1] == [None]


def test_a_loss_above_the_bound_has_diverged():
    grid = {"learning_rate": [0.1, 3.0]}
    found = stepax.sweep(loss, init, stepax.sgd, grid, 8, bound=1e4)
    assert found.diverged.tolist() == [[False], [True]]
    assert np.isfinite(found.losses).all()
    none = stepax.sweep(loss, init, stepax.sgd, grid, 2, bound=1e-9)
    assert none.best is None and none.suggestion is None


def of(losses, **more):
    """A result with these final losses at the rates 1, 2, 3, ..."""
    points = [{"learning_rate": float(i + 1)} for i in range(len(losses))]
    numbers = np.asarray(losses, np.float32)[:, None, None]
    given: dict = {"margin": 0.05, "bound": np.inf, "last": 1} | more
    return stepax.SweepResult(points, numbers, (0,), "learning_rate", **given)


def test_the_suggestion_is_the_largest_rate_within_the_margin():
    losses = [3.0, 1.0, 1.04, 1.2, np.nan]
    rate = lambda margin: (of(losses, margin=margin).suggestion or {})["learning_rate"]
    assert of(losses).best == {"learning_rate": 2.0}
    assert [rate(x) for x in (0, 0.05, 0.5)] == [2, 3, 4]
    assert of([-1.0, -1.02, -0.98]).suggestion == {"learning_rate": 3.0}


def test_final_is_the_mean_of_the_last_steps():
    result = stepax.sweep(loss, init, stepax.sgd, {"learning_rate": [0.1]}, 20)
    np.testing.assert_allclose(result.final, result.losses[..., -2:].mean(-1))
    one = stepax.sweep(loss, init, stepax.sgd, {"learning_rate": [0.1]}, 20, last=20)
    np.testing.assert_allclose(one.final, result.losses.mean(-1), rtol=1e-6)


def test_seeds_may_be_given():
    grid = {"learning_rate": [0.1]}
    four = stepax.sweep(loss, init, stepax.sgd, grid, 3, seeds=4)
    some = stepax.sweep(loss, init, stepax.sgd, grid, 3, seeds=[3, 1, 2**32 - 1])
    np.testing.assert_array_equal(some.losses[:, :2], four.losses[:, [3, 1]])
    assert some.seeds == (3, 1, 2**32 - 1)


@pytest.mark.slow
def test_the_memory_divides_the_runs():
    grid = {"learning_rate": RATES}
    whole = stepax.sweep(loss, init, stepax.adam, grid, 3, seeds=3, vectorize=True)
    with compilations() as count:
        parts = stepax.sweep(
            loss, init, stepax.adam, grid, 3, seeds=3, vectorize=True, memory=1
        )
    assert len(count) == 1
    # Products of a batch may be rounded otherwise than those of a single run.
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-6)


# --- what is made of the losses -------------------------------------------------------


@pytest.fixture(scope="module")
def result():
    grid = {"learning_rate": RATES, "form": ["sgd", "rms"]}
    return stepax.sweep(loss, init, sgd, grid, 10, seeds=2)


def test_the_table_has_a_line_for_each_point(result):
    head, _, *lines = result.table().splitlines()
    assert head.split()[:3] == ["learning_rate", "form", "loss"]
    assert len(lines) == len(result.points)
    assert [i for i, x in enumerate(lines) if "best" in x] == [
        result.points.index(result.best)
    ]
    assert str(result) == result.table()


def test_a_part_of_the_points_is_selected(result):
    part = result.select(form="rms")
    assert [p["form"] for p in part.points] == ["rms"] * 4
    np.testing.assert_array_equal(part.losses, result.losses[1::2])
    assert part.select(learning_rate=np.float64(0.1)).points == [part.points[2]]


def test_the_result_is_json(result):
    found = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert found["points"] == result.points
    assert found["best"] == result.best
    np.testing.assert_array_equal(np.float32(found["losses"]), result.losses)


@pytest.mark.slow
def test_the_picture_has_a_line_for_each_other_value(result, tmp_path):
    result.plot(tmp_path / "two.png")
    picture = imread(tmp_path / "two.png")
    assert picture.shape == (750, 1200, 4)
    colours = [(31, 119, 180), (255, 127, 14)]  # the first two of matplotlib
    for colour in colours:
        near = np.abs(picture[..., :3] * 255 - colour).max(-1) < 3
        assert near.sum() > 200
