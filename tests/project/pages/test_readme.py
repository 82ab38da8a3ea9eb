"""What README.md counts of Optax, PyTorch and Stepax is what is installed."""

import inspect

import optax
import pytest
from inside import ROWS
from pages import ROOT

from website.tables.counts import counts, is_schedule, with_counts


def row(title: str) -> list[str]:
    """The cells of a row in the table of what each library has."""
    lines = (ROOT / "README.md").read_text().splitlines()
    (line,) = [x for x in lines if x.startswith(f"| {title} |")]
    return [x.strip() for x in line.strip("|").split("|")][1:]


def test_our_numbers_are_those_of_today():
    page = (ROOT / "README.md").read_text()
    hint = "run `python -m website.tables.counts`, which writes README.md"
    assert with_counts(page) == page, hint


def test_optimizers_of_optax():
    of = lambda name: getattr(optax, name, None) or getattr(optax.contrib, name, None)
    ours = [x.name for x in ROWS.values() if x.kind == "optimizer"]
    theirs = counts(found for x in ours if (found := of(x)))
    numbers = [row(x)[0] for x in ("optimizers", "of these with weight decay")]
    assert tuple(map(int, numbers)) == theirs
    schedules = sum(map(is_schedule, dir(optax.schedules)))
    assert int(row("learning-rate schedules")[0]) == schedules


def test_optimizers_of_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    of = lambda module, base: [
        x
        for x in vars(module).values()
        if inspect.isclass(x) and issubclass(x, base) and x is not base
    ]
    found = counts(of(torch.optim, torch.optim.Optimizer))
    numbers = [row(x)[1] for x in ("optimizers", "of these with weight decay")]
    assert tuple(map(int, numbers)) == found
    schedulers = torch.optim.lr_scheduler
    names = {x.__name__ for x in of(schedulers, schedulers.LRScheduler)}
    assert int(row("learning-rate schedules")[1]) == len(names - {"_LRScheduler"})
