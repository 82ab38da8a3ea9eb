"""Which of several processes is silent, or stays behind?

Each tells on a pipe, five times a second, that it is alive and at which step.
"""

import os
import threading
import time


PIPE, PROCESS = "RUN_PIPE", "RUN_PROCESS"


def reporter():
    """A function to call with each step before it is taken, which `launch` then knows.

    From now on a thread tells that this process is alive.
    """
    pipe, i, at = int(os.environ[PIPE]), os.environ[PROCESS], [0]

    def tell():
        os.write(pipe, f"{i} {at[0]}\n".encode())  # whole, since it is so short

    def keep_telling():
        while True:
            tell()
            time.sleep(0.2)

    def arrive(step):
        at[0] = step
        tell()

    threading.Thread(target=keep_telling, daemon=True).start()
    return arrive


class Progress:
    """When each process was heard last, its step, and since when it is at that.

    Those that never report are not watched.
    """

    def __init__(self, said, patience):
        self.said, self.patience = said, patience
        self.heard, self.since, self.steps = {}, {}, {}
        os.set_blocking(said, False)

    def late(self, running):
        """What is wrong, by index."""
        self.read()
        now, ahead = time.monotonic(), max(self.steps.values(), default=0)
        found = {}
        for i in self.steps.keys() & set(running):
            step, time_ = self.steps[i], f"for {self.patience:g} s"
            if now - self.heard[i] > self.patience:
                found[i] = f"has been silent {time_}, at step {step}"
            elif step < ahead and now - self.since[i] > self.patience:
                found[i] = f"is slow: at step {step} {time_}, others wait at {ahead}"
        return found

    def read(self):
        try:
            lines = os.read(self.said, 2**16).decode().split("\n")
        except BlockingIOError:
            return
        for i, step in (map(int, line.split()) for line in lines if line):
            self.heard[i] = time.monotonic()
            if step > self.steps.get(i, -1):  # the thread may tell an old one late
                self.steps[i], self.since[i] = step, self.heard[i]
