"""The lock that keeps other processes out of a directory of checkpoints."""

import fcntl
import os

import pytest
from test_checkpoint_writers import names, save_step

from stepax._checkpoint import lock


def test_a_directory_without_locks_can_be_saved_to(tmp_path, monkeypatch):

    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    for step in 1, 2:
        save_step(tmp_path, step)
    assert names(tmp_path) == ["1", "2"]


@pytest.mark.parametrize("kind", ["removed", "replaced"])
def test_the_file_that_is_locked_is_the_one_that_others_find(
    kind, tmp_path, monkeypatch
):
    """Its last owner may remove it once it is open, and another may write a new one."""
    path, flock, opened = tmp_path / lock.NAME, fcntl.flock, []

    def late(file, how):
        opened.append(file)
        if len(opened) == 1:
            path.unlink()
            if kind == "replaced":
                path.touch()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    turn = lock.Turn(tmp_path)
    turn.take()
    turn.lock()
    assert os.path.samestat(os.fstat(turn.file), path.stat()) and len(opened) == 2
    turn.give()
    assert not path.exists()


def test_what_is_opened_after_a_save_stays_open_in_a_child(tmp_path, monkeypatch):
    """It may have the number of the file that was locked."""
    monkeypatch.setattr(lock, "_THREADS", {})
    turn = lock.Turn(tmp_path)
    turn.take()
    turn.lock()
    number = turn.file
    turn.give()
    opened = [os.open(tmp_path, os.O_RDONLY) for _ in range(9)]
    lock._forget()  # as in a child of `fork`
    assert number in opened
    for file in opened:
        os.close(file)  # which fails if it is closed


def test_a_lock_whose_file_cannot_be_written_is_released(tmp_path, monkeypatch):
    """As on a full disk: the file is empty, and the lock as good as ever."""

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(lock, "_me", full)
        save_step(tmp_path, 1)
    save_step(tmp_path, 2)
    assert names(tmp_path) == ["1", "2"]
