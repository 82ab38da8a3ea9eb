"""One training run as a function of hyperparameters and a seed, compiled once.

`stepax.sweep` is not used for it: that returns the losses of mini-batches, and compiles
a program for each call.  A trial returns validation losses, some of them of averaged
parameters, and one program serves the tuning, the fresh seeds and the rate curve.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stepax
from stepax import contrib

from . import rules
from .tasks import Task


def transformation(name: str, point: dict, steps: int) -> Any:
    """The optimizer with these hyperparameters, which may be traced."""
    entry = rules.ENTRIES[name]
    tx = _factory(name)(**_arguments(entry, point, steps))
    if not entry.rest:
        return tx
    other = rules.ENTRIES[entry.rest]
    point = {"one_minus_b1": 0.1} | point
    rest = _factory(entry.rest)(**_arguments(other, point, steps))
    kind = lambda p: "matrix" if p.ndim == 2 else "rest"
    labels = lambda params: jax.tree.map(kind, params)
    return stepax.partition({"matrix": tx, "rest": rest}, labels)


def _factory(name: str) -> Callable:
    return getattr(stepax, name, None) or getattr(contrib, name)


def _arguments(entry: rules.Entry, point: dict, steps: int) -> dict:
    found: dict[str, Any] = {
        "learning_rate": schedule(entry.schedule, point["rate"], steps)
    }
    decays = (entry.b1, "one_minus_b1"), (entry.b2, "one_minus_b2")
    for argument, of in decays:
        if argument:
            found[argument] = 1 - point[of]
    if entry.b1 == entry.b2:
        found[entry.b1] = tuple(1 - point[of] for _, of in decays)
    return found | {x: point["decay"] for x in entry.decay} | entry.fixed


def schedule(kind: str, rate: Any, steps: int) -> Callable:
    """A rise from a first step above 0, then a constant or a cosine to 0."""
    rise = max(1, round(rules.WARM_UP * steps))

    def at(count):
        t = jnp.asarray(count, "float32")
        up = jnp.minimum(1, (t + 1) / rise)
        share = jnp.clip((t - rise) / (steps - rise), 0, 1)
        down = (1 + jnp.cos(jnp.pi * share)) / 2 if kind == "cosine" else 1.0
        return rate * up * down

    return at


def trial(task: Task, name: str) -> Callable[[dict, Any], jax.Array]:
    """A function from hyperparameters and a seed to validation losses (marks,)."""
    is_averaged = name.startswith("schedule_free")

    def run(point: dict, seed: Any) -> jax.Array:
        tx = transformation(name, point, task.steps)
        first, key = jax.random.split(jax.random.key(seed))
        params = task.init(first)

        def step(carry, key):
            params, state = carry
            grads = jax.grad(task.loss)(params, key)
            updates, state = tx.update(grads, state, params)
            return (stepax.apply_updates(params, updates), state), None

        def stretch(carry, keys):
            params, state = carry = jax.lax.scan(step, carry, keys)[0]
            if is_averaged:
                params = stepax.contrib.schedule_free_eval_params(state, params)
            return carry, task.validate(params)

        keys = jax.random.split(key, (rules.MARKS, task.steps // rules.MARKS))
        return jax.lax.scan(stretch, (params, tx.init(params)), keys)[1]

    return run


def compiled(task: Task, name: str) -> Callable[[dict, int], list[float]]:
    """The trial of a task and an optimizer, compiled, from and to Python's numbers."""
    numbers = {
        k: jax.ShapeDtypeStruct((), "float32") for k in rules.ENTRIES[name].names
    }
    seed = jax.ShapeDtypeStruct((), "uint32")
    program = jax.jit(trial(task, name)).lower(numbers, seed).compile()

    def run(point, seed):
        numbers = {k: np.float32(x) for k, x in point.items()}
        losses = np.asarray(program(numbers, np.uint32(seed)), np.float64)
        return bounded(losses, task.worst).tolist()

    return run


def bounded(losses: np.ndarray, worst: float) -> np.ndarray:
    """Losses with the worst one in place of those above it and what is no number."""
    return np.where(losses < worst, losses, worst)


def state_bytes(task: Task, name: str) -> int:
    entry = rules.ENTRIES[name]
    point = {k: low for k, (low, _) in entry.ranges.items()}
    params = jax.eval_shape(task.init, jax.random.key(0))
    state = jax.eval_shape(transformation(name, point, task.steps).init, params)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
