"""What the library does when it is imported, makes an optimizer, and traces a step.

`benchmarks/house.py --run` runs it on the package of a folder.  All but the seconds are
counts of Python's calls, the same in each run: a function of the library is one that is
written in its folder, and not those that `dataclass` and the like have made.

A step is traced twice.  The first trace also makes the plan, once; what each further
one enters is reported from the second.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import jax
import jax.numpy as jnp

import stepax
import stepax.contrib


HOME = str(Path(stepax.__file__).parent)
PARAMS = {"w": jnp.ones((4, 3)), "v": jnp.ones((3, 4)), "b": jnp.ones(3)}
IMPORT = """
import time, jax
begin = time.process_time()
import stepax
print(time.process_time() - begin)
"""


@contextmanager
def entered() -> Iterator[list[CodeType]]:
    """The Python functions that are entered inside, in order."""
    found: list[CodeType] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            found.append(frame.f_code)

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


def is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(HOME)


def import_seconds(times: int = 5) -> float:
    """Processor time of `import stepax` where JAX is imported already, a median."""
    command = [sys.executable, "-c", IMPORT]
    with tempfile.TemporaryDirectory() as cache:
        # Compiled once, as where it is installed, whatever is set here.
        env = os.environ | {"PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
        run = lambda: float(subprocess.check_output(command, text=True, env=env))
        run()
        return statistics.median(run() for _ in range(times))


def construction(make: Callable[[], object]) -> tuple[int, int, int]:
    """Calls of our functions, of others, and the steps that are listed in plans."""
    make()  # what is done once in a process
    with entered() as found:
        make()
    ours = [code for code in found if is_ours(code)]
    return len(ours), len(found) - len(ours), listings(ours)


def listings(found: list[CodeType]) -> int:
    """How many times the engine walked a nest to list the operations of its step."""
    return sum(code.co_qualname == "_Listing.__init__" for code in found)


def traced(tx: stepax.GradientTransformation) -> tuple[int, int]:
    """Our functions that a second trace of a step enters; the steps listed in both."""
    state = tx.init(PARAMS)
    traces = []
    for _ in range(2):
        with entered() as found:
            jax.jit(lambda *x: tx.update(*x)).trace(PARAMS, state, PARAMS)
        traces.append(found)
    ours = {code for code in traces[1] if is_ours(code)}
    return len(ours), sum(map(listings, traces))


def several_steps() -> stepax.GradientTransformation:
    clip = stepax.clip_by_global_norm(1.0)
    tx = stepax.chain(clip, stepax.adamw(1e-3))
    return stepax.MultiSteps(tx, 4).gradient_transformation()


def main() -> None:
    print(f"import after JAX, ms of a processor   {1e3 * import_seconds():.0f}")
    for make in (stepax.adamw, stepax.contrib.muon):
        ours, others, plans = construction(lambda make=make: make(1e-3))
        print(f"{make.__name__}(): calls of our functions    {ours}")
        print(f"{make.__name__}(): calls of others           {others}")
        print(f"{make.__name__}(): steps listed              {plans}")
    steps = {
        "MultiSteps(clip + adamw)": several_steps(),
        "muon": stepax.contrib.muon(1),
    }
    for name, tx in steps.items():
        functions, listed = traced(tx)
        print(f"{name}: functions of a traced step       {functions}")
        print(f"{name}: steps listed in two traces       {listed}")


if __name__ == "__main__":
    main()
