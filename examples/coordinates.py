"""Whether the activations of a model change as much at every width.

    python examples/coordinates.py

In a well parametrized model (Yang et al., Tensor Programs V, arXiv 2203.03466, appendix
D.1) they do, and the best learning rate of a narrow model is that of a wide one.
"""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np

import stepax


def coordinate_check(make, widths, *, steps=3, seeds=3):
    """Root mean squares of changes of activations, by name: (widths, seeds, steps).

    make: a function from a width and a key to the parameters, a transformation, the
        loss as a function of the parameters, and a function from the parameters to a
        dict of activations.  Both functions use the same batch for all widths.
    """
    keys = jax.random.split(jax.random.key(0), seeds)
    runs = [jax.lax.map(ft.partial(_run, make, n, steps), keys) for n in widths]
    return {name: np.stack([run[name] for run in runs]) for name in runs[0]}


def _run(make, width, steps, key):
    params, tx, loss, activations = make(width, key)
    first = activations(params)

    def step(carry, _):
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        params = stepax.apply_updates(params, updates)
        change = jax.tree.map(jnp.subtract, activations(params), first)
        return (params, state), jax.tree.map(_rms, change)

    return jax.lax.scan(step, (params, tx.init(params)), None, steps)[1]


def _rms(x):
    return jnp.sqrt(jnp.mean(jnp.square(x)))


def slopes(widths, changes):
    """The exponent of the width in the change after the last step, by name.

    It is about 0 where a learning rate transfers.  If it is larger, the largest models
    diverge; if it is smaller, they do not learn in these layers.
    """
    logs = {k: np.log(x[..., -1]).mean(1) for k, x in changes.items()}
    return {k: float(np.polyfit(np.log(widths), y, 1)[0]) for k, y in logs.items()}


# --- a network of two hidden layers ---------------------------------------------------

INPUTS = jax.random.normal(jax.random.key(1), (32, 16))
TARGETS = jax.random.normal(jax.random.key(2), (32, 4))
WIDTHS = (16, 64, 256)


def network(width, key):
    sizes = {"first": (16, width), "second": (width, width), "out": (width, 4)}
    keys = jax.random.split(key, len(sizes))
    pairs = zip(sizes.items(), keys, strict=True)
    return {k: jax.random.normal(key, n) / n[0] ** 0.5 for (k, n), key in pairs}


def activations(params):
    first = jnp.tanh(INPUTS @ params["first"])
    second = jnp.tanh(first @ params["second"])
    return {"first": first, "second": second, "out": second @ params["out"]}


def loss(params):
    return jnp.mean((activations(params)["out"] - TARGETS) ** 2)


def plain(width, key):
    return network(width, key), stepax.adam(1e-2), loss, activations


def mup(width, key):
    params = network(width, key)
    factors = stepax.transfer.mup(params, network(WIDTHS[0], key))
    return factors.scaled(params), stepax.adam(factors.rate(1e-2)), loss, activations


if __name__ == "__main__":
    for make in (plain, mup):
        found = slopes(WIDTHS, coordinate_check(make, WIDTHS))
        told = ", ".join(f"{k} {x:+.2f}" for k, x in found.items())
        print(f"{make.__name__}: change ~ width^n, n of {told}")
