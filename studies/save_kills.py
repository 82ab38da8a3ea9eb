"""Kill one of several processes at random moments of their saves.

    python -m studies.kills --processes 2 --kills 10 --saves
    python -m studies.kills --processes 4 --kills 10 --saves

The processes save one step after another, of arrays that are sharded over them.  In
each round one of them, chosen at random, is killed after a random part of the time that
a save takes, and the others have to end within a minute.  The newest step must then be
the last one that was reported, or a later one, and have the bits that were saved; the
next round goes on in the same directory.
"""

import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import stepax
from stepax.checkpoint import latest_step, restore


SHAPE = 64, 4096
LIMIT = 60  # seconds in which the others have to end

WORKER = f"""
import sys
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
address, count, here, folder = sys.argv[1:]
count, here = int(count), int(here)
jax.distributed.initialize(address, count, here, heartbeat_timeout_seconds=10)
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from stepax.checkpoint import latest_step, save
split = NamedSharding(jax.make_mesh((count,), ("data",)), P("data"))
step = latest_step(folder)
step = 0 if step is None else step + 1
while True:
    whole = np.random.default_rng(step).random({SHAPE}, np.float32)
    part = lambda index: whole[index]
    w = jax.make_array_from_callback(whole.shape, split, part)
    print("begin", step, flush=True)
    save(folder, step, {{"w": w}}, (), keep=2, wait=step % 2 == 0)
    print("done", step if step % 2 == 0 else step - 1, flush=True)
    step += 1
"""


def one_round(folder, processes):
    """Kill one process; the last step that was reported, and seconds to the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-c", WORKER, address, str(processes)]
    how: dict = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    all_of_them = [
        subprocess.Popen([*command, str(i), folder], **how) for i in range(processes)
    ]
    try:
        said, span = _follow(all_of_them[0].stdout)
        time.sleep(random.random() * span)
        random.choice(all_of_them).send_signal(signal.SIGKILL)
        begun = time.monotonic()
        for x in all_of_them[1:]:
            x.wait(max(0, begun + LIMIT - time.monotonic()))
        rest = all_of_them[0].communicate(timeout=LIMIT)[0].splitlines()
        return _last([*said, *rest]), time.monotonic() - begun
    finally:
        for x in all_of_them:
            x.kill()
            x.communicate()


def _follow(lines):
    """Read until four saves are done; the lines, and the seconds that two take."""
    said, begun = [], 0.0
    for line in lines:
        if line.startswith(("begin", "done")):
            said.append(line)
        if len(said) == 4:
            begun = time.monotonic()
        if len(said) == 8:
            return said, time.monotonic() - begun
    raise SystemExit("the processes ended before any was killed")


def _last(lines):
    return max(int(x.split()[1]) for x in lines if x.startswith("done"))


def count_lost(processes, kills):
    """The number of rounds that lost a step, or in which a process hung."""
    lost, longest = 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(kills):
            try:
                last, seconds = one_round(folder, processes)
            except subprocess.TimeoutExpired:
                print(f"{i + 1}: a process still ran {LIMIT} s after the kill")
                lost += 1
                continue
            reached = latest_step(folder)
            template = {"w": np.zeros(SHAPE, np.float32)}
            found = restore(folder, stepax.identity(), template).params["w"]
            wanted = np.random.default_rng(reached).random(SHAPE, np.float32)
            is_lost = reached is None or reached < last or (found != wanted).any()
            lost, longest = lost + bool(is_lost), max(longest, seconds)
            print(f"{i + 1}: reported {last}, newest {reached}, {seconds:.0f} s")
            left = [x.name for x in Path(folder).iterdir() if x.name[0] != "."]
            assert len(left) <= 3, left
    print(
        f"{processes} processes, {kills} kills: {lost} lost a step or hung; the others "
        f"ended {longest:.0f} s after a kill at most"
    )
    return lost
