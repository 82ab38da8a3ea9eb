"""Writing a step with Orbax, sealing it, and renaming it once it is on disk.

Each process writes its shards under a temporary name, and a file with its part of the
digests: that file shows that it has succeeded.  Then all wait at a barrier; process 0
adds up the digests, adds the manifest, flushes to disk and renames; and all wait at a
second barrier.  A process that fails also reaches both barriers, so that no process
waits for it.  Everything that needs all devices runs in the thread that calls `begin`
and `settle`; the rest may run in another thread.
"""

import atexit
import concurrent.futures.thread  # noqa: F401  (must register its exit handler first)
import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from .._engine.base import ArrayTree
from .._engine.trees.errors import list_some
from . import Entry, arrays_of, manifest, steps
from .blocks import BLOCK
from .digest import digest, total
from .disk import (
    Directory,
    Location,
    orbax,
    place,
    require_unicode,
    sync_names,
    sync_tree,
)
from .lock import Turn
from .values import JAX, as_bytes, storable


WAIT = 1200  # seconds to wait for other processes, as in Orbax
SHARES = "shares"  # the folder of the files in which processes report what they wrote


class Part(NamedTuple):
    """The arrays of a tree, with their names."""

    entries: list[Entry]
    arrays: list[Any]

    @classmethod
    def of(cls, tree: ArrayTree) -> "Part":
        rows = [(x, a, storable(x.key, a)) for x, a in arrays_of(tree)]
        for x, *_ in rows:
            require_unicode("the name of an array", x.key)
        found = [x._replace(dtype=_dtype(x, a)) for x, a, _ in rows]
        return cls(found, [b for *_, b in rows])

    def stored(self) -> dict[str, Any]:
        """A dict from names to arrays; Orbax rejects empty arrays."""
        pairs = zip(self.entries, self.arrays, strict=True)
        return {x.key: as_bytes(a) for x, a in pairs if a.size}

    def copied(self) -> "Part":
        """The arrays as they are now, even if originals are modified or donated."""
        return self._replace(arrays=[_copy(x) for x in self.arrays])

    def shares(self) -> list[int]:
        """The shares of this process in the digests; process 0 writes NumPy arrays."""
        left_out = () if jax.process_index() == 0 else np.ndarray
        return [0 if isinstance(x, left_out) else digest(x) for x in self.arrays]

    def described(self, shares: list[list[int]]) -> list[Entry]:
        """The entries with the digests that the shares of all processes add up to."""
        rows = zip(self.entries, *shares, strict=True)
        return [x._replace(digest=total(own)) for x, *own in rows]


def _dtype(entry: Entry, x: Any) -> str:
    is_key = entry.kind == JAX and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return f"key<{jax.random.key_impl(x)}>" if is_key else entry.dtype


