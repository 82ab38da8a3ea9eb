"""`sweep`: train at every point of a grid, with every seed, in one program.

A run is a function of its traced numbers and its seed.  The losses so far are in memory
and in the file of the sweep; the number of finished runs is shown live in a terminal,
otherwise as plain lines.
"""

import contextlib
import functools as ft
import importlib.util
import json
import math
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.numerics import dtype_of
from .._engine.factories.argument_checks import scalar
from .._engine.factories.ranges import whole_number
from .._engine.functions.calls import nearest, require_takes
from ..solve._minimize.frame import split
from ..solve._minimize.progress import PERIOD, every, is_live, plain_lines
from ..tree import conj
from . import Program, open_grid, plain, programs_of, shown, text_of
from .result import SweepResult, rate_in


_WHAT = {
    "grid": "`grid`",
    "steps": "`steps`",
    "seeds": "`seeds`",
    "programs": "`loss`, `init` or `make_tx`, or another version of JAX",
}


# NumPy's errors for a file that is not its archive; an array in its place has no names.
_DAMAGE = ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile


class Store:
    """The losses (points, seeds, steps), and which runs are done (points, seeds).

    path: the file, or `None`; it is replaced as a whole, so that it is never half
        written.
    about: what distinguishes this sweep from others.
    """

    def __init__(self, path: Any, about: dict, shape: tuple, dtype: np.dtype):
        self.path = None if path is None else Path(os.fspath(path))
        self.about = about
        self.losses = np.full(shape, np.nan, dtype)
        self.done = np.zeros(shape[:2], bool)
        if self.path is None:
            return
        if not self.path.absolute().parent.is_dir():
            raise ValueError(f"`path`: there is no folder {self.path.parent}")
        if self.path.is_dir():
            raise ValueError(f"`path`: {self.path} is a folder, expected a file")
        if self.path.exists():
            self._read(self.path)

    def _read(self, path):
        # A NumPy file without Python objects, which could run code.
        try:
            with open(path, "rb") as opened:
                file = np.load(opened, allow_pickle=False)
                about = json.loads(str(file["about"]))
                losses, done = file["losses"], file["done"]
        except _DAMAGE as error:
            raise ValueError(
                f"`path`: {self.path} is not the file of a sweep, or is damaged; pass "
                "another path, or remove it"
            ) from error
        self._compare(about)
        # With another number of parallel runs, results might differ in the last bit.
        self.about = about
        self.losses, self.done = losses, done

    def _compare(self, about):
        for key, what in _WHAT.items():
            old, new = about.get(key), self.about[key]
            if old != new:
                values = "" if key == "programs" else f", {_cut(old)} for {_cut(new)}"
                raise ValueError(
                    f"`path`: {self.path} belongs to another sweep, with other {what}"
                    f"{values}; pass another path, or remove the file"
                )

    def save(self) -> None:
        if self.path is None:
            return
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        about = np.asarray(json.dumps(self.about))
        try:
            with open(beside, "wb") as file:
                np.savez(file, about=about, losses=self.losses, done=self.done)
            os.replace(beside, self.path)
        finally:
            beside.unlink(missing_ok=True)


def _cut(x: Any, most: int = 100) -> str:
    text = str(x)
    return text if len(text) <= most else f"{text[:most]}…"


# The number of calls for runs in sequence; progress is reported between calls.
_PIECES = 32
# The memory that parallel runs may use on a device that does not report its memory, in
# bytes.
_MEMORY = 2**30


