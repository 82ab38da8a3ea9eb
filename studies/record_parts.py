"""Parts of modded-nanogpt's records, each added alone to Muon on the board's text task.

    python -m studies.record_parts            run what the evidence lacks
    python -m studies.record_parts --table    print the table

The base is Muon with the hyperparameters that the board found; each part has the
numbers of its record, and rates of its own from `FACTORS`, chosen with other seeds than
those that are compared.  It goes on where it was interrupted.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy import stats

import stepax
from benchmarks.board import rules, store, tasks
from benchmarks.board.engine import schedule
from stepax import contrib


ROOT = Path(__file__).parent.parent
FILE = ROOT / "docs" / "evidence" / "record_parts.json"
BOARD = ROOT / "docs" / "evidence" / "board"
FACTORS = (0.4, 0.63, 1.0, 1.6, 2.5)
TUNING, SEEDS = (1, 2), range(1000, 1024)
# Of the record's 2,900 steps: the time constant of its average, and its start.
TAU, START, BLEND = 150 / 2900, 2000 / 2900, 0.6

PARTS = {
    "base": "nothing else",
    "leaf": "floor of whole updates, 0.3825",
    "row": "floor of the updates of each output, 0.3825",
    "brake": "radial brake, 0.5",
    "power": "cooldown by a power, 1.2, in place of a cosine",
    "blend": "blend of 0.6 of the average of the tail",
    "soap": "SOAP in front of the orthogonalization, bases renewed every 10 steps",
}


def best() -> dict[str, float]:
    """The hyperparameters that the board found for Muon on this task."""
    found = store.best_of(store.Rows(BOARD).read("chars", "muon") or {})
    assert found is not None, "the board has no complete row of Muon"
    return found


def power(rate: Any, steps: int) -> Any:
    """The board's warm-up, then the record's cooldown over what remains."""
    rise = round(rules.WARM_UP * steps)
    up = stepax.linear_schedule(rate / rise, rate, rise - 1)
    down = stepax.polynomial_schedule(rate, 0.0, 1.2, steps - rise)
    return stepax.join_schedules([up, down], [rise])


def optimizer(part: str, rate: Any, point: dict[str, float], steps: int) -> Any:
    """Muon for matrices and AdamW for the rest, with one part."""
    beta, decay = 1 - point["one_minus_b1"], point["decay"]
    at = power(rate, steps) if part == "power" else schedule("cosine", rate, steps)
    muon = contrib.scale_by_muon(beta=beta)
    if part == "soap":
        # Its mean takes the place of Muon's.
        soap = contrib.scale_by_soap(beta, 0.9, precondition_frequency=10)
        muon = stepax.chain(soap, contrib.scale_by_muon(beta=0.0, nesterov=False))
    floor = {"leaf": None, "row": -1}
    matrices = stepax.chain(
        muon,
        stepax.stateless(lambda u, p: jax.tree.map(_consistent, u)),
        *([contrib.floor_updates(0.3825, floor[part])] if part in floor else []),
        stepax.add_decayed_weights(decay),
        stepax.scale_by_learning_rate(at),
        *([contrib.radial_brake()] if part == "brake" else []),
    )
    rest = stepax.adamw(at, b2=1 - point["one_minus_b2"], weight_decay=decay)
    kinds = {"matrix": matrices, "rest": rest}
    label = lambda p: "matrix" if p.ndim == 2 else "rest"
    tx = stepax.partition(kinds, lambda params: jax.tree.map(label, params))
    if part != "blend":
        return tx
    start = round(START * steps)
    return stepax.averages(tx, 1 - 1 / (TAU * steps), debias=False, start=start)


def _consistent(u: Any) -> Any:
    """Muon's factor for a root mean square of 0.2, as on the board."""
    return 0.2 * max(u.shape) ** 0.5 * u


def compiled(task: tasks.Task, part: str, point: dict[str, float]) -> Any:
    """The last validation loss, of a rate and a seed."""

    def run(rate, seed):
        tx = optimizer(part, rate, point, task.steps)
        first, key = jax.random.split(jax.random.key(seed))
        params = task.init(first)

        def step(carry, key):
            params, state = carry
            grads = jax.grad(task.loss)(params, key)
            updates, state = tx.update(grads, state, params)
            return (stepax.apply_updates(params, updates), state), None

        keys = jax.random.split(key, task.steps)
        (params, state), _ = jax.lax.scan(step, (params, tx.init(params)), keys)
        if part == "blend":
            params = stepax.eval_params(state, params, blend=BLEND)
        return task.validate(params)

    number = jax.ShapeDtypeStruct((), "float32")
    program = jax.jit(run).lower(number, jax.ShapeDtypeStruct((), "uint32")).compile()

    def loss(rate, seed):
        found = float(program(np.float32(rate), np.uint32(seed)))
        return float(f"{min(found, task.worst):.6g}")  # `worst` for NaN, too

    return loss


def measure(part: str, task: tasks.Task, found: dict) -> None:
    """Run what a part lacks, and write it after each trial."""
    point, row = best(), found.setdefault(part, {"tuning": [], "seeds": []})
    trials = [(f, s) for f in FACTORS for s in TUNING]
    if len(row["tuning"]) == len(trials) and len(row["seeds"]) == len(SEEDS):
        return
    loss = compiled(task, part, point)
    for factor, seed in trials[len(row["tuning"]) :]:
        row["tuning"].append(loss(factor * point["rate"], seed))
        _write(found)
    rate = factor_of(row) * point["rate"]
    for seed in SEEDS[len(row["seeds"]) :]:
        row["seeds"].append(loss(rate, seed))
        _write(found)


def factor_of(row: dict) -> float:
    """The factor of the board's rate with the lowest loss of the tuning."""
    losses = np.log(np.reshape(row["tuning"], (len(FACTORS), -1))).mean(1)
    return FACTORS[int(np.argmin(losses))]


def _write(found: dict) -> None:
    about = {"command": "python -m studies.record_parts", "factors": FACTORS}
    about |= {"tuning_seeds": TUNING, "seeds": list(SEEDS), "jax": jax.__version__}
    FILE.write_text(json.dumps(about | {"parts": found}, indent=1) + "\n")


def read() -> dict:
    return json.loads(FILE.read_text())["parts"] if FILE.exists() else {}


def table(found: dict) -> list[str]:
    """Losses of each part, and their differences to the base, seed by seed."""
    lines = ["| Muon with | rate | loss | change, 95 % |", "| --- | --- | --- | --- |"]
    for part, what in PARTS.items():
        row = found[part]
        mean = statistics.mean(row["seeds"])
        change = ""
        if part != "base":
            d = np.subtract(row["seeds"], found["base"]["seeds"])
            t = stats.t.ppf(0.975, len(d) - 1) * d.std(ddof=1) / len(d) ** 0.5
            change = f"{d.mean():+.4f} ± {t:.4f}"
        lines.append(f"| {what} | {factor_of(row)} | {mean:.4f} | {change} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="only print the table")
    args = parser.parse_args()
    found = read()
    if not args.table:
        task = tasks.make("chars")
        for part in PARTS:
            measure(part, task, found)
            jax.clear_caches()
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
