"""Train a small GPT on the help that ships with Python, by Muon and by AdamW.

It takes a few minutes on two cores.  Kill it whenever you like: `--resume` goes on from
the last checkpoint, and ends with the same bits.
"""

import argparse
import hashlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.markup import escape

from . import sampling, show, text as texts, training


# The best of `python -m examples.gpt.compare`, which trained both as often.
RATES = {"muon": 8e-3, "adamw": 4e-3}


def arguments(given=None):
    layout = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m examples.gpt", description=__doc__, formatter_class=layout
    )
    add = parser.add_argument
    number = {"type": whole, "metavar": "N"}
    add("--library", choices=training.LIBRARIES, default="nnx", help="of the model")
    add("--optimizer", choices=["both", *RATES], default="both", help="by which")
    add("--rate", type=float, metavar="X", help="peak of the learning rate")
    add("--steps", **number, default=training.STEPS, help="steps in total")
    add("--batch", **number, default=training.BATCH, help="windows in a batch")
    add("--context", **number, default=64, help="characters in a window")
    add("--width", **number, default=64, help="of the model, a multiple of 4")
    add("--layers", **number, default=6, help="of the model")
    add("--seed", type=int, default=0, metavar="N", help="of parameters and batches")
    add("--every", **number, default=200, help="steps per checkpoint")
    add("--devices", **number, help="virtual devices of the CPU")
    add("--folder", type=Path, default=Path("stepax-gpt"), help="for checkpoints")
    add("--resume", action="store_true", help="continue the run in the folder")
    add("--out", type=Path, default=Path("stepax-gpt.png"), help="the PNG to plot into")
    args = parser.parse_args(given)
    if args.width % 4:
        parser.error(f"--width is {args.width}, expected a multiple of 4, the heads")
    if args.rate is not None and not 0 < args.rate < float("inf"):
        parser.error(f"--rate is {args.rate}, expected a positive number")
    if args.devices:
        jax.config.update("jax_num_cpu_devices", args.devices)
    if args.batch % jax.device_count():
        parser.error(
            f"--batch is {args.batch}, expected a multiple of the "
            f"{jax.device_count()} devices"
        )
    return args


def whole(word):
    number = int(word)
    if number < 1:
        raise ValueError  # which argparse reports with the word
    return number


def put_aside(folder):
    """Give a folder that exists another name; the new name, or `None`."""
    if not folder.exists():
        return None
    names = (folder.with_name(f"{folder.name}-{i}") for i in range(1, 10**6))
    free = next(name for name in names if not name.exists())
    return folder.rename(free)


def plans(args, text):
    size = training.Size(len(text.alphabet), args.context, args.width, args.layers)
    names = RATES if args.optimizer == "both" else [args.optimizer]
    plan = lambda name: training.Plan(
        args.library,
        name,
        args.rate or RATES[name],
        args.steps,
        args.batch,
        args.seed,
        size,
        text.digest,
    )
    return {name: plan(name) for name in names}


def main(given=None):
    args, console = arguments(given), Console(highlight=False)
    text = texts.load()
    if not args.resume and (kept := put_aside(args.folder)):
        console.print(
            f"the run before is in {kept} now; `--resume` would go on with it"
        )
    reports = {}
    for name, plan in plans(args, text).items():
        console.print(
            f"{name} and {args.library}: {plan.steps} steps of {plan.batch} x "
            f"{plan.size.context} characters on {jax.device_count()} "
            f"{jax.default_backend()} device(s), rate {plan.learning_rate:g}"
        )
        with show.progress(plan, console) as tell:
            training_run = training.train(plan, text, args.folder / name, args.every)
            for report in training_run:
                tell(report)
        reports[name] = report
        console.print(f"digest of the parameters: {digest(report.params)}")
    finish(args, plan, text, reports, console)


def finish(args, plan, text, reports, console):
    """A sample of the first optimizer, the losses and the picture."""
    first = next(iter(reports))
    prompt = text.test[: plan.size.context]
    key = jax.random.key(plan.seed)
    logits = training.create(plan.library, plan.size, key)[1]
    here = jax.tree.map(jnp.asarray, jax.device_get(reports[first].params))
    found = sampling.write(logits, training.computed(here), prompt, 400, key)
    console.rule(f"what the model of {first} writes, after a line it has not seen")
    console.print(f"[dim]{escape(text.spell(prompt))}[/]{escape(text.spell(found))}")
    console.rule()
    losses = {name: list(x.tested.values())[-1] for name, x in reports.items()}
    told = ", ".join(f"{name} {x:.3f}" for name, x in losses.items())
    console.print(f"held-out loss, nats per character: {told}")
    title = f"A GPT of {plan.size.layers} layers in {plan.library}"
    schedule = training.schedule(1.0, plan.steps)
    show.draw(reports, schedule, title, args.out)
    console.print(f"losses and learning rate: {args.out}")


def digest(params):
    """Of all bits of the parameters."""
    leaves = map(np.asarray, jax.tree.leaves(params))
    return hashlib.sha256(b"".join(x.tobytes() for x in leaves)).hexdigest()[:16]


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; `--resume` goes on from the last checkpoint")
