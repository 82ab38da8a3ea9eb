"""What steps of large models need on many devices: the tables of docs/plan.md.

Run it with `python -m benchmarks.plan`; no devices are needed, and no array is made.
It takes two minutes on an idle core.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

from rich.progress import track

from stepax._plan.command import planned
from stepax.distributed import Plan

from .pages import write_table


PAGE = Path(__file__).parents[1] / "docs" / "plan.md"
# Bytes per second to other devices, of a device's memory, and to host memory; and
# operations per second.
RATES = {"link": 50e9, "memory": 3350e9, "host": 50e9, "operations": 100e12}
SIZES = {
    "llama-1b": (8, 64),
    "llama-8b": (8, 64, 512),
    "llama-70b": (64, 512),
    "llama-405b": (512, 4096),
}


class Row(NamedTuple):
    """A line of each table: an optimizer, and the options of the command."""

    optimizer: str
    options: dict

    def plan(self, model: str, devices: int) -> Plan:
        # Whole parameters of a large model fit on no device, but an eighth may.
        split = 8 if self.options.get("sharded") and devices > 8 else 1
        mesh = {"data": devices // split} | ({"model": split} if split > 1 else {})
        return planned(model, self.optimizer, mesh, **self.options)


ROWS = {
    "AdamW": Row("adamw", {}),
    "AdamW, 8 bits": Row("adamw", {"bits": 8}),
    "AdamW, ZeRO": Row("adamw", {"sharded": True}),
    "AdamW, offload": Row("adamw", {"on_host": True}),
    "Muon": Row("muon", {}),
    "SOAP": Row("soap", {}),
}
HEAD = [
    "optimizer",
    "parameters and gradients, GiB",
    "state, GiB",
    "temporaries, GiB",
    "collectives",
    "sent, GiB",
    "communication, ms",
    "memory, ms",
    "computing, ms",
    "work",
]


def line(name: str, model: str, devices: int) -> str:
    """A row of a table."""
    found = ROWS[name].plan(model, devices)
    gib = lambda n: f"{n / 2**30:,.2f}"
    seconds = found.seconds(**RATES)
    ms = lambda key: f"{1e3 * seconds[key]:,.1f}"
    # What goes to the host and back takes as much time as that link needs.
    moved = ms("memory") + (f" + {ms('host')}" if "host" in seconds else "")
    cells = [
        name,
        gib(found.params_per_device + found.gradients_per_device),
        gib(found.state_per_device),
        gib(found.temporaries),
        ", ".join(f"{x.count} {x.kind}" for x in found.collectives) or "none",
        gib(sum(x.bytes for x in found.links)),
        ms("communication"),
        moved,
        ms("computing"),
        f"{found.share:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def table(model: str, devices: int) -> list[str]:
    head = [f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    return [*head, *(line(name, model, devices) for name in ROWS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(SIZES), help="the tables of one model")
    only = parser.parse_args().only
    models = [only] if only else list(SIZES)
    pairs = [(model, n) for model in models for n in SIZES[model]]
    for model, n in track(pairs, "planning"):
        write_table(PAGE, table(model, n), f"{model} on {n}", f"end {model} on {n}")


if __name__ == "__main__":
    main()
