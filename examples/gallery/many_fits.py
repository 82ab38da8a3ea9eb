"""Many small fits: a decay is fitted to each of many noisy curves, in one program."""

import jax
import jax.numpy as jnp
import numpy as np

import stepax

from .shared import Canvas, run


def main(small: bool) -> Canvas:
    number, t = 20 if small else 400, jnp.linspace(0.0, 5.0, 30)
    first, second, third = jax.random.split(jax.random.key(0), 3)
    true = {
        "height": jax.random.uniform(first, (number,), minval=0.5, maxval=2.0),
        "rate": jax.random.uniform(second, (number,), minval=0.3, maxval=2.0),
    }
    curve = lambda p: p["height"] * jnp.exp(-p["rate"] * t)
    data = jax.vmap(curve)(true)
    data = data + 0.02 * jax.random.normal(third, data.shape)

    def fit(y):
        loss = lambda p: jnp.sum((curve(p) - y) ** 2)
        return stepax.minimize(loss, {"height": 1.0, "rate": 1.0})

    found = jax.jit(jax.vmap(fit))(data)
    print(f"{int(found.success.sum())} of {number} fits converged")
    cloud = np.stack([true["rate"], found.params["rate"]])
    line = np.array([0.3, 2.0])
    return Canvas(title="Fitted rates against the true ones").curves(
        {"fitted = true": line},
        line,
        points={"fits": cloud},
        labels=("true rate", "fitted rate"),
    )


if __name__ == "__main__":
    run(main)
