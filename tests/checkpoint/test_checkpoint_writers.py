"""Several writers in one directory, and saves in the background."""

import json
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest
from children import with_path
from runs import compare, equal

import stepax
from stepax import checkpoint
from stepax._checkpoint import disk, manifest, write
from stepax.checkpoint import latest_step, restore, save


TX = stepax.trace(0.9)


def params_of(step):
    return {"w": np.full((4, 3), step, np.float32), "b": jnp.full(3, step)}


def save_step(folder, step, **how):
    params = params_of(step)
    save(folder, step, params, TX.init(params), **how)


def is_as_saved(folder, step):
    found = restore(folder, TX, params_of(0), step=step)
    compare(equal, found.params, params_of(step))
    return found.step == step


def names(folder):
    return sorted(x.name for x in folder.iterdir())


def told(call):
    """What an error says; `None` if there is none."""
    try:
        call()
    except ValueError as error:
        return str(error)


def test_of_threads_that_save_one_step_one_does(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        calls = [lambda: save_step(tmp_path, 1)] * 4
        found = list(pool.map(told, calls))
    errors = [x for x in found if x is not None]
    assert len(errors) == 3
    assert all("has step 1, and `step` is 1: saved steps are" in x for x in errors)
    assert is_as_saved(tmp_path, 1) and names(tmp_path) == ["1"]


@pytest.mark.parametrize("keep", [None, 2])
def test_threads_take_turns(keep, tmp_path):
    """Each step that a call has returned for is whole, or was removed for `keep`."""
    steps = range(8)
    call = lambda i: told(lambda: save_step(tmp_path, i, keep=keep, wait=i % 2 == 0))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(call, steps))
    checkpoint.wait()
    done = [i for i in steps if found[i] is None]
    assert max(done) == latest_step(tmp_path)
    wanted = done if keep is None else done[-keep:]
    assert names(tmp_path) == sorted(map(str, wanted))
    assert all(is_as_saved(tmp_path, i) for i in wanted)


@pytest.mark.slow
def test_threads_save_to_directories_of_their_own_at_once(tmp_path):
    """And read there, while others save, in the background or not."""

    def work(i):
        for step in range(3):
            save_step(tmp_path / str(i), step, wait=(i + step) % 2 == 0, keep=2)
            assert is_as_saved(tmp_path / str(i), step)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    checkpoint.wait()
    assert all(names(tmp_path / str(i)) == ["1", "2"] for i in range(6))


# Children that are forked before JAX runs save at once, each some of the steps.
HAMMER = """
import json, os, sys
import orbax.checkpoint
from test_checkpoint_writers import save_step, told

folder, count = sys.argv[1], 3

def child(i):
    rows = []
    for step in range(i, 12, count):
        keep = 4 if sys.argv[2] == "keep" else None
        rows.append((step, told(lambda: save_step(folder, step, keep=keep))))
    with open(f"{folder}-{i}.json", "w") as file:
        json.dump(rows, file)
    os._exit(0)

children = []
for i in range(count):
    if (pid := os.fork()) == 0:
        child(i)
    children.append(pid)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
"""


def run_here(code, *args, **how):
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, env=with_path(), timeout=120, **how)


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["all", "keep"])
def test_a_step_that_save_returned_for_is_whole_whoever_else_writes(keep, tmp_path):
    folder = tmp_path / "run"
    run_here(HAMMER, folder, keep, check=True)
    rows = [
        row
        for i in range(3)
        for row in json.loads(Path(f"{folder}-{i}.json").read_text())
    ]
    done = sorted(step for step, error in rows if error is None)
    errors = [error for _, error in rows if error is not None]
    busy = "is being written to by (process|another process)|has step"
    assert all(re.search(busy, x) for x in errors)
    left = done if keep == "all" else done[-4:]
    assert names(folder) == sorted(map(str, left)) and done
    assert all(is_as_saved(folder, step) for step in left)


HOLDER = """
import sys, time
from stepax._checkpoint import disk, lock, steps
folder = disk.place(sys.argv[1])
turn = lock.Turn(folder)
turn.take()
turn.lock()
left = folder / steps.temporary(5, "new")
(left / "params").mkdir(parents=True)
print(left.name, flush=True)
time.sleep(600)
"""


