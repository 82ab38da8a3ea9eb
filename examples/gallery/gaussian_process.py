"""A Gaussian process: `minimize` fits it by marginal likelihood."""

import jax
import jax.numpy as jnp
import numpy as np

import stepax

from .shared import Canvas, run


def kernel(p, a, b):
    return jnp.exp(
        2 * p["height"] - 0.5 * ((a[:, None] - b) / jnp.exp(p["length"])) ** 2
    )


def covariance(p, x):
    return kernel(p, x, x) + (1e-5 + jnp.exp(2 * p["noise"])) * jnp.eye(len(x))


def evidence(p, x, y):
    """The negative logarithm of the marginal likelihood."""
    root = jnp.linalg.cholesky(covariance(p, x))
    white = jax.scipy.linalg.solve_triangular(root, y, lower=True)
    return 0.5 * jnp.sum(white**2) + jnp.sum(jnp.log(jnp.diag(root)))


def main(small: bool) -> Canvas:
    x = jnp.sort(jax.random.uniform(jax.random.key(0), (20 if small else 40,))) * 6
    y = jnp.sin(x) + 0.15 * jax.random.normal(jax.random.key(1), x.shape)
    start = {"height": 0.0, "length": 0.0, "noise": -1.0}
    found = stepax.minimize(evidence, start, args=(x, y))
    print(found)
    p, at = found.params, jnp.linspace(0, 6, 100)
    weights = jnp.linalg.solve(covariance(p, x), y)
    mean = kernel(p, at, x) @ weights
    gain = kernel(p, at, x) @ jnp.linalg.solve(covariance(p, x), kernel(p, x, at))
    spread = 2 * jnp.sqrt(jnp.maximum(jnp.diag(kernel(p, at, at) - gain), 0))
    curves = {"mean": mean, "± 2 deviations": mean + spread, "": mean - spread}
    return Canvas(title="A Gaussian process").curves(
        curves, at, points={"data": np.stack([x, y])}, labels=("x", "y")
    )


if __name__ == "__main__":
    run(main)
