"""The programs in the pages of the documentation, run as their readers would.

A page's blocks run in order, in one module.  Each of their lines has to be executed,
and what a block prints has to be what the `text` block under it shows.
"""

import contextlib
import io
import math
import re
import sys
import threading
import types
from dataclasses import dataclass
from pathlib import Path

import jax


ROOT = Path(__file__).parents[1]

# Pages without a program, and why.
WITHOUT = {
    "docs/bench.md": "figures, written by `make bench-pages`",
    "docs/citing.md": "a BibTeX entry",
    "docs/design.md": "about the code of Stepax, not about programs of its users",
    "docs/gallery.md": "its programs are in `examples/gallery`, and tests run them",
    "docs/goals.md": "a table, written by `make bench-pages`",
    "docs/leaderboard.md": "a table, written by `make board ARGS=--pages`",
    "docs/limits.md": "what there is not cannot be run",
    "docs/memory.md": "tables, written by `studies/memory.py`",
    "docs/minimize-benchmark.md": "tables, written by `make bench-minimize`",
    "docs/moving.md": "a picture that moves, drawn by `docs/assets/moving.js`",
    "docs/recipes.md": "steps for those who work on Stepax",
    "docs/references.md": "tables, written by `studies/references.py`",
    "docs/user_reports.md": "its programs are in `tests/user_reports`, which are run",
}
for _page in (ROOT / "docs" / "evidence").glob("*.md"):
    if "```python" not in _page.read_text():
        WITHOUT[f"docs/evidence/{_page.name}"] = "tables, written by studies"

# Packages that not everybody who runs the tests has: without them a page is skipped.
# They are imported first, which prints what is not of the page: Brax misses others.
NEEDS = {"docs/from_pytorch.md": "torch", "docs/with_brax.md": "brax.envs"}

# Languages of blocks.  Python under another name would be shown and not run.
KINDS = {"python", "text", "sh", "yaml", "json", "diff", "mermaid"}

NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|\bnan\b|\binf\b)")


class PageError(AssertionError):
    """What is wrong with a page, and in which line of it."""


@dataclass(frozen=True)
class Block:
    """What stands between two fences; `line` is that of its first line in the page."""

    kind: str
    line: int
    text: str


@dataclass(frozen=True)
class Report:
    blocks: int
    lines: int


def pages() -> list[str]:
    """README.md and all pages under docs, by their paths from the root."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(x.relative_to(ROOT)) for x in found]


def fenced(path: Path) -> list[Block]:
    """The blocks of a page, of any language."""
    found, start, kind = [], None, ""
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if not line.lstrip().startswith("```"):
            continue
        if start is not None:
            text = "".join(x + "\n" for x in lines[start : number - 1])
            found.append(Block(kind, start + 1, text))
            start = None
            continue
        start, kind = number, line.strip("` \t").split(" ")[0]
        if line != line.lstrip() or kind not in KINDS:
            raise PageError(
                f"{named(path)}:{number}: a block starts with {line!r}, expected "
                f"``` and one of {sorted(KINDS)}"
            )
    if start is not None:
        raise PageError(f"{named(path)}:{start}: the block that starts here has no end")
    return found


def named(path: Path) -> str:
    """The path from the root, or that of a page elsewhere."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name)


def blocks(page: str) -> list[str]:
    """The Python programs of a page, in order; each uses the names of those before."""
    return [x.text for x in fenced(ROOT / page) if x.kind == "python"]


