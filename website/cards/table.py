"""The table of the traits of all optimizers, which sorts by each column."""

from typing import Any

from stepax._engine.factories.registry import ROWS

from . import traits
from .page import per_element, table


HEADS = [
    "optimizer",
    "state, matrix",
    "state, vector",
    "scope",
    "reads parameters",
    "keywords",
    "complex",
    "finds its learning rate",
    "in",
]

TOP = """\
---
hide:
  - toc
---

# At a glance

All {count} optimizers, in one table.
Click a heading to sort by it, or reach it with the tab key and press Enter.

State is in bytes per element, for float32 parameters of shape 1024 × 1024 and 1024.
"Scope" is what an element of the update depends on: elementwise, per array, and so on.
A step reads at least the gradient, the state and the parameters, where it needs them.
It writes at least the update and the state.
What it [communicates](../distributed.md) on a mesh depends on the parameters.
"Finds its learning rate" marks optimizers that estimate it, or need none.
"Keywords" are those that `update` reads, such as the loss as `value`.

"""

END = """\

Where to go next: [which optimizer?](../which.md), or [watch them move](../moving.md).
"""


def page(found: dict[str, dict[str, Any]]) -> str:
    lines = table(HEADS, (cells(name, found[name]) for name in sorted(found)))
    body = ['<div class="sortable" markdown>', "", *lines, "", "</div>"]
    return TOP.format(count=len(found)) + "\n".join(body) + "\n" + END


def cells(name: str, found: dict[str, Any]) -> list[str]:
    row = ROWS[name]
    yes = lambda x: "yes" if x else ""
    return [
        f"[{name}]({name}.md)" + (" (deprecated)" if row.deprecated else ""),
        per_element(found["bytes"]["matrix"]),
        per_element(found["bytes"]["vector"]),
        found["reach"],
        yes(found["needs_params"]),
        ", ".join(f"`{k}`" for k in found["keywords"]),
        yes(row.holomorphic),
        yes(traits.is_rate_free(row)),
        traits.public_module(row),
    ]
