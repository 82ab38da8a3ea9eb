"""Optimizers as their papers have them, in plain NumPy.

A reference takes the gradients of all steps and yields the update of each, with a
learning rate of 1 where it has one.
"""

import numpy as np


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


def adagrad_paper(gs, eps):
    """Duchi et al., 2011, Figure 1, diagonal; eps is their delta."""
    past = 0
    for g in gs:
        past = past + g**2
        yield g / (eps + np.sqrt(past))


def adagrad(gs, initial_accumulator_value, eps):
    """The same with eps inside the root, and another start."""
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


def yogi_uncorrected(gs, b1, b2, eps, initial_accumulator_value):
    """Zaheer et al., 2018, Algorithm 2."""
    m = v = initial_accumulator_value
    for g in gs:
        m = b1 * m + (1 - b1) * g
        v = v - (1 - b2) * np.sign(v - g**2) * g**2
        yield m / (np.sqrt(v) + eps)


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


def adan(gs, b1, b2, b3, eps, factor):
    """Xie et al., 2022, Algorithm 1, of corrected means; there the factor is b2."""
    m, v, n, last = 0, 0, 0, gs[0]
    for t, g in enumerate(gs, 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * (g - last)
        n = b3 * n + (1 - b3) * (g + factor * (g - last)) ** 2
        ahead = m / (1 - b1**t) + factor * v / (1 - b2**t)
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
        yield np.where(sign < 0, 0.0, waiting)
        step = np.where(sign == 0, step, np.clip(factor * step, least, most))
        waiting = np.where(sign < 0, 0.0, step * np.sign(g))


def irprop_minus(gs, learning_rate, eta_minus, eta_plus, least, most):
    """Igel and Hüsken, 2003, iRprop-: after a turn the step is left out."""
    step, last = np.full_like(gs[0], learning_rate), np.zeros_like(gs[0])
    for g in gs:
        step = np.where(g * last > 0, np.minimum(step * eta_plus, most), step)
        step = np.where(g * last < 0, np.maximum(step * eta_minus, least), step)
        last = np.where(g * last < 0, 0.0, g)
        yield np.sign(last) * step
