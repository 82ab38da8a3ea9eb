"""Log metrics of each step to a CSV file, and read them back.

Run it with `python examples/log_csv.py [file]`.
"""

import csv
import sys
import tempfile

import jax
import jax.numpy as jnp

import stepax
from stepax import metrics


inputs = jax.random.normal(jax.random.key(0), (64, 4))
targets = inputs @ jnp.array([1.0, -2.0, 0.5, 3.0])
loss = lambda p: jnp.mean((inputs @ p["weight"] + p["bias"] - targets) ** 2)

observed = stepax.observe(
    stepax.adamw(0.1),
    {
        "gradient_norm": lambda g, u, p: stepax.tree.norm(g),
        "update_ratio": metrics.by_layer(metrics.update_ratio()),
        "cosine": metrics.cosine_to_last(),
    },
)
tx = stepax.named_chain(("clip", stepax.clip_by_global_norm(1.0)), ("adamw", observed))


@jax.jit
def step(params, state):
    value, gradient = jax.value_and_grad(loss)(params)
    updates, state = tx.update(gradient, state, params)
    return stepax.apply_updates(params, updates), state, value


def main(path):
    params = {"weight": jnp.zeros(4), "bias": jnp.zeros(())}
    state = tx.init(params)
    names = ["step", "loss", *stepax.tree.flat(state, scalars=True)]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for number in range(1, 51):
            params, state, value = step(params, state)
            row = {"loss": value, **stepax.tree.flat(state, scalars=True)}
            # One transfer from the device for all of them.
            writer.writerow({"step": number, **jax.device_get(row)})
    with open(path, newline="") as file:
        *_, last = csv.DictReader(file)
    for name, value in last.items():
        print(f"{name}: {float(value):.3g}")


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp() + "/metrics.csv")
