"""The cost of each wrapper, and every pair of wrappers around every kind of optimizer.

Run it with `python benchmarks/wrappers.py`, or `--pairs`, which takes half an hour.

Costs are those of one jitted step of AdamW in the wrapper, for 20 leaves of 64 x 64 in
float32: equations of the traced step, and, per parameter, bytes of state and bytes
accessed as counted by XLA, with both branches of a conditional included.
"""

import argparse
import itertools as it
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import track
from rich.table import Table


sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "wrappers"))

from test_wrapper_pairs import check
from wrappers import FAMILIES, WRAPPERS

import stepax


def costs(tx, params):
    """Equations, and bytes of state and bytes accessed per parameter."""
    tx = stepax.with_extra_args_support(tx)
    state = tx.init(params)
    step = lambda g, s, p: tx.update(g, s, p, value=jnp.float32(1.0))
    equations = len(jax.make_jaxpr(step)(params, state, params).eqns)
    numbers = sum(p.size for p in jax.tree.leaves(params))
    kept = sum(x.nbytes for x in jax.tree.leaves(state)) / numbers
    compiled = jax.jit(step).lower(params, state, params).compile()
    found = compiled.cost_analysis()
    assert found is not None
    return equations, kept, found["bytes accessed"] / numbers


def show_costs():
    params = {f"w{i}": jnp.ones((64, 64)) for i in range(20)}
    table = Table("wrapper", "equations", "bytes of state", "bytes accessed")
    bare = stepax.adamw(1e-2)
    for name, wrap in {"none": lambda tx: tx, **WRAPPERS}.items():
        equations, kept, accessed = costs(wrap(bare), params)
        table.add_row(name, str(equations), f"{kept:.1f}", f"{accessed:.0f}")
    Console().print(table)


def run_pairs():
    """Run all pairs; returns how many failed."""
    failed = []
    cases = list(it.product(WRAPPERS, WRAPPERS, FAMILIES))
    for outer, inner, family in track(cases, "pairs"):
        try:
            check([outer, inner], family)
        except Exception as error:
            failed.append((outer, inner, family))
            print(outer, inner, family, repr(error)[:300])
    print(f"{len(cases) - len(failed)} of {len(cases)} work")
    return len(failed)


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--pairs", action="store_true", help="run all pairs of wrappers instead"
    )
    args = parser.parse_args()
    sys.exit(run_pairs() if args.pairs else show_costs())


if __name__ == "__main__":
    main()
