"""The Lasso and elastic nets on scikit-learn's tables, beside coordinate descent.

Each column has mean 0 and variance 1; both minimize the function that scikit-learn
documents, with a fourth of the weight at which all coefficients are 0, and less.
scikit-learn runs to a tolerance of 1e-14, so that its value is the minimum, and again
with its default of 1e-4; Stepax runs with the tolerances of `minimize`, and neither is
stopped by a number of steps.  Seconds are those of the processor, without compilation,
medians of five.
"""

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn import datasets
from sklearn.linear_model import ElasticNet

import stepax
from stepax.solve import prox

from .table import Table, goal, head, line


LOADERS: dict[str, Any] = {
    "diabetes": datasets.load_diabetes,
    "breast cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "digits": datasets.load_digits,
}
SHARES, RATIOS, ROUNDS, MOST = (0.25, 1e-2, 1e-4), (1.0, 0.5), 5, 100_000


def table(load: Callable) -> tuple[jax.Array, jax.Array]:
    """Columns that are not constant, and the target."""
    found = load()
    x, y = found.data[:, found.data.std(0) > 0], found.target
    return jnp.asarray((x - x.mean(0)) / x.std(0)), jnp.asarray(y - y.mean())


def smooth(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sum((y - x @ w) ** 2) / (2 * len(y))


@jax.jit
def solve(start: jax.Array, x: jax.Array, y: jax.Array, weights: jax.Array) -> Any:
    g = prox.elastic_net(*weights)
    return stepax.minimize(smooth, start, args=(x, y), prox=g, max_steps=MOST)


def clocked(run: Callable) -> tuple[Any, float]:
    seconds, found = [], None
    for _ in range(ROUNDS):
        begin = time.process_time()
        found = run()
        seconds.append(time.process_time() - begin)
    return found, statistics.median(seconds)


def compare(x: jax.Array, y: jax.Array, alpha: float, ratio: float) -> list:
    """The excess of the value, relative to it, and the times of both."""
    weights = jnp.array([alpha * ratio, alpha * (1 - ratio)])
    value = lambda w: float(smooth(w, x, y) + prox.elastic_net(*weights).value(w))
    start = jnp.zeros(x.shape[1])
    jax.block_until_ready(solve(start, x, y, weights))
    run = lambda: jax.block_until_ready(solve(start, x, y, weights))
    found, own = clocked(run)
    both = np.asfortranarray(x), np.array(y)

    def theirs(tol):
        model = ElasticNet(
            alpha=alpha, l1_ratio=ratio, fit_intercept=False, tol=tol, max_iter=10**6
        )
        with warnings.catch_warnings():  # a tolerance below rounding
            warnings.simplefilter("ignore")
            return clocked(lambda: model.fit(*both).coef_)

    (exact, slow), (rough, fast) = theirs(1e-14), theirs(1e-4)
    least = value(exact)
    errors = [(value(w) - least) / max(1.0, least) for w in (found.params, rough)]
    return [errors[0], own, bool(found.success), slow, errors[1], fast]


def measure() -> dict[str, Table]:
    top = head(
        "data", "weight", "l1 ratio", "Stepax: excess", "seconds",
        "scikit-learn, 1e-14: seconds",
        "1e-4: excess", "seconds",
    )  # fmt: skip
    rows, found = [], []
    for name, load in LOADERS.items():
        x, y = table(load)
        for ratio in RATIOS:
            for share in SHARES:
                alpha = share * float(jnp.max(jnp.abs(x.T @ y))) / len(y)
                row = compare(x, y, alpha, ratio)
                found.append(row)
                excess, own, _, slow, rough, fast = row
                rows.append(
                    line(
                        name, f"{alpha:.1e}", ratio, f"{excess:.0e}", f"{own:.4f}",
                        f"{slow:.4f}", f"{rough:.0e}", f"{fast:.4f}",
                    )
                )  # fmt: skip
    worst = max(x[0] for x in found)
    by = statistics.median(x[1] / x[3] for x in found)
    fast = statistics.median(x[1] / x[5] for x in found)
    good = sum(x[2] for x in found)
    goals = [
        goal(
            f"`prox`: value above coordinate descent's, {len(rows)} nets",
            "1e-8",
            f"{worst:.0e} at most, {good} converged",
        ),
        goal(
            "processor time by coordinate descent's, median",
            "reported",
            f"{by:.1f} of its time to 1e-14, {fast:.1f} to its default of 1e-4",
        ),
    ]
    return {"sparse": Table(top, rows, goals)}
