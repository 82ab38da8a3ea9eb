"""Derivatives of losses up to the third, at their edges: finite, as in float64."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stepax import losses


INF = np.inf
XS = [-1e30, -1e3, -100.0, -30.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 30.0, 100.0, 1e3, 1e30]
ENDS = [-INF, INF]


def with_label(name, y, **options):
    f = getattr(losses, name)
    return lambda x: f(x, jnp.asarray(y, x.dtype), **options)


def focal(y, gamma, alpha=None):
    return with_label("sigmoid_focal_loss", y, gamma=gamma, alpha=alpha)


def focal_of_gamma(y):
    """With an exponent that is not known."""
    return lambda x: focal(y, jnp.asarray(0.5, x.dtype))(x)


def of_class(name, label):
    f = getattr(losses, name)
    return lambda x: f(x, jnp.asarray(label))


# Losses of a number, and whether they have derivatives at infinity.
NUMBERS = {
    **{
        f"focal {y} {gamma}": (focal(y, gamma), True)
        for y, gamma in [
            *((0.0, 0), (0.0, 0.5), (0.0, 2.0), (0.3, 0.5), (0.3, 2.0)),
            *((1.0, 0.5), (1.0, 1.0), (1.0, 1.5), (1.0, 5)),
        ]
    },
    "focal, exponent as an array": (focal_of_gamma(1.0), True),
    "focal, weighted": (focal(0.0, 0.5, 0.25), True),
    **{
        f"binary {y}": (with_label("sigmoid_binary_cross_entropy", y), True)
        for y in (0.0, 0.3, 1.0)
    },
    "log_cosh": (losses.log_cosh, True),
    "huber": (losses.huber_loss, False),
    "squared_error": (losses.squared_error, False),
    "l2": (losses.l2_loss, False),
    "hinge": (with_label("hinge_loss", -1.0), False),
    "perceptron": (with_label("perceptron_loss", 1.0), False),
    "sparsemax": (with_label("sparsemax_loss", 1.0), False),
    "dice": (
        lambda x: losses.binary_dice_loss(x[None, None], jnp.ones((1, 1), x.dtype))[0],
        True,
    ),
    "dice of nothing": (
        lambda x: losses.binary_dice_loss(
            x[None, None], jnp.zeros((1, 1), x.dtype), smooth=0.0
        )[0],
        False,
    ),
}

V = np.array([[0.0, 0, 0], [1, -1, 0], [1e3, -1e3, 0], [1e30, -1e30, 1], [30, 1, -30]])
MASKED = np.array([[0.0, -INF, 1], [-INF, -INF, 1], [1e3, -INF, -1e3]])
LOST = np.concatenate([MASKED, [[-INF, -INF, -INF]]])


def along(f, *others):
    """`f` of a vector and constants."""
    return lambda x: f(x, *(jnp.asarray(y, x.dtype) for y in others))


def batch_of_one(f):
    return lambda x: f(x[None])[0]


def contrast(temperature):
    labels = jnp.asarray([0, 0, 1, 1])

    def f(x):
        rows = jnp.stack([x, jnp.roll(x, 1), -x, jnp.zeros_like(x).at[0].set(1)])
        return losses.ntxent(rows, labels, temperature)

    return f


def triplet(degree, eps):
    def f(x):
        return losses.triplet_margin_loss(
            x, jnp.zeros_like(x), jnp.ones_like(x), norm_degree=degree, eps=eps
        )

    return f


def ctc(x):
    frames = jnp.stack([x, jnp.roll(x, 1)])[None]
    zeros = jnp.zeros((1, 2), x.dtype)
    return losses.ctc_loss(frames, zeros, jnp.asarray([[1, 2]]), zeros[:, :2])[0]


def fenchel_young(f):
    loss = losses.make_fenchel_young_loss(f)
    return along(loss, [1.0, 0, 0])


def divergence(name, t):
    """Of logarithms that are not above 0."""
    f = getattr(losses, name)
    return lambda x: f(-jnp.abs(x), jnp.asarray(t, x.dtype))


# Losses of a vector, and where they are tried.
VECTORS = {
    **{
        f"{name} {y}": (along(getattr(losses, name), y), np.concatenate([V, LOST]))
        for name in (
            "softmax_cross_entropy",
            "poly_loss_cross_entropy",
            "ranking_softmax_loss",
        )
        for y in ([0.5, 0, 0.5],)
    },
    "integer labels": (
        of_class("softmax_cross_entropy_with_integer_labels", 2),
        np.concatenate([V, LOST]),
    ),
    "safe": (
        along(losses.safe_softmax_cross_entropy, [0.0, 0, 1]),
        np.concatenate([V, LOST]),
    ),
    "multiclass sparsemax": (of_class("multiclass_sparsemax_loss", 2), V),
    "multiclass hinge": (of_class("multiclass_hinge_loss", 2), V),
    "multiclass perceptron": (of_class("multiclass_perceptron_loss", 2), V),
    "cosine": (along(losses.cosine_similarity, [1.0, 2, 2]), V),
    "cosine to 0": (along(losses.cosine_distance, [0.0, 0, 0]), V[:2]),
    "cosine, floored": (
        lambda x: losses.cosine_similarity(x, jnp.ones_like(x), epsilon=0.5),
        V,
    ),
    "contrast": (contrast(0.07), V),
    "contrast, cold": (contrast(1e-3), V),
    **{
        f"triplet {degree} {eps}": (triplet(degree, eps), V[:2] + V[4:])
        for degree, eps in ((0.5, 0), (1, 0), (1.5, 0), (2, 0), (3, 1e-6), (INF, 0))
    },
    "ctc": (ctc, np.concatenate([V, MASKED[:1]])),
    "Fenchel-Young": (fenchel_young(jax.nn.logsumexp), V),
    "Fenchel-Young of a maximum": (fenchel_young(jnp.max), V),
    "divergence": (divergence("kl_divergence", [0.0, 0.3, 0.7]), V),
    "divergence, generalized": (
        divergence("generalized_kl_divergence", [0.0, 0.3, 0.7]),
        V,
    ),
    "divergence of logarithms": (
        divergence("kl_divergence_with_log_targets", [-INF, -1.0, 0.0]),
        V,
    ),
    "log targets": (
        lambda x: losses.kl_divergence_with_log_targets(
            jnp.asarray([-INF, -2.0, -1e30], x.dtype).at[0].set(-5), -jnp.abs(x)
        ),
        V,
    ),
    "targets": (
        lambda x: losses.kl_divergence(
            jnp.asarray([-3.0, -2.0, -1.0], x.dtype), jax.nn.softmax(x)
        ),
        V,
    ),
    "dice of classes": (
        lambda x: losses.dice_loss(
            x[None, None], jnp.asarray([[[0.0, 0, 1]]], x.dtype), smooth=0.0
        )[0],
        np.concatenate([V, MASKED]),
    ),
    "generalized dice": (
        lambda x: losses.multiclass_generalized_dice_loss(
            x[None, None], jnp.asarray([[[0.0, 0, 1]]], x.dtype)
        ),
        np.concatenate([V, MASKED]),
    ),
    "smooth labels": (
        lambda x: losses.softmax_cross_entropy(
            x, losses.smooth_labels(jnp.asarray([0.0, 0, 1], x.dtype), 0.1)
        ),
        V,
    ),
}


def derivatives(f, xs, dtype):
    """First, second in three orders of modes, and third, along random directions."""
    xs = jnp.asarray(xs, dtype)
    direction = jnp.asarray(np.random.default_rng(0).normal(size=xs.shape[1:]), dtype)

    def one(x):
        along = lambda f: lambda x: jax.jvp(f, (x,), (direction,))[1]
        first = jax.grad(f)
        second = along(first)
        reverse = jax.grad(lambda x: jnp.vdot(first(x), direction))
        others = along(along(f))(x), along(second)(x)
        return first(x), along(f)(x), second(x), reverse(x), *others

    return [np.asarray(z) for z in jax.jit(jax.vmap(one))(xs)]


def check(f, xs):
    with jax.numpy_dtype_promotion("standard"):
        found = derivatives(f, xs, "float32")
        with jax.enable_x64(True):
            wanted = derivatives(f, xs, "float64")
    names = "first", "forward", "second", "reverse twice", "forward twice", "third"
    for name, x, y in zip(names, found, wanted, strict=True):
        assert np.isfinite(x).all(), (name, x)
        assert np.isfinite(y).all(), (name, y)
        # Sums of terms that cancel; each derivative may lose a digit more.
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(wanted[2], wanted[3], rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", NUMBERS)
def test_losses_of_numbers_have_three_derivatives(name):
    f, has_ends = NUMBERS[name]
    check(f, np.array(XS + ENDS * has_ends))


@pytest.mark.slow
@pytest.mark.parametrize("name", VECTORS)
def test_losses_of_vectors_have_three_derivatives(name):
    check(*VECTORS[name])


def focal_slopes(x, y, gamma):
    f = lambda x, y, gamma: losses.sigmoid_focal_loss(x, y, gamma=gamma)
    return jax.vmap(jax.grad(f, (0, 1, 2)), (0, None, None))(x, y, gamma)


@jax.jit
def focal_curvature(x, y, gamma):
    return jax.jvp(lambda *z: focal_slopes(x, *z), (y, gamma), (1.0, 2.0))[1]


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_loss_has_derivatives_in_labels_and_exponent(gamma):
    for y in 0.0, 0.3, 1.0:
        assert np.isfinite(focal_slopes(jnp.asarray(XS), y, gamma)).all()
        # Infinite as they are: a root of q has no second derivative in y where q is 0.
        assert not np.isnan(focal_curvature(jnp.asarray(XS), y, gamma)).any()
    with jax.enable_x64(True):
        x, h = jnp.linspace(-3.0, 3, 7), 1e-6
        after = np.array(focal_slopes(x, 0.3 + h, gamma + 0.1 + 2 * h))
        before = np.array(focal_slopes(x, 0.3 - h, gamma + 0.1 - 2 * h))
        found = focal_curvature(x, 0.3, gamma + 0.1)
    np.testing.assert_allclose(found, (after - before) / (2 * h), rtol=1e-6, atol=1e-8)


def test_every_loss_is_tried():
    """A new one is added to the tables above."""
    here = Path(__file__).read_text()
    others = "ctc_loss_with_forward_probs", "convex_kl_divergence"  # the same functions
    names = [k for k in vars(losses) if not k.startswith("_") and k not in others]
    assert [k for k in names if k not in here] == []
