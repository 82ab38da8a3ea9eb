"""Muon beside AdamW at equal tuning, as `docs/evidence/gpt.json` has it.

    python -m examples.gpt.compare

Both optimizers get the same rates on the same seed for shorter runs; the best rate of
each then trains for the steps of the example, with seeds that did not tune.  What is
done is kept in `.cache/gpt`, so that the command goes on where it was interrupted.
"""

import argparse
import json
import os
import platform
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import stepax

from . import show, training
from .text import load


RATES = [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2]
OPTIMIZERS = ["muon", "adamw"]
OUT = Path(__file__).parents[2] / "docs" / "evidence" / "gpt.json"


def tune(text, size, args):
    """The sweep over all rates: the score is the mean loss of the last tenth."""
    module = training.model(args.library)
    logits = training.create(args.library, size, jax.random.key(0))[1]
    characters = jnp.asarray(text.train)

    def loss(params, key):
        windows = training.draw(characters, key, args.batch, size.context)
        return training.loss(logits, params, windows)

    make_tx = lambda optimizer, learning_rate: training.optimizer(
        optimizer, learning_rate, args.tuning_steps, module.MATRICES
    )
    init = lambda key: training.create(args.library, size, key)[0]
    grid = {"optimizer": OPTIMIZERS, "learning_rate": RATES}
    path = args.cache / f"tune-{args.library}-{args.tuning_steps}.npz"
    more = {"seeds": [100], "path": path, "progress": True}
    return stepax.sweep(loss, init, make_tx, grid, args.tuning_steps, **more)


def final(text, size, optimizer, rate, seed, args):
    """The losses of one run: of training by step, and on held-out text."""
    plan = training.Plan(
        args.library, optimizer, rate, args.steps, args.batch, seed, size, text.digest
    )
    folder = args.cache / f"{args.library}-{args.steps}-{optimizer}-{seed}"
    *_, report = training.train(plan, text, folder)
    print(optimizer, "seed", seed, report.tested, flush=True)
    return report


def tuning(part):
    """The score of each rate; `None` if its run diverged."""
    scores = [round(float(x), 4) if np.isfinite(x) else None for x in part.scores]
    return dict(zip(map(str, RATES), scores, strict=True))


def mean(runs):
    """One report of all seeds."""
    tested = {n: np.mean([run.tested[n] for run in runs]) for n in runs[0].tested}
    losses = np.mean([run.losses for run in runs], 0)
    return training.Report(runs[0].step, losses, tested, None)


def row(runs):
    """Mean and standard deviation of the held-out loss over the seeds."""
    last = [list(run.tested.values())[-1] for run in runs]
    means = show.smooth(mean(runs).losses)[1]
    return {
        "held_out": [round(x, 4) for x in last],
        "mean": round(float(np.mean(last)), 4),
        "standard_deviation": round(float(np.std(last, ddof=1)), 4),
        f"training_loss_by_{training.CHUNK}_steps": [round(float(x), 3) for x in means],
    }


def machine():
    return f"{os.cpu_count()} cores, {platform.machine()}, JAX {jax.__version__}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--library", choices=training.LIBRARIES, default="nnx")
    parser.add_argument("--steps", type=int, default=training.STEPS)
    parser.add_argument("--tuning-steps", type=int, default=training.STEPS // 5)
    parser.add_argument("--batch", type=int, default=training.BATCH)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=Path(".cache/gpt"))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--png", type=Path, default=OUT.parents[1] / "gpt.png")
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    text = load()
    size = training.Size(len(text.alphabet))
    tuned = tune(text, size, args)
    print(tuned.table(), flush=True)
    parts = {name: tuned.select(optimizer=name) for name in OPTIMIZERS}
    best = {name: part.best["learning_rate"] for name, part in parts.items()}
    runs = {name: [] for name in OPTIMIZERS}
    for seed in range(args.seeds):
        for name in OPTIMIZERS:
            runs[name].append(final(text, size, name, best[name], seed, args))
    found = {
        name: {"learning_rate": best[name], "tuning": tuning(part)} | row(runs[name])
        for name, part in parts.items()
    }
    facts = {
        "command": " ".join(["python -m examples.gpt.compare", *sys.argv[1:]]),
        "machine": machine(),
        "python": platform.python_version(),
        "text": {"sha256": text.digest, "characters": len(text.train) + len(text.test)},
        "library": args.library,
        "model": size._asdict(),
        "batch": args.batch,
        "steps": args.steps,
        "tuning": {"steps": args.tuning_steps, "seeds": [100], "rates": RATES},
        "seeds": list(range(args.seeds)),
        "optimizers": found,
    }
    args.out.write_text(json.dumps(facts, indent=1) + "\n")
    title = f"Held-out text and training: means of {args.seeds} seeds"
    means = {name: mean(x) for name, x in runs.items()}
    show.draw(means, training.schedule(1.0, args.steps), title, args.png)


if __name__ == "__main__":
    main()
