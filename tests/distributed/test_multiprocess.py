"""Runs of several operating-system processes, one of which is killed."""

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import stepax
from stepax.checkpoint import latest_step, restore


ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
STEPS, EVERY = 60, 20


@pytest.fixture
def digits(monkeypatch):
    """The example as a module."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("distributed_digits")


class Run:
    """The example in processes of its own, of which none outlives the test."""

    def __init__(self, directory, *, processes=2, devices=1, steps=STEPS, **more):
        options = {"processes": processes, "devices": devices, "steps": steps}
        options |= {"every": EVERY, "directory": directory, **more}
        args = [f"--{name}={value}" for name, value in options.items()]
        mine = {k: v for k, v in os.environ.items() if k[:4] not in ("JAX_", "XLA_")}
        self.started = subprocess.Popen(
            [sys.executable, EXAMPLES / "distributed_digits.py", *args],
            env=mine | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.told = ""

    def __enter__(self):
        # Whatever hangs is killed after a time that no run needs.
        self.timer = threading.Timer(300, self.started.kill)
        self.timer.start()
        return self

    def __exit__(self, *_):
        self.timer.cancel()
        self.started.kill()  # its processes end with it
        self.started.communicate()

    def until(self, pattern):
        """Read on to the line that has the pattern, the groups of which are given."""
        assert self.started.stdout is not None
        for line in self.started.stdout:
            self.told += line
            if found := re.search(pattern, line):
                return found.groups()
        raise AssertionError(f"no {pattern!r} in:\n{self.told}")

    def end(self):
        """Read all; the exit status."""
        assert self.started.stdout is not None
        self.told += self.started.stdout.read()
        return self.started.wait()


def finish(directory, **options):
    """What a run tells that nobody disturbs."""
    with Run(directory, **options) as run:
        assert run.end() == 0, run.told
    return run.told


def read(pattern, told):
    found = re.search(pattern, told)
    assert found, told
    return found.groups()


def digest(told):
    return read("digest of the parameters: ([0-9a-f]{16})", told)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("undisturbed")
    return SimpleNamespace(directory=directory, told=finish(directory))


@pytest.mark.slow
def test_two_processes_train_with_few_exchanges_and_go_on(tmp_path):
    told = finish(tmp_path / "whole", outer=15)
    (accuracy,) = read(r"test accuracy ([\d.]+)%", told)
    assert float(accuracy) > 85  # chance is 10
    assert_divided(told, 2)
    finish(tmp_path / "parts", outer=15, steps=40)  # ten steps after an exchange
    assert digest(finish(tmp_path / "parts", outer=15)) == digest(told)


def assert_divided(told, devices):
    """Each device has its part of the state, within a hundredth."""
    part, total, n = map(
        int, read(r"state: (\d+) of (\d+) bytes on each of (\d)", told)
    )
    assert n == devices
    assert part == pytest.approx(total / devices, rel=0.01)


def saved(digits, directory):
    """The last checkpoint of a run, read by one process on one device."""
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    at = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    params = jax.device_put(digits.network(), at)
    return restore(directory, stepax.adamw(1e-3), params)


@pytest.mark.slow("the tests below, and test_consumers_resume.py")
def test_a_run_that_was_killed_ends_with_the_same_bits(undisturbed, digits, tmp_path):
    with Run(tmp_path) as run:
        (second,) = run.until(r"1 is (\d+)")
        run.until(f"saved step {EVERY}:")
        os.kill(int(second), signal.SIGKILL)
        assert run.end() == 1
    assert "process 1 was killed by SIGKILL" in run.told
    reached = latest_step(tmp_path)
    assert reached is not None and EVERY <= reached < STEPS
    assert f"step {reached} is safe: run the same command" in run.told
    for number in map(int, read(r"0 is (\d+), 1 is (\d+)", run.told)):
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)

    told = finish(tmp_path)
    assert f"resuming from step {reached}" in told
    assert digest(told) == digest(undisturbed.told)
    mine, other = saved(digits, tmp_path), saved(digits, undisturbed.directory)
    assert mine.step == other.step == STEPS
    assert jax.tree.structure(mine) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, mine, other)


@pytest.mark.slow
def test_sigterm_ends_all_after_a_checkpoint(tmp_path):
    with Run(tmp_path, steps=10**6) as run:
        (second,) = run.until(r"1 is (\d+)")
        run.until(f"saved step {EVERY}:")
        os.kill(int(second), signal.SIGTERM)
        assert run.end() == 1
    assert "ended on request" in run.told
    reached = latest_step(tmp_path)
    assert reached is not None and EVERY <= reached < 10**6
    told = re.findall(r"saved step (\d+):", run.told)
    assert int(told[-1]) == reached
    assert f"step {reached} is safe: run the same command again" in run.told
    assert f"resuming from step {reached}" in finish(tmp_path, steps=reached + 1)
    assert latest_step(tmp_path) == reached + 1


@pytest.mark.slow
def test_two_processes_give_the_bits_of_one_with_two_devices(undisturbed, tmp_path):
    told = finish(tmp_path, processes=1, devices=2)
    assert digest(told) == digest(undisturbed.told)
    for each in (told, undisturbed.told):
        assert_divided(each, 2)


@pytest.mark.slow
def test_four_processes_go_on_from_a_checkpoint_of_two(undisturbed, tmp_path):
    shutil.copytree(undisturbed.directory, tmp_path, dirs_exist_ok=True)
    told = finish(tmp_path, processes=4, steps=STEPS + 2)
    assert f"resuming from step {STEPS}" in told
    assert_divided(told, 4)
    assert latest_step(tmp_path) == STEPS + 2
    assert digest(told) != digest(undisturbed.told)


def test_no_process_outlives_its_launcher():
    code = "import launch, signal; signal.alarm(60); launch.end_with_launcher()"
    start = f"import launch, sys; launch.launch([sys.executable, '-c', {code!r}], 2)"
    launcher = subprocess.Popen(
        [sys.executable, "-c", start], cwd=EXAMPLES, stdout=subprocess.PIPE, text=True
    )
    with launcher:
        assert launcher.stdout is not None
        line = launcher.stdout.readline()
        launcher.kill()
        # The output ends when the last process that may write to it does.
        launcher.communicate(timeout=30)
    assert re.search(r"0 is \d+, 1 is \d+$", line)


ENDS = {
    "exit": ("sys.exit(3)", "process 1 failed with exit status 3\n"),
    "abort": ("os.abort()", "process 1 was killed by SIGABRT\n"),
}


@pytest.mark.parametrize(("code", "message"), ENDS.values(), ids=list(ENDS))
def test_a_process_that_fails_is_named_and_ends_the_others(
    code, message, digits, capfd
):
    mine = "os.environ['RUN_PROCESS'] == '1'"
    code = f"import os, sys, time\nif {mine}: {code}\ntime.sleep(30)\nprint('alive')"
    assert not digits.launch([sys.executable, "-c", code], 3)
    told = capfd.readouterr()
    assert told.err == message
    assert "alive" not in told.out


ASKED = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
if os.environ["RUN_PROCESS"] == "1":
    os.kill(os.getppid(), signal.SIGTERM)
time.sleep(30)
print("alive")
"""


