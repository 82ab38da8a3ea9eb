"""Run a command in several processes on this machine, and watch over them.

`launch` starts them, and each calls `join` to become part of one JAX program.  When one
dies, falls silent or stays behind, `launch` reports which, and ends the others, which
could only wait for it.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

from heartbeat import PIPE, PROCESS, Progress, reporter


ASKED = 128 + signal.SIGTERM  # the exit status after it
ADDRESS, PROCESSES, PATIENCE = "RUN_ADDRESS", "RUN_PROCESSES", "RUN_PATIENCE"


def launch(command, processes, patience=60.0):
    """Run `command` in that many processes; returns whether all succeeded.

    patience: seconds for which one of them may be silent, or at an earlier step.
    """
    address = f"127.0.0.1:{free_port()}"
    workers, (said, pipe) = [], os.pipe()
    pass_on = lambda *_: [worker.terminate() for worker in workers]
    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        for i in range(processes):
            told = {ADDRESS: address, PROCESSES: str(processes), PROCESS: str(i)}
            told |= {PIPE: str(pipe), PATIENCE: str(patience)}
            workers.append(start(command, os.environ | told, pipe))
        pids = ", ".join(f"{i} is {w.pid}" for i, w in enumerate(workers))
        print(f"processes at {address}: {pids}", flush=True)
        failed = watch(workers, Progress(said, patience))
    except KeyboardInterrupt:
        return False
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        # Killed, since they may hang; checkpoints are complete at any time.
        for worker in workers:
            worker.kill()
            worker.communicate()
        os.close(said)
        os.close(pipe)
    for i, cause in failed.items():  # after the output of the others
        print(f"process {i} {cause}", file=sys.stderr)
    return not failed


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start(command, environment, pipe):
    # Only the launcher gets an interrupt from the terminal, and ends the others.
    more = {"stdin": subprocess.PIPE, "start_new_session": True, "pass_fds": [pipe]}
    return subprocess.Popen(command, env=environment, **more)


def watch(workers, progress):
    """Wait for all, or until some fail or are late; returns the causes by index."""
    while True:
        codes = [worker.poll() for worker in workers]
        running = [i for i, code in enumerate(codes) if code is None]
        late = progress.late(running)  # first: those that wait for it may fail, too
        failed = {i: cause(code) for i, code in enumerate(codes) if code}
        if late or failed or not running:
            return late or failed
        time.sleep(0.01)


def cause(code):
    if code == ASKED:
        return "ended on request"
    if code > 0:
        return f"failed with exit status {code}"
    return f"was killed by {signal.Signals(-code).name}"


def is_launched():
    """Whether this process is one of those that `launch` started."""
    return PROCESS in os.environ


def join(devices):
    """Become one of the processes, with that many devices; call before using JAX.

    Returns a function to call with each step before it is taken; see `reporter`.
    """
    import jax  # here, so that the launcher need not wait for it
    from jax.experimental import multihost_utils

    sys.excepthook = end_at_once
    threading.Thread(target=end_with_launcher, daemon=True).start()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        os.environ[ADDRESS],
        num_processes=int(os.environ[PROCESSES]),
        process_id=int(os.environ[PROCESS]),
        coordinator_bind_address=os.environ[ADDRESS],
        # Later than `launch`, which can tell which process it is.
        heartbeat_timeout_seconds=10 + int(2 * float(os.environ[PATIENCE])),
    )
    multihost_utils.sync_global_devices("joined")  # Gloo connects here
    return reporter()


def agree(number, name):
    """The number, or `None`, which has to be the same in all processes."""
    import numpy
    from jax.experimental.multihost_utils import process_allgather

    mine = numpy.array(-1 if number is None else number)
    found = [None if x < 0 else x for x in process_allgather(mine).ravel().tolist()]
    for i, other in enumerate(found):
        if other != found[0]:
            raise ValueError(
                f"{name}: process 0 finds {found[0]}, and process {i} finds {other}; "
                "all processes need the same files"
            )
    return number


def end_at_once(*error):
    sys.__excepthook__(*error)
    os._exit(1)  # JAX would wait for the others, which may wait for this process


def end_with_launcher():
    sys.stdin.read()  # ends when the launcher does, however it ends
    os._exit(1)
