"""Faults to plant in the library, one at a time, to see whether the tests find them.

A fault changes one place of one function: a sign, a bound, a condition, a constant, an
axis or a dtype, or it drops a term or a statement.  Its name is a hash of the function
and of what is changed there, by which the faults are chosen, too: a change elsewhere in
the library leaves them as they are.
"""

import ast
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple
from zlib import crc32


ROOT = Path(__file__).parents[1]
ROOMS = ("engine", "wrappers", "transforms", "checkpoint")


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
    def lines(self) -> tuple[int, int]:
        """The first and the last of its lines."""
        source = (ROOT / self.path).read_bytes()
        first, last = (source[:i].count(b"\n") + 1 for i in self.place)
        return first, last

    @property
    def room(self) -> str:
        return self.path.split("/")[1].removeprefix("_")

    def __str__(self) -> str:
        one_line = " ".join(self.old.split()), " ".join(self.new.split())
        old, new = (x if len(x) < 60 else f"{x[:57]}..." for x in one_line)
        return f"{self.name} {self.path}: {self.where}: {self.kind}: {old}  ->  {new}"


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
