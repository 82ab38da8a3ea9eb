"""Every table of `docs/evidence/solving.md`: `python -m studies.solve --write`.

`--only fits` runs one of them; `--write` keeps the results in `docs/evidence` and
writes them into the page.
"""

import argparse

import jax

from . import (
    chars,
    compiled,
    fits,
    many_fits,
    pinn,
    points,
    programs,
    sparse,
    sqp,
    systems,
    table,
)


BENCHMARKS = {
    "fits": fits.measure,
    "float32": fits.measure_float32,
    "many_fits": many_fits.measure,
    "sparse": sparse.measure,
    "systems": systems.measure,
    "points": points.measure,
    "programs": programs.measure,
    "sqp": sqp.measure,
    "compiled": compiled.measure,
    "pinn_board": lambda: pinn.measure("board"),
    "pinn_square": lambda: pinn.measure("square"),
    "pinn_cube": lambda: pinn.measure("cube"),
    "chars": chars.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=BENCHMARKS)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    with jax.enable_x64(True):
        for name, measure in BENCHMARKS.items():
            if args.only not in (None, name):
                continue
            print(f"\n## {name}\n", flush=True)
            command = f"python -m studies.solve --only {name}"
            for mark, found in measure().items():
                if args.write:
                    table.store(mark, command, found)


if __name__ == "__main__":
    main()
