"""Losses where logarithms, quotients and powers end: finite, and right."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from library import optax
from scipy import special

from stepax import losses


row = pytest.mark.row
INF = np.inf


def both_modes(f, x):
    """The value, and the sum of its derivatives in reverse and in forward mode."""
    x = jnp.asarray(x, jnp.result_type(x) if hasattr(x, "dtype") else "float32")
    summed = lambda x: jnp.sum(f(x))
    return jax.jit(lambda x: (f(x), jax.grad(summed)(x), jax.jacfwd(summed)(x)))(x)


def check(f, x, value=None, slope=None, rtol=1e-5):
    found, reverse, forward = both_modes(f, x)
    assert np.isfinite(reverse).all() and np.isfinite(forward).all()
    np.testing.assert_allclose(reverse, forward, rtol=1e-4, atol=1e-6)
    assert np.isfinite(found).all() or value == INF
    if value is not None:
        np.testing.assert_allclose(np.sum(found), value, rtol=rtol, atol=1e-6)
    if slope is not None:
        np.testing.assert_allclose(reverse, slope, rtol=rtol, atol=1e-6)


MASKED = np.array([1.0, -INF, 0.5, -INF])
# In float64: a class that is masked costs nothing unless it is the target.
SOFTMAX = special.softmax(MASKED)
WANTED = -np.log(SOFTMAX[0]), SOFTMAX - np.array([1, 0, 0, 0])
ONE_HOT = jnp.array([1.0, 0, 0, 0])


def takes(*names):
    """The losses whose first arguments are called so."""
    found = {
        name: list(inspect.signature(f).parameters)
        for name, f in vars(losses).items()
        if inspect.isfunction(f) and hasattr(losses, name) and not name.startswith("_")
    }
    return sorted(k for k, x in found.items() if tuple(x[: len(names)]) == names)


BINARY = {"sigmoid_binary_cross_entropy", "sigmoid_focal_loss", "sparsemax_loss"}
MULTICLASS = sorted({*takes("logits", "labels")} - BINARY)


def target(name):
    return jnp.array(0) if "integer" in name else ONE_HOT


@pytest.mark.slow
@row("softmax with -inf logits", optax="fails")
@pytest.mark.parametrize("name", [x for x in MULTICLASS if "poly" not in x])
def test_a_masked_class_costs_nothing(name):
    """Optax's plain `softmax_cross_entropy` is NaN here on purpose."""
    loss = lambda x: getattr(optax.losses, name)(x, target(name))
    check(loss, MASKED, *WANTED)


@pytest.mark.slow
@row("softmax with -inf logits", optax="fails")
def test_a_masked_class_costs_a_poly_loss_nothing():
    check(lambda x: optax.losses.poly_loss_cross_entropy(x, ONE_HOT), MASKED)


@pytest.mark.few(1)
@row("softmax with -inf logits", optax="passes")
@pytest.mark.parametrize("name", MULTICLASS)
def test_large_logits_do_not_overflow(name):
    check(lambda x: getattr(optax.losses, name)(x, target(name)), [1e4, -1e4, 0, 3.0])


LOG_P = np.array([-1.0, -2.0, -0.7])
KL = ["kl_divergence", "generalized_kl_divergence"]


@pytest.mark.slow
@row("KL divergence", optax="fails")
@pytest.mark.parametrize("name", KL)
def test_a_target_of_zero_has_a_derivative(name):
    t = np.array([0.0, 0.4, 0.6])
    f = getattr(optax.losses, name)
    value = special.rel_entr(t, np.exp(LOG_P)).sum()
    value += 0 if name == "kl_divergence" else (np.exp(LOG_P) - t).sum()
    check(lambda x: f(x, jnp.asarray(t, "float32")), LOG_P, value)
    check(lambda t: f(jnp.asarray(LOG_P, "float32"), t), t, value)


@pytest.mark.slow
@row("KL divergence", optax="fails")
def test_a_log_target_of_minus_infinity_has_a_derivative():
    log_t = np.array([-INF, np.log(0.4), np.log(0.6)])
    value = special.rel_entr(np.exp(log_t), np.exp(LOG_P)).sum()
    f = optax.losses.kl_divergence_with_log_targets
    check(lambda x: f(x, jnp.asarray(log_t, "float32")), LOG_P, value, -np.exp(log_t))
    check(lambda t: f(jnp.asarray(LOG_P, "float32"), t), log_t, value)


def ctc(x, labels):
    y = jnp.asarray([labels])
    pads = jnp.zeros((1, len(x))), jnp.zeros((1, len(labels)))
    return optax.ctc_loss(x[None], pads[0], y, pads[1])[0]


@pytest.mark.slow
@row("CTC", optax="fails")
@pytest.mark.parametrize("size", [5.0, 10.0, 15.0, 17.0, 100.0])
def test_ctc_is_never_negative(size):
    x = jnp.asarray([[0, size], [0, size]])
    value, *slopes = both_modes(lambda x: ctc(x, [1]), x)
    assert value >= 0 and np.isfinite(slopes).all()
    # Of the alignments 1 1, - 1 and 1 -, in float64: all but blank twice.
    wanted = -np.log1p(-(special.expit(-size) ** 2))
    np.testing.assert_allclose(value, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
@row("CTC", optax="passes")
def test_ctc_of_masked_symbols_has_derivatives():
    x = jnp.zeros((4, 3)).at[:, 2].set(-1e30)
    value, *slopes = both_modes(lambda x: ctc(x, [1]), x)
    assert np.isfinite(value) and np.isfinite(slopes).all()


EDGES = [-1e4, -200.0, -20.0, 0.0, 20.0, 200.0, 1e4]


@pytest.mark.slow
@row("focal, BCE, ntxent", optax="passes")
@pytest.mark.parametrize("name", sorted(BINARY))
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_binary_losses_have_derivatives_at_edges(name, y):
    label = lambda x: jnp.full_like(x, y)
    f = lambda x: getattr(optax.losses, name)(x, label(x))
    check(f, EDGES)


@row("focal, BCE, ntxent", optax="passes")
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_binary_cross_entropy_is_exact_at_edges(y):
    x = np.array(EDGES)
    value = np.logaddexp(0, -x if y else x)
    f = lambda x: optax.sigmoid_binary_cross_entropy(x, jnp.full_like(x, y))
    check(f, x, value.sum(), special.expit(x) - y)


@pytest.mark.slow
@row("focal, BCE, ntxent", optax="passes")
def test_embeddings_that_are_equal_have_derivatives():
    labels = jnp.array([0, 0, 1, 1])
    check(lambda x: optax.ntxent(x, labels), np.ones((4, 3)))


@pytest.mark.slow
@row("focal, BCE, ntxent", optax="passes")
def test_a_fraction_of_a_focal_exponent_has_derivatives():
    for y in (0.0, 1.0):
        f = lambda x, y=y: optax.sigmoid_focal_loss(x, jnp.full_like(x, y), gamma=0.5)
        check(f, EDGES)
