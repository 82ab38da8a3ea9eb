"""The kernels of a profile: how often each runs, how long, and at which bandwidth.

A profile holds an event for each run of a kernel, with the name of its operation in the
optimized program, whose shapes tell the bytes.
"""

import math
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.profiler import ProfileData

from benchmarks.bench.report import Table


class Kernel(NamedTuple):
    """Operations of a program whose names differ in a number alone.

    operations: how many there are.
    runs, seconds, traffic: of all of them in a step, as a mean; the bytes of arguments
        and results are `None` if the program does not tell.
    """

    name: str
    operations: int
    runs: float
    seconds: float
    traffic: float | None


def profiled(run: Callable[[int], Any], steps: int, text: str) -> list[Kernel]:
    """The kernels of some steps, those that take most time first.

    run: takes a number of steps, and waits for them.
    text: the optimized program.
    """
    options = jax.profiler.ProfileOptions()
    # Calls of Python are not needed, and take time.
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            run(steps)
        files = map(str, Path(folder).glob("**/*.xplane.pb"))
        events = [x for file in files for x in events_of(ProfileData.from_file(file))]
    return grouped(events, steps, traffic_of(text))


def grouped(
    events: Iterable[tuple[str, float]], steps: int, traffic: dict[str, int]
) -> list[Kernel]:
    """Events, an operation and its seconds each, by the names without numbers."""
    found: dict[str, list[tuple[str, float]]] = {}
    for name, seconds in events:
        found.setdefault(stem(name), []).append((name, seconds))
    kernels = []
    for name, runs in found.items():
        known = [traffic[x] for x, _ in runs if x in traffic]
        moved = sum(known) / steps if len(known) == len(runs) else None
        seconds = sum(x for _, x in runs) / steps
        many = len({x for x, _ in runs}), len(runs) / steps
        kernels.append(Kernel(name, *many, seconds, moved))
    return sorted(kernels, key=lambda x: -x.seconds)


def stem(name: str) -> str:
    """The name of an operation without its number."""
    return re.sub(r"(\.\d+|\.clone)+$", "", name)


def events_of(data: Any) -> Iterator[tuple[str, float]]:
    """The operation and the seconds of each event of the device, or else of the CPU."""
    planes = list(data.planes)
    devices = [x for x in planes if x.name.startswith("/device:")]
    for plane in devices or planes:
        for line in plane.lines:
            # Other lines sum up those of the streams.
            if devices and not line.name.startswith("Stream"):
                continue
            for event in line.events:
                operation = dict(event.stats).get("hlo_op")
                if operation or devices:
                    yield str(operation or event.name), event.duration_ns / 1e9


_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")
_LINE = re.compile(r"\s*(?:ROOT )?%([\w.-]+) = (.*?) [\w-]+\((.*?)\)")


def traffic_of(text: str) -> dict[str, int]:
    """Bytes of the arguments and results of each operation of a program."""
    found = [x.groups() for x in map(_LINE.match, text.splitlines()) if x]
    sizes = {name: _bytes(kind) for name, kind, _ in found}
    argument = re.compile(r"%([\w.-]+)")
    return {
        name: sizes[name] + sum(sizes.get(x, 0) for x in argument.findall(given))
        for name, _, given in found
    }


def _bytes(kind: str) -> int:
    """Bytes of an array, or of a tuple of arrays, as a program writes their types."""
    return sum(
        math.prod(int(n) for n in shape.split(",") if n) * int(bits or 8) // 8
        for _, bits, shape in _ARRAY.findall(kind)
    )


def table(kernels: list[Kernel]) -> Table:
    """A line for each kernel."""
    total = sum(x.seconds for x in kernels) or math.nan
    lines = [
        [x.name, f"{x.operations}", f"{x.runs:g}", f"{1e3 * x.seconds:.3f}"]
        + [f"{x.seconds / total:.0%}", *_rate(x)]
        for x in kernels
    ]
    return ["kernel", "operations", "runs", "ms", "of all", "MB", "TB/s"], lines


def _rate(kernel: Kernel) -> list[str]:
    if kernel.traffic is None:
        return ["", ""]
    rate = kernel.traffic / (kernel.seconds or math.nan)
    return [f"{kernel.traffic / 1e6:.1f}", f"{rate / 1e12:.2f}"]
