"""What README.md counts of Optax, PyTorch and Stepax is what is installed."""

import inspect

import optax
import pytest
from pages import ROOT

import stepax
from stepax._engine.factories.registry import ROWS


def row(title: str) -> list[str]:
    """The cells of a row in the table of what each library has."""
    lines = (ROOT / "README.md").read_text().splitlines()
    (line,) = [x for x in lines if x.startswith(f"| {title} |")]
    return [x.strip() for x in line.strip("|").split("|")][1:]


def counts(factories) -> tuple[int, int]:
    """How many there are, and how many of them have a weight decay."""
    found = [*map(inspect.signature, factories)]
    return len(found), sum("weight_decay" in x.parameters for x in found)


def is_schedule(name: str) -> bool:
    return name.endswith("schedule") and not name.startswith("_")


def test_optimizers_of_optax_and_stepax():
    ours = [x for x in ROWS.values() if x.kind == "optimizer"]
    of = lambda name: getattr(optax, name, None) or getattr(optax.contrib, name, None)
    theirs = [found for x in ours if (found := of(x.name))]
    number, decays = row("optimizers"), row("of these with weight decay")
    assert (int(number[0]), int(decays[0])) == counts(theirs)
    assert (int(number[2]), int(decays[2])) == counts(x.factory for x in ours)
    schedules = row("learning-rate schedules")
    assert int(schedules[0]) == sum(map(is_schedule, dir(optax.schedules)))
    assert int(schedules[2].split(",")[0]) == sum(
        map(is_schedule, dir(stepax.schedules))
    )


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
