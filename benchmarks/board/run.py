"""Make the trials of a row, and of all rows wanted, in a process for each core."""

import contextlib
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from queue import Empty
from typing import Any

import jax

from . import engine, rules, store, tasks


# Seconds of trials that an interruption may cost.
_SAVE_EVERY = 5.0
Report = Callable[[dict], None]
# Of a process that runs rows: where it reports to.
_queue: Any = None


def run_row(
    of: str, name: str, folder: Path, report: Report, task: tasks.Task | None = None
) -> dict:
    """Run what a row lacks; report it after each trial.

    task: in place of the one that is called `of`.
    """
    rows = store.Rows(folder)
    task = task or tasks.make(of)
    row = store.opened(name, task, of, rows.read(of, name))
    report(row)
    if store.is_complete(row):
        return row
    with _measured(row, "compilation"):
        program = engine.compiled(task, name)
    for phase in store.PHASES:
        trials = dict(rules.phases(name, store.best_of(row)))[phase]
        saved = time.monotonic()
        while len(row[phase]) < len(trials):
            with _measured(row, phase):
                losses = [_short(x) for x in program(*trials[len(row[phase])])]
            row[phase].append(losses if phase == "seeds" else losses[-1])
            if time.monotonic() - saved > _SAVE_EVERY:
                rows.write(row)
                saved = time.monotonic()
            report(row)
        rows.write(row)
    jax.clear_caches()
    return row


class _measured:
    """Adds the processor seconds of a block to those of a row."""

    def __init__(self, row: dict, what: str):
        self.of, self.what = row["processor_seconds"], what

    def __enter__(self):
        self.start = time.process_time()

    def __exit__(self, *error):
        spent = self.of.get(self.what, 0.0) + time.process_time() - self.start
        self.of[self.what] = round(spent, 3)


def _short(x: float) -> float:
    return float(f"{x:.6g}")


def run_rows(
    pairs: list[tuple[str, str]], folder: Path, jobs: int, report: Report
) -> None:
    """Run rows of (task, optimizer), and report each whenever it has got further.

    A single process runs them itself, so that whoever stops it stops all of it.
    """
    if jobs > 1:
        _in_processes(pairs, folder, jobs, report)
        return
    for of, name in pairs:
        run_row(of, name, folder, report)


def _in_processes(pairs, folder, jobs, report):
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    with _pool(jobs, spawn, queue) as pool:
        futures = [pool.submit(_work, *pair, folder) for pair in pairs]
        while not all(x.done() for x in futures) or not queue.empty():
            with contextlib.suppress(Empty):
                report(queue.get(timeout=0.5))
        for future in futures:
            future.result()


def _pool(jobs, spawn, queue):
    about = {"mp_context": spawn, "initializer": _start, "initargs": (queue,)}
    return ProcessPoolExecutor(jobs, **about)


def _start(queue):
    global _queue
    _queue = queue


def _work(of, name, folder):
    run_row(of, name, folder, _queue.put)
