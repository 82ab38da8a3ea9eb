"""Log metrics of each step in TensorBoard's format, the gradient noise among them.

Run it with `python examples/log_tensorboard.py [folder]`, then `tensorboard --logdir`.
"""

import sys
import tempfile

import jax
import jax.numpy as jnp

import stepax
from stepax import metrics


try:
    from tensorboardX import SummaryWriter
except ImportError:
    sys.exit("this example writes with tensorboardX: pip install tensorboardX")

BATCH, CALLS = 8, 4
inputs = jax.random.normal(jax.random.key(0), (64, 4))
targets = inputs @ jnp.array([1.0, -2.0, 0.5, 3.0])

# `MultiSteps` takes a step with the mean of four gradients; their norms beside that of
# the mean tell the noise.
accumulated = stepax.MultiSteps(stepax.adamw(0.03), CALLS).gradient_transformation()
observed = {
    "gradient_norm": lambda g, u, p: stepax.tree.norm(g),
    "noise": metrics.noise_scale(BATCH),
}
tx = stepax.observe(accumulated, observed)


def loss(params, key):
    batch = jax.random.randint(key, (BATCH,), 0, len(inputs))
    return jnp.mean((inputs[batch] @ params - targets[batch]) ** 2)


@jax.jit
def step(params, state, key):
    value, gradient = jax.value_and_grad(loss)(params, key)
    updates, state = tx.update(gradient, state, params)
    return stepax.apply_updates(params, updates), state, value


def main(folder):
    params = jnp.zeros(4)
    state = tx.init(params)
    with SummaryWriter(folder) as writer:
        for number, key in enumerate(jax.random.split(jax.random.key(1), 80), 1):
            params, state, value = step(params, state, key)
            found = stepax.tree.flat(state, scalars=True)
            for name, x in jax.device_get({"loss": value, **found}).items():
                writer.add_scalar(name, x, number)
    print(f"noise scale {state.metrics['noise'].scale:.3g} examples")


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp())
