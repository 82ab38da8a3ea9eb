"""The table of the traits of all optimizers, which sorts by each column."""

from typing import Any

from stepax._engine.factories.registry import ROWS

from . import traits
from .page import per_element, table


HEADS = [
    "optimizer",
    "state, matrix",
    "state, vector",
    "an element depends on",
    "reads parameters",
    "keywords",
    "complex",
    "rate-free",
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

State is in bytes for each element, of float32 parameters of 1024 × 1024 and of 1024.
"Rate-free" is what finds its learning rate itself, or needs none.
"Keywords" are those of `update` that it reads, such as the loss as `value`.

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