@pytest.fixture
def other(tmp_path):
    """Another process that writes."""
    save_step(tmp_path, 1)
    started = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout is not None
        yield SimpleNamespace(
            pid=started.pid, left=started.stdout.readline().strip(), process=started
        )
    finally:
        started.kill()
        started.communicate()


def test_another_writer_is_named_and_its_files_left_alone(other, tmp_path):
    owner = rf"process {other.pid} on {socket.gethostname()} since 20\d\d-.*\+00:00:"
    with pytest.raises(ValueError, match=f"is being written to by {owner} two runs"):
        save_step(tmp_path, 2)
    assert (tmp_path / other.left / "params").is_dir()
    assert latest_step(tmp_path) == 1 and is_as_saved(tmp_path, 1)
    (tmp_path / "8.orbax-checkpoint-tmp").mkdir()  # that of another program
    other.process.kill()
    other.process.wait()
    save_step(tmp_path, 2)
    assert names(tmp_path) == ["1", "2", "8.orbax-checkpoint-tmp"]


@pytest.mark.slow
def test_a_writer_that_has_no_lock_is_left_alone_while_it_lives(other, tmp_path):
    """As where the file system knows none."""
    (tmp_path / ".stepax.lock").unlink()
    save_step(tmp_path, 2)
    assert (tmp_path / other.left / "params").is_dir()
    other.process.kill()
    other.process.wait()
    save_step(tmp_path, 3)
    assert names(tmp_path) == ["1", "2", "3"]


@pytest.fixture
def held(monkeypatch):
    """Saves that wait, before they are published, until they may go on."""
    found = SimpleNamespace(go=threading.Event(), reached=threading.Event())
    publish = write._publish

    def wait(*args):
        found.reached.set()
        assert found.go.wait(60)
        publish(*args)

    monkeypatch.setattr(write, "_publish", wait)
    yield found
    found.go.set()
    checkpoint.wait()


def test_a_save_in_the_background_returns_before_it_is_written(held, tmp_path):
    save_step(tmp_path, 1, wait=False)
    assert held.reached.wait(60)
    assert [x for x in names(tmp_path) if x[0] != "."] == []
    held.go.set()
    checkpoint.wait(tmp_path)
    assert is_as_saved(tmp_path, 1) and names(tmp_path) == ["1"]


NEXT: dict[str, Any] = {
    "wait": lambda folder: checkpoint.wait(folder),
    "wait for all": lambda folder: checkpoint.wait(),
    "latest_step": lambda folder: latest_step(folder),
    "restore": lambda folder: restore(folder, TX, params_of(0)),
    "save": lambda folder: save_step(folder, 2),
    "save in the background": lambda folder: save_step(folder, 2, wait=False),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NEXT)
def test_the_next_call_waits_for_a_save_in_the_background(name, held, tmp_path):
    save_step(tmp_path, 1, wait=False)
    assert held.reached.wait(60)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(NEXT[name], tmp_path)
        time.sleep(0.05)
        assert not call.done()
        held.go.set()
        call.result(60)
    checkpoint.wait()
    assert is_as_saved(tmp_path, 1)


def test_a_save_in_the_background_has_the_values_of_its_call(held, tmp_path):
    """Whatever is then written into them, or whoever they are given to."""
    params = {"n": np.arange(6.0), "j": jnp.arange(300.0), "u": np.array([2**40])}
    wanted = jax.tree.map(np.array, params)
    save(tmp_path, 1, params, (), wait=False)
    params["n"][:] = -1
    params["u"][:] = 0
    jax.jit(lambda x: x * 0 - 1, donate_argnums=0)(params["j"])
    held.go.set()
    found = restore(tmp_path, stepax.identity(), wanted).params
    compare(equal, found, wanted)


@pytest.fixture
def full(monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "_publish", fail)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [x for x in NEXT if x != "latest_step"])
def test_an_error_in_the_background_is_raised_once(name, full, monkeypatch, tmp_path):
    save_step(tmp_path, 1, wait=False)
    assert latest_step(tmp_path) is None  # which is no place for it
    monkeypatch.undo()
    with pytest.raises(ValueError, match="step 1 in .* was not saved: OSError.*space"):
        NEXT[name](tmp_path)
    save_step(tmp_path, 2)
    assert names(tmp_path) == ["2"]


