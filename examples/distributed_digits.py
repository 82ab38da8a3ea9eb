"""Train on handwritten digits in several processes, and resume after one is killed.

The batch, the state and the step of AdamW are sharded over all devices (ZeRO-1).  Run
the same command again to resume, also with another number of processes.  SIGTERM to one
of them ends all of them after one more checkpoint.
"""

import argparse
import hashlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import reached_preemption_sync_point
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from launch import ASKED, is_launched, join, launch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

import stepax
from stepax.checkpoint import latest_step, restore, save
from stepax.distributed import zero


SIZES = 64, 512, 512, 10
BATCH = 120  # may be split over 2, 3, 4, 5, 6, 8, 10 or 12 devices


def arguments():
    layout = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    number = {"type": int, "metavar": "N"}
    parser.add_argument("--processes", **number, default=2, help="processes to start")
    parser.add_argument("--devices", **number, default=1, help="devices per process")
    parser.add_argument("--steps", **number, default=300, help="steps in total")
    parser.add_argument("--every", **number, default=50, help="steps per checkpoint")
    parser.add_argument("--directory", default="stepax-digits", help="for checkpoints")
    args = parser.parse_args()
    if min(args.processes, args.devices, args.steps, args.every) < 1:
        parser.error("every N must be 1 or more")
    if BATCH % (args.processes * args.devices):
        parser.error(f"a batch of {BATCH} cannot be split over so many devices")
    return args


def load():
    """Images (n, 64) and labels; every fifth is held out for testing."""
    from sklearn.datasets import load_digits  # which the launcher need not wait for

    pixels, labels = load_digits(return_X_y=True)
    images, labels = (pixels / 16).astype(np.float32), labels.astype(np.int32)
    test = np.arange(len(labels)) % 5 == 0
    return (images[~test], labels[~test]), (images[test], labels[test])


def batch(data, step):
    """The batch depends only on the step, so a restarted run sees the same one."""
    n = len(data[0])
    epoch, i = divmod(step, n // BATCH)
    rows = np.random.default_rng(epoch).permutation(n)[i * BATCH :][:BATCH]
    return [x[rows] for x in data]


def network():
    normal = np.random.default_rng(0).standard_normal
    weight = lambda m, n: normal((m, n), np.float32) * (2 / m) ** 0.5
    layer = lambda m, n: {"weight": weight(m, n), "bias": np.zeros(n, np.float32)}
    return list(map(layer, SIZES, SIZES[1:]))


def logits(params, x):
    *hidden, last = params
    for layer in hidden:
        x = jax.nn.relu(x @ layer["weight"] + layer["bias"])
    return x @ last["weight"] + last["bias"]


def loss(params, images, labels):
    found = stepax.losses.softmax_cross_entropy_with_integer_labels
    return jnp.mean(found(logits(params, images), labels))


def put(sharding, x):
    """An array over all processes, each of which creates the shards of its devices."""
    return jax.make_array_from_callback(x.shape, sharding, lambda part: x[part])


def train(args, console):
    mesh = jax.make_mesh((jax.device_count(),), ("data",), (AxisType.Auto,))
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    tx = zero(stepax.adamw(1e-3), mesh, min_size=mesh.size)

    @jax.jit(donate_argnums=(0, 1))
    def take_step(params, state, images, labels):
        value, gradient = jax.value_and_grad(loss)(params, images, labels)
        updates, state = tx.update(gradient, state, params)
        return stepax.apply_updates(params, updates), state, value

    params = jax.tree.map(lambda x: put(whole, x), network())
    if latest_step(args.directory) is None:
        first, state = 0, jax.jit(tx.init)(params)
    else:
        found = restore(args.directory, tx, params)
        first, params, state = found.step, found.params, found.state
        console.print(f"resuming from step {first} in {args.directory}")

    data, test = load()
    text = TextColumn("{task.completed}/{task.total} {task.description}")
    with Progress(BarColumn(), text, console=console) as bar:
        task = bar.add_task("", total=args.steps, completed=first)
        for step in range(first + 1, args.steps + 1):
            rows = [put(split, x) for x in batch(data, step)]
            params, state, value = take_step(params, state, *rows)
            bar.update(task, completed=step, description=f"loss {value:.4f}")
            is_asked = reached_preemption_sync_point(step)  # the same in all processes
            if step % args.every == 0 or step == args.steps or is_asked:
                save(args.directory, step, params, state)
                console.print(f"saved step {step}: loss {value:.4f}")
            if is_asked and step < args.steps:
                sys.exit(ASKED)
    report(params, state, test, console)


def report(params, state, test, console):
    """Print accuracy, memory and a digest, as the first local device has them."""
    here = jax.tree.map(lambda x: x.addressable_data(0), params)
    right = jnp.argmax(logits(here, test[0]), axis=1) == test[1]
    console.print(f"test accuracy {jnp.mean(right):.1%}")
    sizes = [(x.addressable_data(0).nbytes, x.nbytes) for x in jax.tree.leaves(state)]
    part, total = np.sum(sizes, axis=0)
    devices = jax.device_count()
    console.print(f"state: {part} of {total} bytes on each of {devices} devices")
    bits = b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(here))
    console.print(f"digest of the parameters: {hashlib.sha256(bits).hexdigest()[:16]}")


def main():
    args = arguments()
    if is_launched():
        join(args.devices)
        train(args, Console(quiet=jax.process_index() > 0))
    elif not launch([sys.executable, *sys.argv], args.processes):
        saved = latest_step(args.directory) or 0
        sys.exit(f"step {saved} is safe: run the same command again to resume")


if __name__ == "__main__":
    main()
