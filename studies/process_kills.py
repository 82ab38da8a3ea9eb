"""Kill one of several processes at random moments, and restart with another number.

    python -m studies.kills --processes 8 --kills 10
    python -m studies.kills --elastic 2,8,4

The first trains `examples/distributed_digits.py` undisturbed, then again with a kill of
a random process at a random time, until there were as many kills as asked for.  Each
run that gets to its end must have the same bits, and no step that was reported as saved
may be missing.  The second restarts the same training with other numbers of processes.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stepax.checkpoint import latest_step


EXAMPLE = Path(__file__).parents[1] / "examples" / "distributed_digits.py"
STEPS, EVERY = 120, 10


def command(folder, processes, steps=STEPS):
    given = {"directory": folder, "processes": processes, "every": EVERY}
    options = [f"--{name}={value}" for name, value in given.items()]
    return [sys.executable, str(EXAMPLE), *options, f"--steps={steps}"]


def finish(folder, processes, steps=STEPS):
    """The output of a run that nobody disturbs."""
    done = subprocess.run(
        command(folder, processes, steps), capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def disturb(folder, processes, seconds):
    """Start a run, and kill one of its processes; the output, and whether it ended."""
    started = subprocess.Popen(
        command(folder, processes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with started:
        assert started.stdout is not None
        first = started.stdout.readline()
        numbers = [int(x) for x in re.findall(r"\d+ is (\d+)", first)]
        time.sleep(seconds)
        has_ended = started.poll() is not None
        if not has_ended:
            try:
                os.kill(random.choice(numbers), signal.SIGKILL)
            except ProcessLookupError:  # it ends right now
                has_ended = True
        told = started.stdout.read()
    return told, has_ended or started.returncode == 0


def digest(told):
    (found,) = re.findall("digest of the parameters: ([0-9a-f]{16})", told)
    return found


def count_lost(processes, kills):
    """Kill so often; the number of runs that lost a step or ended with other bits."""
    with tempfile.TemporaryDirectory() as top:
        wanted = digest(finish(Path(top) / "first", processes))  # compiles
        begin = time.monotonic()
        again = digest(finish(Path(top) / "second", processes))
        span = time.monotonic() - begin
        assert again == wanted, "two undisturbed runs differ"
        folder, lost, done, ended = Path(top) / "disturbed", 0, 0, 0
        while done < kills:
            told, has_ended = disturb(folder, processes, random.uniform(0, span))
            saved = max(map(int, re.findall(r"saved step (\d+):", told)), default=0)
            reached = latest_step(folder) or 0
            lost += reached < saved
            done += not has_ended
            cause = "".join(re.findall(r"^process \d+ .*", told, re.MULTILINE))
            print(f"{done} kills; step {reached}; {cause or 'ended'}", flush=True)
            if has_ended or done == kills:
                lost += digest(told if has_ended else finish(folder, processes)) != (
                    wanted
                )
                ended += 1
                shutil.rmtree(folder)
    print(
        f"{processes} processes, {done} kills, {ended} runs ended; {lost} lost a step "
        f"or had other bits; one undisturbed run takes {span:.0f} s"
    )
    return lost


def restart(counts):
    """Train on with each number of processes; how many did not go on."""
    lost = 0
    with tempfile.TemporaryDirectory() as folder:
        for i, processes in enumerate(counts):
            told = finish(folder, processes, STEPS + EVERY * i)
            state = re.findall("state: .*", told)[0]
            lost += (
                i > 0 and f"resuming from step {STEPS + EVERY * (i - 1)}" not in told
            )
            print(f"{processes} processes to step {latest_step(folder)}: {state}")
    print(f"{len(counts) - 1} restarts; {lost} did not go on")
    return lost
