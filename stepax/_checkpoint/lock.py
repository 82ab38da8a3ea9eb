"""Locking: one writer at a time in a directory of checkpoints.

Threads of a process take turns.  Other processes get an error that names the writer,
which holds an operating system lock on a file.  The lock is released when its process
ends, however it ends, so locks are never stale.  On stores and file systems without
such locks the only protection is that each writer uses its own temporary names.
"""

import contextlib
import datetime
import json
import os
import socket
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

from .disk import Location, is_local


try:
    import fcntl
except ImportError:  # on Windows
    fcntl: Any = None


NAME = ".stepax.lock"


class Turn:
    """The right to write in a directory."""

    def __init__(self, folder: Location):
        self.folder = folder
        self.file = -1
        name = os.path.realpath(os.fspath(folder))
        self.thread = _THREADS.setdefault(name, _ThreadLock())

    @property
    def is_exclusive(self) -> bool:
        """Whether other processes are kept out."""
        return self.file >= 0

    def take(self) -> None:
        """Wait for other threads; raises in a signal handler of one that is saving."""
        if self.thread.owner == threading.get_ident():
            raise ValueError(
                f"`{self.folder}` is being saved to by the current thread: a signal "
                "handler should only set a flag"
            )
        self.thread.lock.acquire()
        self.thread.owner = threading.get_ident()

    def hand_over(self) -> None:
        """Transfer the turn from another thread to this one."""
        self.thread.owner = threading.get_ident()

    def lock(self) -> None:
        """Keep other processes out; the error names the current writer."""
        if fcntl is None or not is_local(self.folder):
            return
        path = self.folder / NAME
        while True:
            opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                owner = os.read(opened, 1000)
                os.close(opened)
                raise ValueError(_busy(self.folder, owner)) from None
            except OSError:  # locks are not supported
                os.close(opened)
                path.unlink(missing_ok=True)
                return
            if _is_same(opened, path):
                break
            os.close(opened)  # the owner has just removed the file
        self.file = opened
        _HELD.add(opened)
        with contextlib.suppress(OSError):  # on a full disk the owner stays unnamed
            os.ftruncate(opened, 0)
            os.write(opened, _me())

    def give(self) -> None:
        if self.is_exclusive:
            with contextlib.suppress(OSError):  # closing the file releases the lock
                (self.folder / NAME).unlink()
            _HELD.discard(self.file)
            os.close(self.file)
            self.file = -1
        self.thread.owner = None
        self.thread.lock.release()


def _me() -> bytes:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    who = {"pid": os.getpid(), "host": socket.gethostname(), "since": now}
    return json.dumps(who).encode()


def _busy(folder: Location, owner: bytes) -> str:
    try:
        who = json.loads(owner)
        text = f"process {who['pid']} on {who['host']} since {who['since']}"
    except (ValueError, KeyError, TypeError):
        text = "another process"  # it has not written its identity yet
    return (
        f"`{folder}` is being written to by {text}: two runs cannot save to the same "
        "directory; stop one of them, or use another directory"
    )


def _is_same(opened: int, path: Location) -> bool:
    try:
        return os.path.samestat(os.fstat(opened), os.stat(path))
    except FileNotFoundError:
        return False


@dataclass
class _ThreadLock:
    """owner: the thread that holds the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    owner: int | None = None


_THREADS: dict[str, _ThreadLock] = {}
_HELD: set[int] = set()  # file descriptors that this process has locked


def _forget() -> None:
    """A forked child has no writer thread, and must not hold a lock."""
    for opened in _HELD:
        os.close(opened)
    _HELD.clear()
    _THREADS.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)
