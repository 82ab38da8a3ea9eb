"""Runs of each library on a residual function, with the same kind of result."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from scipy import optimize

import stepax


class Found(NamedTuple):
    x: np.ndarray
    evaluations: int


MOST = 5_000


def ours(residuals: Callable, x0: np.ndarray) -> Found:
    found = stepax.solve.least_squares(
        residuals, jnp.asarray(x0, float), max_steps=MOST
    )
    return Found(np.asarray(found.params, float), int(found.evaluations))


def scipys(method: str) -> Callable:
    def run(residuals, x0):
        """Evaluations of the residuals alone; the Jacobian is JAX's."""
        fun, jacobian = jax.jit(residuals), jax.jit(jax.jacfwd(residuals))
        solve: Any = optimize.least_squares  # its types know no function for `jac`
        scale = 1.0 if method == "lm" else "jac"
        x0 = np.asarray(jnp.asarray(x0, float))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = solve(
                    lambda x: np.asarray(fun(jnp.asarray(x, float)), float),
                    x0,
                    jac=lambda x: np.asarray(jacobian(jnp.asarray(x, float)), float),
                    method=method,
                    x_scale=scale,
                    max_nfev=MOST,
                )
        except ValueError:  # residuals or a Jacobian that are not finite
            return Found(x0, MOST)
        return Found(found.x, found.nfev)

    return run


def optimistixs(residuals: Callable, x0: np.ndarray) -> Found:
    tol = 1e-8 if jax.config.read("jax_enable_x64") else 1e-5
    solver = optimistix.LevenbergMarquardt(rtol=tol, atol=tol)
    found = optimistix.least_squares(
        lambda x, _: residuals(x),
        solver,
        jnp.asarray(x0, float),
        max_steps=MOST,
        throw=False,
    )
    return Found(np.asarray(found.value, float), int(found.stats["num_steps"]))


SOLVERS = {
    "Stepax": ours,
    "SciPy lm": scipys("lm"),
    "SciPy trf": scipys("trf"),
    "Optimistix": optimistixs,
}
