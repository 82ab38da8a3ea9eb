"""A constrained fit: a curve through data that never falls and passes two points."""

import jax
import jax.numpy as jnp
import numpy as np

import stepax

from .shared import Canvas, run


def main(small: bool) -> Canvas:
    x = jnp.linspace(0.0, 1.0, 15 if small else 40)
    y = x + 0.35 * jnp.sin(7 * x) * (1 - x)
    y = y + 0.05 * jax.random.normal(jax.random.key(0), x.shape)
    powers = x[:, None] ** jnp.arange(7)
    fit = lambda c: jnp.mean((powers @ c - y) ** 2)
    rises = stepax.solve.constraints.inequality(
        lambda c: jnp.diff(powers @ c), 0.0, None
    )
    ends = stepax.solve.constraints.equality(
        lambda c: (powers @ c)[jnp.array([0, -1])] - jnp.array([0.0, 1.0])
    )
    free = stepax.minimize(fit, jnp.zeros(7))
    found = stepax.minimize(fit, free.params, constraints=[rises, ends])
    print(found)
    curves = {"free": powers @ free.params, "monotone": powers @ found.params}
    assert np.diff(curves["monotone"]).min() > -1e-3
    return Canvas(title="A fit under constraints").curves(
        curves, x, points={"data": np.stack([x, y])}, labels=("x", "y")
    )


if __name__ == "__main__":
    run(main)
