"""Losses: the values, derivatives, shapes and dtypes of Optax, and clear errors."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stepax import losses


rng = np.random.default_rng(0)
X = 3 * rng.normal(size=(3, 4)).astype("float32")
P = np.exp(X[::-1]) / np.exp(X[::-1]).sum(1, keepdims=True)
Z = rng.normal(size=(2, 5, 3)).astype("float32")
T = np.eye(3, dtype="float32")[rng.integers(0, 3, (2, 5))]
SIGNS = np.sign(X[::-1])
LABELS = np.array([0, 3, 2])
WHERE = np.array([[1, 1, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1]], bool)
ROWS = np.array([True, False, True])

# Name, arrays, keywords; the derivative is that in the first array.
CASES = [
    *(
        (name, (X, target), kw)
        for name, target in {
            "softmax_cross_entropy": P,
            "poly_loss_cross_entropy": P,
            "kl_divergence": P,
            "kl_divergence_with_log_targets": np.log(P),
            "generalized_kl_divergence": P,
            "cosine_similarity": P,
            "cosine_distance": P,
        }.items()
        for kw in ({}, {"axis": 0}, {"axis": (0, 1)}, {"axis": None}, {"where": WHERE})
    ),
    ("softmax_cross_entropy", (X, P), {"where": ROWS}),
    ("softmax_cross_entropy", (X, P[0]), {}),
    ("kl_divergence", (X[0], P), {}),
    ("safe_softmax_cross_entropy", (X, P), {}),
    ("poly_loss_cross_entropy", (X, P), {"epsilon": -0.5}),
    ("cosine_similarity", (X, P), {"epsilon": 2.0}),
    ("softmax_cross_entropy_with_integer_labels", (X, LABELS), {}),
    ("softmax_cross_entropy_with_integer_labels", (X, LABELS - 4), {}),
    ("softmax_cross_entropy_with_integer_labels", (X, LABELS), {"where": ROWS}),
    ("softmax_cross_entropy_with_integer_labels", (Z, LABELS), {"axis": (0, 1)}),
    ("sigmoid_binary_cross_entropy", (X, P), {}),
    ("sigmoid_binary_cross_entropy", (X, P > 0.3), {}),
    ("sigmoid_focal_loss", (X, P), {}),
    ("sigmoid_focal_loss", (X, P), {"alpha": 0.3, "gamma": 0.7}),
    ("squared_error", (X, P), {}),
    ("l2_loss", (X, P), {}),
    ("l2_loss", (X,), {}),
    ("huber_loss", (X, P), {"delta": 0.5}),
    ("huber_loss", (X, P[0]), {}),
    ("log_cosh", (X, P), {}),
    ("log_cosh", (X,), {}),
    ("hinge_loss", (X, SIGNS), {}),
    ("perceptron_loss", (X, SIGNS), {}),
    ("sparsemax_loss", (X, (SIGNS > 0).astype("float32")), {}),
    ("multiclass_hinge_loss", (X, LABELS), {}),
    ("multiclass_perceptron_loss", (X, LABELS), {}),
    ("multiclass_sparsemax_loss", (X, LABELS), {}),
    *(
        ("dice_loss", (Z, T), kw)
        for kw in (
            {},
            {"reduction": "sum", "alpha": 0.3, "beta": 0.9},
            {"reduction": "none", "smooth": 0.1},
            {"class_weights": LABELS.astype("float32"), "ignore_background": True},
            {"axis": (0, 1)},
            {"axis": (1, 2), "reduction": "none"},
        )
    ),
    ("dice_loss", (Z[..., 0], T[..., :1]), {}),
    ("multiclass_generalized_dice_loss", (Z, T), {}),
    ("multiclass_generalized_dice_loss", (Z, T), {"ignore_background": True}),
    ("binary_dice_loss", (X, P), {}),
    ("binary_dice_loss", (X[..., None], P), {"smooth": 0.1}),
    ("ntxent", (Z[0], np.array([0, 0, 1, 1, 1])), {}),
    ("ntxent", (Z[0], np.array([0, 0, 1, 1, 2])), {"temperature": 0.5}),
    ("triplet_margin_loss", (X, P, X[::-1]), {"margin": 9.0}),
    *(
        ("ranking_softmax_loss", (X, P), kw)
        for kw in (
            {},
            {"where": WHERE},
            {"where": WHERE & ROWS[:, None]},
            {"where": WHERE & False},
            {"weights": P[::-1], "reduce_fn": None},
            {"weights": P[:, :1], "reduce_fn": jnp.sum, "where": WHERE},
        )
    ),
    ("smooth_labels", (P, 0.1), {}),
    ("smooth_labels", (P, 0.1), {"axis": None}),
]


def arrays(values):
    return [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in values]


def value_and_slope(module, name, args, kw):
    f, (first, *rest) = getattr(module, name), arrays(args)
    kw = {k: jnp.asarray(x) if isinstance(x, np.ndarray) else x for k, x in kw.items()}
    total = lambda x: jnp.sum(f(x, *rest, **kw))
    return jax.jit(lambda x: (f(x, *rest, **kw), jax.grad(total)(x)))(first)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "args", "kw"), CASES, ids=[f"{i} {c[0]}" for i, c in enumerate(CASES)]
)
def test_values_and_derivatives_are_those_of_optax(name, args, kw):
    found = value_and_slope(losses, name, args, kw)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        wanted = value_and_slope(optax.losses, name, args, kw)
    for x, y in zip(found, wanted, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        # Sums of a dozen terms in another order, where Optax's cancel: some 2e-7 each.
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=3e-6)


# All that have one dtype with Optax whatever is mixed.
MIXED = {
    "softmax_cross_entropy": "promoted",
    "sigmoid_binary_cross_entropy": "first",
    "sigmoid_focal_loss": "first",
    "kl_divergence": "promoted",
    "huber_loss": "promoted",
    "hinge_loss": "promoted",
    "ranking_softmax_loss": "first",
    "dice_loss": "promoted",
    "cosine_similarity": "promoted",
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MIXED)
def test_dtypes_are_those_of_optax(name):
    for first, second in ("float16", "float16"), ("bfloat16", "float32"):
        x, y = jnp.asarray(X, first), jnp.asarray(P, second)
        found = jax.eval_shape(getattr(losses, name), x, y)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            wanted = jax.eval_shape(getattr(optax.losses, name), x, y)
        assert found.dtype == wanted.dtype
        assert found.dtype == (first if MIXED[name] == "first" else second)


@pytest.mark.slow
def test_a_mask_counts_for_integer_labels_as_for_one_hot_ones():
    x, where = jnp.asarray(X), jnp.asarray(WHERE)
    one_hot = jax.nn.one_hot(LABELS, 4)
    found = losses.softmax_cross_entropy_with_integer_labels(x, LABELS, where=where)
    wanted = losses.softmax_cross_entropy(x, one_hot, where=where)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    far = jnp.asarray([0, -100, 2])  # what a mask leaves out may be any number
    rows = losses.softmax_cross_entropy_with_integer_labels(
        x, far, where=jnp.asarray(ROWS)
    )
    assert rows[1] == 0 and jnp.isfinite(rows).all()


@pytest.mark.slow
def test_fenchel_young_loss_of_log_sum_exp_is_cross_entropy():
    loss = losses.make_fenchel_young_loss(jax.nn.logsumexp)
    x, y = jnp.asarray(Z), jnp.asarray(T)
    np.testing.assert_allclose(
        loss(x, y), losses.softmax_cross_entropy(x, y), rtol=1e-5, atol=1e-6
    )
    scaled = losses.make_fenchel_young_loss(lambda s, k: k * jax.nn.logsumexp(s))
    np.testing.assert_allclose(scaled(x, y, 1.0), loss(x, y))


def test_the_old_name_of_a_divergence_warns():
    x, y = jnp.asarray(X), jnp.asarray(P)
    with pytest.warns(DeprecationWarning, match="use generalized_kl_divergence"):
        found = losses.convex_kl_divergence(x, y)
    np.testing.assert_array_equal(found, losses.generalized_kl_divergence(x, y))


ONES = jnp.ones
INT = "softmax_cross_entropy_with_integer_labels"
FITS = "expected shapes where one broadcasts to the other"
# Name, arguments, keywords, what is raised and what it says.
MISTAKES = [
    ("softmax_cross_entropy", (ONES((3, 1)), ONES((3, 4))), {}, "equal sizes along"),
    (
        "softmax_cross_entropy",
        (ONES((3, 4)), ONES(3)),
        {},
        r"`labels` has shape \(3",
    ),
    ("softmax_cross_entropy", (ONES(()), ONES(())), {}, "`axis` is -1"),
    ("softmax_cross_entropy", (ONES(3), ONES(3)), {"where": ONES(4, bool)}, "`where`"),
    ("kl_divergence", (ONES((3, 4)), ONES((4, 3))), {}, FITS),
    ("kl_divergence", (ONES((3, 4)), ONES((3, 4))), {"axis": (1, -1)}, "axis once"),
    ("cosine_distance", (ONES((3, 4)), ONES(())), {}, "equal sizes along"),
    ("sigmoid_focal_loss", (ONES((3, 1)), ONES(3)), {}, FITS),
    ("huber_loss", (ONES(3), ONES((3, 1))), {}, FITS),
    ("hinge_loss", (ONES((3, 1)), ONES(3)), {}, FITS),
    ("squared_error", (ONES(3), ONES((3, 1))), {}, "expected equal shapes"),
    ("perceptron_loss", (ONES(3), ONES((1, 3))), {}, "expected equal shapes"),
    (INT, (ONES((3, 4)), LABELS[:, None]), {}, FITS),
    (INT, (ONES((3, 4)), LABELS + 1), {}, "values from 1 to 4"),
    ("multiclass_hinge_loss", (ONES((3, 4)), -LABELS), {}, "at least 0 and below 4"),
    ("multiclass_sparsemax_loss", (ONES((3, 4)), LABELS[:2]), {}, FITS),
    ("sparsemax_loss", (ONES(3), LABELS), {}, "below 2"),
    ("smooth_labels", (ONES((2, 3)), ONES(2)), {}, "`alpha` has shape"),
    ("ntxent", (ONES((4, 2)), LABELS), {}, r"expected \[batch, size\]"),
    ("triplet_margin_loss", (ONES(3), ONES(4), ONES(3)), {}, "`positives` has shape"),
    ("triplet_margin_loss", (ONES(3),) * 3, {"norm_degree": 0}, "number above 0"),
    ("ranking_softmax_loss", (ONES((3, 4)), ONES((3, 1))), {}, "equal sizes along"),
    ("ranking_softmax_loss", (ONES(3),) * 2, {"weights": ONES(2)}, "`weights` has"),
    ("dice_loss", (ONES((2, 4)),) * 2, {"reduction": "avg"}, "`reduction` is 'avg'"),
    ("dice_loss", (ONES((2, 4)), ONES((2, 3))), {}, "expected equal shapes"),
    ("dice_loss", (ONES((2, 4)),) * 2, {"apply_softmax": False}, "sums over the class"),
    ("dice_loss", (ONES((2, 4)),) * 2, {"axis": 1}, "other than the class axis"),
    ("dice_loss", (ONES((2, 4)),) * 2, {"class_weights": ONES(3)}, "`class_weights` h"),
    ("binary_dice_loss", (2 * ONES(3), ONES(3)), {"apply_sigmoid": False}, "values fr"),
    ("ctc_loss", (ONES((1, 2, 3)), ONES((1, 3)), *[ONES((1, 1))] * 2), {}, "`logits`"),
    (
        "ctc_loss",
        (ONES((1, 2, 3)), ONES((1, 2)), ONES((1, 1), int), 0 * ONES((1, 1))),
        {"blank_id": 3},
        "`blank_id` is 3",
    ),
    (
        "ctc_loss",
        (ONES((1, 2, 3)), ONES((1, 2)), 3 * ONES((1, 1), int), 0 * ONES((1, 1))),
        {},
        "`labels` has values from 3",
    ),
]


@pytest.mark.parametrize(
    ("name", "args", "kw", "says"), MISTAKES, ids=[f"{m[0]} {m[3]}" for m in MISTAKES]
)
def test_what_does_not_fit_is_named(name, args, kw, says):
    with pytest.raises(ValueError, match=says):
        getattr(losses, name)(*args, **kw)


WRONG = [
    ("softmax_cross_entropy", (ONES(3, int), ONES(3)), "`logits` is of dtype int32"),
    ("kl_divergence", (ONES(3), ONES(3, int)), "`targets` is of dtype int32"),
    ("sigmoid_focal_loss", (ONES(3, complex), ONES(3)), "`logits` is of dtype complex"),
    ("hinge_loss", (ONES(3), None), "`targets` is None"),
    ("multiclass_hinge_loss", (ONES(3), 1.0), "`labels` is of dtype float32"),
    (INT, (ONES((1, 3)), ONES(1, bool)), "expected integers"),
]


@pytest.mark.parametrize(("name", "args", "says"), WRONG)
def test_dtypes_that_make_no_sense_are_named(name, args, says):
    with pytest.raises(TypeError, match=says):
        getattr(losses, name)(*args)


def test_masks_are_booleans():
    with pytest.raises(TypeError, match="`where` is of dtype int32"):
        losses.softmax_cross_entropy(ONES(3), ONES(3), where=ONES(3, int))
