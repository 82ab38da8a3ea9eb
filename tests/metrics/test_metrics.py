"""Ready metrics for `observe`, and the names under which a logger finds them."""

import re
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TREES, gradients
from runs import compilations

import stepax
from stepax import metrics
from stepax.tree import flat, get


P = {"a": {"w": jnp.full((4, 3), 2.0), "b": jnp.ones(3)}, "c": jnp.zeros(2)}
G = jax.tree.map(lambda x: x + 1, P)


def observed(found, inner=None, params: Any = P, grads: Any = G, steps=1, **more):
    """The metrics after some steps."""
    tx = stepax.observe(inner or stepax.scale(-0.5), found)
    state = tx.init(params)
    for _ in range(steps):
        _, state = tx.update(grads, state, params, **more)
    return state.metrics


def flattened(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def test_sizes_are_those_of_all_elements():
    found = observed(
        {
            "rms": metrics.rms("params"),
            "ratio": metrics.update_ratio(),
        }
    )
    g, p = flattened(G), flattened(P)
    wanted = {
        "rms": np.sqrt(np.mean(p**2)),
        "ratio": np.linalg.norm(g) / 2 / np.linalg.norm(p),
    }
    for name, x in wanted.items():
        np.testing.assert_allclose(found[name], x, rtol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("depth", "names"),
    [(1, ["a", "c"]), (2, ["a/b", "a/w", "c"]), (None, ["a/b", "a/w", "c"])],
)
def test_layers_are_named_by_their_paths(depth, names):
    found = observed({"x": metrics.by_layer(metrics.update_ratio(), depth)})["x"]
    assert list(found) == names
    np.testing.assert_allclose(found[names[0]], {1: 0.94, 2: 1}.get(depth, 1), atol=0.2)
    assert found["c"] == 0  # its parameters are 0
    part = jax.tree.map(lambda x: x, {"a": P["a"]})
    alone = observed({"x": metrics.update_ratio()}, params=part, grads={"a": G["a"]})
    if depth == 1:
        np.testing.assert_allclose(found["a"], alone["x"], rtol=1e-6)


def cosines(tx, gs, params):
    state, found = tx.init(params), []
    for g in gs:
        _, state = jax.jit(tx.update)(g, state, params)
        found.append(get(state, "cosine"))
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_the_cosine_is_to_the_last_gradient(dtype):
    p = {"w": jnp.ones(4, dtype), "none": None}
    make = lambda *x: {"w": jnp.asarray(x, dtype), "none": None}
    gs = [make(3, 0, 4, 0), make(3, 0, 4, 0), make(-6, 0, -8, 0), make(0, 1, 0, 0)]
    gs += [make(0, 0, 0, 0), make(0, 1, 0, 0)]
    tx = stepax.observe(stepax.identity(), {"cosine": metrics.cosine_to_last()})
    found = cosines(tx, gs, p)
    np.testing.assert_allclose(found, [0, 1, -1, 0, 0, 0], atol=1e-6)


def test_the_cosine_of_tiny_gradients_is_known():
    g = {"w": jnp.array([1e-25, 1e-25])}
    tx = stepax.observe(stepax.identity(), {"cosine": metrics.cosine_to_last()})
    np.testing.assert_allclose(cosines(tx, [g, g], g)[1], 1, rtol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_gradient_is_not_remembered(bad):
    one, none = {"w": jnp.ones(3)}, {"w": jnp.full(3, bad)}
    for metric in metrics.cosine_to_last(), metrics.by_layer(metrics.cosine_to_last()):
        tx = stepax.observe(stepax.identity(), {"cosine": metric})
        found = [flattened(x)[0] for x in cosines(tx, [one, none, one], one)]
        assert np.isnan(found[1]) and found[2] == pytest.approx(1, abs=1e-6)


EVERY = {
    "norm": lambda g, u, p: stepax.tree.norm(g),
    "rms": metrics.rms("updates"),
    "ratio": metrics.update_ratio(),
    "cosine": metrics.cosine_to_last(),
    "layers": metrics.by_layer(metrics.rms("params")),
    "cosines": metrics.by_layer(metrics.cosine_to_last(), None),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("tree", TREES)
def test_any_tree_is_measured_and_nothing_changes_its_type(tree):
    params: Any = TREES[tree]()
    tx = stepax.observe(stepax.sgd(0.1), EVERY)
    state = tx.init(params)
    grads = gradients(params)
    types = lambda s: jax.tree.map(jax.typeof, eqx.filter(s, eqx.is_array))
    for _ in range(2):
        _, new = tx.update(grads, state, params)
        assert types(new) == types(state)
        state = new
    assert np.isfinite(state.metrics["cosine"])


@pytest.mark.slow
def test_a_step_with_metrics_is_compiled_once_and_may_be_donated_and_mapped():
    multi: Any = stepax.MultiSteps(stepax.adam(0.1), 2)
    tx = stepax.observe(multi, EVERY | noisy(4))
    step = jax.jit(tx.update, donate_argnums=1)
    state = tx.init(P)
    with compilations() as found:
        for _ in range(3):
            _, state = step(G, state, P)
    assert len(found) == 1
    many = jax.vmap(lambda g: tx.update(g, tx.init(P), P)[1].metrics)
    stacked = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), G)
    np.testing.assert_allclose(many(stacked)["norm"][1] / many(stacked)["norm"][0], 2)


def test_masked_parameters_are_no_part_of_it():
    tx = stepax.masked(stepax.observe(stepax.sgd(1.0), EVERY), {"a": True, "c": False})
    _, state = tx.update(G, tx.init(P), P)
    assert list(get(state, "layers")) == ["a"]
    np.testing.assert_allclose(get(state, "norm"), np.linalg.norm(flattened(G["a"])))


# --- the noise scale ------------------------------------------------------------------


def noisy(size, *more, **options):
    return {"noise": metrics.noise_scale(size, *more, **options)}


def reference(calls, size, weights=None):
    """Both estimates of one step, from the gradients of its calls (k, n)."""
    w = np.ones(len(calls)) if weights is None else np.asarray(weights)
    small = np.sum(w * np.sum(np.abs(calls) ** 2, 1)) / w.sum()
    large = np.sum(np.abs(w @ calls / w.sum()) ** 2)
    b, B = size * w.sum() / len(w), size * w.sum()
    return (small - large) / (1 / b - 1 / B), (B * large - b * small) / (B - b)


def calls_of(number, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(number, 6)) + 2).astype(np.float32)


