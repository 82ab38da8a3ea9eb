"""Several averages, their exchange with the parameters, and means of checkpoints."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import assert_equal
from jax.sharding import NamedSharding, PartitionSpec as P

import stepax
from stepax import checkpoint
from stepax._checkpoint.store import Step
from stepax.schedules import power_average_decay


def params():
    w = jnp.linspace(-1.0, 1.0, 6).reshape(3, 2).astype("bfloat16")
    return {"w": w, "b": jnp.ones(2), "none": None}


def run(tx, p, steps=4):
    state = tx.init(p)
    for i in range(steps):
        g = jax.tree.map(lambda x, i=i: (0.3 + i) * x, p)
        u, state = tx.update(g, state, p)
        p = stepax.apply_updates(p, u)
    return state, p


OPTIONS = {
    "plain": {},
    "not debiased": {"debias": False},
    "late": {"start": 2, "every": 2},
    "bfloat16": {"dtype": "bfloat16"},
    "remainder": {"remainder": 16},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("options", OPTIONS)
def test_each_of_several_averages_is_that_of_one(options):
    decays = {"fast": 0.5, "uniform": None, "slow": stepax.constant_schedule(0.9)}
    more = OPTIONS[options]
    state, p = run(stepax.averages(stepax.sgd(0.1), decays, **more), params())
    for name, decay in decays.items():
        alone, q = run(stepax.averages(stepax.sgd(0.1), decay, **more), params())
        found = stepax.tree.get(state, name)
        assert_equal(p, q)
        assert_equal(found.average, alone.average)
        assert_equal(stepax.eval_params(found, p), stepax.eval_params(alone, q))
        assert_equal(state.inner_state, alone.inner_state)


HOLDERS = {
    "one": stepax.averages,
    "averages": lambda tx: stepax.averages(tx, {"fast": 0.5, "slow": 0.9}),
    "remainder": lambda tx: stepax.averages(tx, {"slow": 0.9}, remainder=16),
    "partition": lambda tx: stepax.partition(
        {"a": stepax.averages(tx), "b": stepax.averages(stepax.sgd(0.1))},
        {"w": "a", "**": "b"},
    ),
    "MultiSteps": lambda tx: stepax.MultiSteps(stepax.averages(tx), 2),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["", "jit"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_two_exchanges_return_every_bit(holder, wrap):
    tx = HOLDERS[holder](stepax.adam(0.1))
    state, p = run(tx, params(), 4)
    name = "slow" if holder == "averages" else None
    swap = wrap(lambda state, p: stepax.swap_averages(state, p, name))
    away, average = swap(state, p)
    assert_equal(average, stepax.eval_params(state, p, name))
    assert not (average["w"] == p["w"]).all()
    assert_equal(average, stepax.eval_params(away, average, name))
    back, again = swap(away, average)
    unnamed = stepax.swap_averages(away, average)[1]
    assert_equal(again, unnamed)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    assert_equal(again, p)
    assert_equal(back, state)
    tx.update(p, back, p)
    with pytest.raises(ValueError, match="call `swap_averages` again before"):
        for _ in range(2):
            _, away = tx.update(p, away, p)


def away(state, name):
    return stepax.swap_averages(*stepax.swap_averages(state, params(), "slow"), name)


BAD = {
    "none": (lambda s: stepax.swap_averages(stepax.sgd(0.1).init(params()), params()),
             "`swap_averages`"),
    "several": (lambda s: stepax.swap_averages(s, params()),
                r"there are \['fast', 'slow'\]; give the `name` of one"),
    "unknown": (lambda s: stepax.swap_averages(s, params(), "slo"),
                r"no average 'slo' in this state, .*; did you mean `slow`\?"),
    "several to read": (lambda s: stepax.eval_params(s, params()),
                        r"`eval_params`: there are \['fast', 'slow'\]; give the"),
    "unknown to read": (lambda s: stepax.eval_params(s, params(), "fats"),
                        r"`eval_params`: there is no .*; did you mean `fast`\?"),
    "several below": (lambda s: stepax.eval_params((s, {}), params()),
                      r"there are \['fast', 'slow'\]; give the `name` of one"),
    "two without names": (
        lambda s: stepax.eval_params(
            stepax.chain(
                stepax.sgd(0.1), *[stepax.averages(stepax.identity())] * 2
            ).init(params()),
            params(),
        ),
        r"the states at \[1\] and \[2\] are of the same parameters; pass the",
    ),
    "nested": (
        lambda s: stepax.swap_averages(
            stepax.averages(stepax.averages(stepax.sgd(0.1))).init(params()), params()
        ),
        r"`swap_averages`: the states at the root and \.inner_state of Av",
    ),
    "no names": (lambda s: stepax.eval_params(
                     stepax.tree.get(s, "slow"), params(), "slow"),
                 "no average 'slow' in this state, but one without a name"),
    "exchanged for another": (lambda s: away(s, "fast"),
                              "exchanged for 'slow', not for 'fast'; call it again"),
    "exchanged and unknown": (lambda s: away(s, "fsat"),
                              "no average 'fsat' .*; did you mean `fast`"),
    "empty": (lambda s: stepax.averages(stepax.sgd(0.1), {}), "is an empty mapping"),
    "decay": (lambda s: stepax.averages(stepax.sgd(0.1), {"a": 1.5}),
              r"`averages`: 'a': .*`decay` must be in \[0, 1\]"),
    "other names": (
        lambda s: stepax.averages(stepax.adam(0.1), {"a": 0.5}).update(
            params(), s, params()
        ),
        r"has the names \['a'\], but was given a state of \['fast', 'slow'\]",
    ),
    "too wide": (lambda s: power_average_decay(0.3), "`width` must be above 0"),
    "no width": (lambda s: power_average_decay(0.0), "`width` must be above 0"),
    "too late": (lambda s: stepax.checkpoint.power_average_weights([(9, 0.1)], 10, 0.1),
                 r"`step` is 10, but must be from 1 .* the steps \[9\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_named(name):
    state = HOLDERS["averages"](stepax.adam(0.1)).init(params())
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call(state)


def averages_of(path, width) -> Any:
    """The power average after each step, as `averages` computes it."""
    decays = np.asarray(power_average_decay(width)(np.arange(len(path))), float)
    a, found = 0.0, []
    for x, d in zip(path, decays, strict=True):
        a = d * a + (1 - d) * x
        found.append(a)
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize("width", [0.06, 0.1, 0.15, 0.2])
@pytest.mark.parametrize("step", [300, 400])
def test_any_width_is_made_of_two(width, step):
    path = np.cumsum(np.random.RandomState(0).randn(400)) / 20
    kept = [(t, w) for t in range(25, 401, 25) for w in (0.05, 0.1)]
    values = [averages_of(path, w)[t - 1] for t, w in kept]
    weights = stepax.checkpoint.power_average_weights(kept, step, width)
    wanted = averages_of(path, width)[step - 1]
    # The paths differ by about 1, single snapshots from what is wanted by 0.1.
    np.testing.assert_allclose(weights @ values, wanted, atol=5e-3)
    assert abs(weights.sum() - 1) < 1e-2


def test_the_usual_widths_have_the_powers_of_the_paper():
    for width, power in (0.1, 6.94), (0.05, 16.97):
        # d(1) = 2^-(γ + 1), of the second step.
        decay: Any = power_average_decay(width)(1)
        np.testing.assert_allclose(-np.log2(decay) - 1, power, rtol=1e-3)


def save(folder, *trees):
    for i, tree in enumerate(trees):
        checkpoint.save(folder, i, tree, ())
    return [(folder, i) for i in range(len(trees))]


def test_a_soup_is_the_mean(tmp_path):
    trees = [{"w": jnp.full((2, 3), x), "n": jnp.int32(x)} for x in (1.0, 2.0, 6.0)]
    sources = save(tmp_path, *trees)
    made = checkpoint.average(sources, trees[0])
    assert_equal(made, {"w": jnp.full((2, 3), 3.0), "n": jnp.int32(6)})
    made = checkpoint.average(sources, trees[0], weights=[0.5, 0.75, -0.25])
    assert_equal(made["w"], jnp.full((2, 3), 0.5))
    assert_equal(checkpoint.average([tmp_path], trees[0]), trees[2])


def test_a_soup_is_rounded_once_and_read_by_arrays(tmp_path, monkeypatch):
    p = {"w": jnp.asarray([1 / 3, 2.0**-9], "bfloat16"), "v": jnp.asarray([0.1])}
    # In bfloat16 1 + 2^-8 is 1, so that a sum in it would lose what the mean keeps.
    other = {"w": jnp.asarray([1 / 3, 1.0], "bfloat16"), "v": jnp.asarray([0.1])}
    sources = save(tmp_path, p, other, p)
    read, numbers = Step.read, []

    def counted(self, name, wanted):
        numbers.append(len(wanted))
        return read(self, name, wanted)

    monkeypatch.setattr(Step, "read", counted)
    made = checkpoint.average(sources, p)
    assert numbers == [1] * 6
    assert_equal(made["v"], p["v"])
    wanted = (2 * 2.0**-9 + 1) / 3
    assert_equal(made["w"], jnp.asarray([1 / 3, wanted], "float32").astype("bfloat16"))


def test_a_soup_is_sharded_as_the_template(tmp_path):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, P("x"))
    p = {"w": jax.device_put(jnp.ones((8, 2)), sharding)}
    made = checkpoint.average(save(tmp_path, p, p), p)
    assert made["w"].sharding == sharding and (made["w"] == 1).all()


def test_other_trees_and_weights_are_named(tmp_path):
    p, q = {"w": jnp.ones((2, 3))}, {"w": jnp.ones((3, 2))}
    sources = save(tmp_path / "a", p, q) + save(tmp_path / "b", {"v": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"step 1 in .*a`.*\(3, 2\)"):
        checkpoint.average(sources[:2], p)
    with pytest.raises(ValueError, match="step 0 in .*b`.*`w`"):
        checkpoint.average([sources[0], sources[2]], p)
    with pytest.raises(ValueError, match=r"must be 1 finite .* are \[0.5, 0.5\]"):
        checkpoint.average(sources[:1], p, weights=[0.5, 0.5])
    with pytest.raises(ValueError, match="is given no checkpoints"):
        checkpoint.average([], p)
    with pytest.raises(ValueError, match="no step 7"):
        checkpoint.average([(tmp_path / "a", 7)], p)
