"""A neural ODE learns the field in which a spiral moves; first Adam, then L-BFGS."""

import jax
import jax.numpy as jnp
import numpy as np

import stepax

from .shared import Canvas, apply, dense, run, train


TIMES = jnp.linspace(0.0, 6.0, 60)


def spiral(field, start):
    """The path of a point in a field, by the classical Runge-Kutta method."""
    h = TIMES[1] - TIMES[0]

    def step(x, _):
        a = field(x)
        b = field(x + h / 2 * a)
        c = field(x + h / 2 * b)
        d = field(x + h * c)
        return x + h / 6 * (a + 2 * b + 2 * c + d), x

    return jax.lax.scan(step, start, TIMES)[1]


def main(small: bool) -> Canvas:
    matrix = jnp.array([[-0.2, 2.0], [-2.0, -0.2]])
    start = jnp.array([2.0, 0.0])
    goal = spiral(lambda x: matrix @ x, start)
    loss = lambda p, key=None: jnp.mean(
        (spiral(lambda x: apply(p, x), start) - goal) ** 2
    )
    params = dense(jax.random.key(0), 2, 24, 2)
    params, losses = train(loss, params, stepax.adam(1e-2), 20 if small else 300)
    found = stepax.minimize(loss, params, max_steps=5 if small else 200)
    print(f"Adam {losses[-1]:.1e}, then L-BFGS {float(found.value):.1e}")
    path = np.asarray(spiral(lambda x: apply(found.params, x), start))
    canvas = Canvas(title="A spiral, and what a network learned of its field")
    return canvas.curves(
        {"learned": path[:, 1]},
        path[:, 0],
        points={"data": np.asarray(goal).T},
        labels=("first coordinate", "second coordinate"),
    )


if __name__ == "__main__":
    run(main)
