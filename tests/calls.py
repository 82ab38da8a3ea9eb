"""Calls of Python functions of the library while a step is traced, and their files.

Run it with `python tests/calls.py`; `--list adamw` prints each function.

The figures are exact: `jit(tx.update)` is traced for one matrix and one vector, and
each call of a function of Stepax is counted.  Lambdas and comprehensions are left out,
which are calls in some versions of Python alone.
"""

import argparse
import collections
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from inside import programs

import stepax
import stepax.contrib


HOME = os.path.dirname(stepax.__file__) + os.sep
PARAMS = {"matrix": jnp.ones((4, 3)), "vector": jnp.ones(3)}
CASES: dict[str, Callable[[], Any]] = {
    "adamw": lambda: stepax.adamw(1e-3),
    "masked": lambda: stepax.masked(
        stepax.adam(1e-3), {"matrix": True, "vector": False}
    ),
    "MultiSteps": lambda: stepax.MultiSteps(
        stepax.chain(stepax.clip_by_global_norm(1.0), stepax.adamw(1e-3)), 2
    ).gradient_transformation(),
    "muon": lambda: stepax.contrib.muon(1e-3),
}


def calls(tx: Any) -> collections.Counter:
    """How often each function, as (file, name), is called in a trace of one step."""
    state, jitted = tx.init(PARAMS), jax.jit(tx.update)
    return counted(lambda: jitted.trace(PARAMS, state, PARAMS))


def counted(run: Callable[[], Any]) -> collections.Counter:
    """How often `run()` calls each function, as (file, name)."""
    found = collections.Counter()

    def count(frame, event, _):
        code = frame.f_code
        is_named = not code.co_name.startswith("<")
        if event == "call" and is_named and code.co_filename.startswith(HOME):
            found[code.co_filename.removeprefix(HOME), code.co_name] += 1

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def fresh(name: str) -> collections.Counter:
    """The calls of one case, of which nothing has been traced before."""
    tx = CASES[name]()
    # Once without counting, as the first step of an optimizer lists its plan.
    calls(tx)
    jax.clear_caches()
    programs._programs.cache_clear()
    return calls(tx)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--list", choices=CASES, help="print each function of a case")
    chosen = parser.parse_args().list
    print(f"{'case':12}{'calls':>6}{'files':>6}")
    for name in CASES:
        found = fresh(name)
        files = {path for path, _ in found}
        print(f"{name:12}{found.total():6}{len(files):6}")
        if name == chosen:
            for (path, function), n in found.most_common():
                print(f"{n:18}  {path} {function}")


if __name__ == "__main__":
    main()
