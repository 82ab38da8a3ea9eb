"""Losses where logarithms, powers and quotients end: against NumPy in float64."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import special

from stepax import losses


INF = np.inf
TOP = 3e38
XS = np.array([-INF, -TOP, -1e4, -200, -20, -1e-3, 0, 1e-3, 20, 200, 1e4, TOP, INF])


def both_modes(f, x):
    """Value, and the derivative in reverse and in forward mode; jitted."""
    basis = jnp.eye(x.size).reshape((x.size, *x.shape))

    @jax.jit
    def run(x):
        rows = jax.vmap(lambda e: jax.jvp(f, (x,), (e,))[1])(basis)
        return f(x), jax.grad(lambda x: jnp.sum(f(x)))(x), rows

    value, reverse, rows = run(x)
    forward = rows.reshape((x.size, -1)).sum(1).reshape(x.shape)
    return np.asarray(value), np.asarray(reverse), np.asarray(forward)


def check(f, x, value, slope, rtol=2e-6, atol=1e-37):
    """A truth in float64 rounds to what is found, also beyond the range of float32."""
    found, *slopes = both_modes(f, jnp.asarray(x, "float32"))
    with np.errstate(over="ignore"):
        value, slope = np.float32(value), np.float32(slope)
    np.testing.assert_allclose(found, value, rtol=rtol, atol=atol)
    for s in slopes:
        np.testing.assert_allclose(s, slope, rtol=rtol, atol=max(atol, 1e-7))


def cross_entropy(x, y):
    """Of one vector: the loss, and its derivative."""
    x, y = np.float64(x), np.float64(y)
    top = x.max() if x.max() > -INF else 0
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(x - top).sum())
    log_p = x - top - (total if total > -INF else 0)
    with np.errstate(invalid="ignore"):
        terms = np.where((y == 0) & (log_p == -INF), 0, y * log_p)
    return -terms.sum(), np.exp(log_p) * y.sum() - y


SOFTMAX = [
    ([0, -INF, 1], [1, 0, 0]),
    ([0, -INF, 1], [0, 1, 0]),
    ([-INF, -INF, 1], [0, 0, 1]),
    ([-INF, -INF, -INF], [0, 0, 0]),
    ([-INF, -INF, -INF], [0, 1, 0]),
    ([1e4, -1e4, 0], [0, 1, 0]),
    ([TOP, -TOP, 0], [1, 0, 0]),
    ([-TOP, -TOP, 0], [0, 0.5, 0.5]),
    ([1e-30, 0, 0], [0.5, 0.25, 0.25]),
    ([0, 0, 0], [0, 0, 0]),
    ([1e3, 1e3, 1e3], [0, 0, 1]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("x", "y"), SOFTMAX, ids=str)
def test_softmax_cross_entropy_is_exact_at_edges(x, y):
    value, slope = cross_entropy(x, y)
    target = jnp.asarray(y, "float32")
    check(lambda x: losses.softmax_cross_entropy(x, target), x, value, slope)
    check(lambda x: losses.safe_softmax_cross_entropy(x, target), x, value, slope)
    ranking = lambda x: losses.ranking_softmax_loss(x, target)
    check(ranking, x, value, slope)
    if 1 in y:
        whole = losses.softmax_cross_entropy_with_integer_labels
        label = jnp.asarray(y.index(1))
        check(lambda x: whole(x, label), x, value, slope)
    poly = lambda x: losses.poly_loss_cross_entropy(x, target, epsilon=0.0)
    check(poly, x, value, slope)


def test_poly_loss_is_finite_where_a_class_is_masked():
    x, y = [0.0, -INF, 1.0], jnp.asarray([1.0, 0, 0])
    p = special.softmax(x)
    value = -np.log(p[0]) + 2 * (1 - p[0])
    slope = (1 + 2 * p[0]) * (p - np.asarray(y))
    check(lambda x: losses.poly_loss_cross_entropy(x, y), x, value, slope)


def binary(x, y):
    """Cross-entropy of a sigmoid and its derivative; 0·inf = 0."""
    over, under = np.logaddexp(0, x), np.logaddexp(0, -x)
    value = (under if y else 0) * y + (over if y < 1 else 0) * (1 - y)
    return value, (1 - y) * special.expit(x) - y * special.expit(-x)


@pytest.mark.few(1)
@pytest.mark.parametrize("y", [0.0, 0.3, 1.0])
def test_binary_cross_entropy_is_exact_at_edges(y):
    f = lambda x: losses.sigmoid_binary_cross_entropy(x, jnp.full_like(x, y))
    check(f, XS, *binary(XS, y))


@pytest.mark.few(1)
@pytest.mark.parametrize("gamma", [0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("y", [0.0, 0.3, 1.0])
def test_focal_loss_is_exact_at_edges(y, gamma):
    ce, slope = binary(XS, y)
    q = y * special.expit(-XS) + (1 - y) * special.expit(XS)
    dq = (1 - 2 * y) * special.expit(XS) * special.expit(-XS)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        turn = np.where(dq == 0, 0, gamma * q ** (gamma - 1) * dq * ce)
    slope = q**gamma * slope + turn
    f = lambda x: losses.sigmoid_focal_loss(x, jnp.full_like(x, y), gamma=gamma)
    # A power to an exponent that is not whole is an exponential of a logarithm.
    check(f, XS, q**gamma * ce, slope, rtol=1e-5)


def test_focal_loss_stacks_nothing():
    x = jnp.ones(8)
    program = str(jax.make_jaxpr(losses.sigmoid_focal_loss)(x, x))
    assert "concatenate" not in program and "[2,8]" not in program


@pytest.mark.slow
@pytest.mark.parametrize("f", [losses.sigmoid_binary_cross_entropy, losses.log_cosh])
def test_curvature_at_0_is_that_of_a_smooth_function(f):
    wanted = {"log_cosh": 1.0}.get(f.__name__, 0.25)
    assert jax.hessian(f)(jnp.float32(0), jnp.float32(0)) == wanted


@pytest.mark.slow
def test_regression_losses_are_exact_at_edges():
    x = XS[1:-1]
    size = np.abs(x)
    far = size - np.log(2) + np.log1p(np.exp(-2 * size))
    near = np.log1p(2 * np.sinh(np.minimum(size, 1) / 2) ** 2)
    check(losses.log_cosh, x, np.where(size < 1, near, far), np.tanh(x))
    check(losses.huber_loss, x, special.huber(1.0, x), np.clip(x, -1, 1))
    small = XS[2:-2]
    check(losses.l2_loss, small, small**2 / 2, small)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["kl_divergence", "generalized_kl_divergence"])
def test_a_target_of_0_costs_nothing(name):
    log_p = np.array([-INF, -1e4, -2.0, -0.5, -1e-3])
    t = np.array([0.0, 0, 0.3, 1e-30, 0.7])
    general = name == "generalized_kl_divergence"
    value = special.rel_entr(t, np.exp(log_p))[2:].sum()
    value += (np.exp(log_p) - t).sum() if general else 0
    slope = -t + np.exp(log_p) * general
    f = getattr(losses, name)
    check(lambda x: f(x, jnp.asarray(t, "float32")), log_p, value, slope)
    _, *slopes = both_modes(
        lambda t: f(jnp.asarray(log_p, "float32"), t), jnp.asarray(t)
    )
    assert np.isfinite(slopes).all()


def test_a_log_target_of_minus_infinity_costs_nothing():
    log_p = jnp.asarray([-INF, -1e4, -2.0, -0.5])
    log_t = np.array([-INF, -INF, -1.0, -0.2])
    terms = np.exp(log_t[2:]) * (log_t[2:] - np.asarray(log_p)[2:])
    slope = np.append([0, 0], terms + np.exp(log_t[2:]))
    f = losses.kl_divergence_with_log_targets
    check(lambda t: f(log_p, t), log_t, terms.sum(), slope)
    check(
        lambda p: f(p, jnp.asarray(log_t, "float32")),
        log_p,
        terms.sum(),
        -np.exp(log_t),
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_cosine_is_that_of_any_length(scale):
    x, y = np.array([3.0, 4, 0]), np.array([1.0, 2, 2])
    slope = (y / 3 - 11 / 15 * x / 5) / 5 / np.float64(scale)
    f = lambda x: losses.cosine_similarity(x, jnp.asarray(y, "float32"))
    found, *slopes = both_modes(f, jnp.asarray(scale * x, "float32"))
    np.testing.assert_allclose(found, 11 / 15, rtol=1e-6)
    for s in slopes:
        np.testing.assert_allclose(s, slope, rtol=1e-5)


@pytest.mark.slow
def test_vectors_of_0_have_derivatives():
    x, y = jnp.zeros((4, 3)), jnp.ones((4, 3))
    labels = jnp.asarray([0, 0, 1, 1])
    for f in (
        lambda x: losses.cosine_distance(x, y),
        lambda x: losses.ntxent(x, labels),
        *(
            lambda x, p=p: losses.triplet_margin_loss(x, 0 * y, y, eps=0, norm_degree=p)
            for p in (0.5, 1, 1.5, 2, INF)
        ),
    ):
        assert all(np.isfinite(z).all() for z in both_modes(f, x))


@pytest.mark.slow
def test_contrast_without_pairs_is_0():
    f = lambda x: losses.ntxent(x, jnp.arange(4))
    assert all((z == 0).all() for z in both_modes(f, jnp.ones((4, 2))))
    alone = lambda x: losses.ntxent(x, jnp.zeros(4, int))
    assert all((abs(z) < 1e-6).all() for z in both_modes(alone, jnp.ones((4, 2))))


@pytest.mark.slow
def test_triplets_are_told_apart_by_norms_of_any_degree():
    a, p, n = np.array([[1.0, 2], [-3, 4]]), np.array([[2.0, 0], [0, 4]]), np.zeros(2)
    for degree in (0.5, 1, 2, 3, INF):
        norm = lambda x, d=degree: (np.abs(x) ** d).sum(1) ** (1 / d)
        if degree == INF:
            norm = lambda x: np.abs(x).max(1)
        wanted = np.maximum(0, norm(a - p) - norm(a - n) + 2)
        found = losses.triplet_margin_loss(
            jnp.asarray(a, "float32"),
            jnp.asarray(p, "float32"),
            jnp.asarray(n, "float32"),
            margin=2.0,
            norm_degree=degree,
            eps=0,
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_sparsemax_is_exact_at_edges():
    for s in [0.0, 0, 0], [1e4, -1e4, 0], [TOP, 0, -TOP], [0.2, 0, -0.1], [1, -INF, 0]:
        s = np.array(s, "float64")
        z = s - s.max()
        low, high = -1.0, 0.0  # τ by bisection
        for _ in range(200):
            middle = (low + high) / 2
            total = np.maximum(z - middle, 0).sum()
            low, high = (middle, high) if total > 1 else (low, middle)
        p = np.maximum(z - low, 0)
        value = np.where(p > 0, p * np.maximum(z, -2), 0).sum() - p @ p / 2 + 0.5 - z[2]
        f = lambda s: losses.multiclass_sparsemax_loss(s, jnp.asarray(2))
        check(f, s, value, p - np.array([0, 0, 1]), atol=1e-6)


@pytest.mark.slow
def test_regions_that_are_empty_cost_nothing():
    x = jnp.zeros((2, 5))
    f = lambda p: losses.binary_dice_loss(p, x, smooth=0.0, apply_sigmoid=False)
    value, *slopes = both_modes(f, x)
    assert (value == 0).all() and np.isfinite(slopes).all()
    absent = lambda p: losses.multiclass_generalized_dice_loss(p, jnp.zeros((2, 5, 3)))
    assert all(np.isfinite(z).all() for z in both_modes(absent, jnp.ones((2, 5, 3))))


def paths(log_p, labels):
    """-log of the probability of all alignments that collapse to the labels."""
    total = -INF
    for path in itertools.product(range(log_p.shape[1]), repeat=len(log_p)):
        found = [k for k, _ in itertools.groupby(path) if k != 0]
        if found == list(labels):
            total = np.logaddexp(total, sum(log_p[t, k] for t, k in enumerate(path)))
    return -total


def ctc(x, labels, pads=None):
    """The loss of one sequence."""
    y = jnp.asarray(labels, int).reshape(1, -1)
    pads = jnp.zeros(y.shape) if pads is None else jnp.asarray([pads])
    return losses.ctc_loss(x[None], jnp.zeros((1, len(x))), y, pads)[0]


@pytest.mark.slow
@pytest.mark.parametrize("labels", [(), (1,), (1, 2), (2, 2), (1, 2, 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_ctc_counts_every_alignment(labels, masked):
    x = np.random.default_rng(1).normal(size=(4, 4)).astype("float32")
    if masked:
        x[:, 3] = x[1, 0] = -INF
    with np.errstate(divide="ignore"):
        log_p = special.log_softmax(x.astype("float64"), axis=1)
    value, *slopes = both_modes(lambda x: ctc(x, labels), jnp.asarray(x))
    wanted = paths(log_p, labels)
    if wanted < INF:
        np.testing.assert_allclose(value, wanted, rtol=1e-5)
    else:  # -log_epsilon stands for it
        assert 0.9e5 < value < 1.1e5
    assert np.isfinite(slopes).all()
    np.testing.assert_allclose(slopes[0], slopes[1], atol=1e-5)
    padded = ctc(jnp.asarray(x), (*labels, -7), [0.0] * len(labels) + [1.0])
    np.testing.assert_allclose(padded, value, rtol=1e-6)


@pytest.mark.slow
def test_ctc_is_never_negative():
    for size in 5.0, 10.0, 17.0, 1e4, TOP:
        x = jnp.asarray([[0, size], [0, size]])
        value, *slopes = both_modes(lambda x: ctc(x, [1]), x)
        assert 0 <= value < 1e-4
        assert np.isfinite(slopes).all()
    pads = jnp.zeros((1, 2)), jnp.ones((1, 1), int), jnp.zeros((1, 1))
    _, *logs = losses.ctc_loss_with_forward_probs(x[None], pads[0], *pads[1:])
    assert all((z <= 0).all() for z in logs)


@pytest.mark.slow
def test_ctc_of_too_few_frames_is_large_and_has_derivatives():
    value, *slopes = both_modes(lambda x: ctc(x, [1, 1]), jnp.zeros((2, 3)))
    assert 0.9e5 < value < 1.1e5 and np.isfinite(slopes).all()


NARROW = [
    ("squared_error", (200.0, 0.0), 4e4),
    ("log_cosh", (300.0, 0.0), 300 - np.log(2)),
    ("cosine_similarity", ([300.0, 400], [300.0, 0]), 0.6),
    ("softmax_cross_entropy", ([6e4, -6e4], [1.0, 0]), 0.0),
    ("triplet_margin_loss", ([300.0, 400], [0.0, 0], [0.0, 0]), 1.0),
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("name", "args", "wanted"), NARROW)
def test_half_precision_does_not_overflow_on_the_way(name, args, wanted):
    found = getattr(losses, name)(*(jnp.asarray(x, "float16") for x in args))
    assert found.dtype == jnp.float16
    np.testing.assert_allclose(np.float64(found), wanted, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("value", [jnp.inf, -jnp.inf])
def test_an_infinite_logit_spoils_no_more_than_in_optax(value, at):
    logits = jnp.asarray([0.0, 1.0, 2.0, 3.0]).at[at].set(value)
    name = "softmax_cross_entropy_with_integer_labels"
    for f in (lambda f: f, jax.grad):
        ours, theirs = (
            f(lambda x, home=home: getattr(home, name)(x, jnp.asarray(1)))(logits)
            for home in (losses, optax)
        )
        np.testing.assert_allclose(ours, theirs, 1e-6)
