"""Writing a step with Orbax, sealing it, and renaming it once it is on disk.

Orbax writes under a unique name; then process 0 adds the manifest, flushes to disk and
renames.  Everything that needs all processes and their devices runs in the thread that
calls `begin` and `settle`; the rest may run in another.
"""

import concurrent.futures.thread  # noqa: F401  (must register its exit handler first)
import functools as ft
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from .._engine.trees.errors import list_some
from .._engine.trees.pack import unpack
from . import manifest, steps
from .digest import digest
from .disk import orbax, place, sync_names, sync_tree
from .entries import Entry, arrays_of
from .lock import Turn
from .values import JAX, as_bytes, storable


WAIT = 1200  # seconds to wait for other processes, as in Orbax


class Part(NamedTuple):
    """The arrays of a tree, with their names and digests."""

    entries: list[Entry]
    arrays: list[Any]

    @classmethod
    def of(cls, tree: Any) -> "Part":
        rows = [(x, a, storable(x.key, a)) for x, a in arrays_of(unpack(tree))]
        found = [x._replace(dtype=_dtype(x, a), digest=digest(b)) for x, a, b in rows]
        return cls(found, [b for *_, b in rows])

    def stored(self) -> dict[str, Any]:
        """A dict from names to arrays; Orbax rejects empty arrays."""
        pairs = zip(self.entries, self.arrays, strict=True)
        return {x.key: as_bytes(a) for x, a in pairs if a.size}

    def copied(self) -> "Part":
        """Copies, which are not affected if the originals are modified or donated."""
        return self._replace(arrays=[_copy(x) for x in self.arrays])


def _dtype(entry: Entry, x: Any) -> str:
    is_key = entry.kind == JAX and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return f"key<{jax.random.key_impl(x)}>" if is_key else entry.dtype


def _copy(x: Any) -> Any:
    if isinstance(x, np.ndarray) or x.is_fully_addressable:
        return np.array(x)
    return jax.device_put(x, x.sharding, may_alias=False)


class Saving:
    """A step that is being written, in this thread or in its own.

    done: set when writing has succeeded or failed.
    """

    def __init__(self, turn: Turn, finish: Callable[[], None], what: str):
        self.turn, self.what = turn, what
        self.finish: Callable[[], None] | None = finish
        self.error: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        self.turn.hand_over()
        try:
            assert self.finish is not None
            self.finish()
        except BaseException as error:
            self.error = error
        finally:
            self.finish = None  # releases the arrays
            self.turn.give()
            self.done.set()


# Saves by directory, until their outcome is requested.
_RUNNING: dict[str, Saving] = {}


def begin(
    directory: Any, step: int, trees: Mapping[str, Any], keep: int | None, wait: bool
) -> None:
    """Save named trees; in the background unless `wait`."""
    parts = {name: Part.of(tree) for name, tree in trees.items()}
    folder = place(directory)
    turn = Turn(folder)
    turn.take()
    try:
        settle(folder)
        new = folder / agreed(lambda: _prepared(turn, folder, step), step)
        if not wait:
            parts = {name: part.copied() for name, part in parts.items()}
        written = _start(new, parts)
    except BaseException:
        turn.give()
        raise
    finish = ft.partial(_finish, turn, new, step, parts, keep, written)
    saving = Saving(turn, finish, f"step {step} in `{folder}`")
    if wait:
        saving.run()
        _report(saving)
        return
    _RUNNING[_key(folder)] = saving
    try:
        threading.Thread(target=saving.run, name=f"save step {step}").start()
    except RuntimeError:  # no thread can be started
        saving.run()


