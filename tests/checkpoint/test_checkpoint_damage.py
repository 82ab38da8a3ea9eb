"""What is saved outlives kills, and what is damaged is named."""

import gc
import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from children import with_path
from runs import compare, equal

import stepax
from stepax.checkpoint import latest_step, restore, save


TX = stepax.adam(0.1)

# When one array cannot be read, Orbax lets go of those it still waits for, noisily.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(autouse=True)
def quiet():
    yield
    gc.collect()


def params_of(step):
    # Numbers that do not compress, so that a flipped bit is one of a number.
    random = np.random.RandomState(step)
    return {k: jnp.asarray(random.randn(40, 30), "float32") for k in "ab"}


def save_steps(folder, *steps, **how):
    for step in steps:
        params = params_of(step)
        save(folder, step, params, TX.init(params), **how)


def files(folder, step=2):
    found = (x for x in (folder / str(step)).rglob("*") if x.is_file())
    return sorted(x for x in found if x.stat().st_size)


def flip(file, at):
    bits = bytearray(file.read_bytes())
    bits[int(at * len(bits))] ^= 4
    file.write_bytes(bits)


def is_as_saved(folder, step):
    found = restore(folder, TX, params_of(0), step=step)
    compare(equal, found.params, params_of(step))
    compare(equal, found.state, TX.init(params_of(step)))
    assert found.step == step
    return True


@pytest.mark.slow
def test_a_flipped_bit_changes_nothing_or_is_an_error(tmp_path):
    """In each file, at three places; most that go unnoticed are in files of remarks."""
    save_steps(tmp_path, 1, 2)
    noticed = {}
    for file in files(tmp_path):
        before = file.read_bytes()
        for at in 0.2, 0.5, 0.9:
            flip(file, at)
            try:
                assert is_as_saved(tmp_path, 2)
            except ValueError as error:
                text = str(error)
                assert f"step 2 in `{tmp_path}` is damaged" in text
                assert "`step=1` restores the previous one" in text
                noticed.setdefault(file.parent.name, []).append(text)
            file.write_bytes(before)
    assert any("does not have the values that were saved" in x for x in noticed["d"])
    assert len(noticed["manifest"]) == 3
    assert is_as_saved(tmp_path, 1) and is_as_saved(tmp_path, 2)


def weighted():
    tx = stepax.MultiSteps(TX, 3).gradient_transformation()
    p = params_of(1)
    return tx, tx.update(p, tx.init(p), p, weight=jnp.float32(2.0))[1]


def exchanged():
    tx, p = stepax.averages(TX), params_of(1)
    return tx, stepax.swap_averages(tx.init(p), p)[0]


@pytest.mark.slow("test_a_flipped_bit_changes_nothing_or_is_an_error")
@pytest.mark.parametrize("make", [weighted, exchanged])
def test_so_it_is_for_states_whose_class_changed_and_with_a_recipe(make, tmp_path):
    """In each file, in each of twenty regions."""
    tx, state = make()
    save(tmp_path, 2, params_of(2), state, tx=tx)
    noticed = set()
    for file in files(tmp_path):
        before = file.read_bytes()
        for i in range(20):
            flip(file, i / 20)
            try:
                found = restore(tmp_path, tx, params_of(0), step=2)
                compare(equal, found, (params_of(2), state, 2))
            except ValueError as error:
                assert f"step 2 in `{tmp_path}` is damaged" in str(error)
                noticed.add(file)
            file.write_bytes(before)
    assert noticed == {*files(tmp_path)}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["removed", "cut", "empty"])
def test_a_file_that_is_not_whole_is_an_error(kind, tmp_path):
    save_steps(tmp_path, 1, 2)
    largest = max(files(tmp_path), key=lambda x: x.stat().st_size)
    manifest = tmp_path / "2" / "manifest" / "metadata"
    for file in largest, manifest:
        before = file.read_bytes()
        if kind == "removed":
            file.unlink()
        else:
            file.write_bytes(before[: len(before) // 2 if kind == "cut" else 0])
        with pytest.raises(ValueError, match="step 2 in .* is damaged.*`step=1`"):
            restore(tmp_path, TX, params_of(0))
        assert is_as_saved(tmp_path, 1)
        file.write_bytes(before)
    assert is_as_saved(tmp_path, 2)


def rewrite(folder, **changes):
    file = folder / "2" / "manifest" / "metadata"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_later_schema_is_refused(tmp_path):
    save_steps(tmp_path, 2)
    rewrite(tmp_path)
    assert is_as_saved(tmp_path, 2)
    rewrite(tmp_path, schema=3, new={"anything": 1})
    with pytest.raises(ValueError, match="step 2 in .* the schema 3.* reads at most 2"):
        restore(tmp_path, TX, params_of(0))


def test_steps_are_counted_and_the_newest_kept(tmp_path):
    assert latest_step(tmp_path / "not there") is None
    with pytest.raises(ValueError, match="there is no checkpoint in"):
        restore(tmp_path, TX, params_of(0))
    save_steps(tmp_path, 1, 2, 10, keep=2)
    (tmp_path / "11").write_text("no checkpoint")
    (tmp_path / "notes_12").mkdir()
    assert latest_step(tmp_path) == 10
    assert is_as_saved(tmp_path, 2) and is_as_saved(tmp_path, 10)
    with pytest.raises(ValueError, match="there is no step 1 in .*, but 2, 10"):
        restore(tmp_path, TX, params_of(0), step=1)
    for step in 10, 4:
        with pytest.raises(ValueError, match=f"has step 10, and `step` is {step}"):
            save_steps(tmp_path, step)
    assert is_as_saved(tmp_path, 10)


# Saves step 1, then step 2 in processes that kill themselves at one of Python's calls
# of the system, such as one that opens, renames or removes a file.
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
import orbax.checkpoint
from test_checkpoint_damage import files, save_steps

folder, count = Path(sys.argv[1]), int(sys.argv[2])
calls = {"open", "os.mkdir", "os.rename", "os.rmdir", "os.remove", "shutil.rmtree"}

def killed_at(moment, place):
    seen = 0
    def watch(event, args):
        nonlocal seen
        if event in calls and str(place) in str(args[0]):
            seen += 1
            if seen == moment:
                os.kill(os.getpid(), signal.SIGKILL)
    save_steps(place, 1)
    sys.addaudithook(watch)
    save_steps(place, 2, keep=1)
    place.with_suffix(".done").write_text(str(seen))

def run(moment, place):
    child = os.fork()
    if child == 0:
        killed_at(moment, place)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

assert run(0, folder / "whole") == 0
most = int((folder / "whole.done").read_text())
for i in range(count):
    moment = 1 + i * (most - 1) // (count - 1)
    # Threads of Orbax do not always make the same number of calls: a run may end first.
    while run(moment, folder / str(i)) != -signal.SIGKILL:
        shutil.rmtree(folder / str(i))
        (folder / f"{i}.done").unlink()
        moment -= 1
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    count = 12
    command = [sys.executable, "-c", KILLED, tmp_path, str(count)]
    subprocess.run(command, check=True, env=with_path(), timeout=120)
    places = [x for x in tmp_path.iterdir() if x.name.isdigit()]
    assert len(places) == count
    last = [latest_step(x) for x in places]
    for place, step in zip(places, last, strict=True):
        assert is_as_saved(place, step)
        save_steps(place, 3, keep=1)  # what was left behind does not stand in the way
        assert is_as_saved(place, 3)
    assert {*last} == {1, 2}
