"""The steps in a directory, and which of them are complete."""

import os
import re
import shutil
import socket
import uuid
import warnings

from .._engine.functions.calls import level_of_user
from . import manifest
from .disk import Directory, Location, is_local, is_there, place, sync_names
from .manifest import Damage


class SkippedStep(UserWarning, ValueError):
    """A newer step is not complete.

    Also a `ValueError`, so that with warnings as errors it has the type of other
    failures to restore.
    """


def numbered(directory: Directory) -> list[int]:
    """The directories named like a step, whatever they contain, in order."""
    path = place(directory)
    found = _numbered(path)
    # A listing may miss both a step that appears and an older one that disappears.
    while (again := _numbered(path)) != found:
        found = again
    return found


def _numbered(path: Location) -> list[int]:
    found = [*path.iterdir()] if path.is_dir() else []
    return sorted(int(x.name) for x in found if _NUMBER(x.name) and x.is_dir())


DIGITS = 100  # of a step at most, so that names of files are not too long
# The names that `save` writes: no sign, leading zero or non-ASCII digits.
_NUMBER = re.compile(f"0|[1-9][0-9]{{0,{DIGITS - 1}}}").fullmatch


def newest(
    directory: Directory, before: int | None = None
) -> tuple[int | None, dict[int, str]]:
    """The newest complete step, and what is missing from newer ones."""
    folder, skipped = place(directory), {}
    known = [x for x in numbered(folder) if before is None or x < before]
    for step in reversed(known):
        if not (damage := _damage(folder / str(step), step)):
            return step, skipped
        if not (folder / str(step)).exists():  # pruned; newer steps exist now
            return newest(directory, before)
        skipped[step] = damage
    return None, skipped


def _damage(path: Location, step: int) -> str:
    """What is missing from a step; "" if it is complete."""
    try:
        manifest.read(path, step)
    except Damage as error:
        return str(error)
    return ""


def warn_of(directory: Directory, skipped: dict[int, str], found: int | None) -> None:
    """Warn of damaged steps, and name the step that is used instead."""
    if not skipped:
        return
    folder = place(directory)
    texts = [
        f"step {step} in `{folder}` is damaged: {x}" for step, x in skipped.items()
    ]
    then = "there is no step before" if found is None else f"`step={found}` is whole"
    text = f"{'; '.join(texts)}; skipped: {then}"
    warnings.warn(text, SkippedStep, stacklevel=level_of_user())


# Names of folders being written or removed: step, host, process and a unique part.
_TEMPORARY = re.compile(r"\.(\d+)\.(.+)\.(\d+)\.([0-9a-f]{8})\.(new|old)(\..*)?")


def temporary(step: int, kind: str) -> str:
    """A unique temporary name; `kind` is "new" or "old"."""
    return f".{step}.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.{kind}"


def clear(folder: Location) -> None:
    """Remove leftovers of killed writers; the caller holds the lock."""
    for path in folder.iterdir():
        found = _TEMPORARY.fullmatch(path.name)
        if found and not _is_written(found[2], int(found[3])):
            _remove(path)


def _is_written(host: str, process: int) -> bool:
    """Whether a writer with that host and process may still be running.

    A writer on another host or in this process cannot be, since the caller holds the
    lock.
    """
    if host != socket.gethostname() or process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _remove(path: Location) -> None:
    if is_local(path) and os.path.islink(path):  # its target is not ours
        path.unlink()
    elif is_local(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.rmtree()


def make_room(folder: Location, step: int) -> None:
    """Rename a directory that has the name of a step but is not one."""
    path = folder / str(step)
    if not is_there(path):
        return
    names = (f"{step}.broken{i}" for i in ("", *(f"-{n}" for n in range(2, 10**6))))
    free = next(folder / x for x in names if not is_there(folder / x))
    path.rename(free)
    warnings.warn(
        f"`{path}` is not a complete step and is now called `{free.name}`",
        SkippedStep,
        stacklevel=level_of_user(),
    )


def prune(folder: Location, keep: int) -> None:
    """Remove steps of Stepax older than the newest `keep` complete ones."""
    kept = 0
    for step in reversed(numbered(folder)):
        path = folder / str(step)
        if kept < keep:
            kept += not _damage(path, step)
        elif path.joinpath(*manifest.FILE).exists():
            # Renamed first, so that no partially removed step is visible.
            gone = folder / temporary(step, "old")
            path.rename(gone)
            _remove(gone)
    sync_names(folder)
