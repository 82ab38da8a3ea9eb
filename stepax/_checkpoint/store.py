"""Reading one step of a directory of checkpoints.

A step consists of the parameters and the state, each a flat dict from names to arrays
written by Orbax, and a manifest; see `manifest`.
"""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from .._engine.trees.errors import list_some
from . import Entry, blocks, manifest, steps
from .digest import total
from .disk import place
from .manifest import SCHEMA, Damage
from .values import is_wide, of_bytes
from .write import agreed, in_all_processes, settle


T = TypeVar("T")
ATTEMPTS = 10  # at reading a step while others are saved and removed


class Gone(ValueError):
    """A step was removed while it was read."""


def of_newest(read: Callable[[], T]) -> T:
    """What `read` returns; again, if the step that was the newest is removed."""
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(Gone):
            return read()
    return read()


class Step:
    """One checkpoint in a directory, and its entries once it is open."""

    params: list[Entry]
    state: list[Entry]
    recipe: Any
    _verified: Future[None]

    def __init__(self, directory: Any, step: int | None):
        settle(directory)
        self.directory = place(directory)
        self.step = int(agreed(lambda: self._chosen(step))[0])
        self.path = self.directory / str(self.step)

    def _chosen(self, step: int | None) -> str:
        """The step as process 0 sees it; the others adopt it."""
        if jax.process_index():
            return ""
        known = steps.numbered(self.directory)
        if not known:
            raise ValueError(f"there is no checkpoint in `{self.directory}`")
        if step is None:
            found, skipped = steps.newest(self.directory)
            if found is not None:
                steps.warn_of(self.directory, skipped, found)
            # If no step is complete, opening the newest one reports what is missing.
            return str(known[-1] if found is None else found)
        if step not in known:
            raise ValueError(
                f"there is no step {step} in `{self.directory}`, but {list_some(known)}"
            )
        return str(step)

    def __str__(self) -> str:
        return f"step {self.step} in `{self.directory}`"

    def open(self) -> "Step":
        """Read the manifest, and start comparing the files with their checksums."""
        with self.reading():
            found = manifest.read(self.path, self.step)
        if found.schema > SCHEMA:
            raise ValueError(
                f"{self} has the schema {found.schema}, but this version of Stepax "
                f"reads at most {SCHEMA}: use the version that wrote it, or a later one"
            )
        here = jax.process_index(), jax.process_count()
        with ThreadPoolExecutor(1) as pool:  # `read` waits for it
            self._verified = pool.submit(manifest.verify, self.path, found, *here)
            pool.shutdown(wait=False)
        self.params, self.state = found.parts["params"], found.parts["state"]
        self.recipe = found.recipe
        return self

    def read(self, name: str, wanted: list[tuple[Entry, Any]]) -> list[Any]:
        """The arrays of some entries, each with its sharding, or `None` for NumPy's."""
        some = [(x, _where(x, s)) for x, s in wanted if 0 not in x.shape]
        found, shared = {}, []
        with self.reading():
            try:
                rows = blocks.read(self.path / name, some)
                for (x, s), (array, part) in zip(some, rows, strict=True):
                    found[x.key] = array
                    if s is None or s.is_fully_addressable:
                        _check(name, x, part)
                    else:
                        shared.append((x, part))
            finally:  # name a changed file, whatever its readers say about it
                self._verified.result()
        with self.reading():  # all processes are here to add up the digests
            for (x, _), number in zip(shared, _added(shared), strict=True):
                _check(name, x, number)
            return [
                _typed(x, found[x.key]) if x.key in found else _empty(x)
                for x, _ in wanted
            ]

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Add the checkpoint to an error, and say which one to use instead.

        If one process fails, all raise, because the next operation needs all processes.
        """
        problem = None
        try:
            yield
        except Exception as error:
            problem = error
        is_gone = problem is not None and not self.path.exists()
        found = in_all_processes("", (problem is not None) + is_gone)
        failed = [i for i, (kind, _) in enumerate(found) if kind]
        if not failed:
            return
        if any(kind == 2 for kind, _ in found):
            raise Gone(
                f"{self} was removed while it was read, as a save with `keep` does: "
                "restore a newer one"
            ) from problem
        before = steps.newest(self.directory, before=self.step)[0]
        hint = "" if before is None else f"; `step={before}` restores the previous one"
        if problem is None:
            text = f"it could not be read by process {list_some(failed)}"
        else:
            kind = "" if isinstance(problem, Damage) else f"{type(problem).__name__}: "
            text = f"{kind}{str(problem).strip()[:500]}"
        raise ValueError(f"{self} is damaged: {text}{hint}") from problem


def _where(entry: Entry, target: Any) -> Any:
    # JAX would truncate 64-bit values before they are compared with their digest.
    return None if not entry.key_kind and is_wide(entry.dtype) else target


def _added(rows: list[tuple[Entry, int]]) -> list[int]:
    """The digests of arrays, of which each process has a part."""
    if not rows:
        return []
    words = np.array([part for _, part in rows], np.uint64).view(np.uint32)
    found = np.ascontiguousarray(process_allgather(words)).view(np.uint64)
    return [total(map(int, parts)) for parts in found.T]


def _check(name: str, entry: Entry, digest: int) -> None:
    if digest != entry.digest:
        raise Damage(
            f"`{entry.key}` of `{name}` does not have the values that were saved"
        )


def _typed(entry: Entry, x: Any) -> Any:
    x, kind = of_bytes(x, entry.dtype), entry.key_kind
    return jax.random.wrap_key_data(jnp.asarray(x), impl=kind) if kind else x


def _empty(entry: Entry) -> Any:
    if kind := entry.key_kind:
        return jax.random.split(jax.random.key(0, impl=kind), entry.shape)
    return np.zeros(entry.shape, entry.dtype)
