"""Bytes that each wrapper saves or costs: a table of docs/evidence/memory.md.

Run it with `python -m website.tables.wrapper_bytes`; no array is made.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import stepax
import stepax.contrib

from .parts import write_table


PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "memory.md"
MARKS = "wrappers", "end wrappers"

# Calls as they are shown, on `tx`, which is AdamW: those that save, those for half
# precision, those that keep copies, and those that cost nothing.
CALLS = [
    "tx",
    "low_bit_states(tx, 4)",
    "low_bit_states(tx)",
    'with_state_dtypes(tx, {"mu": "bfloat16"})',
    'with_state_dtypes(tx, {"nu": "float32"})',
    'selective_transform(tx, freeze_mask={"*": True})',
    'masked(tx, {"*": False})',
    'partition({"freeze": set_to_zero()}, {"*": "freeze"})',
    "stochastic_rounding(tx, 0)",
    "master_weights(tx, remainder=8)",
    "master_weights(tx, remainder=16)",
    "master_weights(tx)",
    "master_weights(low_bit_states(tx), remainder=8)",
    "averages(tx, remainder=8)",
    "averages(tx, remainder=16)",
    "averages(tx)",
    'averages(tx, {"fast": 0.99, "slow": 0.999})',
    "MultiSteps(tx, 4)",
    "contrib.schedule_free(tx, 1e-3)",
    "contrib.gpa(tx)",
    "contrib.sam(tx, sgd(0.05))",
    "contrib.mechanize(tx)",
    "rollback(tx)",
    "contrib.diloco(tx, sgd(0.7, momentum=0.9))",
    "contrib.ema_nesterov(tx, 0.5)",
    "lookahead(tx, 5, 0.5)",
    'stacked(tx, {"**": None})',
    "contrib.row_states(tx)",
    "contrib.lazy_rows(tx)",
    "with_weight_decay(tx, 1e-2)",
    'with_weight_decay(tx, weight_decay(1e-2, "to_start"))',
    "inject_hyperparams(adamw)(1e-3)",
    "chain(clip_by_global_norm(1.0), tx)",
    'named_chain(("adamw", tx))',
    "contrib.cautious(tx)",
    "flatten(tx)",
    'observe(tx, {"norm": lambda before, after, params: tree.norm(before)})',
    "apply_if_finite(tx, 5)",
    "conditionally_transform(tx, lambda step: step < 100)",
    "conditionally_mask(tx, lambda step: step < 100)",
    "skip_spikes(tx)",
    "dynamic_loss_scale(tx)",
    "contrib.split_real_and_imaginary(tx)",
]


def held(call: str, dtype: str) -> float:
    """Bytes for each parameter beside the parameters."""
    names = vars(stepax) | {"tx": stepax.adamw(1e-3)}
    params: Any = {"w": jax.ShapeDtypeStruct((1024, 1024), jnp.dtype(dtype))}
    if call.startswith("lookahead"):  # whose parameters are two copies
        params = stepax.LookaheadParams(params, params)
    state = jax.eval_shape(eval(call, names).init, params)
    size = lambda tree: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
    return (size(state) + size(params)) / 2**20 - jnp.dtype(dtype).itemsize


def cells(call: str) -> list[str]:
    """Bytes for each dtype, and how many more they are than without the wrapper."""
    found = []
    for dtype in ("float32", "bfloat16"):
        more = held(call, dtype) - held("tx", dtype)
        found += [
            f"{held(call, dtype):.2f}",
            f"{more:+.2f}" if abs(more) > 0.01 else "",
        ]
    return found


def lines() -> list[str]:
    """The table; those that cost nothing share a row."""
    rows = {call: cells(call) for call in CALLS}
    bare = rows.pop("tx")
    free = [x.partition("(")[0] for x, found in rows.items() if found == bare]
    rows = {f"`{x}`": found for x, found in rows.items() if found != bare}
    rows = {"`tx`": bare, **rows, ", ".join(f"`{x}`" for x in free): bare}
    head = "| around `tx` | float32 | more | bfloat16 | more |\n|" + " --- |" * 5
    return [head, *(f"| {' | '.join([x, *found])} |" for x, found in rows.items())]


def main() -> None:
    write_table(PAGE, lines(), *MARKS)
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
