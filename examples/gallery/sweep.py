"""A sweep: all learning rates and seeds of three optimizers, each in one program."""

import jax
import jax.numpy as jnp
import numpy as np

import stepax

from .shared import Canvas, apply, dense, run


FACTORIES = {"adam": stepax.adam, "lion": stepax.lion, "sgd": stepax.sgd}


def main(small: bool) -> Canvas:
    x = jax.random.normal(jax.random.key(1), (256, 4))
    goal = (jnp.sin(x[:, 0]) * x[:, 1] + jnp.tanh(x[:, 2]))[:, None]

    def loss(params, key):
        chosen = jax.random.randint(key, (32,), 0, len(x))
        return jnp.mean((apply(params, x[chosen]) - goal[chosen]) ** 2)

    rates = np.geomspace(3e-4, 1.0, 4 if small else 11)
    grid = {
        "optimizer": ["adam", "lion", "sgd"],
        "learning_rate": [float(f"{rate:.2g}") for rate in rates],
    }
    init = lambda key: dense(key, 4, 32, 1)
    steps = 10 if small else 200
    for factory in FACTORIES.values():
        stepax.diagnose(factory(0.1), init(jax.random.key(0)), steps=steps).require()
    result = stepax.sweep(
        loss,
        init,
        lambda optimizer, learning_rate: FACTORIES[optimizer](learning_rate),
        grid,
        steps=steps,
        seeds=1 if small else 4,
    )
    print(result.table())
    scores = np.minimum(result.scores, 3.0).reshape(3, -1)
    return Canvas(title="Loss against the learning rate").curves(
        dict(zip(FACTORIES, scores, strict=True)),
        np.log10(rates),
        log=True,
        labels=("log10 of the learning rate", "loss"),
    )


if __name__ == "__main__":
    run(main)
