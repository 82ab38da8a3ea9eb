"""Every table of `docs/solving.md`: `python -m benchmarks.solve`.

`--only fits` prints one of them; `--float32` compares the regressions in float32.
"""

import argparse

import jax

from . import compiled, fits, many_fits, points, systems


TABLES = {
    "fits": fits.main,
    "many_fits": many_fits.main,
    "systems": systems.main,
    "points": points.main,
    "compiled": compiled.main,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=TABLES)
    parser.add_argument("--float32", action="store_true")
    args = parser.parse_args()
    with jax.enable_x64(not args.float32):
        for name, table in TABLES.items():
            if args.only in (None, name):
                print(f"\n## {name}\n", flush=True)
                table()


if __name__ == "__main__":
    main()