@rx.explain_misuse
def sweep(
    loss: Callable[[Any, jax.Array], Any],
    init: Callable[[jax.Array], Any],
    make_tx: Callable[..., Any],
    grid: Mapping[str, Sequence[Any]],
    steps: int,
    *,
    seeds: int | Sequence[int] = 1,
    rate: str | None = None,
    margin: float = 0.05,
    bound: float = math.inf,
    last: int | None = None,
    vectorize: bool | None = None,
    memory: int | None = None,
    path: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> SweepResult:
    """Train at every point of a grid, with every seed, in one compiled program.

        p = init(k0);   p = p + u,  u from make_tx(**point),  at each of `steps` keys

    loss: a function of the parameters and a key: the loss on a mini-batch sampled with
        it.
    init: a function from a key to parameters, any tree.
    make_tx: a function from a value for each name in the grid to a transformation.
    grid: maps names to sequences of values; their product is run.  Numbers are traced
        and need no further compilation; other values, and numbers that must be
        concrete, need one compilation for each combination.
    steps: steps of each run, >= 1.
    seeds: n >= 1 for the seeds 0 to n - 1, or the seeds themselves.
    rate: the name of the learning rate, for `suggestion`; by default found in the grid.
    margin: relative distance of a suggestion above the best loss, in [0, 1].
    bound: the loss above which a run counts as diverged.
    last: steps at the end over which `final` is a mean; by default a tenth of `steps`.
    vectorize: whether to run in parallel, with `vmap`; by default not on CPUs.
    memory: bytes that parallel runs may use; by default four fifths of the free memory.
    path: a file to which losses are saved, and from which the sweep resumes.
    progress: whether to show progress on the standard error.

    Raises a `TypeError` or a `ValueError` that names the argument or the point.
    """
    grid, points = _open(loss, init, make_tx, grid)
    steps, seeds = whole_number("steps", steps), _seeds(seeds)
    last = max(1, steps // 10) if last is None else whole_number("last", last, steps)
    margin = _number("margin", margin, rx.Range(0, 1))
    bound = _number("bound", bound, rx.Range(is_cap=True))
    rate = rate_in(grid) if rate is None else _rate(rate, grid)
    lane = ft.partial(lane_of, loss, init, make_tx, steps)
    programs = list(programs_of(lane, grid, points))
    is_wide = jax.default_backend() != "cpu" if vectorize is None else vectorize
    chunks = [_chunk(x, len(seeds), is_wide, memory) for x in programs]
    about = {
        "grid": {name: list(map(text_of, values)) for name, values in grid.items()},
        "steps": steps,
        "seeds": seeds,
        "programs": path and [x.fingerprint() for x in programs],
        "chunks": chunks,
    }
    shape = len(points), len(seeds), steps
    store = Store(path, about, shape, np.result_type(*(x.dtype for x in programs)))
    result = SweepResult(points, store.losses, tuple(seeds), rate, margin, bound, last)
    with open_display(len(points) * len(seeds), progress) as show:
        for program, chunk in zip(programs, store.about["chunks"], strict=True):
            for _ in _run(program, store, seeds, chunk, is_wide):
                show((int(store.done.sum()), _line(result, store.done)))
        show((int(store.done.sum()), _line(result, store.done)), is_last=True)
    return result


def _open(loss, init, make_tx, grid):
    functions = {"loss": loss, "init": init, "make_tx": make_tx}
    for name, f in functions.items():
        if not callable(f):
            raise TypeError(f"`{name}` is {rx.errors.describe(f)}, expected a function")
    require_takes("loss", loss, ("params", "key"))
    require_takes("init", init, ("key",))
    return open_grid(grid, make_tx)


def _number(name: str, x: Any, allowed: rx.Range) -> float:
    found = scalar(f"`sweep`: `{name}`", plain(x), allowed=allowed)
    return float(np.asarray(found))


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    if not isinstance(seeds, Sequence | np.ndarray) or isinstance(seeds, str):
        return list(range(whole_number("seeds", seeds)))
    if not len(seeds):
        raise ValueError("`seeds` is empty, expected at least one seed, or a number")
    return [whole_number("seeds", x, 2**32 - 1, least=0) for x in seeds]


def _rate(rate: str, grid: dict) -> str:
    if rate not in grid:
        hint = nearest(f"{rate}", grid) or f", only {list(grid)}"
        raise ValueError(f"`rate` is {rate!r}, which `grid` does not have{hint}")
    return rate


def _chunk(program: Program, seeds: int, is_wide: bool, memory: int | None) -> int:
    """The number of runs in each call, about the same for all calls."""
    runs = len(program.group.points) * seeds
    most = math.ceil(runs / _PIECES)
    if is_wide:
        free = _free() if memory is None else whole_number("memory", memory)
        most = max(1, free // program.bytes())
    return math.ceil(runs / math.ceil(runs / most))


def _free() -> int:
    """Four fifths of the free memory of the device."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" not in stats:
        return _MEMORY
    return (stats["bytes_limit"] - stats.get("bytes_in_use", 0)) * 4 // 5


def _run(program: Program, store: Store, seeds: list[int], chunk: int, is_wide: bool):
    """Do the remaining runs of a program, and yield after each call."""
    group = program.group
    count = len(seeds)
    at = np.repeat(np.arange(len(group.points)), count)
    which = np.tile(np.arange(count), len(group.points))

    def in_turn(*inputs):
        return jax.lax.map(lambda run: program(*run), inputs)

    lanes = jax.jit(jax.vmap(program) if is_wide else in_turn)
    for start in range(0, len(at), chunk):
        # The last call repeats its last run, so that it has the shape of the others.
        runs = np.minimum(np.arange(start, start + chunk), len(at) - 1)
        place = np.asarray(group.points)[at[runs]], which[runs]
        if store.done[place].all():
            continue
        numbers = {k: x[at[runs]] for k, x in group.numbers.items()}
        inputs = numbers, np.asarray(seeds, np.uint32)[which[runs]]
        store.losses[place] = np.asarray(lanes(*inputs))
        store.done[place] = True
        store.save()
        yield


def _line(result: SweepResult, done: np.ndarray) -> str:
    """The best point so far."""
    at = np.flatnonzero(done.all(1))
    if not at.size:
        return ""
    i = at[np.argmin(result.scores[at])]
    if not np.isfinite(result.scores[i]):
        return "all have diverged so far"
    return f"lowest loss {result.scores[i]:.4g} at {shown(result.points[i])}"


def lane_of(
    loss: Callable, init: Callable, make_tx: Callable, steps: int, static: dict
) -> Callable[[dict, Any], jax.Array]:
    """A function from numbers and a seed to the losses of a run (steps,).

    The key of the seed is split in two: the first key is for the parameters, the second
    one is split into keys for the mini-batches.
    """

    def lane(numbers: dict, seed: Any) -> jax.Array:
        tx = rx.with_extra_args_support(make_tx(**static, **numbers))
        init_key, data_key = jax.random.split(jax.random.key(seed))
        frame, moving, staying = split(init(init_key))
        if not moving:
            raise ValueError(
                "`init` returned a tree without floating-point arrays: there is "
                "nothing to train"
            )

        def step(carry, key):
            params, state = carry

            # Sophia needs `obj_fn`; a line search passes it on to `value_fn`.
            def value_fn(params, obj_fn=None):
                whole = frame.whole(frame.pick(params), staying)
                return _scalar(loss(whole, key))

            value, grad = jax.value_and_grad(value_fn)(params)
            # JAX's gradient for a complex array is the conjugate of the gradient for
            # its parts.
            grad = conj(grad)
            more = {"value": value, "grad": grad, "value_fn": value_fn}
            updates, new = tx.update(grad, state, params, obj_fn=value_fn, **more)
            carry = rx.apply_updates(params, updates), rx.keep_dtypes(new, state)
            return carry, value

        params = frame.params(moving)
        start = params, tx.init(params)
        return jax.lax.scan(step, start, jax.random.split(data_key, steps))[1]

    return lane


def _scalar(found: Any) -> jax.Array:
    """The loss as an array of float32 or wider; raises unless it is a real scalar."""
    is_float = isinstance(found, float)
    dtype = jnp.result_type(float) if is_float else dtype_of(found)
    shape = None if dtype is None else np.shape(found)
    if dtype is None or shape != () or not jnp.issubdtype(dtype, jnp.floating):
        is_array = shape is not None
        what = f"{dtype} of shape {shape}" if is_array else rx.errors.describe(found)
        raise TypeError(
            f"`loss` returned {what}, expected a real scalar, as from `jnp.mean`"
        )
    return jnp.asarray(found).astype(jnp.promote_types(dtype, jnp.float32))


def open_display(runs: int, progress: bool) -> Any:
    """A context manager; its value is called with the number of runs done and a line
    about them, and the last time with `is_last=True`."""
    if not progress:
        return contextlib.nullcontext(lambda now, is_last=False: None)
    if is_live() and importlib.util.find_spec("rich") is not None:
        return _live(runs)
    return plain_lines(lambda now: f"{now[0]}/{runs} runs   {now[1]}")


@contextlib.contextmanager
def _live(runs):
    from rich import console, progress

    columns = (
        progress.TextColumn("{task.completed}/{task.total} runs"),
        progress.BarColumn(bar_width=24),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.description}"),
    )
    with progress.Progress(*columns, console=console.Console(stderr=True)) as bar:
        task = bar.add_task("compiling", total=runs)

        def draw(now):
            done, line = now
            bar.update(task, completed=done, description=line.replace("[", r"\["))

        yield every(PERIOD, draw)
