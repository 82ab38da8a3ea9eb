"""Which steps a directory holds, and which of them are whole."""

import os
import re
import shutil
import socket
import uuid
import warnings
from typing import Any

from .._engine.functions.calls import level_of_user
from . import manifest
from .disk import is_local, place, sync_names
from .manifest import Damage


class SkippedStep(UserWarning, ValueError):
    """A newer step is not whole.

    Who makes warnings errors gets one of the kind that everything is that cannot be
    restored.
    """


def numbered(directory: Any) -> list[int]:
    """The directories that have the name of a step, whatever is in them, in order."""
    path = place(directory)
    found = _numbered(path)
    # Of a step that comes while an older one goes, a listing may show neither.
    while (again := _numbered(path)) != found:
        found = again
    return found


def _numbered(path: Any) -> list[int]:
    found = [*path.iterdir()] if path.is_dir() else []
    return sorted(int(x.name) for x in found if _is_number(x.name) and x.is_dir())


def _is_number(name: str) -> bool:
    """As `save` writes it: no sign, no leading zero, no digits of other scripts."""
    return re.fullmatch("0|[1-9][0-9]{0,18}", name) is not None


def newest(
    directory: Any, before: int | None = None
) -> tuple[int | None, dict[int, str]]:
    """The newest step that is whole, and what the newer ones lack."""
    folder, skipped = place(directory), {}
    known = [x for x in numbered(folder) if before is None or x < before]
    for step in reversed(known):
        try:
            manifest.read(folder / str(step), step)
        except Damage as error:
            if not (folder / str(step)).exists():  # its writer has newer ones by now
                return newest(directory, before)
            skipped[step] = str(error)
        else:
            return step, skipped
    return None, skipped


def warn_of(directory: Any, skipped: dict[int, str], found: int | None) -> None:
    """Say which steps are damaged, and which is taken in their place."""
    if not skipped:
        return
    folder = place(directory)
    texts = [
        f"step {step} in `{folder}` is damaged: {x}" for step, x in skipped.items()
    ]
    then = "there is no step before" if found is None else f"`step={found}` is whole"
    text = f"{'; '.join(texts)}; skipped: {then}"
    warnings.warn(text, SkippedStep, stacklevel=level_of_user())


# What is being written or removed: its step, host, process and a name of its own.
_TEMPORARY = re.compile(r"\.(\d+)\.(.+)\.(\d+)\.([0-9a-f]{8})\.(new|old)(\..*)?")


def temporary(step: int, kind: str) -> str:
    """A name that no other writer has; "new" or "old"."""
    return f".{step}.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.{kind}"


def clear(folder: Any) -> None:
    """Remove what writers have left that were killed; the caller has the lock."""
    for path in folder.iterdir():
        found = _TEMPORARY.fullmatch(path.name)
        if found and not _is_written(found[2], int(found[3])):
            _remove(path)


def _is_written(host: str, process: int) -> bool:
    """Whether a writer of that name may be there.

    None may be on another host or in this process, as the caller has the lock.
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


def _remove(path: Any) -> None:
    if is_local(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.rmtree()


def make_room(folder: Any, step: int) -> None:
    """Move what has the name of a step and is none out of the way."""
    path = folder / str(step)
    if not path.exists():
        return
    names = (f"{step}.broken{i}" for i in ("", *(f"-{n}" for n in range(2, 10**6))))
    free = next(folder / x for x in names if not (folder / x).exists())
    path.rename(free)
    warnings.warn(
        f"`{path}` is no whole step and is now called `{free.name}`",
        SkippedStep,
        stacklevel=level_of_user(),
    )


def prune(folder: Any, keep: int) -> None:
    """Remove steps of Stepax before the newest `keep` that are whole."""
    kept = 0
    for step in reversed(numbered(folder)):
        path = folder / str(step)
        if kept < keep:
            kept += _is_whole(path, step)
        elif path.joinpath(*manifest.FILE).exists():
            # At once, so that none is there in part.
            gone = folder / temporary(step, "old")
            path.rename(gone)
            _remove(gone)
    sync_names(folder)


def _is_whole(path: Any, step: int) -> bool:
    try:
        manifest.read(path, step)
    except Damage:
        return False
    return True
