"""A minimization in pieces, with Python code in between.

The compiled loop takes the step number at which to return, so that all pieces share one
program.  With `callback` a piece is one step.  With `progress` it takes about one
refresh period; while Python draws, the next piece is running.
"""

import contextlib
import functools as ft
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from .loop import Inputs, Run
from .result import Code


PERIOD = 0.1  # seconds between refreshes
PAUSE = 5.0  # seconds between plain lines


def run_program(
    program: Any,
    inputs: Inputs,
    callback: Callable[[Any], Any] | None,
    progress: bool,
    so_far: Callable[[Any], Any],
    shown: str = "value {value:.6g}   gradient {norm:.2e}",
) -> Any:
    """The result of a compiled program; its `params` is the list of moving arrays.

    so_far: maps the state of a run to the result for the callback.
    shown: what to show of a point, with its `value` and `norm`.
    """
    if callback is None and not progress:
        return program.whole(jax.lax.stop_gradient(inputs))
    if any(isinstance(x, Tracer) for x in jax.tree.leaves(inputs)):
        name = "callback" if callback is not None else "progress"
        raise ValueError(
            f"`{name}` runs in Python between the steps and needs concrete values: "
            "make the call outside of `jit`, `vmap` and `grad`, or use `history`"
        )
    most = int(inputs.max_steps)
    line = ft.partial(_line, most, shown)
    display = (_live if is_live() else plain_lines)(line)
    hidden = contextlib.nullcontext(lambda *_, **__: None)
    with display if progress else hidden as show:
        run = program.begin(inputs)
        if callback is None:
            run = _by_time(program.advance, inputs, run, most, show)
        else:
            tell = lambda run: callback(so_far(run))
            run = _by_steps(program.advance, inputs, run, most, show, tell)
        show(run, is_last=True)
    return program.finish(inputs, run)


def _goes_on(run: Run, most: int) -> bool:
    return int(run.code) == Code.RUNNING and int(run.steps) < most


def _by_steps(advance, inputs, run, most, show, tell):
    while _goes_on(run, most):
        before = int(run.steps)
        run = advance(inputs, run, run.steps + 1)
        show(run)
        # A step that is predicted to gain too little is not taken.
        if int(run.steps) > before and tell(run) and int(run.code) == Code.RUNNING:
            return run._replace(code=jnp.full_like(run.code, Code.STOPPED))
    return run


def _by_time(advance, inputs, run, most, show):
    steps = 1
    while _goes_on(run, most):
        begin = time.perf_counter()
        limit = jnp.minimum(run.steps + steps, inputs.max_steps)
        following = advance(inputs, run, limit)
        show(run)  # while the next piece runs
        run = jax.block_until_ready(following)
        steps = next_length(steps, time.perf_counter() - begin)
    return run


def next_length(steps: int, seconds: float) -> int:
    """The number of steps that take about one period, from the time of the last piece.

    The first piece includes compilation, and does not predict the next.
    """
    factor = min(max(PERIOD / max(seconds, 1e-9), 0.1), 10.0)
    return min(max(1, round(steps * factor)), 2**20)


# --- what is shown -------------------------------------------------------------------


def _line(most: int, shown: str, run: Run) -> str:
    numbers = shown.format(value=float(run.at.value), norm=float(run.at.norm))
    steps, evaluations = int(run.steps), int(run.evaluations)
    return f"step {steps}/{most}   {numbers}   evaluations {evaluations}"


def is_live() -> bool:
    """Whether lines on the terminal may be redrawn."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def every(seconds: float, draw: Callable[[Any], None]) -> Callable:
    """Draw at most every `seconds`, and at the end."""
    last = -math.inf

    def show(run, is_last=False):
        nonlocal last
        now = time.perf_counter()
        if is_last or now - last >= seconds:
            last = now
            draw(run)

    return show


@contextlib.contextmanager
def plain_lines(line: Callable[[Any], str]) -> Iterator[Callable]:
    yield every(PAUSE, lambda run: print(line(run), file=sys.stderr, flush=True))


@contextlib.contextmanager
def _live(line):
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
    except ImportError as error:
        raise ImportError(
            "`progress=True` draws with rich, which is not installed: "
            "`pip install rich`, or leave `progress` out"
        ) from error
    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        yield every(PERIOD, lambda run: live.update(Text(line(run)), refresh=True))
