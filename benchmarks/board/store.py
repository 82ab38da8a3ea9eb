"""The rows of the board: a JSON file for each task and optimizer, written atomically.

A file is replaced whenever more trials are done, so that an interrupted run goes on.
What a row depends on is kept in it; `stale` says what of that is no longer so.
"""

import ast
import json
import os
import platform
import sys
from collections.abc import Iterable
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from . import engine, rules, tasks
from .probes import is_near, probe


FOLDER = Path("docs/evidence/board")
PHASES = ("tuning", "seeds", "curve")
_VERSIONS = ("jax", "jaxlib", "numpy", "scikit-learn", "mnist1d")


class Rows:
    """The files under a folder."""

    def __init__(self, folder: Path = FOLDER):
        self.folder = Path(folder)

    def path(self, task: str, name: str) -> Path:
        return self.folder / task / f"{name}.json"

    def read(self, task: str, name: str) -> dict | None:
        path = self.path(task, name)
        return json.loads(path.read_text()) if path.exists() else None

    def write(self, row: dict) -> None:
        path = self.path(row["task"], row["optimizer"])
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            beside.write_text(_lines(row))
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


def _lines(row: dict) -> str:
    """One key on a line, so that differences between two runs can be read."""
    parts = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in row.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def is_complete(row: dict | None) -> bool:
    if row is None:
        return False
    best = best_of(row)
    if best is None:
        return False
    wanted = {phase: len(x) for phase, x in rules.phases(row["optimizer"], best)}
    return all(len(row[phase]) == n for phase, n in wanted.items())


def best_of(row: dict) -> dict[str, float] | None:
    """The draw of the lowest loss, once all are run."""
    if len(row["tuning"]) < len(row["draws"]) * len(row["tuning_seeds"]):
        return None
    best = row["draws"][int(np.argmin(tuned(row)))]
    return dict(zip(row["names"], best, strict=True))


def tuned(row: dict) -> np.ndarray:
    """The loss of each draw, the geometric mean over the seeds."""
    losses = np.reshape(row["tuning"], (-1, len(row["tuning_seeds"])))
    return np.exp(np.log(losses).mean(1))


def stale(row: dict, probes: dict[str, list[float]] | None = None) -> list[str]:
    """What a row was run with that is another thing now: "rules", "task", "optimizer".

    probes: of the optimizers as they are now; without them this is not compared.
    """
    name = row["optimizer"]
    if name not in rules.ENTRIES or row["task"] not in tasks.NAMES:
        return ["rules"]
    found = ["rules"] * (row["rules"] != rules.digest(name))
    found += ["task"] * (row["source"] != source(row["task"]))
    if probes is not None and not is_near(row["probe"], probes[name]):
        found += ["optimizer"]
    return found


def opened(name: str, task: tasks.Task, of: str, old: dict | None) -> dict:
    """The row to go on with: the old one if it is of the same run, or a new one."""
    new = fresh(name, task, of)
    if old is None or stale(old, {name: new["probe"]}):
        return new
    same = ("data",) if is_complete(old) else ("data", "versions")
    return old if all(old[k] == new[k] for k in same) else new


def fresh(name: str, task: tasks.Task, of: str) -> dict[str, Any]:
    """A row of a task, called `of`, before the first trial."""
    draws = rules.draws(name)
    return {
        "task": of,
        "optimizer": name,
        "command": f"python -m benchmarks.board --task {of} --optimizer {name}",
        "rules": rules.digest(name),
        "source": source(of),
        "data": hash_of(task.data),
        "probe": probe(name),
        "versions": versions(),
        "machine": machine(),
        "steps": task.steps,
        "worst": task.worst,
        "parameters": count(task),
        "state_bytes": engine.state_bytes(task, name),
        "names": list(draws[0]),
        "draws": [list(x.values()) for x in draws],
        "tuning_seeds": list(rules.TUNING_SEEDS),
        "fresh_seeds": list(rules.SEEDS),
        "curve_rates": rules.curve_rates(name),
        "curve_seeds": list(rules.CURVE_SEEDS),
        **{phase: [] for phase in PHASES},
        "processor_seconds": {},
    }


def count(task: tasks.Task) -> int:
    params = jax.eval_shape(task.init, jax.random.key(0))
    return sum(x.size for x in jax.tree.leaves(params))


def hash_of(arrays: Iterable[Any]) -> str:
    digest = sha256()
    for x in map(np.asarray, arrays):
        digest.update(f"{x.shape} {x.dtype}".encode() + x.tobytes())
    return digest.hexdigest()[:16]


def source(task: str) -> str:
    """A digest of the program of a task, without its docstrings and comments."""
    path = Path(tasks.__file__).with_name(f"{task}.py")
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            body.pop(0)
    return sha256(ast.dump(tree).encode()).hexdigest()[:16]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def versions() -> dict[str, str]:
    import stepax

    found = {"python": platform.python_version(), "stepax": stepax.__version__}
    return found | {name: metadata.version(name) for name in _VERSIONS}


def machine() -> dict[str, Any]:
    return {"processor": _processor(), "cores": os.cpu_count(), "system": sys.platform}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [x.partition(":")[2].strip() for x in lines if x.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