def accumulated(calls, k, weights=None, **options):
    """The noise after each call."""
    multi: Any = stepax.MultiSteps(stepax.sgd(0.1), k, **options)
    is_mean = options.get("use_grad_mean", True)
    tx = stepax.observe(multi, noisy(8, decay=0.5, mean=is_mean))
    params = {"w": jnp.zeros(6), "none": None}
    state, found = tx.init(params), []
    for i, g in enumerate(calls):
        more = {} if weights is None else {"weight": jnp.float32(weights[i])}
        _, state = tx.update({"w": jnp.asarray(g), "none": None}, state, params, **more)
        found.append(state.metrics["noise"])
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("weights", [None, [1, 2, 0.5, 3, 1, 1, 2, 2]], ids=["", "w"])
def test_the_noise_is_mccandlishs_of_the_calls_of_a_step(mean, weights):
    calls = calls_of(8)
    found = accumulated(calls, 4, weights, use_grad_mean=mean)
    assert all(x == 0 for noise in found[:3] for x in noise)
    parts = [None, None] if weights is None else [weights[:4], weights[4:]]
    steps = [reference(calls[4 * i : 4 * i + 4], 8, w) for i, w in enumerate(parts)]
    # Sums of a few squares of the order of one, in float32.
    np.testing.assert_allclose(found[3][:2], steps[0], rtol=1e-4)
    # With a decay of a half and bias correction: one third and two thirds.
    both = (np.array(steps[0]) + 2 * np.array(steps[1])) / 3
    np.testing.assert_allclose(found[7][:2], both, rtol=1e-4)
    np.testing.assert_allclose(found[7].scale, both[0] / both[1], rtol=1e-4)


def test_calls_that_do_not_count_do_not_count_here():
    calls = calls_of(4)
    plain = accumulated(calls, 4)
    bad = np.full((1, 6), np.nan, np.float32)
    with_bad = np.concatenate([calls[:2], bad, calls[2:]])
    skipping = accumulated(with_bad, 4, should_skip_update_fn=stepax.skip_not_finite)
    weightless = accumulated(with_bad, 4, weights=[1, 1, 0, 1, 1])
    for other in skipping, weightless:
        np.testing.assert_allclose(other[-1], plain[-1], rtol=1e-6)


def test_a_step_with_a_nan_or_one_call_is_left_out():
    calls = calls_of(12)
    calls[5, 2] = np.nan
    found = accumulated(calls, 4)
    np.testing.assert_array_equal(found[7], found[3])
    wanted = (
        np.array(reference(calls[:4], 8)) + 2 * np.array(reference(calls[8:], 8))
    ) / 3
    np.testing.assert_allclose(found[11][:2], wanted, rtol=1e-4)
    assert all(x == 0 for noise in accumulated(calls_of(3), 1) for x in noise)


def test_the_noise_of_microbatches_is_that_of_calls():
    calls = calls_of(4)
    wanted = accumulated(calls, 4)[-1]
    mean = stepax.microbatching.AccumulationType.RUNNING_MEAN
    both = lambda g: (g[0], stepax.tree.norm(g[0], squared=True))
    large, small = stepax.microbatch(both, 0, 1, mean)(jnp.asarray(calls))
    tx = stepax.observe(stepax.sgd(0.1), noisy(8, 32))
    _, state = tx.update(large, tx.init(large), large, small_squared_norm=small)
    np.testing.assert_allclose(state.metrics["noise"], wanted, rtol=1e-4)


