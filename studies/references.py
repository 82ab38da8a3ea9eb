"""How far optimizers are from their authors' own code: the table of docs/references.md.

Run it with `python -m studies.references`, which takes a minute or two.

`tests/data/references` has the gradients, and the parameters that the authors' code
made of them in float64.  An error is the largest deviation of a leaf at any step,
divided by the distance that this leaf travels.
"""

import sys
from pathlib import Path

import jax
import numpy as np
from rich.progress import track


sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import references

import stepax
import stepax.contrib
from website.tables.parts import write_table


PAGE = Path(__file__).parents[1] / "docs" / "references.md"
HEAD = """| trajectory | factory | made by | float64 | float32 |
| --- | --- | --- | --- | --- |"""


def row(name: str) -> str:
    """The row of one trajectory."""
    reference = references.load(name)
    meta = reference.meta
    with jax.enable_x64(True):
        tx = references.build(reference, stepax)
        double = references.error(reference, tx, stepax)
    tx = references.build(reference, stepax)
    single = references.error(reference, tx, stepax, np.float32)
    parts = [part for part, _ in meta["kwargs"]] if meta["factory"] == "$chain" else []
    factory = ", ".join(f"`{x}`" for x in parts or [meta["factory"]])
    made = meta["reference"].replace("|", "/")
    return f"| `{name}` | {factory} | {made} | {double:.0e} | {single:.0e} |"


def main() -> None:
    rows = [row(name) for name in track(references.names(), "replaying")]
    write_table(PAGE, [HEAD, *rows])
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
