"""The command `python -m benchmarks.board`, which goes on where it was interrupted."""

import argparse
import os
import sys
from pathlib import Path


# One thread for each process, set before JAX starts: threads of two processes would
# wait for each other, and these arrays are too small to divide.
_FLAGS = "--xla_cpu_multi_thread_eigen=false"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}".strip()
os.environ |= {"PJRT_NPROC": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", ".cache/jax")


def main() -> None:
    from . import display, rules, run, store, tasks, timing

    parser = argparse.ArgumentParser("python -m benchmarks.board", description=__doc__)
    parser.add_argument(
        "--task",
        action="append",
        choices=tasks.NAMES,
        metavar="NAME",
        help=f"may be given again; {', '.join(tasks.NAMES)}, all by default",
    )
    parser.add_argument(
        "--optimizer",
        action="append",
        choices=list(rules.ENTRIES),
        metavar="NAME",
        help=f"may be given again; {', '.join(rules.ENTRIES)}, all by default",
    )
    parser.add_argument("--jobs", type=_jobs, default=os.cpu_count(), help="processes")
    parser.add_argument("--folder", type=Path, default=store.FOLDER, help="of the rows")
    parser.add_argument(
        "--pages", action="store_true", help="write the pages from the rows, run none"
    )
    parser.add_argument(
        "--time", action="store_true", help="measure steps; on an idle machine only"
    )
    args = parser.parse_args()
    if args.pages:
        _write_pages(args.folder)
        return
    names = args.optimizer or list(rules.ENTRIES)
    pairs = [(of, name) for of in args.task or tasks.NAMES for name in names]
    if args.time:
        for of in args.task or tasks.NAMES:
            timing.measure(of, names, args.folder)
        return
    try:
        shown = display.opened(store.Rows(args.folder), pairs, sys.stdout.isatty())
        with shown as show:
            run.run_rows(pairs, args.folder, args.jobs, show)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


def _write_pages(folder: Path) -> None:
    from . import pages, probes, results

    pages.write(results.read(folder, probes.probes()))


def _jobs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number above 0")
    return int(text)


if __name__ == "__main__":
    main()
