"""How sharp `make test` is: faults are planted one at a time, and it has to find them.

    make mutants                            100 faults, in an hour or so on two cores
    make mutants ARGS="--sample 15"         the first 15 of them
    make mutants ARGS="--only 3f2a1c"       some of them, by their names
    make mutants ARGS="--all --only ..."    by all cases, as `make test-all` has them
    make mutants ARGS=--list                what they are, without running anything

A fault changes one place of one function: a sign, a bound, a condition, a constant, an
axis or a dtype, or it drops a term or a statement.  Its name is a hash of the function
and of what is changed there, by which the faults are chosen, too: a change elsewhere in
the library leaves them as they are.  Tests named after the fault's file run first, then
its room, and all others if these pass; the first failure ends the run.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple
from zlib import crc32


ROOT = Path(__file__).parents[1]
ROOMS = ("engine", "wrappers", "transforms", "checkpoint")
LIMIT = 1800  # seconds of the tests on one fault, which may have made a loop endless

# Faults that change nothing that can be observed, and why.
EQUIVALENT: dict[str, str] = {
    "009ffe": "names of dtypes are ASCII, whose bytes have the same bits signed or not",
    "03446a": "on a CPU it copies what is in pinned memory, where a view would do",
}


class Fault(NamedTuple):
    path: str
    where: str  # the function
    kind: str
    old: str
    new: str
    nth: int  # among the same changes of this function
    place: tuple[int, int]  # the characters of the file that are replaced

    @property
    def name(self) -> str:
        what = (self.path, self.where, self.kind, self.old, self.new, self.nth)
        return f"{crc32(repr(what).encode()):08x}"[:6]

    @property
    def room(self) -> str:
        return self.path.split("/")[1].removeprefix("_")

    def __str__(self) -> str:
        one_line = " ".join(self.old.split()), " ".join(self.new.split())
        old, new = (x if len(x) < 60 else f"{x[:57]}..." for x in one_line)
        return f"{self.name} {self.path}: {self.where}: {self.kind}: {old}  ->  {new}"


# --- which faults there are ----------------------------------------------------------

SIGNS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
BOUNDS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
DTYPES = {"float32": "bfloat16", "float64": "float32", "int32": "int16"}
DTYPES |= {"bfloat16": "float16", "uint8": "int8", "complex64": "float32"}


def changes(node: ast.AST, text) -> Iterator[tuple[str, ast.AST, str]]:
    """What can be changed at a node: the kind, what is replaced, and by what."""
    match node:
        case ast.BinOp(left, op, right) if type(op) in SIGNS:
            new = f"{text(left)} {SIGNS[type(op)]} {text(right)}"
            yield "sign", node, f"({new})"
            yield "dropped term", node, f"({text(left)})"
        case ast.Compare(left, [op], [right]):
            yield "bound", node, f"({text(left)} {BOUNDS[type(op)]} {text(right)})"
        case ast.BoolOp(op, values):
            other = " or " if isinstance(op, ast.And) else " and "
            yield "condition", node, f"({other.join(f'({text(x)})' for x in values)})"
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield "sign", node, f"({text(operand)})"
        case ast.keyword("axis" | "axes", value):
            yield "axis", value, "0" if text(value) != "0" else "-1"
        case ast.Attribute(_, name) if name in DTYPES:
            old = text(node)
            yield "dtype", node, f"{old.removesuffix(name)}{DTYPES[name]}"
        case ast.Constant(bool() as value):
            yield "constant", node, repr(not value)
        case ast.Constant(int() | float() as value):
            yield "constant", node, repr(value + 1)
        case ast.If(condition) | ast.IfExp(condition):
            yield "condition", condition, f"(not ({text(condition)}))"
        case ast.Expr(ast.Call()):
            yield "dropped statement", node, "pass"


def faults_of(path: str) -> Iterator[Fault]:
    source = (ROOT / path).read_text()
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    place = lambda x: (
        starts[x.lineno - 1] + x.col_offset,
        starts[x.end_lineno - 1] + x.end_col_offset,
    )
    text = lambda x: source.encode()[slice(*place(x))].decode()
    seen: dict[tuple, int] = {}
    for where, node in code(ast.parse(source)):
        for kind, replaced, new in changes(node, text):
            what = path, where, kind, text(replaced), new
            seen[what] = seen.get(what, -1) + 1
            yield Fault(*what, seen[what], place(replaced))


# What never runs, or only tells: types, messages, imports.
SKIPPED = ast.Raise | ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom


def code(node: ast.AST, where: str = "") -> Iterator[tuple[str, ast.AST]]:
    """The nodes within functions, each with the name of its function."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":
            continue  # of `zip`, where it can only fail
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, SKIPPED):
                continue
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                yield from code(child, f"{where}.{child.name}".lstrip("."))
                continue
            if where and isinstance(node, ast.stmt | ast.expr | ast.keyword):
                yield where, child
            yield from code(child, where)


