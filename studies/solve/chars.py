"""A model of characters with 0.2 million parameters, by Gauss-Newton and by AdamW.

The text and the layers are those of the task `chars` of the board, at more than three
times the width and with 32 sequences for each step.  AdamW has a cosine schedule and
the best of three learning rates over 200 steps; Gauss-Newton runs until its validation
loss is as low, or for 100 steps.  Seconds are those of the processor, without
compilation.
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import stepax
import stepax.contrib
from benchmarks.board.tasks import chars, cross_entropy

from .table import Table, goal, head, line


WIDTH, BATCH, STEPS, MOST, EVERY = 104, 32, 200, 100, 10
RATES = 1e-2, 3e-3, 1e-3
DAMPING, PRODUCTS = 1e-1, 10


def start(key: jax.Array, size: int) -> dict:
    """Parameters of the board's layers."""
    shapes = {"embedding": (size, WIDTH), "position": (chars.CONTEXT, WIDTH)}
    for n in range(chars.LAYERS):
        shapes |= {f"qkv{n}": (WIDTH, 3 * WIDTH), f"out{n}": (WIDTH, WIDTH)}
        shapes |= {f"up{n}": (WIDTH, 2 * WIDTH), f"down{n}": (2 * WIDTH, WIDTH)}
    shapes["head"] = WIDTH, size
    keys = jax.random.split(key, len(shapes))
    scales = {f"scale{n}": jnp.ones(WIDTH) for n in range(2 * chars.LAYERS + 1)}
    return scales | {
        name: jax.random.normal(key, shape) / shape[0] ** 0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def logits(params: dict, text: jax.Array) -> jax.Array:
    x = params["embedding"][text] + params["position"]
    for n in range(chars.LAYERS):
        h = chars.normal(x) * params[f"scale{2 * n}"]
        x = x + chars.attention(h @ params[f"qkv{n}"]) @ params[f"out{n}"]
        h = chars.normal(x) * params[f"scale{2 * n + 1}"]
        x = x + jax.nn.relu(h @ params[f"up{n}"]) @ params[f"down{n}"]
    return chars.normal(x) * params[f"scale{2 * chars.LAYERS}"] @ params["head"]


class Run(NamedTuple):
    """losses: validation losses after each `EVERY` steps; seconds: of a step."""

    losses: list[float]
    seconds: float

    @property
    def best(self) -> float:
        return min(self.losses)


def train(tx: Any, steps: int, enough: float = 0.0) -> Run:
    (text,) = chars.make().data
    size, part = int(text.max()) + 1, len(text) // 10
    window = jnp.arange(chars.CONTEXT + 1)
    held_out = text[
        jnp.linspace(0, part - chars.CONTEXT - 1, 256).astype(int)[:, None] + window
    ]
    params = start(jax.random.key(0), size)
    state = tx.init(params)

    @jax.jit
    def step(params, state, key):
        last = len(text) - chars.CONTEXT - 1
        batch = text[jax.random.randint(key, (BATCH, 1), part, last) + window]
        outputs = lambda params: logits(params, batch[:, :-1])
        loss = lambda out: cross_entropy(out, batch[:, 1:])
        grads = jax.grad(lambda params: loss(outputs(params)))(params)
        more = {"outputs_fn": outputs, "loss_fn": loss}
        updates, state = tx.update(grads, state, params, **more)
        return stepax.apply_updates(params, updates), state

    validate = jax.jit(
        lambda params: cross_entropy(logits(params, held_out[:, :-1]), held_out[:, 1:])
    )
    keys = jax.random.split(jax.random.key(1), steps)
    jax.block_until_ready(step(params, state, keys[0]))
    losses, seconds = [], 0.0
    for i in range(0, steps, EVERY):
        begin = time.process_time()
        for key in keys[i : i + EVERY]:
            params, state = jax.block_until_ready(step(params, state, key))
        seconds += time.process_time() - begin
        losses.append(float(validate(params)))
        if losses[-1] <= enough:
            break
    return Run(losses, seconds / (EVERY * len(losses)))


def adamw() -> tuple[str, Run]:
    """The best of the learning rates."""
    runs = {}
    for rate in RATES:
        schedule = stepax.cosine_decay_schedule(rate, STEPS)
        runs[f"AdamW, {rate}"] = train(stepax.adamw(schedule), STEPS)
        print(rate, runs[f"AdamW, {rate}"].best, flush=True)
    return min(runs.items(), key=lambda run: run[1].best)


def measure() -> dict[str, Table]:
    with jax.enable_x64(False):
        name, peer = adamw()
        tx = stepax.contrib.gauss_newton(DAMPING, steps=PRODUCTS)
        own = train(tx, MOST, peer.best)
    top = head("optimizer", "validation loss", "steps", "seconds of a step")
    rows = [
        line(k, f"{run.best:.3f}", EVERY * len(run.losses), f"{run.seconds:.3f}")
        for k, run in (("Gauss-Newton", own), (name, peer))
    ]
    steps = EVERY * len(own.losses)
    reached = f"{steps}" if own.best <= peer.best else f"not in {steps}"
    times = own.seconds / peer.seconds
    got = f"{reached}, AdamW {STEPS}; a step takes {times:.1f} times as long"
    what = "Gauss-Newton, 0.2 M characters: steps to AdamW's best loss"
    return {"chars": Table(top, rows, [goal(what, "reported", got)])}