def _prepared(turn: Turn, folder: Any, step: int) -> str:
    """Prepare the directory in process 0; returns a temporary name."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ValueError(f"`{folder}` is a file, expected a directory") from None
    turn.lock()
    last, _ = steps.newest(folder)
    if last is not None and step <= last:
        raise ValueError(
            f"`{folder}` has step {last}, and `step` is {step}: saved steps are "
            "not overwritten; delete later ones, or give another directory"
        )
    if turn.is_exclusive:
        steps.clear(folder)
    return steps.temporary(step, "new")


TEXT = 2000  # bytes of messages between processes


def agreed(prepare: Callable[[], str], step: int = 0) -> str:
    """The result of process 0, in all processes; its errors are raised in all."""
    if jax.process_count() == 1:
        return prepare()
    problem, text = None, ""
    if jax.process_index() == 0:
        try:
            text = prepare()
        except Exception as error:
            problem, text = error, str(error) or type(error).__name__
    told = f"{step}\n{text}".encode()[:TEXT].ljust(TEXT, b"\0")
    rows = process_allgather(np.array([problem is not None, *told], np.uint8))
    texts = [bytes(x[1:]).rstrip(b"\0").decode(errors="replace") for x in rows]
    found, text = texts[0].split("\n", 1)
    if rows[0, 0]:
        raise ValueError(text) from problem
    given = [x.partition("\n")[0] for x in texts]
    if given != [found] * len(given):
        raise ValueError(f"processes save different steps: {', '.join(given)}")
    return text


def _start(new: Any, parts: Mapping[str, Part]) -> Any:
    """Let Orbax start to write; `None` if there is nothing to write."""
    ocp = orbax()
    kept = {name: part.stored() for name, part in parts.items()}
    saved = {name: ocp.args.PyTreeSave(x) for name, x in kept.items() if x}
    if not saved:
        new.mkdir(exist_ok=True)
        return None
    handler = ocp.CompositeCheckpointHandler()
    checkpointer = ocp.AsyncCheckpointer(handler, timeout_secs=WAIT)
    checkpointer.save(new, args=ocp.args.Composite(**saved))
    return checkpointer


def _finish(
    turn: Turn,
    new: Any,
    step: int,
    parts: Mapping[str, Part],
    keep: int | None,
    written: Any,
) -> None:
    try:
        if written is not None:
            written.close()  # waits until all processes have written
        if jax.process_index() == 0:
            _publish(new, step, parts)
            if keep is not None:
                steps.prune(new.parent, keep)
    except BaseException:
        if turn.is_exclusive:
            steps.clear(new.parent)
        raise
    finally:
        # Other processes may look for the step as soon as they continue.
        barrier = orbax().multihost.get_barrier_sync_fn()
        barrier(key=f"stepax {new.name}", timeout_ms=WAIT * 1000)


def _publish(new: Any, step: int, parts: Mapping[str, Part]) -> None:
    manifest.write(new, step, {name: part.entries for name, part in parts.items()})
    sync_tree(new)
    steps.make_room(new.parent, step)
    new.rename(new.parent / str(step))
    sync_names(new.parent)


def settle(directory: Any) -> None:
    """Wait for a background save; to be called in all processes of a run.

    Raises its error, once.
    """
    join(directory)
    saving = _RUNNING.pop(_key(directory), None)
    if saving is not None:
        _report(saving)


def _key(directory: Any) -> str:
    return os.path.realpath(place(directory))


def settle_all() -> None:
    for folder in sorted(_RUNNING):
        settle(folder)


def join(directory: Any) -> None:
    """Wait, and leave errors to `settle`."""
    saving = _RUNNING.get(_key(directory))
    if saving is not None:
        saving.done.wait()


def _report(saving: Saving) -> None:
    failed = [i for i, x in enumerate(in_all_processes(saving.error is not None)) if x]
    if not failed:
        return
    if isinstance(saving.error, KeyboardInterrupt | SystemExit):
        raise saving.error
    if saving.error is None:
        text = f"process {list_some(failed)} could not write it"
    else:
        text = f"{type(saving.error).__name__}: {saving.error}"
    raise ValueError(f"{saving.what} was not saved: {text}") from saving.error


def in_all_processes(flag: bool) -> list[bool]:
    if jax.process_count() == 1:
        return [flag]
    return [bool(x) for x in process_allgather(np.asarray(flag))]


def _end() -> None:
    """At process exit: wait, and report errors that were not requested."""
    for saving in list(_RUNNING.values()):
        saving.done.wait()
        if (error := saving.error) is not None:
            error.add_note(f"{saving.what} was not saved")
            sys.excepthook(type(error), error, error.__traceback__)


# Runs before the thread pools that Orbax writes with are closed, unlike `atexit`.
threading._register_atexit(_end)  # pyright: ignore[reportAttributeAccessIssue]
if hasattr(os, "register_at_fork"):  # a forked child has no writer thread
    os.register_at_fork(after_in_child=_RUNNING.clear)
