"""Random nests of transformations, and what `diagnose` says of each, to be read.

    python -m benchmarks.nests 300 --seed 32

Nests, trees and numbers are those of the fuzzer, `tests/fuzz`.  Beside an alarm is how
the parameters at its paths moved in eight steps with the same gradient: the cosine of
their change and the gradient, from -1 for downhill to 1 for uphill.
"""

import argparse
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jax
import numpy as np
from hypothesis import HealthCheck as Check


sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import fuzz.world as world
from fuzz.examples import Steady  # noqa: F401  (it registers itself)
from fuzz.programs import programs
from fuzz.runs import Program

import stepax


CALLS = 8


def drawn(many: int, seed: int) -> list[Program]:
    """Different programs that can be initialized, for trees with arrays."""
    found: dict[str, Program] = {}

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=4 * many,
        database=None,
        deadline=None,
        backend="steady",
        suppress_health_check=[Check.too_slow, Check.data_too_large],
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(programs())
    def add(program: Program) -> None:
        if len(found) < many and _starts(program):
            found.setdefault(program.tx, program)

    add()
    return list(found.values())


def _starts(program: Program) -> bool:
    tree = program.tree(stepax)
    if not jax.tree.leaves(tree):
        return False
    try:
        program.make(stepax).init(tree)
    except (TypeError, ValueError):
        return False
    return True


def moved(program: Program, paths: tuple[str, ...]) -> str:
    """How the parameters at these paths moved."""
    params, tx = program.tree(stepax), program.make(stepax)
    state, begin = tx.init(params), world.fast(params)
    g = world.gradients(begin, 0, 1.0)
    try:
        for _ in range(CALLS):
            more = world.keywords(program.tx, g, world.fast(params))
            updates, state = tx.update(g, state, params, **more)
            params = stepax.apply_updates(params, updates)
    except Exception as error:  # it is reported beside the finding
        return f"fails: {type(error).__name__}"
    # Of the pair in `lookahead`, only one part has gradients.
    names = {re.sub("^(fast|slow)(/|$)", "", path) for path in paths}
    trees = (world.fast(params), begin, g)
    p, q, v = (np.concatenate([*_at(x, names), [0.0]]) for x in trees)
    size = np.linalg.norm(p - q) * np.linalg.norm(v)
    return f"{float(((p - q) * v.conj()).sum().real / size):+.2f}" if size else "still"


def _at(tree: Any, names: set[str]) -> Iterator[np.ndarray]:
    for at, x in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if jax.tree_util.keystr(at, simple=True, separator="/") in names:
            yield np.asarray(x, complex).ravel()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("many", type=int, nargs="?", default=300)
    parser.add_argument("--seed", type=int, default=32)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)  # some of the arrays have 64 bits
    warnings.simplefilter("ignore")
    count: Counter[str] = Counter()
    nests = drawn(args.many, args.seed)
    for n, program in enumerate(nests):
        tx, params = program.make(stepax), program.tree(stepax)
        found = stepax.diagnose(tx, params, steps=100)
        count.update(set(found.codes))
        if alarms := [
            x for x in found if x.severity != "note" or x.code == "check-failed"
        ]:
            print(f"\n{n}: {program.tx}\n   {program.params}")
        for x in alarms:
            at = f"{', '.join(x.paths)} ({moved(program, x.paths)})"
            print(f"   {x.severity} {x.code} at {at}: {x.message}")
    print(f"\n{len(nests)} nests: {dict(count.most_common())}")


if __name__ == "__main__":
    main()
