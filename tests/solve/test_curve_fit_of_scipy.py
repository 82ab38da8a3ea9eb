"""Fits with errors, as `docs/from_scipy.md` translates `curve_fit`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from stepax import solve


T = np.linspace(0.0, 4.0, 30)
Y = 2.5 * np.exp(-1.3 * T) + 0.5 + 0.05 * np.random.default_rng(0).normal(size=30)
SIGMAS = {
    "none": None,
    "one for each point": 0.05 + 0.02 * T,
    "a covariance": 0.01 * np.exp(-abs(T[:, None] - T) / 0.5) + 1e-4 * np.eye(30),
}


def curve(t, height, rate, floor, exp=np.exp):
    return height * exp(-rate * t) + floor


def scaled(p, sigma):
    r = curve(T, **p, exp=jnp.exp) - Y
    if sigma is None:
        return r
    if sigma.ndim == 1:
        return r / sigma
    lower = np.linalg.cholesky(sigma)
    return jax.scipy.linalg.solve_triangular(lower, r, lower=True)


@pytest.mark.few(3)
@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("name", SIGMAS)
def test_parameters_and_standard_errors_are_those_of_curve_fit(name, absolute):
    sigma = SIGMAS[name]
    given = {"sigma": sigma, "absolute_sigma": absolute, "p0": [1.0, 1.0, 1.0]}
    with jax.enable_x64(True):
        start = {k: jnp.ones([], "float64") for k in ("height", "rate", "floor")}
        fit = solve.least_squares(lambda p: scaled(p, sigma), start)
        found = fit.covariance(1.0 if absolute else None, matrix=True)
        errors = np.sqrt(np.diag(found))
    fun = lambda t, height, rate, floor: curve(t, height, rate, floor)
    popt, pcov = optimize.curve_fit(fun, T, Y, **given)
    wanted = dict(zip(start, popt, strict=True))
    # Both stop where the value changes by less than 1e-8 of itself: the parameters are
    # then within 1e-4 of their errors.
    for k, x in fit.params.items():
        assert abs(float(x) - wanted[k]) < 1e-4 * np.sqrt(np.diag(pcov)).max()
    order = np.argsort(list(start))  # that of `jax.tree.leaves`
    np.testing.assert_allclose(errors, np.sqrt(np.diag(pcov))[order], rtol=1e-4)
