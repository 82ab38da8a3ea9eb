"""How the library is built, in figures counted from its source, and from running it.

Run it with `python benchmarks/house.py`, or with another checkout's `stepax` folder as
its argument, to compare.  `--run` also imports the package of that folder, and counts
what it does: `benchmarks/house_run.py`.

A line of code holds more than a comment or a docstring.  A comment is a line that has
one, but for instructions to tools.  `Any` counts wherever it is used, and not where it
is imported; it is annotated where it is all of an annotation or a part of it.  The body
of a function has its nested functions in it.  A named lambda is one that is assigned to
a name.  A file reads jaxprs if it has `eqns` or `jax.extend.core`, and asks for the
host if it has `default_backend`, `cpu_count` or `jax.devices`.
"""

import argparse
import ast
import io
import os
import re
import statistics
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeGuard


PACKAGE = Path(__file__).parents[1] / "stepax"
RUN = Path(__file__).with_name("house_run.py")
SHORT, LONG = 80, 400  # lines of a file: fewer, more
_JAXPRS = re.compile(r"\.eqns\b|\bjax\.extend(\.| import )core\b")
_OPTIMIZER = re.compile(r'^@(?:rx\.)?public\(\s*"optimizer"', re.MULTILINE)
_HOST = re.compile(r"\bdefault_backend\b|\bcpu_count\b|\bjax\.devices\(")
_LAYOUT = {
    tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
_PRAGMA = re.compile(r"#\s*(type:|pyright:|noqa|fmt:|ruff:|pragma)")


class Source(NamedTuple):
    """What is counted of one file.

    lines: of the whole file.
    code: the numbers of its lines of code.
    imports: the lines of its import statements.
    comments: of its lines with a comment.
    untyped: how often it says `Any`.
    annotated: how many of its annotations do.
    lambdas: those that have a name.
    probes: calls of `getattr` and `hasattr`.
    reads_jaxprs, asks_host: whether it does.
    bodies: the code lines of each function's body, by place and name.
    """

    lines: int
    code: set[int]
    imports: int
    comments: int
    untyped: int
    annotated: int
    lambdas: int
    probes: int
    reads_jaxprs: bool
    asks_host: bool
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
    nodes = list(ast.walk(tree))
    bodies = {
        f"{file.name}:{f.lineno} {f.name}": len(code & _span(f.body[0], f.body[-1]))
        for f in nodes
        if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return Source(
        lines=len(text.splitlines()),
        code=code,
        imports=sum(len(_span(n, n)) for n in nodes if _is_import(n)),
        comments=comments,
        untyped=_anys(nodes),
        annotated=sum(_anys(ast.walk(x)) > 0 for x in map(_annotation, nodes) if x),
        lambdas=sum(map(_is_named_lambda, nodes)),
        probes=sum(map(_is_probe, nodes)),
        reads_jaxprs=bool(_JAXPRS.search(text)),
        asks_host=bool(_HOST.search(text)),
        bodies=bodies,
    )


def _is_import(node: ast.AST) -> TypeGuard[ast.Import | ast.ImportFrom]:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _anys(nodes: Iterable[ast.AST]) -> int:
    return sum(isinstance(n, ast.Name) and n.id == "Any" for n in nodes)


def _annotation(node: ast.AST) -> ast.expr | None:
    match node:
        case ast.arg() | ast.AnnAssign():
            return node.annotation
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.returns
    return None


def _is_named_lambda(node: ast.AST) -> bool:
    is_assigned = isinstance(node, ast.Assign | ast.AnnAssign)
    return is_assigned and isinstance(node.value, ast.Lambda)


def _is_probe(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="getattr" | "hasattr")):
            return True
    return False


def _span(first: ast.stmt, last: ast.stmt) -> set[int]:
    return set(range(first.lineno, (last.end_lineno or last.lineno) + 1))


def arrows(root: Path) -> set[tuple[str, str]]:
    """Which module under `root` imports which other one there.

    Also in a function, and for type checkers only.
    """
    modules = {_module(file, root): file for file in root.rglob("*.py")}
    found = set()
    for name, file in modules.items():
        for options in _imported(name, file, root.name):
            known = (x for y in options for x in (y, f"{y}.__init__".lstrip(".")))
            target = next((x for x in known if x in modules), name)
            found |= {(name, target)} - {(name, name)}
    return found


def _module(file: Path, root: Path) -> str:
    return ".".join(file.relative_to(root).with_suffix("").parts)


def _imported(name: str, file: Path, package: str) -> Iterator[list[str]]:
    """What a module imports of its package: a module, or else what has that name."""
    for node in ast.walk(ast.parse(file.read_text())):
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
        number = len(_OPTIMIZER.findall(text))
        body = ast.parse(text).body if number else []
        lines = {line for x in body if _is_import(x) for line in _span(x, x)}
        shares += [len(source.code - lines) / max(number, 1)] * number
    return statistics.median(shares)


def figures(root: Path, sources: dict[Path, Source]) -> dict[str, object]:
    """The figures of the whole package, by what they count."""
    all_of = list(sources.values())
    lines = sum(s.lines for s in all_of)
    bodies = {k: n for s in all_of for k, n in s.bodies.items()}
    longest = max(bodies, key=bodies.__getitem__)
    file = max(sources, key=lambda f: sources[f].lines)
    private = [f for f in root.glob("_*.py") if not f.name.startswith("__")]
    return {
        "lines of the package": lines,
        "files": len(all_of),
        f"files below {SHORT} lines": sum(s.lines < SHORT for s in all_of),
        f"files above {LONG} lines": sum(s.lines > LONG for s in all_of),
        "private files at its top": len(private),
        "lines of imports, %": f"{100 * sum(s.imports for s in all_of) / lines:.1f}",
        "named lambdas": sum(s.lambdas for s in all_of),
        "`getattr`, `hasattr`": sum(s.probes for s in all_of),
        "annotations with `Any`": sum(s.annotated for s in all_of),
        "files that read jaxprs": sum(s.reads_jaxprs for s in all_of),
        "files that ask for the host": sum(s.asks_host for s in all_of),
        "import arrows in the engine": len(arrows(root / "_engine")),
        "files in the engine itself": len(list((root / "_engine").glob("*.py"))),
        "longest file": f"{sources[file].lines}   {file.name}",
        "longest body of a function": f"{bodies[longest]}   {longest}",
        "median body of a function": f"{statistics.median(bodies.values()):g}",
        "median code of an optimizer": f"{optimizers(sources):g}",
    }


def _rooms(engine: Path, sources: dict[Path, Source]) -> Iterator[str]:
    """A table of the folders of the engine."""
    yield "in the engine      code   comments     Any   (for 100 lines of code)"
    inside = {f: s for f, s in sources.items() if f.is_relative_to(engine)}
    for room in sorted({f.parent for f in inside}):
        name = str(room.relative_to(engine)).replace(".", "(itself)")
        yield f"{name:14}   {per_hundred([sources[f] for f in room.glob('*.py')])}"
    yield f"{'all':14}   {per_hundred(list(inside.values()))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, nargs="?", default=PACKAGE)
    parser.add_argument("--run", action="store_true", help="import it, and count")
    args = parser.parse_args()
    root = args.root.resolve()
    sources = {file: read(file) for file in sorted(root.rglob("*.py"))}
    for what, value in figures(root, sources).items():
        print(f"{what:28}{value}")
    print("", *_rooms(root / "_engine", sources), sep="\n")
    if args.run:
        print(flush=True)
        env = dict(os.environ, PYTHONPATH=str(root.parent), JAX_PLATFORMS="cpu")
        subprocess.run([sys.executable, RUN], env=env, check=True)


if __name__ == "__main__":
    main()
