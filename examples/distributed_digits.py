"""Train on handwritten digits in several processes, and resume after one is killed.

The batch, the state and the step of AdamW are sharded over all devices (ZeRO-1).  Run
the same command again to resume, also with another number of processes.  SIGTERM to one
of them ends all of them after one more checkpoint.  With `--outer N` devices train
apart, and meet every N steps (DiLoCo); then the number of devices must stay the same.
"""

import argparse
import hashlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
from digits_task import BATCH, batch, load, logits, loss, network
from jax.experimental.multihost_utils import reached_preemption_sync_point
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from launch import ASKED, agree, is_launched, join, launch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

import stepax
from stepax.checkpoint import latest_step, restore, save
from stepax.contrib import diloco
from stepax.distributed import zero


def arguments():
    layout = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    number = {"type": int, "metavar": "N"}
    parser.add_argument("--processes", **number, default=2, help="processes to start")
    parser.add_argument("--devices", **number, default=1, help="devices per process")
    parser.add_argument("--steps", **number, default=300, help="steps in total")
    parser.add_argument("--every", **number, default=50, help="steps per checkpoint")
    parser.add_argument("--outer", **number, default=0, help="steps per exchange")
    seconds = {"type": float, "metavar": "S", "default": 60.0}
    told = "for which a process may be silent, or behind the others"
    parser.add_argument("--patience", **seconds, help=f"seconds {told}")
    parser.add_argument("--directory", default="stepax-digits", help="for checkpoints")
    args = parser.parse_args()
    if min(args.processes, args.devices, args.steps, args.every) < 1 or args.outer < 0:
        parser.error("every N must be 1 or more, and `--outer` 0 or more")
    if not args.patience > 0:
        parser.error("`--patience` must be a positive number of seconds")
    if BATCH % (args.processes * args.devices):
        parser.error(f"a batch of {BATCH} cannot be split over so many devices")
    return args


def put(sharding, x):
    """An array over all processes, each of which creates the shards of its devices."""
    return jax.make_array_from_callback(x.shape, sharding, lambda part: x[part])


def train(args, arrive, console):
    mesh = jax.make_mesh((jax.device_count(),), ("data",), (AxisType.Auto,))
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    if args.outer:  # each device has parameters of its own, behind a first axis
        far = stepax.sgd(0.7, momentum=0.9, nesterov=True)
        tx = diloco(stepax.adamw(1e-3), far, args.outer, axis_name="data")
        each = lambda x: put(split, np.stack([x] * mesh.size))
    else:
        tx = zero(stepax.adamw(1e-3), mesh, min_size=mesh.size)
        each = lambda x: put(whole, x)
    params = jax.tree.map(each, network())

    def take_step(params, state, images, labels):
        value, gradient = jax.value_and_grad(loss)(params, images, labels)
        updates, state = tx.update(gradient, state, params)
        return stepax.apply_updates(params, updates), state, value[None]

    if args.outer:
        kept = jax.eval_shape(lambda p: (p, tx.init(p)), params)
        own = jax.tree.map(lambda x: P("data") if x.ndim else P(), kept)
        specs = {
            "in_specs": (*own, P("data"), P("data")),
            "out_specs": (*own, P("data")),
        }
        take_step = jax.shard_map(take_step, mesh=mesh, **specs)
    take_step = jax.jit(take_step, donate_argnums=(0, 1))
    newest = lambda: agree(latest_step(args.directory), f"step in {args.directory}")
    saved = newest()
    if saved is None:
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
            arrive(step)
            rows = [put(split, x) for x in batch(data, step)]
            params, state, values = take_step(params, state, *rows)
            value = float(values.addressable_data(0)[0])
            bar.update(task, completed=step, description=f"loss {value:.4f}")
            is_asked = reached_preemption_sync_point(step)  # the same in all processes
            if step % args.every == 0 or step == args.steps or is_asked:
                if newest() != saved:
                    sys.exit(f"step {saved} in {args.directory} is gone")
                save(args.directory, step, params, state)
                saved = step
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
        arrive = join(args.devices)
        train(args, arrive, Console(quiet=jax.process_index() > 0))
    elif not launch([sys.executable, *sys.argv], args.processes, args.patience):
        saved = latest_step(args.directory)
        told = "no step is saved" if saved is None else f"step {saved} is safe"
        sys.exit(f"{told}: run the same command again to resume")


if __name__ == "__main__":
    main()