def _copy(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x.copy()
    if not x.is_fully_addressable:
        return jax.device_put(x, x.sharding, may_alias=False)
    # On a CPU this is a view.  As long as there is one, JAX does not reuse the buffer
    # of a donated array.  Arrays from another device are copies already.
    on_cpu = next(iter(x.sharding.device_set)).platform == "cpu"
    is_pinned = not on_cpu and "host" in str(x.sharding.memory_kind)
    return np.array(x) if is_pinned else np.asarray(x)


@dataclass(eq=False)
class Saving:
    """A step that is being written, in this thread or in a separate one.

    parts: the trees to write, or the error from preparing them.
    recipe: the transformation, see `manifest.Manifest`.
    is_saved: whether the step has its final name.
    done: set when writing has succeeded or failed.
    """

    turn: Turn
    new: Location
    step: int
    keep: int | None
    parts: Mapping[str, Part] | Exception | None
    recipe: Any
    is_saved: bool = False
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def __str__(self) -> str:
        return f"step {self.step} in `{self.turn.folder}`"

    def run(self) -> None:
        self.turn.hand_over()
        try:
            self._write()
        except BaseException as error:
            self.error = error
        finally:
            self.parts = None  # releases the arrays
            self.turn.give()
            self.done.set()

    def _write(self) -> None:
        try:
            try:
                shares = _written(self.new, self.parts)
            finally:
                _meet(self.new, "written")
            if jax.process_index() == 0:
                self._finish(shares)
        except BaseException:
            if self.turn.is_exclusive:
                with contextlib.suppress(OSError):  # the next save tries again
                    steps.clear(self.turn.folder)
            raise
        finally:
            # Other processes may look for the step as soon as they continue.
            _meet(self.new, "published")

    def _finish(self, shares: list) -> None:
        """In process 0: give the step its final name, and remove old steps."""
        assert isinstance(self.parts, Mapping)
        rows = [shares] if jax.process_count() == 1 else _heard(self.new)
        parts = zip(self.parts.items(), zip(*rows, strict=True), strict=True)
        entries = {name: part.described([*own]) for (name, part), own in parts}
        for name, part in self.parts.items():
            if any(x.size for x in part.arrays):
                _handler().finalize(self.new / name)
        _publish(self.new, self.step, entries, self.recipe)
        self.is_saved = True
        sync_names(self.turn.folder)
        if self.keep is not None:
            steps.prune(self.turn.folder, self.keep)

    @property
    def outcome(self) -> str:
        """What happened, if there was an error."""
        if (error := self.error) is None:
            return ""
        cause = f"{type(error).__name__}: {error}"
        if self.is_saved:
            return f"was saved, but a later action failed: {cause}"
        return f"was not saved: {cause}"


class Silence(ValueError):
    """Other processes did not report that they have written; their errors say why."""


# Saves by directory, until their outcome is requested.
_RUNNING: dict[str, Saving] = {}


def begin(
    directory: Directory,
    plan: Callable[[], tuple[int, int | None]],
    trees: Mapping[str, Any],
    wait: bool,
    recipe: Any = None,
) -> None:
    """Save named trees; in the background unless `wait`.

    plan: checks the arguments; returns the step and the number of steps to keep.
    """
    given: Any = None

    def checked() -> str:
        nonlocal given
        step, keep = plan()
        parts = {name: Part.of(tree) for name, tree in trees.items()}
        given = step, keep, parts, place(directory)
        return str(step)

    found = agreed(checked)
    if len({*found}) > 1:
        raise ValueError(f"processes save different steps: {', '.join(found)}")
    step, keep, parts, folder = given
    turn = Turn(folder)
    turn.take()
    try:
        settle(folder)
        name = agreed(lambda: _prepared(turn, folder, step, parts))[0]
        saving = Saving(turn, folder / name, step, keep, parts, recipe)
        if not wait:
            saving.parts = _copied(parts)
    except BaseException:
        turn.give()
        raise
    if wait:
        saving.run()
        _report(saving)
        return
    _RUNNING[_key(folder)] = saving
    try:
        threading.Thread(target=saving.run, name=f"save step {step}").start()
    except RuntimeError:  # a thread cannot be started
        saving.run()


def _prepared(
    turn: Turn, folder: Location, step: int, parts: Mapping[str, Part]
) -> str:
    """Prepare the directories in process 0; returns a temporary name."""
    if jax.process_index() > 0:
        return ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ValueError(f"`{folder}` is a file, expected a directory") from None
    turn.lock()
    last, _ = steps.newest(folder)
    if last is not None and step <= last:
        raise ValueError(
            f"`{folder}` has step {last}, and `step` is {step}: saved steps are not "
            "overwritten; delete later steps, or use another directory"
        )
    if turn.is_exclusive:
        steps.clear(folder)
    new = folder / steps.temporary(step, "new")
    shared = [SHARES] if jax.process_count() > 1 else []
    for name in "", *parts, *shared:
        (new / name).mkdir(parents=True, exist_ok=True)
    return new.name


def _copied(parts: Mapping[str, Part]) -> Mapping[str, Part] | Exception:
    try:
        return {name: part.copied() for name, part in parts.items()}
    except Exception as error:  # raised after the barrier
        return error


TEXT = 2000  # bytes of messages between processes


def in_all_processes(text: str, kind: int = 0) -> list[tuple[int, str]]:
    """The messages of all processes; to be called in each of them."""
    if jax.process_count() == 1:
        return [(kind, text)]
    told = text.encode(errors="backslashreplace")[:TEXT].ljust(TEXT, b"\0")
    rows = process_allgather(np.array([kind, *told], np.uint8))
    texts = [bytes(x[1:]).rstrip(b"\0").decode(errors="ignore") for x in rows]
    return [(int(row[0]), x) for row, x in zip(rows, texts, strict=True)]


def agreed(prepare: Callable[[], str]) -> list[str]:
    """The result in each process; an error in one process is raised in all."""
    if jax.process_count() == 1:
        return [prepare()]
    problem, text = None, ""
    try:
        text = prepare()
    except Exception as error:
        problem, text = error, str(error) or type(error).__name__
    found = in_all_processes(
        text, (problem is not None) + isinstance(problem, TypeError)
    )
    for i, (kind, text) in enumerate(found):
        if kind:
            wrong = TypeError if kind == 2 else ValueError
            raise wrong(f"{text} (in process {i})") from problem
    return [x for _, x in found]


def _handler() -> Any:
    """Orbax's handler for the files of one tree; does not wait for other processes."""
    ocp = orbax()
    types = ocp.type_handlers
    # `blocks` reads this format, whatever later versions of Orbax prefer.
    form = {"use_ocdbt": True, "use_zarr3": False}
    try:
        numpy = types.NumpyHandler(deepcopy_host_arrays=False)
        # Floats hardly get smaller, and it takes as long as all else together.
        form["use_compression"] = False
    except TypeError:  # earlier versions always copy and compress
        numpy = types.NumpyHandler()
    rows = (np.ndarray, numpy), (jax.Array, types.ArrayHandler())
    known = types.create_type_handler_registry(*rows)
    return ocp.PyTreeCheckpointHandler(type_handler_registry=known, **form)


def _written(new: Location, parts: Any) -> list[list[int]]:
    """Write the shards of this process; returns its shares of the digests."""
    if isinstance(parts, Exception):
        raise parts
    ocp = orbax()
    with ThreadPoolExecutor(1) as pool:
        shares = pool.submit(lambda: [x.shares() for x in parts.values()])
        for name, part in parts.items():
            if kept := part.stored():
                how = dict.fromkeys(kept, ocp.SaveArgs(chunk_byte_size=BLOCK))
                _handler().save(new / name, args=ocp.args.PyTreeSave(kept, how))
        found = shares.result()
    if jax.process_count() > 1:
        path = new / SHARES / str(jax.process_index())
        path.write_text(json.dumps(found))
    return found


def _heard(new: Location) -> list[list[list[int]]]:
    """The shares of all processes, in process 0; raises `Silence` if one is missing."""
    found, silent = [], []
    for i in range(jax.process_count()):
        try:
            found.append(json.loads((new / SHARES / str(i)).read_text()))
        except (OSError, ValueError):
            silent.append(i)
    if silent:
        raise Silence(
            f"found nothing that process {list_some(silent)} wrote; all processes need "
            "the same directory"
        )
    (new / SHARES).rmtree()
    return found


def _meet(new: Location, where: str) -> None:
    barrier = orbax().multihost.get_barrier_sync_fn()
    barrier(key=f"stepax {new.name} {where}", timeout_ms=WAIT * 1000)


def _publish(
    new: Location, step: int, parts: Mapping[str, list[Entry]], recipe: Any
) -> None:
    with ThreadPoolExecutor(1) as pool:
        synced = pool.submit(sync_tree, new)  # while checksums are computed
        manifest.write(new, step, parts, recipe)
        synced.result()
    sync_tree(new)
    steps.make_room(new.parent, step)
    new.rename(new.parent / str(step))


def settle(directory: Directory | None = None) -> None:
    """Wait for one background save, or all, in all processes; raise its error, once."""
    for folder in sorted(_RUNNING) if directory is None else [directory]:
        join(folder)
        if (saving := _RUNNING.pop(_key(folder), None)) is not None:
            _report(saving)


def _key(directory: Directory) -> str:
    return os.path.realpath(place(directory))


def join(directory: Directory) -> None:
    """Wait, and leave errors to `settle`."""
    saving = _RUNNING.get(_key(directory))
    if saving is not None:
        saving.done.wait()


def _report(saving: Saving) -> None:
    """Raise what went wrong, in all processes."""
    error = saving.error
    kind = 0 if error is None else 1 if isinstance(error, Silence) else 2
    found = in_all_processes(saving.outcome, kind)
    if not any(kind for kind, _ in found):
        return
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    i, (_, text) = max(enumerate(found), key=lambda row: (row[1][0], -row[0]))
    if len(found) > 1:
        text = f"{text} (in process {i})"
    raise ValueError(f"{saving} {text}") from error


def _end() -> None:
    """At process exit: wait, and report errors that were not requested."""
    for saving in list(_RUNNING.values()):
        saving.done.wait()
        if (error := saving.error) is not None:
            error.add_note(f"{saving} {saving.outcome}")
            sys.excepthook(type(error), error, error.__traceback__)


# The private function, where there is one, runs before the thread pools that Orbax
# writes with are closed; without it, a save that needs a new thread by then fails.
getattr(threading, "_register_atexit", atexit.register)(_end)
if sys.platform != "win32":  # a forked child has no writer thread
    os.register_at_fork(after_in_child=_RUNNING.clear)