def run_page(path: Path) -> Report:
    """Run a page; `PageError` names lines that do not run or do not print as shown."""
    parts = fenced(path)
    # With these empty lines before it, an error in a block names the line of the page.
    codes = {
        x.line: compile("\n" * (x.line - 1) + x.text, str(path), "exec")
        for x in parts
        if x.kind == "python"
    }
    module = types.ModuleType(f"page_{path.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module
    count = Counter(codes.values())
    try:
        with count, as_readers_have_it():
            for part, after in zip(parts, [*parts, None][1:], strict=True):
                if part.kind == "python":
                    shown = after if after and after.kind == "text" else None
                    compare(path, part, printed(codes[part.line], module), shown)
    finally:
        del sys.modules[module.__name__]
    missed = sorted({line for _, line in count.wanted - count.executed})
    if missed:
        lines = path.read_text().splitlines()
        told = "".join(f"\n  {named(path)}:{n}: {lines[n - 1].strip()}" for n in missed)
        raise PageError(f"these lines, or functions in them, are never executed:{told}")
    return Report(len(codes), len({line for _, line in count.wanted}))


@contextlib.contextmanager
def as_readers_have_it():
    """JAX as it is outside of the tests."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def printed(code, module) -> str:
    """What a block prints, what its compiled programs print included."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, vars(module))
        jax.effects_barrier()
    return out.getvalue()


# --- what is printed ------------------------------------------------------------------


def compare(path: Path, block: Block, found: str, shown: Block | None) -> None:
    """Line by line: words as they are, numbers to three digits, `...` is anything."""
    lines = [x for x in map(str.strip, found.splitlines()) if x]
    if shown is None:
        if lines:
            raise PageError(
                f"{named(path)}:{block.line}: this block prints {lines[0]!r}, and no "
                "text block under it shows that"
            )
        return
    wanted = [
        (number, x.strip())
        for number, x in enumerate(shown.text.splitlines(), shown.line)
        if x.strip()
    ]
    for i, (number, line) in enumerate(wanted):
        got = lines[i] if i < len(lines) else "nothing"
        if not is_alike(got, line):
            raise PageError(
                f"{named(path)}:{number}: shows\n  {line}\nprinted was\n  {got}"
            )
    if len(lines) > len(wanted):
        end = shown.line + len(shown.text.splitlines())
        raise PageError(f"{named(path)}:{end}: not shown is\n  {lines[len(wanted)]}")


def is_alike(found: str, shown: str) -> bool:
    """Whether a printed line is the one that is shown."""
    found, shown = " ".join(found.split()), " ".join(shown.split())
    pieces = [NUMBER.sub("\0", x) for x in shown.split("...")]
    pattern = ".*".join(
        re.escape(x).replace("\0", f"({NUMBER.pattern})") for x in pieces
    )
    match = re.fullmatch(pattern, found)
    return bool(match) and all(map(is_near, match.groups(), NUMBER.findall(shown)))


def is_near(found: str, shown: str) -> bool:
    """Integers are equal, others agree to three digits."""
    if re.fullmatch(r"[-+]?\d+|[-+]?nan|[-+]?inf", shown):
        return found == shown
    return math.isclose(float(found), float(shown), rel_tol=5e-3)


# --- which lines are executed ---------------------------------------------------------


def lines_of(code: types.CodeType) -> set[tuple[types.CodeType, int]]:
    """The lines of a program, each with the function it is in."""
    found = {(code, line) for *_, line in code.co_lines() if line}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found |= lines_of(inner)
    return found


class Counter:
    """Notes which lines of these programs are executed; one function at a time.

    That a function is called counts for the line it starts in: one that is defined and
    never called is missed, also where it is a lambda in a line with something else.
    """

    def __init__(self, codes):
        self.wanted = {x for code in codes for x in lines_of(code)}
        self.codes = {code for code, _ in self.wanted}
        self.executed = set()

    def note(self, code, line):
        self.executed.add((code, line))

    def __exit__(self, *_):
        self._stop()

    if sys.version_info >= (3, 12):

        def __enter__(self):
            tool, events = sys.monitoring, sys.monitoring.events
            start = lambda code, offset: self.note(code, code.co_firstlineno)
            callbacks = {events.PY_START: start, events.LINE: self.note}
            tool.use_tool_id(tool.PROFILER_ID, "pages")
            for event, callback in callbacks.items():
                tool.register_callback(tool.PROFILER_ID, event, callback)
            for code in self.codes:
                tool.set_local_events(tool.PROFILER_ID, code, sum(callbacks))
            return self

        def _stop(self):
            tool = sys.monitoring
            for code in self.codes:
                tool.set_local_events(tool.PROFILER_ID, code, 0)
            tool.free_tool_id(tool.PROFILER_ID)

    else:

        def __enter__(self):
            self.before = sys.gettrace()
            threading.settrace(self.trace)  # for the threads that a page starts
            sys.settrace(self.trace)
            return self

        def _stop(self):
            sys.settrace(self.before)
            threading.settrace(self.before)

        def trace(self, frame, event, arg):
            if frame.f_code not in self.codes:
                return None
            self.note(frame.f_code, frame.f_lineno)
            return self.trace
