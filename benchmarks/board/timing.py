"""How long a step takes, beside AdamW's: for an idle machine, so by itself.

Runs of both take turns, so that what slows the machine slows both.
"""

import json
import statistics
import time
from pathlib import Path

from . import engine, rules, store, tasks


_ROUNDS = 7


def measure(of: str, names: list[str], folder: Path) -> None:
    """Measure these optimizers on a task, and add them to what its file holds."""
    path = folder / "time" / f"{of}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    about = {"machine": store.machine(), "versions": store.versions()}
    if any(found.get(k) != v for k, v in about.items()):
        found = about | {"optimizers": {}}  # of another machine: not comparable
    found["command"] = f"python -m benchmarks.board --time --task {of}"
    task = tasks.make(of)
    reference = _runner(task, rules.REFERENCE)
    for name in names:
        own = _runner(task, name)
        pairs = [(reference(), own()) for _ in range(_ROUNDS)]
        ratio = statistics.median(b / a for a, b in pairs)
        seconds = statistics.median(b for _, b in pairs)
        found["optimizers"][name] = {
            "seconds": float(f"{seconds:.3g}"),
            "ratio": round(ratio, 3),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{of:9} {name:20} {seconds:.2e} s, × {ratio:.2f}", flush=True)


def _runner(task, name):
    program = engine.compiled(task, name)
    point = rules.draws(name)[0]

    def run():
        start = time.perf_counter()
        program(point, 0)
        return (time.perf_counter() - start) / task.steps

    run()
    return run
