"""Each optimizer against its paper, in plain NumPy and float64.

A reference takes the gradients of all steps and yields the update of each, written as
in the paper, with a learning rate of 1 where it has one.  What we add to the papers,
and where we differ, is in the second half.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stepax._optimizers.adabelief import adabelief, scale_by_belief
from stepax._optimizers.adadelta import adadelta
from stepax._optimizers.adagrad import scale_by_rss
from stepax._optimizers.adam import scale_by_adam
from stepax._optimizers.adamax import scale_by_adamax
from stepax._optimizers.adan import scale_by_adan
from stepax._optimizers.amsgrad import scale_by_amsgrad
from stepax._optimizers.lion import scale_by_lion
from stepax._optimizers.optimistic import (
    optimistic_adam,
    optimistic_gradient_descent,
)
from stepax._optimizers.radam import scale_by_radam
from stepax._optimizers.rmsprop import rmsprop, scale_by_rms, scale_by_stddev
from stepax._optimizers.rprop import scale_by_rprop
from stepax._optimizers.sgd import sgd, sign_sgd, signum
from stepax._optimizers.yogi import scale_by_yogi


def heavy_ball(gs, momentum):
    """Polyak, 1964, equation 9: each step repeats a part of the last one."""
    step = 0
    for g in gs:
        step = -g + momentum * step
        yield step


def nesterov(gs, momentum):
    """Sutskever et al., 2013, equations 3 and 4.

    The gradient is taken at theta + momentum v; the parameters are this point.
    """
    theta, v, here = 0, 0, 0
    for g in gs:
        v = momentum * v - g
        theta = theta + v
        before, here = here, theta + momentum * v
        yield here - before


def sign_descent(gs):
    """Bernstein et al., 2018, Algorithm 1."""
    for g in gs:
        yield -np.sign(g)


def sign_momentum(gs, beta):
    """Bernstein et al., 2018, Algorithm 2."""
    m = 0
    for g in gs:
        m = beta * m + (1 - beta) * g
        yield -np.sign(m)


def adam(gs, b1, b2, eps):
    """Kingma and Ba, 2015, Algorithm 1."""
    m, v = 0, 0
    for t, g in enumerate(gs, 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        yield m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)


def nadam(gs, b1, b2, eps):
    """Dozat, 2016, Algorithm 2 with a constant mu; v is corrected as in Adam."""
    m, v = 0, 0
    for t, g in enumerate(gs, 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        ahead = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
        yield ahead / (np.sqrt(v / (1 - b2**t)) + eps)


def adamax(gs, b1, b2, eps):
    """Kingma and Ba, 2015, Algorithm 2, with eps beside |g|."""
    m, u = 0, 0
    for t, g in enumerate(gs, 1):
        m = b1 * m + (1 - b1) * g
        u = np.maximum(b2 * u, np.abs(g) + eps)
        yield 1 / (1 - b1**t) * m / u


def amsgrad(gs, b1, b2, eps):
    """Reddi et al., 2018, Algorithm 2, uncorrected as there."""
    m, v, largest = 0, 0, 0
    for g in gs:
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        largest = np.maximum(largest, v)
        yield m / (np.sqrt(largest) + eps)


def amsgrad_corrected(gs, b1, b2, eps):
    """The same of means corrected as in Adam."""
    m, v, largest = 0, 0, 0
    for t, g in enumerate(gs, 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        largest = np.maximum(largest, v / (1 - b2**t))
        yield m / (1 - b1**t) / (np.sqrt(largest) + eps)


def belief(gs, b1, b2, eps, eps_root):
    """Zhuang et al., 2020, Algorithm 2; its one epsilon stands in both places."""
    m, s = 0, 0
    for t, g in enumerate(gs, 1):
        m = b1 * m + (1 - b1) * g
        s = b2 * s + (1 - b2) * (g - m) ** 2 + eps_root
        yield m / (1 - b1**t) / (np.sqrt(s / (1 - b2**t)) + eps)


def lion(gs, b1, b2):
    """Chen et al., 2023, Algorithm 2."""
    m = 0
    for g in gs:
        yield np.sign(b1 * m + (1 - b1) * g)
        m = b2 * m + (1 - b2) * g


def rms(gs, decay, eps):
    """Tieleman and Hinton, 2012, with eps inside the root."""
    mean = 0
    for g in gs:
        mean = decay * mean + (1 - decay) * g**2
        yield g / np.sqrt(mean + eps)


def graves(gs, decay, eps):
    """Graves, 2013, equations 38 to 40, and 41 without momentum."""
    n, mean = 0, 0
    for g in gs:
        n = decay * n + (1 - decay) * g**2
        mean = decay * mean + (1 - decay) * g
        yield g / np.sqrt(n - mean**2 + eps)


def adagrad(gs, initial_accumulator_value, eps):
    """Duchi et al., 2011, Figure 1, diagonal; eps is their delta, inside the root."""
    past = initial_accumulator_value
    for g in gs:
        past = past + g**2
        yield g / np.sqrt(past + eps)


def yogi(gs, b1, b2, eps, initial_accumulator_value):
    """Zaheer et al., 2018, Algorithm 2, of means corrected as in Adam."""
    m = v = initial_accumulator_value
    for t, g in enumerate(gs, 1):
        m = b1 * m + (1 - b1) * g
        v = v - (1 - b2) * np.sign(v - g**2) * g**2
        yield m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)


def radam(gs, b1, b2, eps):
    """Liu et al., 2020, Algorithm 2."""
    m, v = 0, 0
    rho_inf = 2 / (1 - b2) - 1
    for t, g in enumerate(gs, 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        m_hat = m / (1 - b1**t)
        rho = rho_inf - 2 * t * b2**t / (1 - b2**t)
        if rho <= 4:
            yield m_hat
            continue
        l = 1 / (np.sqrt(v / (1 - b2**t)) + eps)
        r = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
        yield np.sqrt(r) * m_hat * l


def adadelta_paper(gs, rho, eps):
    """Zeiler, 2012, Algorithm 1; the update is subtracted."""
    e_g, e_x = 0, 0
    for g in gs:
        e_g = rho * e_g + (1 - rho) * g**2
        x = -np.sqrt(e_x + eps) / np.sqrt(e_g + eps) * g
        e_x = rho * e_x + (1 - rho) * x**2
        yield x


def adan(gs, b1, b2, b3, eps):
    """Xie et al., 2022, Algorithm 1, of corrected means, with 1 - b2 as in Optax."""
    m, v, n, last = 0, 0, 0, gs[0]
    for t, g in enumerate(gs, 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * (g - last)
        n = b3 * n + (1 - b3) * (g + (1 - b2) * (g - last)) ** 2
        ahead = m / (1 - b1**t) + (1 - b2) * v / (1 - b2**t)
        yield ahead / (np.sqrt(n / (1 - b3**t)) + eps)
        last = g


def optimistic(gs, alpha, beta):
    """Mokhtari et al., 2020, the generalized method: two step sizes."""
    last = gs[0]
    for g in gs:
        yield -alpha * g - beta * (g - last)
        last = g


def adam_with_optimism(gs, learning_rate, optimism, b1, b2, eps):
    """Daskalakis et al., 2018, Algorithm 1, with a rate of its own for the change."""
    return optimistic(list(adam(gs, b1, b2, eps)), learning_rate, optimism)


def rprop_minus(gs, learning_rate, eta_minus, eta_plus, least, most):
    """Igel and Hüsken, 2003, Rprop- with its step of the time before."""
    step, waiting = np.full_like(gs[0], learning_rate), np.zeros_like(gs[0])
    for g in gs:
        sign = np.sign(g * waiting)
        factor = np.choose(sign.astype(int) + 1, [eta_minus, 1.0, eta_plus])
        yield np.where(sign > 0, waiting, 0.0)
        step = np.where(sign == 0, step, np.clip(factor * step, least, most))
        waiting = np.where(sign < 0, 0.0, step * np.sign(g))


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
        scale_by_rss(0.2, 1e-3),
        adagrad,
        to_options(initial_accumulator_value=0.2, eps=1e-3),
    ),
    "Yogi": (
        scale_by_yogi(**ADAM, initial_accumulator_value=1e-2),
        yogi,
        ADAM | to_options(initial_accumulator_value=1e-2),
    ),
    "Adadelta": (
        adadelta(1.0, 0.8, 1e-3),
        adadelta_paper,
        to_options(rho=0.8, eps=1e-3),
    ),
    "Adan": (scale_by_adan(**ADAM, b3=0.9), adan, ADAM | to_options(b3=0.9)),
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
@pytest.mark.parametrize("name", TABLE)
def test_updates_are_those_of_the_paper(name, x64):
    tx, reference, options = TABLE[name]
    gs = gradients()
    expected = np.stack(list(reference(gs, **options)))
    found = updates_of(tx, gs)
    assert found.dtype == np.float64
    bound = 200 * 2.0**-52 * (100 if name == "RMSProp, centered" else 1)
    assert (np.abs(found - expected) <= bound * np.abs(expected).max(axis=0)).all()


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


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("name", TABLE)
def test_narrow_gradients_of_zero_and_after_give_finite_updates(name, dtype):
    """Zero, a large number, and the smallest: no eps may be rounded to 0."""
    tx, _, _ = TABLE[name]
    gs = jnp.asarray([[0.0], [0.0], [3e4], [jnp.finfo(dtype).tiny], [0.0]], dtype)
    updates = updates_of(tx, gs)
    assert updates.dtype == dtype
    assert np.isfinite(updates).all()


# Rprop asks whether a gradient turned, which complex ones do not.
@pytest.mark.parametrize("name", sorted(TABLE.keys() - {"Rprop"}))
def test_complex_means_of_squares_are_real(name):
    """A phase common to all gradients is that of all updates."""
    tx, _, _ = TABLE[name]
    if name == "Yogi":  # its mean starts at a real number
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
