"""Kill processes while they save: how many checkpoints are lost?

A process saves one step after another, keeps the newest two, and reports on a pipe when
a save begins and when it has returned.  It is killed after a random fraction of the
time that a save takes; a kill after the save has returned is not counted.  Another
process must then find, in the same directory, the last step for which `save` has
returned, or the one that was being saved, with identical bits, and go on from there.

    python -m studies.kills --kills 60

`--processes 8` kills one of several processes that train together instead, and
`--elastic 2,8,4` restarts them with other numbers; see `process_kills.py`.  With
`--saves` the processes only save, and are killed during saves; see `save_kills.py`.
The exit status is the number of lost checkpoints, which should be 0.
"""

import argparse
import os
import random
import select
import signal
import sys
import tempfile
import time

import numpy as np
import orbax.checkpoint  # noqa: F401  (before processes are forked)

import stepax
from stepax.checkpoint import latest_step, restore, save

from . import process_kills, save_kills


def params_of(step, size):
    numbers = np.random.default_rng(step)
    return {f"w{i}": numbers.random(size, np.float32) for i in range(8)}


def work(folder, size, say):
    """Check the existing checkpoint, and save until killed."""
    step = latest_step(folder)
    if step is None:
        say("found", -1, 1)
    else:
        found = restore(folder, stepax.identity(), params_of(0, size)).params
        wanted = params_of(step, size)
        say("found", step, int(all((found[k] == x).all() for k, x in wanted.items())))
    while True:
        step = 0 if step is None else step + 1
        params = params_of(step, size)
        say("begin", step)
        save(folder, step, params, (), keep=2)
        say("done", step)


class Worker:
    """A forked process that runs `work`, and the lines it reports."""

    def __init__(self, folder, size):
        self.said, tell = os.pipe()
        self.rest = b""
        self.pid = os.fork()
        if self.pid:
            os.close(tell)
            return
        say = lambda *words: os.write(tell, f"{' '.join(map(str, words))}\n".encode())
        try:
            work(folder, size, say)
        finally:
            os._exit(1)

    def line(self, timeout=120.0):
        """The words of the next line; empty after the timeout."""
        while b"\n" not in self.rest:
            is_there = select.select([self.said], [], [], timeout)[0]
            more = os.read(self.said, 4096) if is_there else b""
            if not more:
                return []
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return line.decode().split()

    def kill(self):
        """Kill the process; returns the lines that had not been read."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        lines = []
        while line := self.line(0):
            lines.append(line)
        os.close(self.said)
        return lines


def one(folder, size, last, part):
    """Run one process, and kill it within a save.

    last: the newest step for which `save` had returned.
    part: the fraction of a save after which to kill.

    Returns that step after the kill, whether the kill came during a save, and whether
    an earlier checkpoint was lost.
    """
    worker = Worker(folder, size)
    word, step, is_same = worker.line() or ["dead", "-1", "0"]
    is_lost = word != "found" or int(step) < last or is_same != "1"
    worker.line()
    times = []
    for _ in range(2):  # the first save of a process takes longer
        begun = time.monotonic()
        done = worker.line()
        times.append(time.monotonic() - begun)
        worker.line()
        last = int(done[1])
    time.sleep(part * times[-1])
    rest = [int(step) for word, step in worker.kill() if word == "done"]
    return max([last, *rest]), not rest, is_lost


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--kills", type=int, default=60, help="how many kills during saves"
    )
    parser.add_argument(
        "--size", type=int, default=250_000, help="elements in each of 8 arrays"
    )
    parser.add_argument("--seed", type=int, default=0, help="for the random times")
    parser.add_argument("--processes", type=int, help="of a run that is killed")
    parser.add_argument("--saves", action="store_true", help="kill during saves alone")
    parser.add_argument("--elastic", help="numbers of processes, as in 2,8,4")
    args = parser.parse_args()
    random.seed(args.seed)
    if args.elastic:
        return process_kills.restart([int(x) for x in args.elastic.split(",")])
    if args.processes and args.saves:
        return save_kills.count_lost(args.processes, args.kills)
    if args.processes:
        return process_kills.count_lost(args.processes, args.kills)
    inside = outside = lost = 0
    with tempfile.TemporaryDirectory() as folder:
        last = -1
        while inside < args.kills:
            part = random.random()
            last, is_inside, is_lost = one(folder, args.size, last, part)
            inside, outside = inside + is_inside, outside + (not is_inside)
            lost += is_lost
        lost += one(folder, args.size, last, 0)[2]
    print(f"{inside} kills during saves, {outside} after; {lost} checkpoints lost")
    return lost


if __name__ == "__main__":
    sys.exit(main())
