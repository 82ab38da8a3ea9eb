"""QK-clip shrinks the weights of queries and keys whose logits are too large."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import assert_equal

import stepax


def layer(seed=0, heads=2, of_key=2, dtype="float32"):
    """Queries and keys of shape (model, heads, head), and what is neither."""
    key = jax.random.key(seed)
    q, k = (
        jax.random.normal(jax.random.fold_in(key, i), (4, n, 3)).astype(dtype)
        for i, n in enumerate((heads, of_key))
    )
    return {"q": q, "k": k, "o": jnp.ones(3, dtype)}


P = {"0": layer(0), "1": layer(1)}
U = jax.tree.map(lambda p: 0.01 * p, P)
S = {"0": {"q": jnp.array([50.0, 400.0])}, "1": {"q": jnp.float32(100.0)}}
PAIRS = {"**/q": "**/k"}


def stepped(tx, updates=U, params=P, **extra):
    u, _ = tx.update(updates, tx.init(params), params, **extra)
    return stepax.apply_updates(params, u)


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["nested", "flat", "jitted"])
def test_logits_are_at_most_the_threshold(form):
    tx = stepax.qk_clip(100.0, PAIRS, head_axis=1)
    given = S if form != "flat" else {f"{i}/q": x["q"] for i, x in S.items()}
    run = lambda s: stepped(tx, max_logits=s)
    new, plain = (
        (jax.jit(run) if form == "jitted" else run)(given),
        stepped(stepax.identity()),
    )
    for name in "qk":
        np.testing.assert_allclose(
            new["0"][name][:, 1], 0.5 * plain["0"][name][:, 1], rtol=1e-6
        )
        assert_equal(new["0"][name][:, 0], plain["0"][name][:, 0])
        assert_equal(new["1"][name], plain["1"][name])
    assert_equal(new["0"]["o"], plain["0"]["o"])
    logits = lambda t: jnp.einsum("mhd,nhd->hmn", t["q"], t["k"])
    np.testing.assert_allclose(
        logits(new["0"])[1], logits(plain["0"])[1] / 4, rtol=1e-5
    )


@pytest.mark.parametrize("s", [257.0, 4.0001])
def test_logits_count_in_float32(s):
    p = {"q": jnp.ones((2, 3)), "k": jnp.ones((2, 3))}
    tx = stepax.qk_clip(4.0, {"q": "k"})
    new = stepped(tx, jax.tree.map(jnp.zeros_like, p), p, max_logits=s)
    # A quotient, a root and a product.
    np.testing.assert_allclose(new["q"], np.sqrt(4.0 / s), rtol=4e-7)
    np.testing.assert_allclose(new["k"], np.sqrt(4.0 / s), rtol=4e-7)


def test_heads_may_be_neighbouring_columns_and_layers_stacked():
    flat = jax.tree.map(
        lambda x: jnp.stack([x.reshape(4, -1)] * 2) if x.ndim > 1 else x, P["0"]
    )
    s = jnp.array([[1.0, 400.0], [1600.0, 1.0]])
    tx = stepax.qk_clip(100.0, {"q": "k"}, head_axis=(0, -1))
    zero = jax.tree.map(jnp.zeros_like, flat)
    new = stepped(tx, zero, flat, max_logits=s)
    wanted = np.repeat([[1, 0.5], [0.25, 1]], 3, axis=1)[:, None]
    for name in "qk":
        np.testing.assert_allclose(new[name], flat[name] * wanted, rtol=1e-6)


def test_a_key_of_several_heads_stays():
    p = layer(heads=4, of_key=2)
    zero = jax.tree.map(jnp.zeros_like, p)
    tx = stepax.qk_clip(1.0, {"q": "k"}, head_axis=1)
    new = stepped(tx, zero, p, max_logits=jnp.array([1.0, 2.0, 4.0, 0.5]))
    assert_equal(new["k"], p["k"])
    factors = jnp.array([1.0, 0.5, 0.25, 1.0])[None, :, None]
    np.testing.assert_allclose(new["q"], p["q"] * factors, rtol=1e-6)


@pytest.mark.few(4)
@pytest.mark.parametrize("s", [np.nan, np.inf, -3.0, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_nothing_changes_a_bit_below_the_threshold(s, dtype):
    p = layer(dtype=dtype)
    u = jax.tree.map(lambda x: x * 0.125, p)
    tx = stepax.chain(stepax.scale(-1.0), stepax.qk_clip(2.0, {"q": "k"}))
    v, state = tx.update(u, tx.init(p), p, max_logits=jnp.float32(s))
    assert_equal(v, jax.tree.map(jnp.negative, u))


def test_frozen_weights_stay_and_none_is_left_out():
    p = layer()
    u = {**jax.tree.map(jnp.zeros_like, p), "k": None}
    tx = stepax.qk_clip(1.0, {"q": "k"})
    v, _ = tx.update(u, tx.init(p), p, max_logits=4.0)
    assert v["k"] is None
    np.testing.assert_allclose(v["q"], -0.5 * p["q"], rtol=1e-6)


ERRORS = {
    "no match": ({"pairs": {"**/query": "**/k"}}, {}, "`\\*\\*/query` in `pairs`.*0/k"),
    "counts": ({"pairs": {"**/q": "0/k"}}, {}, "matches 2 queries and `0/k` 1 keys"),
    "no pairs": ({"pairs": {}}, {}, "expected a dict from patterns"),
    "threshold": ({"threshold": 0.0}, {}, "`threshold` of `qk_clip` must be above 0"),
    "absent": ({}, {"max_logits": None}, "`qk_clip` reads `max_logits`"),
    "missing": ({}, {"max_logits": {"0/q": 1.0}}, "has nothing for 1/q; it has 0/q"),
    "unknown": (
        {},
        {"max_logits": {**S, "2/q": 1.0}},
        "has 2/q, which is not a query; the queries are 0/q, 1/q",
    ),
    "shape": (
        {},
        {"max_logits": {"0/q": jnp.ones(3), "1/q": 1.0}},
        r"at 0/q has shape \(3,\), expected a scalar, or lengths that divide \(2,\)",
    ),
    "no axis": (
        {"head_axis": None},
        {"max_logits": S},
        r"has shape \(2,\), expected a scalar, because `head_axis` is not given",
    ),
    "other axis": (
        {"head_axis": 3},
        {"max_logits": S},
        r"`head_axis` \(3,\) is not an axis of 0/q, of shape \(4, 2, 3\)",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_does_not_fit_is_an_error(case):
    options, extra, message = ERRORS[case]
    arguments = {"threshold": 100.0, "pairs": PAIRS, "head_axis": 1} | options
    with pytest.raises(ValueError, match=message):
        stepped(stepax.qk_clip(**arguments), **({"max_logits": S} | extra))


def test_text_is_no_logit():
    with pytest.raises(TypeError, match="at 0/q is .*, expected real numbers"):
        stepped(stepax.qk_clip(1.0, PAIRS), max_logits={"0/q": "x", "1/q": 1.0})
