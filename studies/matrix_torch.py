"""Steps of matrix optimizers beside PyTorch's on the same cores: docs/references.md.

Run it with `python -m studies.matrix_torch`; names choose the optimizers, and
`--write` puts the table into the page.  It needs PyTorch: `pip install torch`.

Parameters are the matrices of a small GPT-2 of width 256, in float32.  Steps of both
are taken in turn, in one process, and the ratio is the median of those of each turn.
The peer is `torch.optim.Muon` where PyTorch has the optimizer, and otherwise, and for
Muon as well, the equations in plain PyTorch, see `matrix_peers.py`; `--check` compares
these with the trajectories of the authors' own programs, in float64.
"""

import argparse
import datetime
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in `matrix_steps.py`
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import jax
import numpy as np
import references
import torch
from rich.progress import track

from stepax import contrib
from website.tables.parts import write_table

from .matrix_peers import MADE
from .matrix_steps import NEVER, params, step_of


PAGE = Path(__file__).parents[1] / "docs" / "references.md"
GRAFTED = {"b2": 0.999, "eps": 1e-10, "grafting": "adam"}
KRON = {"preconditioner_update_probability": 1.0}


class Case(NamedTuple):
    """A row of the table.

    every: steps from one renewal to the next, of which one is timed, or all; 0 for
        optimizers that renew nothing.
    """

    label: str
    name: str
    ours: dict[str, Any] = {}
    every: int = 0
    is_builtin: bool = False


CASES = (
    Case("Muon", "muon", {"bias_correction": False}),
    Case("Muon, `torch.optim.Muon` (bfloat16)", "muon", is_builtin=True),
    Case("NorMuon", "normuon"),
    Case("SOAP, between renewals", "soap", every=NEVER),
    Case("SOAP, mean of 10", "soap", every=10),
    Case("Shampoo, between renewals", "shampoo", GRAFTED, every=NEVER),
    Case("Shampoo, mean of 10", "shampoo", GRAFTED, every=10),
    Case("PSGD Kron", "psgd_kron", KRON),
)


def ours(case: Case, layers: int) -> Callable[[], Any]:
    """A step of Stepax."""
    how = {"precondition_frequency": case.every} if case.every else {}
    tx = getattr(contrib, case.name)(1e-3, **case.ours, **how)
    p = params(layers)
    g, state, step = jax.tree.map(lambda x: 0.1 * x, p), tx.init(p), step_of(tx)

    def run():
        nonlocal p, state
        state, p = step(g, state, p)
        jax.block_until_ready(p)

    return run


def theirs(case: Case, layers: int) -> Callable[[], Any]:
    """A step of PyTorch."""
    ps = [
        torch.nn.Parameter(torch.tensor(np.array(p))) for p in params(layers).values()
    ]
    for p in ps:
        p.grad = 0.1 * p.detach()
    if case.is_builtin:
        return torch.optim.Muon(ps, 1e-3).step
    how = {"every": case.every} if case.every else {}
    pairs = [(MADE[case.name](p.data, 1e-3, **how), p.grad) for p in ps]

    @torch.no_grad()
    def run():
        for peer, g in pairs:
            peer.step(g)

    return run


def seconds(f: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        f()
    return (time.perf_counter() - start) / times


def row(case: Case, layers: int, rounds: int) -> str:
    times = case.every if 0 < case.every < NEVER else 1
    steps = ours(case, layers), theirs(case, layers)
    for _ in range(2):  # compiles, and makes the first bases
        taken = [[seconds(f, 1)] for f in steps]
    taken = [[], []]
    for i in range(rounds):
        for k in (0, 1) if i % 2 else (1, 0):
            taken[k].append(seconds(steps[k], times))
    mine, other = (1e3 * statistics.median(x) for x in taken)
    ratio = statistics.median(x / y for x, y in zip(*taken, strict=True))
    return f"| {case.label} | {mine:.0f} ms | {other:.0f} ms | {ratio:.2f} |"


def check(name: str) -> float:
    """The error of a transcription on the matrices of its trajectory."""
    reference = references.load(name)
    hyper, worst = reference.meta["kwargs"], 0.0
    names = {"learning_rate": "rate", "beta": "b1", "weight_decay": "decay"}
    names |= {"precondition_frequency": "every", "max_precond_dim": "most"}
    taken = ("b1", "b2", "eps")
    for leaf in ("square", "tall", "wide"):
        how = {names.get(k, k): x for k, x in hyper.items() if k in (*names, *taken)}
        if name == "psgd_kron":
            how["draw"] = lambda shape, dtype: torch.tensor(
                np.array(references.waves(None, shape))
            )
        p = torch.tensor(np.array(reference.params[leaf]))
        first, peer = p.clone(), MADE[name](p, **how)
        wanted = torch.tensor(np.array(reference.trajectory[leaf]))
        for t, g in enumerate(torch.tensor(np.array(reference.grads[leaf]))):
            peer.step(g)
            way = (wanted - first).abs().max()
            worst = max(worst, float((peer.p - wanted[t]).abs().max() / way))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[], help="such as soap muon")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=7, help="turns of both")
    parser.add_argument("--check", action="store_true", help="check the transcriptions")
    parser.add_argument("--write", action="store_true", help="write the table")
    args = parser.parse_args()
    if args.check:
        with jax.enable_x64(True):
            for name in args.names or MADE:
                print(f"{name:12} {check(name):.0e}", flush=True)
        return
    chosen = [x for x in CASES if not args.names or x.name in args.names]
    lines = ["| optimizer | Stepax | PyTorch | ratio |", "| --- | --- | --- | --- |"]
    lines += [row(x, args.layers, args.rounds) for x in track(chosen, "measuring")]
    today = datetime.date.today().isoformat()
    lines += [
        "",
        f"{today}, {args.layers} layers, {os.cpu_count()} {platform.machine()} cores, "
        f"JAX {jax.__version__}, PyTorch {torch.__version__}, load "
        f"{os.getloadavg()[0]:.0f}, {args.rounds} rounds.",
    ]
    print("\n".join(lines))
    if args.write:
        write_table(PAGE, lines, "steps", "end of steps")


if __name__ == "__main__":
    main()
