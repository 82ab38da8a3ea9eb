"""What `python -m benchmarks.board` shows: a table that fills, or lines."""

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

from . import store


@contextlib.contextmanager
def opened(
    rows: store.Rows, pairs: list[tuple[str, str]], is_terminal: bool
) -> Iterator[Callable[[dict], None]]:
    """A function that is given each row that has got further."""
    if not is_terminal:
        yield _line
        return
    from rich.live import Live

    cells = {pair: cell(rows.read(*pair)) for pair in pairs}
    with Live(_table(cells), refresh_per_second=4) as live:

        def show(row):
            cells[row["task"], row["optimizer"]] = cell(row)
            live.update(_table(cells))

        yield show


def cell(row: dict | None) -> str:
    """The loss of a complete row, or how far it is."""
    if row is None:
        return ""
    if store.is_complete(row):
        losses = final(row)
        return f"{losses.mean():.3g} ± {losses.std(ddof=1):.1g}"
    return f"{100 * _done(row):.0f} %"


def final(row: dict) -> np.ndarray:
    """The losses of the fresh seeds."""
    return np.asarray([curve[-1] for curve in row["seeds"]])


def _done(row):
    curve = len(row["curve_rates"]) * len(row["curve_seeds"])
    tuning = len(row["draws"]) * len(row["tuning_seeds"])
    done = sum(len(row[phase]) for phase in store.PHASES)
    return done / (tuning + len(row["fresh_seeds"]) + curve)


def _line(row):
    if store.is_complete(row):
        spent = sum(row["processor_seconds"].values())
        name = f"{row['task']:9} {row['optimizer']:20}"
        print(f"{name} {cell(row):20} {spent:6.1f} s", flush=True)


def _table(cells):
    from rich.table import Table

    table = Table("optimizer", *dict.fromkeys(of for of, _ in cells))
    for name in dict.fromkeys(name for _, name in cells):
        table.add_row(name, *(x for (_, n), x in cells.items() if n == name))
    return table