def test_an_error_in_the_foreground_leaves_nothing_behind(full, monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="was not saved: OSError.*space") as error:
        save_step(tmp_path, 1)
    assert isinstance(error.value.__cause__, OSError)
    assert names(tmp_path) == []
    monkeypatch.undo()
    save_step(tmp_path, 1)
    assert is_as_saved(tmp_path, 1)


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_told_and_loses_nothing(tmp_path):
    save_step(tmp_path, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The system then refuses to let a file grow, as it does on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    try:
        noise = np.random.default_rng(0).random(2**16)  # which cannot be compressed
        with pytest.raises(
            ValueError, match="step 2 in `.*` was not saved: .*too large"
        ):
            save(tmp_path, 2, {"w": noise}, ())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path) == ["1"]
    save_step(tmp_path, 2)
    assert is_as_saved(tmp_path, 2)


@pytest.mark.parametrize("wait", [True, False])
def test_a_step_whose_elders_cannot_be_removed_is_told_to_be_saved(
    wait, tmp_path, monkeypatch
):
    save_step(tmp_path, 1)
    kind = type(disk.place(tmp_path))
    rename = kind.rename

    def refuse(self, target):
        if self.name == "1":
            raise PermissionError(13, "Permission denied", str(self))
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "rename", refuse)
        with pytest.raises(ValueError, match="step 2 in .* was saved, but .*denied"):
            save_step(tmp_path, 2, keep=1, wait=wait)
            checkpoint.wait()
    assert is_as_saved(tmp_path, 2) and is_as_saved(tmp_path, 1)
    save_step(tmp_path, 3, keep=1)
    assert names(tmp_path) == ["3"]


def test_the_first_process_hears_what_each_wrote(tmp_path, monkeypatch):
    new = disk.place(tmp_path)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    (tmp_path / write.SHARES).mkdir()
    for i, silent in enumerate(["0, 1", "1"]):
        with pytest.raises(write.Silence, match=f"that process {silent} wrote"):
            write._heard(new)
        monkeypatch.setattr(jax, "process_index", lambda i=i: i)
        part = SimpleNamespace(shares=lambda i=i: [i, 7], stored=dict)
        assert write._written(new, {"params": part}) == [[i, 7]]
    assert write._heard(new) == [[[0, 7]], [[1, 7]]]
    assert [*tmp_path.iterdir()] == []


def test_a_step_that_is_removed_while_it_is_read_is_not_called_damaged(
    tmp_path, monkeypatch
):
    save_step(tmp_path, 1)
    read = manifest.read

    def read_late(folder, step):
        monkeypatch.undo()
        save_step(tmp_path, 2, keep=1)
        return read(folder, step)

    monkeypatch.setattr(manifest, "read", read_late)
    with pytest.raises(ValueError, match="step 1 in .* was removed while it was read"):
        restore(tmp_path, TX, params_of(0), step=1)


def test_a_save_in_the_background_copies_each_array_once(held, tmp_path, monkeypatch):
    """What Orbax is given is the copy itself, which it does not copy again."""
    copies, given, deep = [], [], []
    copy, handler = write._copy, write._handler
    numpy = orbax.checkpoint.type_handlers.NumpyHandler

    def copied(x):
        copies.append(copy(x))
        return copies[-1]

    def watched_numpy(**how):
        deep.append(how["deepcopy_host_arrays"])
        return numpy(**how)

    def watched():
        found = handler()
        keep = found.save

        def save(path, args):
            given.extend(map(id, args.item.values()))
            keep(path, args=args)

        found.save = save
        return found

    monkeypatch.setattr(write, "_copy", copied)
    monkeypatch.setattr(write, "_handler", watched)
    monkeypatch.setattr(orbax.checkpoint.type_handlers, "NumpyHandler", watched_numpy)
    save_step(tmp_path, 1, wait=False)
    held.go.set()
    checkpoint.wait()
    assert sorted(given) == sorted(map(id, copies)) and len(copies) == 4
    assert deep and not any(deep)


def test_arrays_of_a_cpu_are_written_without_a_copy():
    x = jnp.arange(8.0)
    assert np.shares_memory(write._copy(x), np.asarray(x))