def test_the_keyword_is_read_to_strict():
    tx = stepax.strict_keywords(stepax.observe(stepax.sgd(0.1), noisy(8, 32)))
    state = tx.init(P)
    tx.update(G, state, P, small_squared_norm=jnp.float32(200.0))
    with pytest.raises(TypeError, match="did you mean `small_squared_norm`"):
        tx.update(G, state, P, small_square_norm=jnp.float32(200.0))


def test_the_scale_is_infinite_where_the_gradient_is_all_noise():
    noise = metrics.gradient_noise(4.0, 1.0, 8, 32)
    assert noise.squared_norm == 0 and noise.scale == np.inf and noise.trace == 32
    assert metrics.gradient_noise(1.0, 1.0, 8, 32).scale == 0


# --- names ----------------------------------------------------------------------------


class Named(NamedTuple):
    count: Any
    inner: Any


def chained():
    clip = stepax.observe(
        stepax.clip_by_global_norm(1.0), {"norm_before": EVERY["norm"]}
    )
    before = stepax.snapshot("size", stepax.tree.norm)
    adam = stepax.masked(stepax.adamw(1e-3), {"a": True, "c": False})
    return stepax.named_chain(("clip", clip), ("before", before), ("adam", adam))


def test_each_array_has_one_name_by_which_it_is_found():
    tx = chained()
    _, state = tx.update(G, tx.init(P), P)
    found = flat(state)
    leaves = [x for x in jax.tree.leaves(state) if stepax.tree.size(x)]
    assert [id(x) for x in found.values()] == [id(x) for x in leaves]
    for name, x in found.items():
        assert get(state, name) is x
    assert "clip/norm_before" in found and "before/size" in found
    assert list(found) == list(flat(tx.init(P)))


def test_scalars_are_those_that_a_logger_takes():
    tx = chained()
    found = flat(tx.init(P), scalars=True)
    assert all(jnp.ndim(x) == 0 for x in found.values())
    assert {"clip/norm_before", "before/size"} <= found.keys()
    assert not any("mu" in name for name in found)


def test_names_may_be_shadowed_but_never_lost():
    state = stepax.ObserveState({"inner_state": jnp.ones(())}, jnp.zeros(()))
    assert list(flat(state)) == ["metrics/inner_state", "inner_state"]
    assert flat(jnp.ones(2)).keys() == {""}
    assert flat({"none": None, "f": jnp.tanh, "x": ()}) == {}
    with pytest.raises(ValueError, match="two arrays have the name `a/b`"):
        flat({"a/b": jnp.ones(1), "a": {"b": jnp.ones(1)}})


# --- wrong arguments ------------------------------------------------------------------

unknown: Any = "gradient"
number: Any = 3
BAD = {
    "of": (
        lambda: metrics.rms(unknown),
        ValueError,
        "`of` is 'gradient', expected",
    ),
    "depth": (lambda: metrics.by_layer(EVERY["norm"], 0), ValueError, "`depth` is 0"),
    "metric": (
        lambda: metrics.by_layer(number),
        TypeError,
        "`metric` is a `int`, expected",
    ),
    "size": (lambda: noisy(0), ValueError, "`small_size` is 0, expected more than 0"),
    "sizes": (lambda: noisy(8, 8), ValueError, "expected more than 0, below 8"),
    "decay": (
        lambda: noisy(8, decay=1.0),
        ValueError,
        "`decay` is 1.0, expected a num",
    ),
    "norms": (
        lambda: metrics.gradient_noise(1.0, 1.0, 2, 1),
        ValueError,
        "`small_size` is 2, expected more than 0, below 1",
    ),
    "no MultiSteps": (
        lambda: observed(noisy(8)),
        ValueError,
        "`noise_scale` found no state of `MultiSteps` in the observed transformation",
    ),
    "keyword": (
        lambda: observed(noisy(8, 32)),
        TypeError,
        "needs the keyword `small_squared_norm` of `update`",
    ),
    "params of layers": (
        lambda: stepax.observe(
            stepax.sgd(0.1), {"x": metrics.by_layer(EVERY["ratio"])}
        ).update(G, stepax.ObserveState({}, stepax.sgd(0.1).init(P))),
        ValueError,
        "this metric needs `params`",
    ),
    "params": (
        lambda: stepax.observe(stepax.sgd(0.1), {"x": EVERY["ratio"]}).update(
            G, stepax.observe(stepax.sgd(0.1), {"x": EVERY["ratio"]}).init(P)
        ),
        ValueError,
        "this metric needs `params`: pass them to `update`",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_argument_is_named(case):
    make, kind, message = BAD[case]
    with pytest.raises(kind, match=re.escape(message)):
        make()
