"""Steps that are taken where they agree with the gradient, and corrected gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
import stepax.contrib as contrib


GS = np.random.RandomState(5).randn(6, 3, 4)
GS[3] = 0.0
GS[:, 0, 0] = 0.0
START = np.random.RandomState(6).randn(3, 4)
B1, B2, EPS, DECAY = 0.8, 0.9, 1e-3, 0.2
RATES = 0.3 / np.arange(1, 7)
SCHEDULE = lambda count: 0.3 / (count + 1.0)
MASKS: dict[str, Any] = {"all": None, "none": {"w": False}}


def run(tx: Any, gs=GS, start=START, dtype: Any = jnp.float64):
    """Parameters after each step."""
    p = {"w": jnp.asarray(start, dtype)}
    state, out = tx.init(p), []
    for g in gs:
        u, state = tx.update({"w": jnp.asarray(g, dtype)}, state, p)
        p = stepax.apply_updates(p, u)
        out.append(np.asarray(p["w"]))
    return np.stack(out)


def adam(gs, b1=B1, b2=B2, eps=EPS):
    m, v = 0.0, 0.0
    for t, g in enumerate(gs, 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        yield m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)


def cautious_adam(gs):
    for g, u in zip(gs, adam(gs), strict=True):
        k = u * g > 0
        yield u * k / max(k.mean(), 1e-3)


def cautious_lion(gs):
    m = 0.0
    for g in gs:
        s = np.sign(B1 * m + (1 - B1) * g)
        m = B2 * m + (1 - B2) * g
        k = s * g > 0
        yield s * k * k.size / (k.sum() + 1)


def corrected(gs, gamma):
    last = 0.0
    for g in gs:
        c = g + gamma * B1 / (1 - B1) * (g - last)
        last = g
        yield c / max(1, np.linalg.norm(c))


def mars_adam(gs, gamma=0.3):
    return adam(list(corrected(gs, gamma)))


def mars_lion(gs, gamma=0.3):
    m = 0.0
    for c in corrected(gs, gamma):
        m = B1 * m + (1 - B1) * c
        yield np.sign(m)


def mars_shampoo(gs, gamma=0.3):
    m = 0.0
    for c in corrected(gs, gamma):
        m = B1 * m + (1 - B1) * c
        x = m / (1 - B1)
        u, s, vt = np.linalg.svd(x, full_matrices=False)
        s = s / (np.linalg.norm(s) + EPS)
        for _ in range(5):
            s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
        yield np.sqrt(max(1, x.shape[1] / x.shape[0])) * (u * s @ vt)


MARS: Any = {"b1": B1, "b2": B2, "gamma": 0.3, "eps": EPS}
OPTIMIZERS = {
    "cautious AdamW": (contrib.cautious_adamw, (B1, B2, EPS), {}, cautious_adam),
    "cautious Lion": (contrib.cautious_lion, (B1, B2), {}, cautious_lion),
    "MARS-AdamW": (contrib.mars, (), MARS, mars_adam),
    "MARS-Lion": (contrib.mars, (), MARS | {"variant": "lion"}, mars_lion),
    "MARS-Shampoo": (contrib.mars, (), MARS | {"variant": "shampoo"}, mars_shampoo),
}


# The iteration of Muon amplifies rounding by its first coefficient at each of five
# steps, about 500 times.
@pytest.mark.few(1)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("rate", [0.1, SCHEDULE])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_written_out(name, rate, mask, x64):
    factory, args, kwargs, reference = OPTIMIZERS[name]
    decay = {"weight_decay": DECAY, "weight_decay_mask": MASKS[mask]}
    found = run(factory(rate, *args, **kwargs, **decay))
    rates = RATES if callable(rate) else [rate] * len(GS)
    pull = DECAY if mask == "all" else 0.0
    p = START
    for ours, a, u in zip(found, rates, reference(GS), strict=True):
        p = p - a * (u + pull * p)
        np.testing.assert_allclose(ours, p, rtol=1e-10, atol=1e-12)


def test_mars_shampoo_leaves_what_is_no_matrix_to_adam(x64):
    start, gs = START.ravel(), GS.reshape(6, 12)
    found = run(contrib.mars(0.1, **MARS, variant="shampoo"), gs, start)
    wanted = run(contrib.mars(0.1, **MARS), gs, start)
    np.testing.assert_array_equal(found, wanted)


def test_another_variant_is_an_error():
    variant: Any = "sgd"
    with pytest.raises(ValueError, match="`variant` is 'sgd', expected one of"):
        contrib.mars(variant=variant)


def test_a_wrapper_makes_adam_cautious_in_either_place(x64):
    rate = stepax.scale_by_learning_rate(SCHEDULE)
    direction = stepax.scale_by_adam(B1, B2, EPS)
    wanted = run(contrib.cautious_adamw(SCHEDULE, B1, B2, EPS))
    before = stepax.chain(contrib.cautious(direction, descends=False), rate)
    np.testing.assert_allclose(run(before), wanted, rtol=1e-13)
    after = contrib.cautious(stepax.chain(direction, rate))
    np.testing.assert_allclose(run(after), wanted, rtol=1e-13)


def test_a_correction_goes_before_any_optimizer(x64):
    part = contrib.scale_by_mars_correction(B1, 0.3)
    found = run(stepax.chain(part, stepax.adam(0.1, B1, B2, EPS)))
    np.testing.assert_allclose(found, run(contrib.mars(0.1, **MARS)), rtol=1e-13)


# With b1 = 0 the direction is always that of the gradient.
INNER = {
    "rmsprop": (lambda: stepax.rmsprop(0.1), True),
    "momentum": (lambda: stepax.sgd(0.1, momentum=0.9), False),
    "lion": (lambda: stepax.lion(0.1), False),
    "muon": (lambda: contrib.muon(0.1), False),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", INNER)
def test_any_optimizer_is_masked_where_it_ascends(name, x64):
    make, agrees = INNER[name]
    inner, tx = make(), contrib.cautious(make())
    p = {"w": jnp.asarray(START)}
    plain, state = inner.init(p), tx.init(p)
    stopped = 0
    for g in GS:
        u, plain = inner.update({"w": jnp.asarray(g)}, plain, p)
        v, state = tx.update({"w": jnp.asarray(g)}, state, p)
        whole = np.asarray(u["w"])
        keep = whole * g < 0
        wanted = whole * keep / max(keep.mean(), 1e-3)
        np.testing.assert_allclose(v["w"], wanted, rtol=1e-13)
        stopped += int(np.sum(~keep & (g != 0)))
    assert (stopped == 0) == agrees
    jax.tree.map(np.testing.assert_array_equal, plain, state)


def test_a_gradient_that_is_not_a_number_is_not_hidden():
    for tx in (contrib.cautious_adamw(0.1), contrib.cautious(stepax.adam(0.1))):
        p = jnp.ones(2)
        u, _ = tx.update(jnp.asarray([jnp.nan, 1.0]), tx.init(p), p)
        assert jnp.isnan(u[0]) and jnp.isfinite(u[1])
