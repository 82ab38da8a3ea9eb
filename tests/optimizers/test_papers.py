"""Each optimizer against its paper, in plain NumPy and float64.

The references are in `papers`.  What we add to the papers, and where we differ, is in
the second half.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from papers import (
    adadelta_paper,
    adagrad,
    adagrad_paper,
    adam,
    adam_with_optimism,
    adamax,
    adan,
    amsgrad,
    amsgrad_corrected,
    belief,
    graves,
    heavy_ball,
    irprop_minus,
    lion,
    nadam,
    nesterov,
    optimistic,
    radam,
    rms,
    rprop_minus,
    sign_descent,
    sign_momentum,
    yogi,
    yogi_uncorrected,
)

from stepax import (
    adabelief,
    adadelta,
    optimistic_adam,
    optimistic_gradient_descent,
    rmsprop,
    scale_by_adam,
    scale_by_adamax,
    scale_by_adan,
    scale_by_amsgrad,
    scale_by_belief,
    scale_by_lion,
    scale_by_radam,
    scale_by_rms,
    scale_by_rprop,
    scale_by_rss,
    scale_by_stddev,
    scale_by_yogi,
    sgd,
    sign_sgd,
    signum,
)


def to_options(**options):
    return options


ADAM = to_options(b1=0.8, b2=0.95, eps=1e-3)
UNCORRECTED = to_options(bias_correction_mu=False, bias_correction_nu=False)

TABLE = {
    "heavy ball": (sgd(1.0, 0.9), heavy_ball, to_options(momentum=0.9)),
    "Nesterov": (sgd(1.0, 0.9, nesterov=True), nesterov, to_options(momentum=0.9)),
    "signSGD": (sign_sgd(1.0), sign_descent, {}),
    "Signum": (signum(1.0, 0.7), sign_momentum, to_options(beta=0.7)),
    "Adam": (scale_by_adam(**ADAM), adam, ADAM),
    "NAdam": (scale_by_adam(**ADAM, nesterov=True), nadam, ADAM),
    "AdaMax": (scale_by_adamax(**ADAM), adamax, ADAM),
    "AMSGrad": (scale_by_amsgrad(**ADAM, **UNCORRECTED), amsgrad, ADAM),
    "AMSGrad, corrected": (scale_by_amsgrad(**ADAM), amsgrad_corrected, ADAM),
    "AdaBelief": (
        scale_by_belief(**ADAM, eps_root=1e-3),
        belief,
        ADAM | to_options(eps_root=1e-3),
    ),
    "Lion": (scale_by_lion(0.8, 0.95), lion, to_options(b1=0.8, b2=0.95)),
    "RMSProp": (scale_by_rms(0.8, 1e-3), rms, to_options(decay=0.8, eps=1e-3)),
    "RMSProp, centered": (
        scale_by_stddev(0.8, 1e-3),
        graves,
        to_options(decay=0.8, eps=1e-3),
    ),
    "AdaGrad": (
        scale_by_rss(0.0, 1e-3, eps_in_sqrt=False),
        adagrad_paper,
        to_options(eps=1e-3),
    ),
    "AdaGrad, eps in the root": (
        scale_by_rss(0.2, 1e-3),
        adagrad,
        to_options(initial_accumulator_value=0.2, eps=1e-3),
    ),
    "Yogi": (
        scale_by_yogi(**ADAM, initial_accumulator_value=1e-2, bias_correction=False),
        yogi_uncorrected,
        ADAM | to_options(initial_accumulator_value=1e-2),
    ),
    "Yogi, corrected": (
        scale_by_yogi(**ADAM, initial_accumulator_value=1e-2),
        yogi,
        ADAM | to_options(initial_accumulator_value=1e-2),
    ),
    "Adadelta": (
        adadelta(1.0, 0.8, 1e-3),
        adadelta_paper,
        to_options(rho=0.8, eps=1e-3),
    ),
    "Adan": (
        scale_by_adan(**ADAM, b3=0.9, change_factor=ADAM["b2"]),
        adan,
        ADAM | to_options(b3=0.9, factor=ADAM["b2"]),
    ),
    "Adan, with 1 - b2": (
        scale_by_adan(**ADAM, b3=0.9),
        adan,
        ADAM | to_options(b3=0.9, factor=1 - ADAM["b2"]),
    ),
    "OGD": (
        optimistic_gradient_descent(1.0, 0.7, 0.3),
        optimistic,
        to_options(alpha=0.7, beta=0.3),
    ),
    "optimistic Adam": (
        optimistic_adam(0.7, 0.3, **ADAM, nesterov=False),
        adam_with_optimism,
        ADAM | to_options(learning_rate=0.7, optimism=0.3),
    ),
    "Rprop": (
        scale_by_rprop(0.1, 0.5, 1.2, 0.06, 0.2),
        rprop_minus,
        to_options(
            learning_rate=0.1, eta_minus=0.5, eta_plus=1.2, least=0.06, most=0.2
        ),
    ),
    "iRprop-": (
        scale_by_rprop(0.1, 0.5, 1.2, 0.06, 0.2, immediate=True),
        irprop_minus,
        to_options(
            learning_rate=0.1, eta_minus=0.5, eta_plus=1.2, least=0.06, most=0.2
        ),
    ),
    "RAdam": (scale_by_radam(**ADAM, threshold=4.0), radam, ADAM),
}


def gradients(steps=30):
    random = np.random.default_rng(0)
    return random.normal(size=(steps, 4)) * np.array([0.01, 0.3, 1.0, 30.0])


def updates_of(tx, gs, params=None):
    """The updates for given gradients, at the same parameters, in one array."""
    gs = jnp.asarray(gs)
    params = jnp.zeros(gs.shape[1:], gs.dtype) if params is None else params

    def step(state, g):
        updates, state = tx.update(g, state, params)
        return state, updates

    return np.asarray(jax.lax.scan(step, tx.init(params), gs)[1])


# A step rounds some twenty numbers to 53 bits and the means remember a few steps, so
# that 200 eps of the largest update of a coordinate bounds the sum.  The variance of
# the centered form is a difference of squares and may lose two more digits.
@pytest.mark.few(1)
@pytest.mark.parametrize("name", TABLE)
def test_updates_are_those_of_the_paper(name, x64):
    tx, reference, options = TABLE[name]
    gs = gradients()
    expected = np.stack(list(reference(gs, **options)))
    found = updates_of(tx, gs)
    assert found.dtype == np.float64
    bound = 200 * 2.0**-52 * (100 if name == "RMSProp, centered" else 1)
    assert (np.abs(found - expected) <= bound * np.abs(expected).max(axis=0)).all()


@pytest.mark.slow
def test_radam_compares_rho_with_its_threshold(x64):
    """For b2 = 0.95 rho is 3.9, 4.8 and 5.7 at the steps 4 to 6."""
    gs = gradients(8)
    late = updates_of(scale_by_radam(**ADAM, threshold=5.0), gs)
    early = updates_of(scale_by_radam(**ADAM, threshold=4.5), gs)
    differs = np.any(late != early, axis=1)
    np.testing.assert_array_equal(np.flatnonzero(differs), [4])


def descend(tx, gs, params):
    """The parameters after each step."""

    def step(carry, g):
        params, state = carry
        updates, state = tx.update(g, state, params)
        params = params + updates
        return (params, state), params

    return jax.lax.scan(step, (params, tx.init(params)), gs)[1]


def test_adabelief_decays_weights_apart_from_the_gradient(x64):
    """As Loshchilov and Hutter, 2019, Algorithm 2, line 12."""
    gs, start = jnp.asarray(gradients()), jnp.asarray([1.0, -2.0, 3.0, 0.5])
    found = descend(adabelief(0.1, 0.8, 0.95, 1e-3, 1e-3, weight_decay=0.2), gs, start)
    p, expected = np.asarray(start), belief(np.asarray(gs), **ADAM, eps_root=1e-3)
    for u, after in zip(expected, found, strict=True):
        p = p - 0.1 * (u + 0.2 * p)
        np.testing.assert_allclose(after, p, rtol=1e-12)  # grows by 30 steps of 1e-14


def test_adabelief_decays_what_the_mask_says_by_a_schedule():
    params = {"b": jnp.ones(2), "w": jnp.ones(2)}
    zeros = jax.tree.map(jnp.zeros_like, params)
    tx = adabelief(
        1.0,
        weight_decay=lambda count: 0.25 * (count + 1.0),
        weight_decay_mask={"b": False, "w": True},
    )
    state = tx.init(params)
    for decay in (0.25, 0.5):
        updates, state = tx.update(zeros, state, params)
        np.testing.assert_array_equal(updates["b"], [0.0, 0.0])
        np.testing.assert_array_equal(updates["w"], [-decay, -decay])


def test_adabelief_without_decay_needs_no_params():
    tx = adabelief(1e-3)
    g = jnp.ones(2)
    updates, state = tx.update(g, tx.init(g))
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(g))
    assert type(state[-1]).__name__ == "EmptyState"
    assert np.isfinite(np.asarray(updates)).all()


def test_lion_refuses_an_unknown_mode():
    tx = scale_by_lion(mode="soft")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="`mode` is 'soft', expected one of .*'hard'"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)))


def test_centered_rmsprop_is_finite_where_rounding_makes_the_variance_negative(x64):
    """After the correction the first variance is 0, or -1e-17 as computed."""
    gs = gradients(1)
    options = to_options(centered=True, bias_correction=True, eps_in_sqrt=False)
    assert np.isfinite(updates_of(rmsprop(1e-3, **options), gs)).all()
    with jax.numpy_dtype_promotion("standard"):
        assert not np.isfinite(updates_of(optax.rmsprop(1e-3, **options), gs)).all()


def test_adagrad_does_not_move_before_the_first_gradient():
    tx = scale_by_rss(0.0, 0.0)
    g = jnp.asarray([0.0, 2.0])
    updates, _ = tx.update(g, tx.init(g))
    np.testing.assert_array_equal(updates, [0.0, 1.0])


@pytest.mark.few(6)
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("name", TABLE)
def test_narrow_gradients_of_zero_and_after_give_finite_updates(name, dtype):
    """Zero, a large number, and the smallest: no eps may be rounded to 0."""
    tx, _, _ = TABLE[name]
    gs = jnp.asarray([[0.0], [0.0], [3e4], [jnp.finfo(dtype).tiny], [0.0]], dtype)
    updates = updates_of(tx, gs)
    assert updates.dtype == dtype
    assert np.isfinite(updates).all()


# Rprop asks whether a gradient turned, which complex ones do not; Yogi's means start at
# a real number, but without a correction they must not start at 0.
@pytest.mark.few(1)
@pytest.mark.parametrize("name", sorted(TABLE.keys() - {"Rprop", "iRprop-", "Yogi"}))
def test_complex_means_of_squares_are_real(name):
    """A phase common to all gradients is that of all updates."""
    tx, _, _ = TABLE[name]
    if name == "Yogi, corrected":  # its mean starts at a real number
        tx = scale_by_yogi(**ADAM, initial_accumulator_value=0.0)
    gs = jnp.asarray(gradients(6), jnp.complex64)
    phase = jnp.asarray(np.exp(1.0j), jnp.complex64)
    start = jnp.zeros(4, jnp.complex64)
    plain, turned = updates_of(tx, gs, start), updates_of(tx, gs * phase, start)
    if name == "RMSProp, centered":
        # Its first variances are small differences of large squares.
        plain, turned = plain[2:], turned[2:]
    np.testing.assert_allclose(turned, plain * phase, rtol=3e-5)


def test_optimistic_adam_follows_a_schedule_without_optimism():
    gs = gradients(4)
    rate = lambda count: 1 / (count + 1.0)
    found = updates_of(optimistic_adam(rate), gs)
    expected = updates_of(optimistic_adam(1.0), gs) / np.arange(1, 5)[:, None]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    with pytest.raises(ValueError, match="`learning_rate` is a schedule, .* use"):
        optimistic_adam(rate, 0.1)
