"""Run a command in several processes on this machine, and watch over them.

`launch` starts them, and each calls `join` to become part of one JAX program.  When one
dies, `launch` reports which, and ends the others, which could only wait for it.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time


ASKED = 128 + signal.SIGTERM  # the exit status after it
ADDRESS, PROCESSES, PROCESS = "RUN_ADDRESS", "RUN_PROCESSES", "RUN_PROCESS"


def launch(command, processes):
    """Run `command` in that many processes; returns whether all succeeded."""
    address = f"127.0.0.1:{free_port()}"
    workers = []
    pass_on = lambda *_: [worker.terminate() for worker in workers]
    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        for i in range(processes):
            told = {ADDRESS: address, PROCESSES: str(processes), PROCESS: str(i)}
            workers.append(start(command, os.environ | told))
        pids = ", ".join(f"{i} is {w.pid}" for i, w in enumerate(workers))
        print(f"processes at {address}: {pids}", flush=True)
        failed = watch(workers)
    except KeyboardInterrupt:
        return False
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        # Killed, since they may hang; checkpoints are complete at any time.
        for worker in workers:
            worker.kill()
            worker.communicate()
    for i, code in failed.items():  # after the output of the others
        print(f"process {i} {cause(code)}", file=sys.stderr)
    return not failed


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start(command, environment):
    # Only the launcher gets an interrupt from the terminal, and ends the others.
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, start_new_session=True
    )


def watch(workers):
    """Wait for all, or until some fail; returns the exit codes of those by index."""
    while True:
        codes = [worker.poll() for worker in workers]
        failed = {i: code for i, code in enumerate(codes) if code}
        if failed or None not in codes:
            return failed
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
    """Become one of the processes, with that many devices; call before using JAX."""
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
        heartbeat_timeout_seconds=10,  # until a hanging process is given up
    )
    multihost_utils.sync_global_devices("joined")  # Gloo connects here


def end_at_once(*error):
    sys.__excepthook__(*error)
    os._exit(1)  # JAX would wait for the others, which may wait for this process


def end_with_launcher():
    sys.stdin.read()  # ends when the launcher does, however it ends
    os._exit(1)