def chosen(count: int) -> list[Fault]:
    """So many faults, of each kind in each room in turn, by their names."""
    files = [
        str(file.relative_to(ROOT))
        for room in ROOMS
        for file in sorted((ROOT / "stepax" / f"_{room}").rglob("*.py"))
    ]
    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in sorted((x for f in files for x in faults_of(f)), key=lambda x: x.name):
        groups.setdefault((fault.kind, fault.room), []).append(fault)
    turns = (
        x for row in zip_longest(*(groups[k] for k in sorted(groups))) for x in row
    )
    return [x for x in turns if x is not None][:count]


# --- what the tests say of them ------------------------------------------------------


def copy_of_the_tree(to: Path) -> Path:
    """What git knows of, in another folder."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


def run_tests(tree: Path, which: str, *args: str) -> str:
    """The first test that fails, or nothing."""
    caches = {"JAX_COMPILATION_CACHE_DIR": str(tree / ".cache" / "jax")}
    own = {"STEPAX_TESTS": which, "PYTHONPATH": str(tree), **caches}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-n",
        "0",
        "--tb=line",
        *args,
    ]
    try:
        done = subprocess.run(
            command, cwd=tree, env=os.environ | own, timeout=LIMIT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "a test that did not end"
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return failed[1] if failed else done.stdout.strip().splitlines()[-1]


def killer(fault: Fault, tree: Path, which: str) -> str:
    """The test that finds a fault, or nothing."""
    source = (ROOT / fault.path).read_bytes()
    start, end = fault.place
    (tree / fault.path).write_bytes(source[:start] + fault.new.encode() + source[end:])
    room = f"tests/{fault.room}"
    near = sorted(tree.glob(f"{room}/test_*{Path(fault.path).stem}*.py"))
    try:
        found = run_tests(tree, which, *map(str, near)) if near else ""
        found = found or run_tests(tree, which, room)
        return found or run_tests(tree, which, "tests", f"--ignore={room}")
    finally:
        shutil.copy2(ROOT / fault.path, tree / fault.path)


def main() -> None:
    args = parsed()
    faults = chosen(args.faults)
    if args.only:
        faults = [x for x in faults if x.name in args.only.split(",")]
    faults = faults[: args.sample]
    if args.list:
        print(*faults, sep="\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for i in range(args.jobs):
            trees.put(copy_of_the_tree(Path(folder, str(i))))

        def judge(fault: Fault) -> bool:
            tree, started = trees.get(), time.monotonic()
            test = killer(fault, tree, "all" if args.all else "")
            trees.put(tree)
            verdict = f"killed by {test}" if test else "SURVIVED"
            if not test and fault.name in EQUIVALENT:
                verdict = f"equivalent: {EQUIVALENT[fault.name]}"
            print(
                f"{fault}\n  {time.monotonic() - started:.0f} s  {verdict}", flush=True
            )
            return bool(test)

        with ThreadPoolExecutor(args.jobs) as pool:
            killed = list(pool.map(judge, faults))
    report(faults, killed)


def report(faults: list[Fault], killed: list[bool]) -> None:
    left = [x for x, dead in zip(faults, killed, strict=True) if not dead]
    survivors = [x for x in left if x.name not in EQUIVALENT]
    counted = len(faults) - (len(left) - len(survivors))
    print(f"\n{sum(killed)} of {counted} faults were found", end="")
    print("; these were not:" if survivors else "")
    print(*survivors, sep="\n")
    if survivors:
        names = ",".join(x.name for x in survivors)
        print(f'by all cases: make mutants ARGS="--all --only {names}"')
    sys.exit(sum(killed) < 0.95 * counted)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=100, help="how many to choose")
    parser.add_argument("--sample", type=int, help="the first so many of them")
    parser.add_argument("--only", help="their names, with commas between")
    parser.add_argument("--all", action="store_true", help="run all cases of all tests")
    parser.add_argument(
        "--list", action="store_true", help="print them, and run nothing"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