def test_a_launcher_passes_sigterm_on(digits, capfd):
    before = signal.getsignal(signal.SIGTERM)
    assert not digits.launch([sys.executable, "-c", ASKED], 2)
    told = capfd.readouterr()
    assert "ended on request" in told.err or "SIGTERM" in told.err
    assert "alive" not in told.out
    assert signal.getsignal(signal.SIGTERM) == before


SILENT = """
import os, signal, time
from heartbeat import reporter
reporter()(7)
if os.environ["RUN_PROCESS"] == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(60)
print("alive")
"""


@pytest.mark.slow
def test_a_process_that_hangs_is_named_and_ends_the_others(digits, capfd, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))
    assert not digits.launch([sys.executable, "-c", SILENT], 3, patience=5)
    told = capfd.readouterr()
    assert told.err == "process 1 has been silent for 5 s, at step 7\n"
    assert "alive" not in told.out


@pytest.fixture
def clock(digits, monkeypatch):
    """A clock that stands until it is set, and what five processes tell."""
    heartbeat = importlib.import_module("heartbeat")
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: clock.now)
    said, pipe = os.pipe()
    clock.progress = heartbeat.Progress(said, patience=10)

    def tell(now, *steps):
        clock.now = now
        os.write(pipe, "".join(f"{i} {x}\n" for i, x in enumerate(steps)).encode())
        return clock.progress.late(range(5))

    clock.tell = tell
    yield clock
    os.close(said)
    os.close(pipe)


def test_a_process_that_stays_behind_is_named(clock):
    assert clock.tell(0, 1, 1, 1, 1, 1) == {}
    assert clock.tell(5, 2, 2, 1, 2, 2) == {}
    assert clock.tell(10, 2, 2, 1, 2, 2) == {}
    told = {2: "is slow: at step 1 for 10 s, others wait at 2"}
    assert clock.tell(11, 2, 2, 1, 2, 2) == told
    assert clock.tell(12, 2, 2, 2, 2, 2) == {}


