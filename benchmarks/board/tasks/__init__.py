"""The tasks of the board: a file each, which has a function `make`.

All data comes with packages.  A run whose loss ends above that of a model that knows
nothing counts as diverged, and gets that loss.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


# In the order in which they are run; `pendulum` of the plan is not among them, since a
# run of PPO takes as long as a row of these, and would not be ranked.
NAMES = ("digits", "factor", "pinn", "patches", "tabular", "sequence", "chars")


class Task(NamedTuple):
    """What is trained, and how it is judged.

    steps: of a run.
    init: key -> parameters.
    loss: (parameters, key of the mini-batch) -> loss.
    validate: parameters -> validation loss.
    worst: the validation loss of a model that knows nothing.
    data: arrays whose hash is recorded.
    """

    steps: int
    init: Callable
    loss: Callable
    validate: Callable
    worst: float
    data: Any = ()


def make(name: str) -> Task:
    """Raises a `ValueError` that lists the tasks for another name."""
    if name not in NAMES:
        raise ValueError(f"there is no task {name!r}, only {', '.join(NAMES)}")
    return importlib.import_module(f".{name}", __package__).make()


def dense(key: jax.Array, shapes: dict[str, tuple[int, int]]) -> dict:
    """Matrices with columns of length 1 on average, and a bias of zeros for each."""
    params = {}
    keys = jax.random.split(key, len(shapes))
    for part, (name, (n, m)) in zip(keys, shapes.items(), strict=True):
        params[name] = jax.random.normal(part, (n, m)) / n**0.5
        params[f"{name}_bias"] = jnp.zeros(m)
    return params


def layer(params: dict, name: str, x: jax.Array) -> jax.Array:
    return x @ params[name] + params[f"{name}_bias"]


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    found = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
    return -jnp.mean(found)


def rows(key: jax.Array, size: int, *arrays: jax.Array) -> list[jax.Array]:
    """The same rows of each array, drawn with replacement."""
    at = jax.random.randint(key, (size,), 0, len(arrays[0]))
    return [x[at] for x in arrays]
