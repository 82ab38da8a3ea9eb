"""A directory of checkpoints, one for each step, as Orbax writes them.

A step holds the parameters and the state, each as a flat tree from names to arrays, and
a manifest with all names, shapes, dtypes and digests.  Orbax writes under another name
and renames when all is there, so what has the name of a step is whole.
"""

import contextlib
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from .._engine.errors import some
from .._engine.packing import unpack
from .digest import digest
from .entries import Entry, arrays_of


SCHEMA = 1  # a reader refuses a higher one


def orbax() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise ImportError(
            'checkpoints need Orbax: `pip install "stepax[checkpoint]"`'
        ) from error
    return ocp


def steps(directory: Any) -> list[int]:
    """The steps that are saved in a directory, in their order."""
    path = place(directory)
    found = [x for x in path.iterdir() if x.name.isdigit()] if path.is_dir() else []
    return sorted(int(x.name) for x in found if _is_whole(x))


def _is_whole(path: Any) -> bool:
    try:
        return orbax().utils.is_checkpoint_finalized(path)
    except (ValueError, OSError):  # a file, or another process has just removed it
        return False


def place(directory: Any) -> Any:
    """A path, of this machine or of a store that Orbax writes to."""
    orbax()
    from etils import epath  # which Orbax brings

    return epath.Path(directory).absolute()


def write(
    directory: Any, step: int, trees: Mapping[str, Any], keep: int | None
) -> None:
    """Save trees under names; returns when the step is whole."""
    ocp = orbax()
    parts = {name: Part.of(tree) for name, tree in trees.items()}
    kept = {name: part.stored() for name, part in parts.items()}
    saved = {name: ocp.args.PyTreeSave(x) for name, x in kept.items() if x}
    text = _to_json(step, {name: part.entries for name, part in parts.items()})
    saved["manifest"] = ocp.args.JsonSave(text)
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep, cleanup_tmp_directories=True, enable_async_checkpointing=False
    )
    with ocp.CheckpointManager(place(directory), options=options) as manager:
        manager.save(step, args=ocp.args.Composite(**saved))


class Part(NamedTuple):
    """The arrays of a tree, with their names and digests."""

    entries: list[Entry]
    arrays: list[Any]

    @classmethod
    def of(cls, tree: Any) -> "Part":
        rows = [(x, a, storable(a)) for x, a in arrays_of(unpack(tree))]
        found = [x._replace(dtype=_dtype(a), digest=digest(b)) for x, a, b in rows]
        return cls(found, [b for *_, b in rows])

    def stored(self) -> dict[str, Any]:
        """From names to arrays; Orbax takes none without numbers."""
        pairs = zip(self.entries, self.arrays, strict=True)
        return {x.key: a for x, a in pairs if a.size}


def storable(x: Any) -> Any:
    """Arrays of numbers; what every process has is the host's."""
    if isinstance(x, jax.Array):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        is_local = jax.process_count() > 1 and x.is_fully_addressable
        return np.asarray(x) if is_local else x
    return np.asarray(x, jnp.result_type(x))


def _dtype(x: Any) -> str:
    dtype = jnp.result_type(x)
    is_key = jnp.issubdtype(dtype, jax.dtypes.prng_key)
    return f"key<{jax.random.key_impl(x)}>" if is_key else str(dtype)


def _to_json(step: int, parts: Mapping[str, list[Entry]]) -> dict:
    body = {"schema": SCHEMA, "step": step}
    body |= {name: [x._asdict() for x in found] for name, found in parts.items()}
    return {"checksum": _checksum(body), **json.loads(json.dumps(body))}


def _checksum(body: dict) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


