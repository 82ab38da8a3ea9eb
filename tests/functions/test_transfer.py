"""Factors by path for other widths and depths, and a check of activations."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import assert_equal

import stepax
from examples.coordinates import coordinate_check, slopes
from stepax import transfer
from stepax.contrib import MuonDimensionNumbers
from stepax.transfer import depth, mup, spectral


OPTIMIZERS = ("adam", "sgd", "muon")


def shapes(width, dtype=jnp.float32):
    found = {
        "embed": (12, width),
        "block": {"kernel": (width, 4 * width), "bias": (4 * width,), "gain": ()},
        "down": (4 * width, width),
        "conv": (3, 3, width, width),
        "head": (width, 10),
        "none": None,
    }
    is_shape = lambda x: isinstance(x, tuple)
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x, dtype), found, is_leaf=is_shape
    )


# How often the fan-in and the fan-out are those of the base, whose width is an r-th.
GROWTH = {
    "embed": lambda r: (1, r),
    "block/kernel": lambda r: (r, r),
    "block/bias": lambda r: (1, r),
    "block/gain": lambda r: (1, 1),
    "down": lambda r: (r, r),
    "conv": lambda r: (r, r),
    "head": lambda r: (r, 1),
}
VECTORS = "block/bias", "block/gain"
WANTED = {
    "adam": lambda path, a, b: 1 / a,
    "sgd": lambda path, a, b: b / a,
    "muon": lambda path, a, b: 1.0 if path in VECTORS else (b / a) ** 0.5,
}


@pytest.mark.parametrize("r", [1, 4, 0.5])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("function", [mup, spectral])
def test_factors_are_those_of_the_papers(function, optimizer, r):
    found = function(shapes(int(16 * r)), shapes(16), optimizer=optimizer)
    for path, growth in GROWTH.items():
        wanted = WANTED[optimizer](path, *growth(r))
        np.testing.assert_allclose(found.rates[path], wanted, rtol=1e-12)
        np.testing.assert_allclose(found.decays[path], 1 / wanted, rtol=1e-12)
    assert found.rates.keys() == found.scales.keys() == GROWTH.keys()
    assert found.branch == 1


@pytest.mark.parametrize("r", [1, 4, 0.5])
def test_initial_scales_are_those_of_the_papers(r):
    new, old = shapes(int(16 * r)), shapes(16)
    by_class = {path: 1.0 for path in GROWTH} | {"head": r**-0.5}
    assert mup(new, old).scales == pytest.approx(by_class)
    flat = lambda n, m: min(1.0, (m / n) ** 0.5)
    wide = lambda width: {"embed": flat(12, width), "head": flat(width, 10)}
    by_size = {k: wide(16 * r)[k] / wide(16)[k] for k in wide(16)}
    found = spectral(new, old).scales
    assert {k: found[k] for k in by_size} == pytest.approx(by_size)
    assert {k: x for k, x in found.items() if k not in by_size} == pytest.approx(
        {k: 1.0 for k in GROWTH if k not in by_size}
    )


def test_axes_may_be_named():
    new = {"w": jnp.ones((4, 8)), "qkv": jnp.ones((8, 6, 2)), "s": jnp.ones((5, 8, 8))}
    old = {"w": jnp.ones((4, 2)), "qkv": jnp.ones((2, 3, 2)), "s": jnp.ones((3, 2, 2))}
    axes = {
        "w": MuonDimensionNumbers(1, 0),
        "qkv": MuonDimensionNumbers(0, (1, 2)),
        "s": MuonDimensionNumbers(1, 2),  # layers in a stack, of which there are more
    }
    found = mup(new, old, optimizer="sgd", weight_dimension_numbers=axes)
    assert found.rates == pytest.approx({"w": 1 / 4, "qkv": 2 / 4, "s": 1})
    one = mup(new["w"], old["w"], weight_dimension_numbers=MuonDimensionNumbers(1, 0))
    assert one.rates == {"**": 1 / 4} and one.scales == {"**": 0.5}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_layers_have_smaller_steps_the_more_there_are(optimizer):
    params = {"blocks": [jnp.ones(3), jnp.ones((3, 3))], "head": jnp.ones(3), "n": None}
    found = depth(params, 8, 2, where="blocks/**", optimizer=optimizer)
    inside = 1.0 if optimizer == "sgd" else 0.5
    wanted = {"blocks/0": inside, "blocks/1": inside, "head": 1.0}
    assert found.rates == wanted and found.branch == 0.5
    assert found.decays == {k: 1 / x for k, x in wanted.items()}
    assert set(found.scales.values()) == {1.0}


def test_width_and_depth_multiply():
    new, old = shapes(32), shapes(16)
    both = mup(new, old) * depth(new, 4, 1, where="block/**")
    assert both.rates["block/kernel"] == 0.25 and both.rates["down"] == 0.5
    assert both.decays["block/kernel"] == 4 and both.branch == 0.5
    assert both.scales == mup(new, old).scales
    with pytest.raises(ValueError, match="for different arrays"):
        _ = mup(new, old) * depth({"a": jnp.ones(3)}, 2, 1)


def test_an_optimizer_takes_the_rates_and_decays():
    p = {"a": jnp.ones((4, 4)), "b": jnp.ones(4)}
    g = jax.tree.map(jnp.ones_like, p)
    factors = mup(p, {"a": jnp.ones((2, 2)), "b": jnp.ones(2)})
    given = stepax.adamw(factors.rate(0.1), weight_decay=factors.decay(0.01))
    after = stepax.chain(
        stepax.adamw(lambda count: 0.1, weight_decay=factors.decay(0.01)),
        stepax.scale_by_path(factors.rates),
    )
    updates = [jax.jit(tx.update)(g, tx.init(p), p)[0] for tx in (given, after)]
    for u in updates:
        np.testing.assert_allclose(u["a"], -0.05 * (1 + 0.02), rtol=1e-5)
        np.testing.assert_allclose(u["b"], -0.1 * (1 + 0.01), rtol=1e-5)
    shown = str(stepax.describe(given, p))
    assert "0.05" in shown and "0.1" in shown


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "complex64"])
def test_initial_values_are_scaled_and_the_rest_is_kept(dtype):
    make = lambda n: {"head": jnp.ones((n, 3), dtype), "f": jnp.tanh, "none": None}
    found = mup(make(16), make(4)).scaled(make(16))
    np.testing.assert_array_equal(found["head"], np.full((16, 3), 0.5, dtype))
    assert found["head"].dtype == dtype
    assert found["f"] is jnp.tanh and found["none"] is None
    with pytest.raises(ValueError, match="no factor for other, only for head"):
        mup(make(16), make(4)).scaled({"other": jnp.ones(3)})


def test_integers_booleans_keys_and_narrow_arrays_of_numpy_are_kept():
    def tree(n):
        key = jax.random.key(0)
        kept = {"i": np.arange(n), "b": jnp.ones(n, bool), "key": key, "n": 3}
        kept |= {"keys": jax.random.split(key, n), "bool": True, "none": None}
        shape = n, 3
        return kept, {
            "half": np.ones(shape, jnp.bfloat16),
            "w": np.ones(shape),
            "x": 2.0,
        }

    kept, scaled = mup(tree(16), tree(4)).scaled(tree(16))
    for k, x in tree(16)[0].items():
        assert type(kept[k]) is type(x)
        assert_equal(kept[k], x)
    for k in ("half", "w"):
        assert type(scaled[k]) is np.ndarray and scaled[k].dtype == tree(4)[1][k].dtype
        np.testing.assert_array_equal(np.float32(scaled[k]), np.full((16, 3), 0.5))
    assert scaled["x"] == 2.0 and type(scaled["x"]) is float


def test_empty_arrays_and_trees_have_nothing_to_scale():
    empty = {"e": jnp.ones((0, 3))}
    assert mup(empty, empty).rates == {"e": 1.0}
    assert mup({}, {}).rates == {} and mup(None, None).scaled(None) is None


W = {"w": jnp.ones((4, 4))}
wrong: Any = transfer  # for calls that are wrong on purpose


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: mup(W, {"v": jnp.ones(3)}), r"`base_params`: \['v'\]"),
        (lambda: mup(W, {"w": jnp.ones(4)}), r"shape \(4,\) for w, .* \(4, 4\)"),
        (
            lambda: wrong.mup(W, W, optimizer="adams"),
            "`optimizer` is 'adams', expected one",
        ),
        (
            lambda: mup({"q": jnp.ones((8, 4, 2))}, {"q": jnp.ones((4, 2, 2))}),
            "axis 0 of q grows from 4 to 8, .*`weight_dimension_numbers=",
        ),
        (lambda: depth(W, 0, 1), "`layers` is 0, expected a whole number"),
        (
            lambda: wrong.depth(W, 2, 1.5),
            "`base_layers` is 1.5, expected a whole number",
        ),
        (
            lambda: depth(W, 2, 1, where="blocks/**"),
            "`blocks/\\*\\*` in `where` matches",
        ),
    ],
)
def test_what_does_not_fit_is_named(call, says):
    with pytest.raises(ValueError, match=f"(?s){says}"):
        call()


def test_factors_are_printed_by_path():
    lines = str(mup({"w": jnp.ones((8, 2))}, {"w": jnp.ones((2, 2))})).splitlines()
    assert lines[0].split() == ["path", "rate", "decay", "initial", "scale"]
    assert lines[2].split() == ["w", "0.25", "4", "0.5"]


X = jax.random.normal(jax.random.key(1), (16, 4))
Y = jnp.sin(X.sum(1, keepdims=True))
WIDTHS = [8, 32, 128]


def network(key, width):
    sizes = {"in": (4, width), "hidden": (width, width), "out": (width, 1)}
    keys = dict(zip(sizes, jax.random.split(key, 3), strict=True))
    draw = lambda key, n, m: jax.random.normal(key, (n, m)) / n**0.5
    return {k: draw(keys[k], *x) for k, x in sizes.items()}


def activations(p):
    first = jnp.tanh(X @ p["in"])
    second = jnp.tanh(first @ p["hidden"])
    return {"first": first, "second": second, "out": second @ p["out"]}


def squared(p):
    return jnp.mean((activations(p)["out"] - Y) ** 2)


RATES = {"adam": (stepax.adam, 0.02), "sgd": (stepax.sgd, 0.5)}
BASE = jax.eval_shape(lambda: network(jax.random.key(0), 8))


def maker(name, function):
    def make(width, key):
        p, (factory, rate) = network(key, width), RATES[name]
        factors = function(p, BASE, optimizer=name)
        return factors.scaled(p), factory(factors.rate(rate)), squared, activations

    return make


@pytest.mark.slow
@pytest.mark.parametrize("function", [mup, spectral])
@pytest.mark.parametrize("name", RATES)
def test_activations_change_as_much_at_every_width(name, function):
    found = coordinate_check(maker(name, function), WIDTHS)
    exponents = slopes(WIDTHS, found)
    assert exponents.keys() == {"first", "second", "out"}
    assert max(map(abs, exponents.values())) < 0.25
    for x in found.values():
        assert x.shape == (3, 3, 3) and np.isfinite(x).all()


def test_longer_runs_have_smaller_rates():
    found = transfer.horizon({"w": jnp.ones(2), "none": None}, 8e9, 1e9)
    assert found.rates == {"w": 8**-0.32} and found.decays == {"w": 1.0}
    assert transfer.horizon(jnp.ones(2), 16, 1, exponent=0.5).rates == {"**": 0.25}


@pytest.mark.parametrize(
    ("rule", "rate", "forgetting", "eps"),
    [("sqrt", 2.0, 4.0, 0.5), ("linear", 4.0, 1.0, 1.0), ("lmo", 4.0, 4.0, 1.0)],
)
def test_batches_scale_by_a_rule(rule, rate, forgetting, eps):
    found = transfer.batch({"w": jnp.ones(2)}, 256, 64, rule=rule)
    assert found.rate(0.1) == {"w": 0.1 * rate}
    assert (found.forgetting, found.eps) == (forgetting, eps)
    assert found.average(0.99) == pytest.approx(1 - 0.01 * forgetting)
    # Decay per token is the rate times the decay, by the batch.
    assert found.rates["w"] * found.decays["w"] == pytest.approx(4.0)
    twice = found * found
    assert (twice.forgetting, twice.eps) == (forgetting**2, eps**2)


def test_adam_with_a_larger_batch_is_close_to_that_of_the_smaller():
    """Where noise dominates: k steps with noise, and one with its mean."""
    p, k = {"w": jnp.zeros(4000)}, 4
    f = transfer.batch(p, k, 1)
    noise = np.random.default_rng(0).normal(size=(4000 * 400)).astype(np.float32)
    many = noise.reshape(400, 4000)
    few = many.reshape(100, k, 4000).mean(1)
    moved = []
    for gs, b1, b2, rate in (
        (many, 0.9, 0.99, 1e-3),
        (few, f.average(0.9), f.average(0.99), f.rate(1e-3)["w"]),
    ):
        tx = stepax.adam(rate, b1, b2, 1e-12)
        step = lambda s, g, tx=tx: tx.update({"w": g}, s)[::-1]
        _, u = jax.lax.scan(step, tx.init(p), jnp.asarray(gs))
        moved.append(float(jnp.std(u["w"].sum(0))))
    # The spread of 4,000 walks has an error of 1 %; the ends differ by averages of 10
    # of 400 steps.
    assert moved[1] == pytest.approx(moved[0], rel=0.1)


def test_sizes_and_rules_are_checked():
    p = jnp.ones(2)
    with pytest.raises(ValueError, match="`base_size` must be positive and finite"):
        transfer.batch(p, 4, 0)
    wrong: Any = "square"
    with pytest.raises(ValueError, match="`rule`.*'square'"):
        transfer.batch(p, 4, 1, rule=wrong)
    with pytest.raises(ValueError, match="`exponent` must be >= 0, but is -1"):
        transfer.horizon(p, 2, 1, exponent=-1)
    with pytest.raises(ValueError, match="shorter than a step"):
        transfer.batch(p, 16, 1).average(0.9)
