"""One NaN in a gradient that is accumulated: what becomes of that parameter.

Sixteen parameters are trained with gradients accumulated over two mini-batches; one
element of one gradient is NaN, and `zero_nans` comes before SGD.  The picture shows the
distance of each parameter from its optimum at each step, with Optax and with Stepax.
Run it with `python -m examples.gallery.one_nan`; it needs Optax.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import stepax

from .shared import Canvas, run


NUMBERS, ENTRY, AT = 16, 5, 9


def distances(library: Any, steps: int) -> np.ndarray:
    """The distance of each parameter from its optimum, (steps, parameters)."""
    goal = jnp.linspace(1.0, 2.0, NUMBERS)
    inner = library.chain(library.zero_nans(), library.sgd(0.1))
    tx = library.MultiSteps(inner, 2)
    params = jnp.zeros(NUMBERS)
    state, found = tx.init(params), []
    step = jax.jit(tx.update)
    for i in range(2 * steps):
        gradient = params - goal
        gradient = jnp.where(
            (i == 2 * AT) & (jnp.arange(NUMBERS) == ENTRY), jnp.nan, gradient
        )
        updates, state = step(gradient, state, params)
        params = library.apply_updates(params, updates)
        found.append(np.abs(np.asarray(params - goal)))
    return np.stack(found[1::2])


def main(small: bool) -> Canvas:
    steps = 20 if small else 36
    canvas = Canvas(680, 252, "One NaN in one mini-batch, with `zero_nans`")
    said = {
        optax: ("Optax 0.2.8", "the parameter never trains again"),
        stepax: ("Stepax", "it skips one update"),
    }
    for at, (library, (name, what)) in enumerate(said.items()):
        left = 10 + 345 * at
        found = distances(library, steps)
        lost = np.abs(np.diff(found[AT:, ENTRY])).max() == 0
        assert lost == (library is optax), f"{name} trains it: {not lost}"
        canvas.text(left, 44, f"{name}: {what}", bold=True)
        canvas.cells(left, 54, 9, 11, (found / 2).T, red=ENTRY)
        canvas.text(left + 9 * AT - 8, 244, "NaN", color="#d1495b")
        canvas.text(left + 320, 244, "step", end=True)
    what = "Distance of 16 parameters (rows) from the optimum, dark to pale"
    canvas.text(10, 16, f"{what}; one gradient of step {AT + 1} has a NaN")
    return canvas


if __name__ == "__main__":
    run(main)
