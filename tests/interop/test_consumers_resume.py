"""A run that is killed goes on from its last checkpoint as if nothing had been.

This file is also the program that trains: `python test_consumers_resume.py FOLDER`.
"""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import stepax


STEPS, EVERY, KILLED_AT = 40, 5, 23

# Two gradients to a step, a rate from a schedule, noise from a key, and a guard.
tx = stepax.chain(
    stepax.clip_by_global_norm(1.0),
    stepax.add_noise(1e-3, 0.55, key=0),
    stepax.apply_if_finite(
        stepax.MultiSteps(
            stepax.inject_hyperparams(stepax.adamw)(
                stepax.cosine_decay_schedule(0.1, 100)
            ),
            2,
        ).gradient_transformation(),
        5,
    ),
)


def start():
    params = {"w": jnp.linspace(-1.0, 1.0, 6).reshape(3, 2), "b": jnp.zeros(2)}
    return {"params": params, "state": tx.init(params)}


@jax.jit
def step(run, t):
    """A step on data of its own."""
    x = jax.random.normal(jax.random.fold_in(jax.random.key(1), t), (8, 3))
    y = jnp.sin(x[:, :2])

    def loss(params):
        return jnp.mean(jnp.square(jnp.tanh(x @ params["w"] + params["b"][None]) - y))

    grads = jax.grad(loss)(run["params"])
    updates, state = tx.update(grads, run["state"], run["params"])
    return {"params": stepax.apply_updates(run["params"], updates), "state": state}


def arrays(run):
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    leaves = jax.tree.leaves(run)
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in leaves]


def train(folder):
    """Train from the last checkpoint; the first process stops in the middle."""
    with ocp.CheckpointManager(folder / "checkpoints") as manager:
        run, first = start(), manager.latest_step()
        if first is not None:
            run = manager.restore(first, args=ocp.args.StandardRestore(run))
        for t in range(first or 0, STEPS):
            if first is None and t == KILLED_AT:
                print("killed here", flush=True)
                sys.stdin.read()
            run = step(run, t)
            if (t + 1) % EVERY == 0:
                manager.save(t + 1, args=ocp.args.StandardSave(run))
                manager.wait_until_finished()
    np.savez(folder / "resumed", *arrays(run))
    print("resumed at", first)


def train_at_once(folder):
    run = start()
    for t in range(STEPS):
        run = step(run, t)
    np.savez(folder / "at_once", *arrays(run))


@pytest.mark.slow("test_the_end_of_a_process_waits_for_what_is_saved")
def test_a_killed_run_resumes_to_the_last_bit(tmp_path):
    command = [sys.executable, __file__, str(tmp_path)]
    root = str(Path(stepax.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": root, "XLA_FLAGS": ""}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, env=environment, text=True
    ) as process:
        assert process.stdout and process.stdout.readline() == "killed here\n"
        process.kill()
    assert process.returncode == -9 and not (tmp_path / "resumed.npz").exists()
    said = subprocess.check_output(command, env=environment, text=True)
    assert said == f"resumed at {KILLED_AT // EVERY * EVERY}\n"
    found, wanted = (np.load(tmp_path / f"{x}.npz") for x in ("resumed", "at_once"))
    assert len(found.files) == len(wanted.files) > 10
    for name in wanted.files:
        np.testing.assert_array_equal(found[name], wanted[name], strict=True)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    if not (where / "at_once.npz").exists():
        train_at_once(where)
    train(where)
