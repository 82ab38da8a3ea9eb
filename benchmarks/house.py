"""How the library is built, in figures counted from its source.

Run it with `python benchmarks/house.py`, or with another checkout's `stepax` folder as
its argument, to compare.

A line of code holds more than a comment or a docstring.  A comment is a line that has
one, but for instructions to tools.  `Any` counts wherever it is used, and not where it
is imported.  The body of a function has its nested functions in it.
"""

import ast
import io
import re
import statistics
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


PACKAGE = Path(__file__).parents[1] / "stepax"
_LAYOUT = {
    tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
_PRAGMA = re.compile(r"#\s*(type:|pyright:|noqa|fmt:|ruff:|pragma)")


class Source(NamedTuple):
    """What is counted of one file.

    lines: of the whole file.
    code: the numbers of its lines of code.
    comments: of its lines with a comment.
    untyped: how often it says `Any`.
    bodies: the code lines of each function's body, by place and name.
    """

    lines: int
    code: set[int]
    comments: int
    untyped: int
    bodies: dict[str, int]


def read(file: Path) -> Source:
    text = file.read_text()
    tree = ast.parse(text)
    code, comments = set(), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments += not _PRAGMA.match(token.string)
        elif token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                code -= _span(node, node)
    untyped = sum(isinstance(n, ast.Name) and n.id == "Any" for n in ast.walk(tree))
    bodies = {
        f"{file.name}:{f.lineno} {f.name}": len(code & _span(f.body[0], f.body[-1]))
        for f in ast.walk(tree)
        if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return Source(len(text.splitlines()), code, comments, untyped, bodies)


def _span(first: ast.stmt, last: ast.stmt) -> set[int]:
    return set(range(first.lineno, (last.end_lineno or last.lineno) + 1))


def arrows(root: Path, for_types: bool = True) -> set[tuple[str, str]]:
    """Which module under `root` imports which other one there, also in a function.

    for_types: with the imports that are for type checkers only.
    """
    modules = {_module(file, root): file for file in root.rglob("*.py")}
    found = set()
    for name, file in modules.items():
        for options in _imported(name, file, root.name, for_types):
            known = (x for y in options for x in (y, f"{y}.__init__".lstrip(".")))
            target = next((x for x in known if x in modules), name)
            found |= {(name, target)} - {(name, name)}
    return found


def _module(file: Path, root: Path) -> str:
    return ".".join(file.relative_to(root).with_suffix("").parts)


def _imported(
    name: str, file: Path, package: str, for_types: bool
) -> Iterator[list[str]]:
    """What a module imports of its package: a module, or else what has that name."""
    for node in _statements(ast.parse(file.read_text()), for_types):
        if isinstance(node, ast.Import):
            paths = [(x.name, "") for x in node.names]
        elif isinstance(node, ast.ImportFrom):
            home = [package, *name.split(".")][: -node.level] if node.level else []
            home = ".".join(home + [node.module] * bool(node.module))
            paths = [(f"{home}.{x.name}", home) for x in node.names]
        else:
            continue
        for options in paths:
            inside = [x for x in options if x.split(".")[0] == package]
            yield [x.partition(".")[2] for x in inside]


def _statements(node: ast.AST, for_types: bool) -> Iterator[ast.AST]:
    """What is in a tree, with or without what type checkers alone see."""
    yield node
    hidden = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    below = node.orelse if hidden and not for_types else ast.iter_child_nodes(node)
    for child in below:
        yield from _statements(child, for_types)


def per_hundred(sources: list[Source]) -> str:
    """Lines of code, and comments and `Any` for a hundred of them."""
    code = sum(len(s.code) for s in sources)
    rate = lambda n: f"{100 * n / max(code, 1):6.1f}"
    comments, untyped = (
        sum(s.comments for s in sources),
        sum(s.untyped for s in sources),
    )
    return f"{code:6}   {rate(comments)}   {rate(untyped)}"


def optimizers(sources: dict[Path, Source]) -> float:
    """The median of the lines of code of each public optimizer, without imports.

    Those of a file that has several count as equal shares of it.
    """
    shares = []
    for file, source in sources.items():
        text = file.read_text()
        number = len(re.findall(r'^@public\(\s*"optimizer"', text, re.MULTILINE))
        body = ast.parse(text).body if number else []
        imports = [x for x in body if isinstance(x, ast.Import | ast.ImportFrom)]
        lines = {line for x in imports for line in _span(x, x)}
        shares += [len(source.code - lines) / max(number, 1)] * number
    return statistics.median(shares)


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE
    engine = root / "_engine"
    sources = {file: read(file) for file in sorted(root.rglob("*.py"))}
    bodies = {k: n for s in sources.values() for k, n in s.bodies.items()}
    longest = max(bodies, key=bodies.__getitem__)
    file = max(sources, key=lambda f: sources[f].lines)
    print(f"lines of the package        {sum(s.lines for s in sources.values())}")
    print(f"import arrows in the engine {len(arrows(engine))}")
    print(f"files in the engine itself  {len(list(engine.glob('*.py')))}")
    print(f"longest file                {sources[file].lines}   {file.name}")
    print(f"longest body of a function  {bodies[longest]}   {longest}")
    print(f"median body of a function   {statistics.median(bodies.values()):g}")
    print(f"median code of an optimizer {optimizers(sources):g}")
    print("\nin the engine      code   comments     Any   (for 100 lines of code)")
    rooms = sorted({f.parent for f in sources if f.is_relative_to(engine)})
    for room in rooms:
        name = str(room.relative_to(engine)).replace(".", "(itself)")
        print(f"{name:14}   {per_hundred([sources[f] for f in room.glob('*.py')])}")
    inside = [s for f, s in sources.items() if f.is_relative_to(engine)]
    print(f"{'all':14}   {per_hundred(inside)}")


if __name__ == "__main__":
    main()