class Step:
    """One checkpoint in a directory.

    params, state: what it holds, once it is open.
    """

    params: list[Entry]
    state: list[Entry]

    def __init__(self, directory: Any, step: int | None):
        self.directory = place(directory)
        self.known = steps(directory)
        if not self.known:
            raise ValueError(f"there is no checkpoint in `{directory}`")
        self.step = self.known[-1] if step is None else step
        if self.step not in self.known:
            raise ValueError(
                f"there is no step {step} in `{directory}`, but {some(self.known)}"
            )
        self.path = self.directory / str(self.step)

    def __str__(self) -> str:
        return f"step {self.step} in `{self.directory}`"

    def open(self) -> "Step":
        """Read what the checkpoint holds.

        Raises ValueError for one that Stepax did not write, for one of a later schema,
        and for a damaged one.
        """
        if not (self.path / "manifest").exists():
            raise ValueError(
                f"{self} has no manifest of Stepax: files are missing, or another "
                "program wrote it; `from_optax` reads checkpoints of Optax"
            )
        with self.reading():
            found = dict(
                orbax().JsonCheckpointHandler().restore(self.path / "manifest")
            )
            if found.pop("checksum") != _checksum(found):
                raise ValueError("the manifest does not have its check sum")
        if (schema := found["schema"]) > SCHEMA:
            raise ValueError(
                f"{self} has the schema {schema}, and this version of Stepax reads "
                f"{SCHEMA} and lower: use the version that wrote it, or a later one"
            )
        self.params = [*map(_entry, found["params"])]
        self.state = [*map(_entry, found["state"])]
        return self

    def read(self, name: str, wanted: list[tuple[Entry, Any]]) -> list[Any]:
        """Arrays of one of the trees, in the dtypes in which they were saved.

        wanted: which, and their shardings, `None` for an array of NumPy.

        Raises ValueError for arrays that cannot be read, or have other numbers.
        """
        ocp = orbax()
        how = {x.key: _how(ocp, x, s) for x, s in wanted if 0 not in x.shape}
        item = {key: np.zeros(()) for key in how}
        args = ocp.args.PyTreeRestore(item, how, partial_restore=True)
        # Not by a `Checkpointer`, which waits for processes that could not read.
        with self.reading():
            reader = ocp.PyTreeCheckpointHandler()
            found = reader.restore(self.path / name, args=args) if how else {}
        with self.reading():
            return [self._checked(name, x, found.get(x.key)) for x, _ in wanted]

    def _checked(self, name: str, entry: Entry, x: Any) -> Any:
        if x is None:
            x = np.zeros(entry.shape, entry.dtype)
        elif digest(x) != entry.digest:
            raise ValueError(f"`{entry.key}` of `{name}` has other numbers than saved")
        if not entry.dtype.startswith("key<"):
            return x
        return jax.random.wrap_key_data(jnp.asarray(x), impl=entry.dtype[4:-1])

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Say which checkpoint an error is about, and which are there beside it.

        If one process has an error, all have one: what they do next needs them all.
        """
        problem = None
        try:
            yield
        except Exception as error:
            problem = error
        failed = [i for i, x in enumerate(_in_all_processes(problem is not None)) if x]
        if not failed:
            return
        others = [x for x in self.known if x < self.step]
        hint = f"; `step={others[-1]}` restores the one before" if others else ""
        if problem is None:
            text = f"it could not be read by process {some(failed)}"
        else:
            text = f"{type(problem).__name__}: {str(problem).strip()[:500]}"
        raise ValueError(f"{self} is damaged: {text}{hint}") from problem


def _in_all_processes(flag: bool) -> list[bool]:
    if jax.process_count() == 1:
        return [flag]
    return [bool(x) for x in process_allgather(np.asarray(flag))]


def _how(ocp: Any, entry: Entry, target: Any) -> Any:
    # JAX would cut numbers of 64 bits before they could be compared with their digest.
    if target is None or _narrowed(entry.dtype) != entry.dtype:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    return ocp.ArrayRestoreArgs(restore_type=jax.Array, sharding=target)


def _entry(fields: Mapping[str, Any]) -> Entry:
    names, where, own, shape = (
        tuple(fields[k]) for k in ("names", "where", "own", "shape")
    )
    return Entry(
        names, where, fields["owner"], own, shape, fields["dtype"], fields["digest"]
    )


def _narrowed(dtype: str) -> str:
    return jax.dtypes.canonicalize_dtype(jnp.dtype(dtype)).name
