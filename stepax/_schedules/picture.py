"""Figures of matplotlib, which is an optional dependency, and plots of schedules."""

import os
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._engine.base import is_array
from .._engine.factories.scheduled import values_of
from .._engine.functions.calls import explain_misuse
from .._engine.functions.signatures import name_of
from .._engine.trees import errors
from .._names import install
from .lengths import positive


def new_figure(asked_by: str, height: float = 5) -> Any:
    """An empty figure, eight inches wide; asked_by: the public function, for errors."""
    try:
        # Without pyplot, which would look for a window system.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"`{asked_by}` draws with matplotlib, which is not installed: "
            f"{install('plot')}"
        ) from error
    return Figure(figsize=(8, height), dpi=150, layout="constrained")


# More points than a picture has columns; every step, if there are fewer.
_POINTS = 10_000


@explain_misuse
def plot(schedule: Any, steps: int, path: str | os.PathLike[str]) -> None:
    """Plot schedules over the steps to a file, with matplotlib.

    schedule: a function of the step count, a number, or a mapping of names to these,
        which are plotted together.
    steps: the last step to plot, positive.
    path: the file; its suffix is the format, such as png, svg or pdf.

    Raises a TypeError for anything else, and an ImportError without matplotlib.
    """
    curves = dict(schedule) if isinstance(schedule, Mapping) else {"": schedule}
    if not curves:
        raise ValueError("`schedule` is an empty mapping, expected schedules by name")
    positive("steps", steps, "be positive")
    counts = np.unique(np.linspace(0, steps, min(int(steps), _POINTS) + 1).astype(int))
    values = {name: _values(name, x, counts) for name, x in curves.items()}
    figure = new_figure("stepax.schedules.plot", height=4)
    axes = figure.subplots()
    for name, column in values.items():
        axes.plot(counts, column, label=str(name))
    axes.set(xlabel="step", ylabel="value")
    axes.grid(alpha=0.3)
    if isinstance(schedule, Mapping):
        axes.legend()
    else:
        text = repr(schedule)
        title = name_of(schedule) if " at 0x" in text else text
        axes.set_title("\n".join(textwrap.wrap(title, 90)), fontsize=9)
    figure.savefig(path)


def _values(name: Any, schedule: Any, counts: np.ndarray) -> np.ndarray:
    is_number = is_array(schedule) and np.ndim(schedule) == 0
    if not callable(schedule) and not is_number:
        where = f"`schedule[{name!r}]`" if name else "`schedule`"
        raise TypeError(
            f"{where} is {errors.describe(schedule)}, expected a function of the step "
            "count, a number, or a mapping of names to these"
        )
    at: Any = schedule if callable(schedule) else lambda _: schedule
    return values_of(at, counts)
