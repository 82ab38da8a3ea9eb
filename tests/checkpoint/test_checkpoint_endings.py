"""Saves that end with the process, a signal, or beside readers."""

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_checkpoint_writers import (
    TX,
    is_as_saved,
    names,
    params_of,
    run_here,
    save_step,
    told,
)

from stepax._checkpoint import blocks, disk, store, write
from stepax.checkpoint import average, latest_step, restore


def test_a_handler_of_a_signal_is_told_that_it_interrupts_a_save(tmp_path, monkeypatch):
    found = []
    handler = lambda *_: found.append(told(lambda: save_step(tmp_path, 2)))
    before = signal.signal(signal.SIGUSR1, handler)
    publish = write._publish

    def interrupted(*args):
        signal.raise_signal(signal.SIGUSR1)
        publish(*args)

    monkeypatch.setattr(write, "_publish", interrupted)
    try:
        save_step(tmp_path, 1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(found) == 1 and "saved to by the current thread" in found[0]
    assert is_as_saved(tmp_path, 1)


END = """
import sys, numpy as np
from stepax import checkpoint
from stepax._checkpoint import write

folder, kind = sys.argv[1:]
params = {str(i): np.ones((200, 1000), np.float32) for i in range(20)}
if kind == "fails":
    def fail(*_):
        raise OSError(28, "No space left on device")
    write._publish = fail
checkpoint.save(folder, 1, params, (), wait=False)
if kind == "raises":
    raise SystemExit(3)
"""


# Mended in 3.12.2; until then `wait` is needed, see `save`.
ends_early = pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 2),
    reason="no thread may start once a process ends: python/cpython#113964",
)


@pytest.mark.slow
@ends_early
@pytest.mark.parametrize(("kind", "status"), [("ends", 0), ("raises", 3)])
def test_the_end_of_a_process_waits_for_what_is_saved(kind, status, tmp_path):
    ended = run_here(END, tmp_path, kind, capture_output=True, text=True)
    assert ended.returncode == status, ended.stderr
    assert latest_step(tmp_path) == 1 and names(tmp_path) == ["1"]


@pytest.mark.slow
@ends_early
def test_an_error_that_nobody_asked_for_is_told_at_the_end(tmp_path):
    ended = run_here(END, tmp_path, "fails", capture_output=True, text=True)
    assert "No space left on device" in ended.stderr
    assert "step 1 in" in ended.stderr and "was not saved" in ended.stderr
    assert names(tmp_path) == []


def test_what_save_returns_for_is_on_the_disk(tmp_path, monkeypatch):
    """Each file and each directory of the step, and then its name."""
    synced, order = set(), []

    def note(opened):
        at = os.fstat(opened)
        synced.add((at.st_dev, at.st_ino))
        order.append(os.readlink(f"/proc/self/fd/{opened}"))

    monkeypatch.setattr(disk.os, "fsync", note)
    save_step(tmp_path, 1)
    found = [tmp_path / "1", *(tmp_path / "1").rglob("*")]
    missing = [x for x in found if (x.stat().st_dev, x.stat().st_ino) not in synced]
    assert not missing
    assert order[-1] == str(tmp_path)
    assert all(".new" in x for x in order[:-1])


@pytest.mark.parametrize("kind", ["file", "folder", "name"])
def test_an_error_that_the_disk_tells_once_fails_the_save(kind, tmp_path, monkeypatch):
    """Linux tells of a write that failed at the next `fsync` of a file, only once."""
    sync, failed = os.fsync, []

    def fail_once(opened):
        path = Path(os.readlink(f"/proc/self/fd/{opened}"))
        of_kind = "name" if path == tmp_path else "folder" if path.is_dir() else "file"
        if of_kind == kind and not failed:
            failed.append(path)
            raise OSError(5, "Input/output error")
        sync(opened)

    monkeypatch.setattr(disk.os, "fsync", fail_once)
    with pytest.raises(ValueError, match="Input/output error"):
        save_step(tmp_path, 1)
    assert failed and latest_step(tmp_path) == (1 if kind == "name" else None)


@pytest.mark.slow
def test_a_reader_finds_the_newest_while_steps_come_and_go(tmp_path):
    """`latest_step` never says that there is none, nor warns."""
    save_step(tmp_path, 0)
    ended = threading.Event()

    def write_on():
        try:
            for step in range(1, 6):
                save_step(tmp_path, step, keep=1)
        finally:
            ended.set()

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write_on)
        found = [latest_step(tmp_path)]
        while not ended.is_set():
            found.append(latest_step(tmp_path))
        writer.result()
    steps = [x for x in found if x is not None]
    assert len(steps) == len(found) and steps == sorted(steps)


def pruned_while_read(folder, monkeypatch, times):
    """Each of the first reads finds that a later step was saved, with `keep=1`."""
    read, left = blocks.read, [times]

    def slow(*args):
        if left[0]:
            left[0] -= 1
            save_step(folder, (latest_step(folder) or 0) + 1, keep=1)
        return read(*args)

    monkeypatch.setattr(blocks, "read", slow)


READERS: dict[str, Any] = {
    "restore": lambda folder: restore(folder, TX, params_of(0)).step,
    "average": lambda folder: average([folder], params_of(0)) and latest_step(folder),
    "of a step": lambda folder: restore(folder, TX, params_of(0), step=0),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("times", [1, 3, store.ATTEMPTS])
@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_the_newest_that_is_left(name, times, tmp_path, monkeypatch):
    """A few times, and then it says so; a step that was asked for is not replaced."""
    save_step(tmp_path, 0)
    pruned_while_read(tmp_path, monkeypatch, times)
    if name == "of a step" or times == store.ATTEMPTS:
        with pytest.raises(ValueError, match="was removed while it was read.*a newer"):
            READERS[name](tmp_path)
    else:
        assert READERS[name](tmp_path) == times


@pytest.mark.slow
def test_a_process_ends_well_without_a_private_function_of_python(tmp_path):
    code = "import concurrent.futures.thread, threading\ndel threading._register_atexit"
    ended = run_here(f"{code}\n{END}", tmp_path, "ends", capture_output=True, text=True)
    assert names(tmp_path) == ["1"] or "step 1 in" in ended.stderr
    wait = f"{code}\n{END}\ncheckpoint.wait()"
    run_here(wait, tmp_path / "waits", "ends", check=True)
    assert names(tmp_path / "waits") == ["1"]


FORKED = """
import os, sys, threading
from stepax import checkpoint
from stepax._checkpoint import write
from test_checkpoint_writers import save_step, told

folder, publish = sys.argv[1], write._publish
go, reached = threading.Event(), threading.Event()

def wait(*args):
    reached.set()
    go.wait()
    publish(*args)

write._publish = wait
save_step(folder, 1, wait=False)
reached.wait()
if (pid := os.fork()) == 0:
    # Nothing is being saved here, and the lock is still the parent's.
    busy = told(lambda: write.begin(folder, lambda: (2, None), {}, True)) or ""
    os._exit(0 if f"process {os.getppid()} on" in busy else 1)
assert os.waitpid(pid, 0)[1] == 0
go.set()
checkpoint.wait()
"""


@pytest.mark.slow
def test_a_child_that_is_forked_has_nothing_to_save(tmp_path):
    run_here(FORKED, tmp_path, check=True)
    assert is_as_saved(tmp_path, 1) and names(tmp_path) == ["1"]
