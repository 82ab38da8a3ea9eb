"""Train networks that solve Poisson's equation, by Gauss-Newton and by SOAP.

Run it with `python -m benchmarks.pinn`: it prints, for each problem and optimizer, the
loss at new points and the relative error of the solution after equal times, which do
not include compilation.  All is in float64.  The problems are the task `pinn` of the
board, with 64 new points for each step, and the same network with 900 points that stay.
SOAP is run with several learning rates, of which the best is shown.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import stepax
import stepax.contrib

from .board.tasks import pinn


RATES = 3e-2, 1e-2, 3e-3, 1e-3
MEAN_SQUARE = 25 * jnp.pi**4 / 4  # of the right side over the square


def residuals(params: Any, points: jax.Array) -> jax.Array:
    f = -5 * jnp.pi**2 * pinn.exact(points)
    return (pinn.laplacian(params, points) - f) / MEAN_SQUARE**0.5


def loss(out: jax.Array) -> jax.Array:
    return jnp.mean(jnp.square(out))


def grid(n: int) -> jax.Array:
    axis = (jnp.arange(n) + 0.5) / n
    return jnp.stack(jnp.meshgrid(axis, axis), -1).reshape(-1, 2)


# The points of a step, from a key.
PROBLEMS: dict[str, Callable] = {
    "64 new points": lambda key: jax.random.uniform(key, (64, 2), float),
    "900 points": lambda key: grid(30),
}
RIVALS: dict[str, Callable] = {
    "gauss_newton, cg": lambda: stepax.contrib.gauss_newton(1e-2, steps=50),
    "gauss_newton, samples": lambda: stepax.contrib.gauss_newton(1e-2, "samples"),
    "with momentum 0.9": lambda: stepax.contrib.gauss_newton(
        1e-2, "samples", momentum=0.9
    ),
} | {
    f"soap {rate}": lambda rate=rate: stepax.contrib.soap(
        stepax.cosine_decay_schedule(rate, 20_000)
    )
    for rate in RATES
}


def train(points: Callable, tx: Any, seconds: float) -> tuple[float, float, int]:
    """The loss at new points, the error of the solution, and the steps."""
    params = jax.tree.map(
        lambda x: x.astype(float), pinn.make().init(jax.random.key(0))
    )
    state = tx.init(params)

    @jax.jit
    def step(params, state, key):
        f = lambda params: residuals(params, points(key))
        value, grads = jax.value_and_grad(lambda p: loss(f(p)))(params)
        more = {"value": value, "outputs_fn": f, "loss_fn": loss}
        updates, state = tx.update(grads, state, params, **more)
        return stepax.apply_updates(params, updates), state

    keys = jax.random.split(jax.random.key(1), 2**20)
    jax.block_until_ready(step(params, state, keys[0]))
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        params, state = step(params, state, keys[count])
        jax.block_until_ready(params)
        count += 1
    at = grid(64)
    off = pinn.value(params, at) - pinn.exact(at)
    error = jnp.linalg.norm(off) / jnp.linalg.norm(pinn.exact(at))
    return float(loss(residuals(params, at))), float(error), count


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print("| problem | optimizer | loss | error | steps |")
    print("| --- | --- | --- | --- | --- |")
    for problem, points in PROBLEMS.items():
        for name, make in RIVALS.items():
            value, error, count = train(points, make(), given.seconds)
            print(f"| {problem} | {name} | {value:.1e} | {error:.1e} | {count} |")


if __name__ == "__main__":
    main()
