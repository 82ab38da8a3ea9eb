"""The two small problems that optimizers are drawn on: a bent valley, and a fit.

They show how an optimizer moves, and are no evidence that it is better than another.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Problem(NamedTuple):
    """loss: of the parameters.  start: the parameters at the first step."""

    loss: Callable[[Any], jax.Array]
    start: np.ndarray


BEND = 10.0
START = (-1.2, 1.6)


def valley(x: Any) -> Any:
    """Rosenbrock's function with walls of slope 10 in place of 100."""
    return (1 - x[0]) ** 2 + BEND * (x[1] - x[0] ** 2) ** 2


def _rotation(seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.RandomState(seed).randn(8, 8))[0]


# Singular values from 1 to 1/30, so that the condition of the fit is 900.
MATRIX = np.float32(_rotation(0) * np.geomspace(1, 1 / 30, 8) @ _rotation(1))


def fit(w: Any) -> Any:
    """Squared error of `MATRIX @ w`, of which the least is at the identity."""
    error = jnp.asarray(MATRIX) @ w - jnp.asarray(MATRIX)
    return jnp.sum(error**2) / 2


VALLEY = Problem(valley, np.asarray(START, np.float32))
FIT = Problem(fit, np.asarray(np.random.RandomState(2).randn(8, 8) / 3, np.float32))