def test_processes_that_all_take_long_are_waited_for(clock):
    assert clock.tell(0, 1, 1, 1, 1, 1) == {}
    assert clock.tell(1000, 1, 1, 1, 1, 1) == {}


def test_what_has_never_told_a_step_is_not_watched(clock):
    assert clock.tell(0, 5, 5) == {}
    assert clock.tell(9, 5, 5) == {}
    assert clock.progress.late(range(5)) == {}
    clock.now = 20
    told = "has been silent for 10 s, at step 5"
    assert clock.progress.late(range(5)) == {0: told, 1: told}
    assert clock.progress.late([1, 2]) == {1: told}  # the other has ended


@pytest.fixture
def in_two(digits, monkeypatch):
    """Whether code that two joined processes run ends well."""
    monkeypatch.delenv("XLA_FLAGS")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES), str(ROOT)]))
    start = "import launch; launch.join(1)\n"
    return lambda code: digits.launch([sys.executable, "-c", start + code], 2)


ERROR = """
import jax, time
1 // (1 - jax.process_index())
time.sleep(30)
print("alive")
"""


@pytest.mark.slow
def test_an_error_in_one_process_ends_all(in_two, capfd):
    assert not in_two(ERROR)
    told = capfd.readouterr()
    assert "ZeroDivisionError" in told.err
    assert told.err.splitlines()[-1] == "process 1 failed with exit status 1"
    assert "alive" not in told.out


OTHER_FILES = """
import jax, launch
launch.agree(7, "step in A")
launch.agree(None, "step in B")
launch.agree([20, None][jax.process_index()], "step in C")
"""


@pytest.mark.slow
def test_processes_that_find_other_checkpoints_say_which(in_two, capfd):
    assert not in_two(OTHER_FILES)
    told = "step in C: process 0 finds 20, and process 1 finds None; all processes need"
    assert told in capfd.readouterr().err


@pytest.mark.slow
def test_a_checkpoint_folder_that_is_lost_is_named(tmp_path):
    folder = tmp_path / "lost"
    with Run(folder, processes=1, steps=10**6) as run:
        run.until(f"saved step {EVERY}:")
        folder.rename(tmp_path / "elsewhere")
        assert run.end() == 1
    assert f"in {folder} is gone" in run.told
    assert "no step is saved: run the same command again" in run.told


FIRST_STATE = """
import jax, stepax
from jax.sharding import NamedSharding, PartitionSpec as P
from distributed_digits import network, put
from stepax.checkpoint import restore, save

at = NamedSharding(jax.make_mesh((2,), ("data",)), P())
params = jax.tree.map(lambda x: put(at, x), network())
key = jax.random.key(0)
tx = stepax.chain(stepax.add_noise(0.1, 0.5, key), stepax.adamw(1e-3))
state = tx.init(params)
save(DIRECTORY, 0, params, state)
for x in jax.tree.leaves((state, restore(DIRECTORY, tx, params).state)):
    assert x.sharding.device_set == set(jax.devices())
    assert len(x.addressable_shards) == 1, x.shape  # which broken arrays do not have
"""


@pytest.mark.slow
def test_a_state_made_outside_of_jit_is_that_of_all_processes(in_two, tmp_path):
    assert in_two(FIRST_STATE.replace("DIRECTORY", repr(str(tmp_path))))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--processes=7"], "a batch of 120 cannot be split over so many devices"),
        (["--every=0"], "every N must be 1 or more"),
        (["--patience=0"], "`--patience` must be a positive number of seconds"),
        (["--steps=many"], "argument --steps: invalid int value: 'many'"),
    ],
)
def test_wrong_arguments_are_one_line(args, message, digits, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["distributed_digits.py", *args])
    with pytest.raises(SystemExit) as stop:
        digits.main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_batch_follows_from_its_step(digits):
    data = np.arange(1437), -np.arange(1437)
    epoch = [digits.batch(data, step) for step in range(11)]
    again = digits.batch(data, 3)
    np.testing.assert_array_equal(again, epoch[3])
    images = np.concatenate([images for images, _ in epoch])
    assert len(set(images)) == len(images) == 11 * 120
    assert all((images == -labels).all() for images, labels in epoch)
    later = digits.batch(data, 14)
    assert not np.array_equal(later, epoch[3])
