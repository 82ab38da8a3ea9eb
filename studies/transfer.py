"""How far the best learning rate moves with the width, with and without `mup`.

    python -m studies.transfer [--tasks digits,text] [--markdown docs/transfer.md]

A network of three layers on the digits, and a character transformer of one layer on the
text of Python's `help`, train at widths 32 to 512 with Adam at rates that are a factor
of the square root of 2 apart.  The best rate is the vertex of a parabola through the
lowest mean loss of the last steps and two neighbours on each side, in logarithms.
The rates are those of the base model, whose width is 32; the outputs are 0 at first, as
the paper recommends.  Results are kept in `--json`,
and a run goes on from it.
"""

import argparse
import functools as ft
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track

import stepax
from examples.demo.digits import load
from website.tables.parts import write_table


WIDTHS = 32, 64, 128, 256, 512
STEP = 2**0.5
# Rates at width 32, from the lowest, and how many; the steps and seeds of a run.
PLANS: dict[str, dict[str, Any]] = {
    "digits": {"lowest": 5e-3, "rates": 10, "steps": 80, "seeds": 6},
    "text": {"lowest": 4e-3, "rates": 9, "steps": 60, "seeds": 2},
}
CONTEXT, HEAD = 16, 16


def drawn(key: jax.Array, shapes: dict[str, tuple[int, int]]) -> dict:
    keys = jax.random.split(key, len(shapes))
    draw = lambda key, n, m: jax.random.normal(key, (n, m)) / n**0.5
    return {name: draw(k, *shapes[name]) for k, name in zip(keys, shapes, strict=True)}


def cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    found = jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1)
    return -jnp.mean(found)


def digits():
    """Functions from a width and a key to parameters, and from these to a loss."""
    images, labels = load()[0]
    x, y = jnp.asarray(images.reshape(len(images), -1)), jnp.asarray(labels)

    def init(width, key):
        hidden = drawn(key, {"a": (64, width), "b": (width, width)})
        return hidden | {"c": jnp.zeros((width, 10))}

    def loss(params, key):
        rows = jax.random.randint(key, (64,), 0, len(x))
        h = jax.nn.relu(2**0.5 * x[rows] @ params["a"])
        h = jax.nn.relu(2**0.5 * h @ params["b"])
        return cross_entropy(h @ params["c"], y[rows])

    return init, loss


def text():
    """The same for a transformer; heads get more with the width, not wider."""
    from pydoc_data import topics

    whole = "".join(topics.topics[name] for name in sorted(topics.topics))
    data = jnp.asarray(np.frombuffer(whole.encode("ascii", "replace"), np.uint8))

    def init(width, key):
        shapes = {"embedding": (128, width), "position": (CONTEXT, width)}
        shapes |= {"qkv": (width, 3 * width), "out": (width, width)}
        shapes |= {"up": (width, 2 * width), "down": (2 * width, width)}
        params = drawn(key, shapes) | {"head": jnp.zeros((width, 128))}
        for name in ("embedding", "position"):  # rows of standard deviation 1
            params[name] = params[name] * params[name].shape[0] ** 0.5
        return params

    def attention(qkv):
        split = lambda x: x.reshape(*x.shape[:-1], -1, HEAD)
        q, k, v = map(split, jnp.split(qkv, 3, -1))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return mixed.reshape(*mixed.shape[:-2], -1)

    def normal(x):
        return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)

    def loss(params, key):
        at = jax.random.randint(key, (8, 1), 0, len(data) - CONTEXT - 1)
        rows = data[at + jnp.arange(CONTEXT + 1)].astype(jnp.int32)
        x = params["embedding"][rows[:, :-1]] + params["position"]
        x = x + attention(normal(x) @ params["qkv"]) @ params["out"]
        x = x + jax.nn.gelu(normal(x) @ params["up"]) @ params["down"]
        return cross_entropy(normal(x) @ params["head"], rows[:, 1:])

    return init, loss


TASKS = {"digits": digits, "text": text}


def scores(task: str, width: int, is_mup: bool) -> list[list[float]]:
    """The mean loss of the last third of the steps, for each rate."""
    plan, (init, loss) = PLANS[task], TASKS[task]()
    make = ft.partial(init, width)
    base = jax.eval_shape(ft.partial(init, WIDTHS[0]), jax.random.key(0))
    factors = stepax.transfer.mup(jax.eval_shape(make, jax.random.key(0)), base)
    # Without `mup` rates fall with the width, so lower ones are needed.
    lower = 1 if is_mup else width // WIDTHS[0]
    low = plan["lowest"] / lower
    more = 0 if is_mup else round(2 * np.log2(lower))
    rates = [low * STEP**i for i in range(plan["rates"] + more)]

    def first(key):
        return factors.scaled(make(key)) if is_mup else make(key)

    def adam(rate):
        tx = stepax.adam(rate)
        return stepax.chain(tx, stepax.scale_by_path(factors.rates)) if is_mup else tx

    steps = plan["steps"]
    found = stepax.sweep(
        loss, first, adam, {"rate": rates}, steps, seeds=plan["seeds"], last=steps // 3
    )
    return [rates, [float(x) for x in found.scores]]


def best(rates: list[float], losses: list[float]) -> tuple[float, float]:
    """The vertex of a parabola in logarithms, and the lowest loss."""
    x, y = np.log(rates), np.log(losses)
    i = int(np.argmin(y))
    near = slice(max(i - 2, 0), i + 3)  # five points, since a minimum is flat
    known = np.isfinite(y[near])
    if i in (0, len(y) - 1) or known.sum() < 3:
        return float(rates[i]), float(losses[i])
    a, b, _ = np.polyfit(x[near][known] - x[i], y[near][known], 2)
    at = np.clip(x[i] - b / (2 * a), x[i - 1], x[i + 1])
    return float(np.exp(at)), float(losses[i])


def table(found: dict) -> list[str]:
    header = ["task", "", *map(str, WIDTHS), "moves by"]
    lines = [f"| {' | '.join(header)} |", "|" + " --- |" * len(header)]
    for task in found:
        for kind in found[task]:
            of = {w: best(*x) for w, x in found[task][kind].items()}
            rates = [x for x, _ in of.values()]
            cells = [f"{x:.2g} ({y:.2f})" for x, y in of.values()]
            moved = max(rates) / min(rates)
            lines.append(f"| {task} | {kind} | {' | '.join(cells)} | {moved:.2f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--json", type=Path, default=Path(".cache/transfer.json"))
    parser.add_argument("--markdown", type=Path, help="write the table between marks")
    args = parser.parse_args()
    found = json.loads(args.json.read_text()) if args.json.exists() else {}
    runs = [(t, k, w) for t in args.tasks.split(",") for w in WIDTHS for k in (1, 0)]
    for task, is_mup, width in track(runs, "training"):
        kind = found.setdefault(task, {}).setdefault("mup" if is_mup else "usual", {})
        if str(width) not in kind:
            kind[str(width)] = scores(task, width, bool(is_mup))
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(found))
    lines = table(found)
    print("\n".join(lines))
    if args.markdown:
        write_table(args.markdown, lines)


if __name__ == "__main__":
    main()
