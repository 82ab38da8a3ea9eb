"""Runs one project in a process of its own, with Optax or with Stepax in its place.

`python -m benchmarks.downstream.child train NAME FILE` trains a small model with each
optimizer that the project builds, and writes what it learned, the values of schedules
and errors; `... tests NAME FILE` runs the project's own tests, and writes a report.
"""

import importlib
import json
import math
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from .project import STEPS, stub


# Around what schedules of 10, 100 and 1,000 steps change at.
TIMES = (0, 1, 2, 5, 9, 10, 11, 50, 89, 90, 91, 99, 100, 101, 500, 999, 1000, 1001)


def opened(name: str) -> ModuleType:
    """The project's file, with its environment mended."""
    project: Any = importlib.import_module(f"benchmarks.downstream.projects.{name}")
    stub(project.PROJECT.stubs)
    getattr(project, "patch", lambda: None)()
    return project


def small_model() -> dict:
    """Parameters: an embedding, two layers and a scale between them."""
    import jax.numpy as jnp

    def made(*shape):
        size = math.prod(shape)
        return jnp.sin(1 + 1.7 * jnp.arange(size, dtype=jnp.float32)).reshape(shape) / 2

    return {
        "embedding": {"embedding": made(7, 4)},
        "dense": {"kernel": made(4, 6), "bias": made(6)},
        "norm": {"scale": 1 + made(6)},
        "head": {"kernel": made(6, 3), "bias": made(3)},
    }


def loss(params: dict, t: Any) -> Any:
    """Its mean squared error on batch `t`."""
    import jax.numpy as jnp

    tokens = (jnp.arange(8) * (t + 1)) % 7
    x = params["embedding"]["embedding"][tokens]
    x = jnp.tanh(x @ params["dense"]["kernel"] + params["dense"]["bias"])
    x = x * params["norm"]["scale"]
    x = x @ params["head"]["kernel"] + params["head"]["bias"]
    goal = jnp.sin(jnp.arange(3) + tokens[:, None].astype(jnp.float32))
    return jnp.mean((x - goal) ** 2)


def train(
    optimizer: Any,
    seen: Callable = lambda params: params,
    with_value: bool = False,
    params: Any = None,
) -> Any:
    """The parameters after 20 steps, the last updates and all losses.

    seen: makes of parameters what the optimizer takes for them.
    with_value: whether `update` takes the value of the loss, too.
    params: those of the model, in another tree of the same names.
    """
    import jax
    import jax.numpy as jnp
    import optax

    @jax.jit
    def step(params, state, t):
        value, grads = jax.value_and_grad(loss)(params, t)
        more = {"value": value} if with_value else {}
        updates, state = optimizer.update(grads, state, seen(params), **more)
        return optax.apply_updates(params, updates), state, updates, value

    params, updates, losses = params or small_model(), None, []
    state = optimizer.init(seen(params))
    for t in range(STEPS):
        params, state, updates, value = step(params, state, t)
        losses.append(value)
    return {"params": params, "updates": updates, "losses": jnp.stack(losses)}


def values(schedule: Callable) -> Any:
    """A schedule's values."""
    import jax.numpy as jnp

    return [jnp.asarray(schedule(jnp.asarray(t))) for t in TIMES]


def outcome(maker: Callable, run: Callable) -> dict[str, Any]:
    """What is learned, by path, or the error."""
    import jax
    import numpy as np

    try:
        leaves = jax.tree_util.tree_leaves_with_path(run(maker()))
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    found = {jax.tree_util.keystr(k): np.asarray(x, np.float64) for k, x in leaves}
    return {k: x.ravel().tolist() for k, x in found.items()}


def trained(project: Any) -> dict[str, dict]:
    """The outcome of each optimizer and each schedule."""
    run = getattr(project, "train", train)
    found = {k: outcome(f, run) for k, f in project.optimizers().items()}
    schedules = getattr(project, "schedules", dict)()
    return found | {k: outcome(f, values) for k, f in schedules.items()}


def main(what: str, name: str, file: str) -> None:
    project: Any = opened(name)
    if what == "train":
        Path(file).write_text(json.dumps(trained(project)))
        return
    import pytest

    # Their own settings, and not ours.
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={file}"]
    options += ["-c", os.devnull, "--rootdir", os.getcwd()]
    sys.exit(pytest.main([*options, *project.PROJECT.tests]))


if __name__ == "__main__":
    main(*sys.argv[1:])
