"""Train the network with an optimizer chosen by name, and report progress."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import stepax
import stepax.contrib

from . import network
from .digits import Digits


BATCH = 128


class Choice(NamedTuple):
    """An optimizer of the demonstration.

    learning_rate: a suitable peak of the schedule.
    arguments: further arguments of its factory.
    matrices_only: whether it refuses other arrays, which Adam then trains.
    """

    learning_rate: float
    arguments: dict[str, Any] = {}
    matrices_only: bool = False


class Trace(NamedTuple):
    """Measurements of one step, or of several steps (n,); float32."""

    loss: Any
    accuracy: Any
    learning_rate: Any
    grad_norm: Any


class Report(NamedTuple):
    """The steps since the last report.

    step: number of steps taken so far.
    trace: one value per step.
    test_accuracy: the fraction of correct predictions on the held-out digits.
    """

    step: int
    trace: Trace
    test_accuracy: float


# Biases do not decay.
_DECAY = {"weight_decay": 1e-2, "mask": {"bias": False, "**": True}}

CHOICES = {
    "adabelief": Choice(3e-3),
    "adagrad": Choice(5e-1),
    "adam": Choice(3e-3),
    "adam_atan2": Choice(3e-3),
    "adam_mini": Choice(3e-3),
    "adamax": Choice(1e-2),
    "adamaxw": Choice(1e-2, _DECAY),
    "adamw": Choice(3e-3, _DECAY),
    "amsgrad": Choice(3e-3),
    "apollo": Choice(1e-2),
    "came": Choice(1e-3),
    "cautious_adamw": Choice(3e-3),
    "cautious_lion": Choice(1e-3),
    "dadapt_sgd": Choice(1.0, {"momentum": 0.9}),
    "dion": Choice(2e-2, matrices_only=True),
    "dion2": Choice(1e-1, matrices_only=True),
    "gpa_adamw": Choice(3e-3),
    "grams": Choice(3e-3),
    "kl_shampoo": Choice(3e-3),
    "kl_soap": Choice(1e-2),
    "laprop": Choice(3e-3),
    "lion": Choice(1e-3, _DECAY),
    "mars": Choice(3e-3),
    "muon": Choice(1e-2),
    "muown": Choice(1e-2, matrices_only=True),
    "nadam": Choice(3e-3),
    "nadamw": Choice(3e-3, _DECAY),
    "normuon": Choice(1e-2, matrices_only=True),
    "psgd_kron": Choice(1e-3),
    "radam": Choice(6e-3),
    "rmsprop": Choice(4e-3),
    "schedule_free_radam": Choice(1e-2),
    "scion": Choice(1e-2, {"momentum": 0.1, "scales": 20.0}),
    "sgd": Choice(2e-1, {"momentum": 0.9}),
    "soap": Choice(1e-2),
    "shampoo": Choice(3e-3, {"b2": 0.99, "grafting": "adam", "eps": 1e-8}),
    "splus": Choice(1e-1),
    "stable_adamw": Choice(3e-3),
    "yogi": Choice(1e-2),
}


def optimizer(name, learning_rate, steps):
    """Clipping, then the optimizer `name` with warm-up and cosine decay.

    The gradient norm and the learning rate are stored in its state under those names.
    """
    schedule = stepax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=learning_rate,
        warmup_steps=steps // 10,
        decay_steps=steps,
    )
    home = stepax if hasattr(stepax, name) else stepax.contrib
    factory = stepax.inject_hyperparams(getattr(home, name))
    choice = CHOICES[name]
    tx = factory(learning_rate=schedule, **choice.arguments)
    if choice.matrices_only:
        both = {"matrix": tx, "other": stepax.adam(schedule)}
        tx = stepax.partition(both, {"weight": "matrix", "bias": "other"})
    return stepax.chain(
        stepax.snapshot("grad_norm", stepax.tree.norm),
        stepax.clip_by_global_norm(1.0),
        tx,
    )


def read(state, name):
    """The scalar called `name`, anywhere in the optimizer's state."""
    # A schedule's own state has the name of its hyperparameter, but is not an array.
    is_number = lambda path, value: isinstance(value, jax.Array)
    return stepax.tree.get(state, name, filtering=is_number)


def train(
    tx: stepax.GradientTransformation, data: Digits, test: Digits, steps: int, seed: int
) -> Iterator[Report]:
    """Take `steps` steps on mini-batches of `data`, with about thirty reports."""
    init_key, data_key = jax.random.split(jax.random.key(seed))
    params = network.init(init_key)
    carry = params, tx.init(params)
    keys = jax.random.split(data_key, steps)
    take_steps = _steps(tx, data)
    every = max(1, steps // 30)
    for start in range(0, steps, every):
        carry, trace = take_steps(carry, keys[start : start + every])
        step = min(start + every, steps)
        yield Report(step, jax.tree.map(np.asarray, trace), _test(carry[0], test))


def loss(params, images, labels):
    """The mean cross-entropy of a mini-batch, and its accuracy."""
    logits = network.logits(params, images)
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
    return -jnp.mean(picked), network.accuracy(logits, labels)


def draw_from(data):
    """A function from a key to a mini-batch of shifted images, and its labels."""
    images, labels = jnp.asarray(data.images), jnp.asarray(data.labels)

    def draw(key):
        batch_key, shift_key = jax.random.split(key)
        batch = jax.random.randint(batch_key, (BATCH,), 0, len(images))
        return network.shift(shift_key, images[batch]), labels[batch]

    return draw


def _steps(tx, data):
    draw = draw_from(data)

    def step(carry, key):
        params, state = carry
        (value, accuracy), grads = jax.value_and_grad(loss, has_aux=True)(
            params, *draw(key)
        )
        updates, state = tx.update(grads, state, params)
        params = stepax.apply_updates(params, updates)
        told = read(state, "learning_rate"), read(state, "grad_norm")
        return (params, state), Trace(value, accuracy, *told)

    return jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys))


@jax.jit
def _right(params, images, labels):
    return network.accuracy(network.logits(params, images), labels)


def _test(params, test):
    return float(_right(params, test.images, test.labels))
