"""Vision: a small convolutional network reads handwritten digits, with Muon and AdamW.

Muon trains the matrices and kernels, AdamW the rest.  It needs scikit-learn.
"""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import stepax

from .shared import Canvas, run, train


def logits(params, images):
    x = jax.lax.conv_general_dilated(
        images[..., None], params["conv"], (2, 2), "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip
    x = jax.nn.relu(x).reshape(len(images), -1)
    return x @ params["dense"]["kernel"] + params["dense"]["bias"]


def main(small: bool) -> Canvas:
    digits = load_digits()
    images, labels = jnp.asarray(digits.images / 16, jnp.float32), digits.target
    params = {
        "conv": jax.random.normal(jax.random.key(0), (3, 3, 1, 16)) / 3,
        "dense": {"kernel": jnp.zeros((256, 10)), "bias": jnp.zeros(10)},
    }

    def loss(params, key):
        chosen = jax.random.randint(key, (64,), 0, 1400)
        found = logits(params, images[chosen])
        return stepax.softmax_cross_entropy_with_integer_labels(
            found, jnp.asarray(labels)[chosen]
        ).mean()

    steps, curves = 30 if small else 300, {}
    rate = stepax.warmup_cosine_decay_schedule(0.0, 1.0, steps // 10, steps)
    for name, tx in {
        "AdamW": stepax.adamw(lambda t: 1e-2 * rate(t)),
        "Muon, and AdamW": stepax.contrib.muon(lambda t: 2e-2 * rate(t)),
    }.items():
        trained, curves[name] = train(loss, params, tx, steps)
        right = np.mean(logits(trained, images[1400:]).argmax(1) == labels[1400:])
        print(f"{name}: test accuracy {100 * right:.1f} %")
    return Canvas(title="Loss on handwritten digits").curves(curves, log=True)


if __name__ == "__main__":
    run(main)
