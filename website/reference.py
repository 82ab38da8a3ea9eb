"""The reference: a page for each public module, made from signatures and docstrings.

Lists of arguments become tables, formulas stay as written, and public names between
backticks become links; a name that looks like one of Stepax, and is none, is an error.
The pages are made from the imported modules, not from files: what `help` prints is what
they show, decorated signatures and names that are loaded later included.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import get_args

from stepax._engine.factories.registry import ROWS
from stepax._engine.functions.signatures import Signature, text as type_text

from .names import Name, explained, find, homes, members, page_of, parameters


WIDTH = 88
ROOT = Path(__file__).parents[1]

ARGUMENT = re.compile(r"(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*):\s+(?P<said>.*)")
NEXT_FIELD = re.compile(r"\.  (?=\w+(?:, \w+)*: )")
TICKS = re.compile(r"`([^`]+)`")

# What modules say to those who read them.
LISTS = re.compile(r"; this module only lists names|\n\nThis module only lists.*", re.S)

# What types stand for that have no docstring of their own.
TYPES = {
    "ArrayTree": "A tree of arrays: any nesting that JAX registers, or a single array.",
    "COUNT": "The `scalars` of a rule that counts its steps.",
    "MaskOrFn": "A mask, a mapping from path patterns to one, or a function that "
    "makes one from the parameters; see `masked`.",
    "OptState": "The state of a transformation.",
    "Params": "The parameters that are trained.",
    "ScalarOrSchedule": "A number, a scalar array, or a schedule.",
    "Schedule": "A function from the step count to a number.",
    "Updates": "Gradients, or the updates that a transformation makes of them.",
}

SECTIONS = {
    "optimizer": "Optimizers",
    "transform": "Transformations",
    "wrapper": "Wrappers",
    "function": "Functions",
    "class": "Classes and types",
    "state": "States",
}


class Mistakes(Exception):
    """Docstrings that name what does not exist, a line each with file and line."""


def write(folder: Path) -> None:
    """Write `reference/`, a page for each public module and one for all names."""
    wrong: list[str] = []
    (folder / "reference").mkdir(parents=True, exist_ok=True)
    for module, names in explained().items():
        text = page(module, names, wrong, folder)
        (folder / page_of(module)).write_text(text)
    (folder / "reference" / "index.md").write_text(index())
    if wrong:
        raise SystemExit("\n".join(wrong))


def index() -> str:
    """The table of modules, and all names from A to Z."""
    here = "reference/index.md"
    lines = [
        "# Reference",
        "",
        "| module | what it has | names |",
        "| --- | --- | --- |",
    ]
    for module, names in explained().items():
        said = LISTS.sub("", first_line(import_module(module)))
        lines.append(f"| [`{module}`]({module}.md) | {escape(said)} | {len(names)} |")
    every = {x.path: x for names in explained().values() for x in names}.values()
    lines += ["", "## All names", ""]
    for name in sorted(every, key=lambda x: (x.name.lower(), x.path)):
        lines.append(f"[`{name.name}`]({name.link(here)})")
    return "\n".join(lines) + "\n"


def page(module: str, names: list[Name], wrong: list[str], folder: Path) -> str:
    """The page of a module."""
    own = Name(module, "", import_module(module))
    lines = [f"# {module}", "", *body(own, wrong), ""]
    sections: dict[str, list[Name]] = {title: [] for title in SECTIONS.values()}
    for name in sorted(names, key=lambda x: x.name.lower()):
        sections[SECTIONS[kind(name)]].append(name)
    for title, members_ in sections.items():
        lines += [f"## {title}", ""] if members_ else []
        for name in members_:
            lines += entry(name, wrong, folder)
    return "\n".join([*lines, *elsewhere(module)]) + "\n"


def kind(name: Name) -> str:
    row = ROWS.get(name.name)
    if row and row.factory is name.value:
        return row.kind if row.kind in SECTIONS else "transform"
    if name.name.endswith("State"):
        return "state"
    return "function" if inspect.isfunction(name.value) else "class"


def entry(name: Name, wrong: list[str], folder: Path) -> list[str]:
    """A name: signature, what it does, arguments, methods, and where it is."""
    lines = [f"### {name.name} {{ #{name.path} }}", ""]
    lines += ["```python", signature(name), "```", "", *body(name, wrong), ""]
    lines += [*methods(name), ""]
    links = []
    if (folder / "cards" / f"{name.name}.md").is_file():
        links.append(f"[card](../cards/{name.name}.md)")
    again = [f"`{x}`" for x, home in homes().items() if home == name and x != name.path]
    links += [f"also {', '.join(again)}"] if again else []
    place = source(name)
    links += [f"source `{place[0]}`, line {place[1]}"] if place else []
    said = "; ".join(links)
    return [*lines, f"{said[:1].upper()}{said[1:]}.", ""] if links else lines


def signature(name: Name) -> str:
    """How it is called, a parameter per line where all are longer than a line."""
    value = name.value
    if isinstance(value, type) and issubclass(value, Enum):
        members_ = "\n".join(f"    {x.name} = {x.value!r}" for x in value)
        return f"class {name.path}(enum.Enum):\n{members_}"
    if (
        not callable(value)
        or not isinstance(value, type)
        and not hasattr(value, "__name__")
    ):
        return f"{name.path} = {short(value)}"
    if name.name in TYPES:
        return f"{name.path} = {short(value)}"
    if getattr(value, "_is_protocol", False):
        call = Signature.from_callable(value.__call__)
        own = [x for x in call.parameters.values() if x.name != "self"]
        return f"{name.path}: {call.replace(parameters=own)}"
    try:
        shown = Signature.from_callable(value)
    except (TypeError, ValueError):
        return name.path
    if len(line := f"{name.path}{shown}") <= WIDTH:
        return line
    returns = str(shown.replace(parameters=[])).removeprefix("()")
    given = "".join(f"    {x},\n" for x in spelled(shown))
    return f"{name.path}(\n{given}){returns}"


def short(value: object) -> str:
    """What a type stands for, or a constant is."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k!r}: ...' for k in value)}}}"
    return " | ".join(map(type_text, get_args(value))) or type_text(value)


def spelled(shown: inspect.Signature) -> Iterator[str]:
    """The parameters, with the marks `/` and `*` where they belong."""
    last = None
    for x in shown.parameters.values():
        if last is x.POSITIONAL_ONLY and x.kind is not last:
            yield "/"
        star = x.kind is x.KEYWORD_ONLY and last not in (x.VAR_POSITIONAL, x.kind)
        yield from ["*"] if star else []
        yield str(x)
        last = x.kind


def first_line(value: object) -> str:
    return (inspect.getdoc(value) or "").split("\n", 1)[0]


def docstring(name: Name) -> str:
    if name.name in TYPES:
        return TYPES[name.name]
    return LISTS.sub("", inspect.getdoc(name.value) or "")


def body(name: Name, wrong: list[str]) -> list[str]:
    """A docstring as Markdown."""
    known = members(name.value) | {"self"}
    lines: list[str] = []
    for paragraph in paragraphs(docstring(name)):
        lines += ["", *markdown(paragraph, name, known, wrong)]
    return lines[1:]


def paragraphs(text: str) -> Iterator[list[str]]:
    """Runs of lines between empty ones; indented ones are joined over these."""
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line:
            block.append(line)
        elif block:
            yield block
            block = []


def markdown(
    lines: list[str], name: Name, known: set[str], wrong: list[str]
) -> list[str]:
    write = lambda text: linked(escape(text), name, known, wrong)
    if all(line.startswith("    ") for line in lines) or is_formula(lines):
        return formula(inspect.cleandoc("\n" + "\n".join(lines)), write)
    table: list[tuple[str, str]] = []
    prose: list[str] = []
    for line in lines:
        found = [f for x in NEXT_FIELD.split(line) if (f := argument(x, known))]
        if found:
            table += found
        elif table:
            table[-1] = (table[-1][0], f"{table[-1][1]} {line.strip()}")
        else:
            prose.append(line)
    text = [write(line) for line in prose]
    if not table:
        return text
    what = "argument" if parameters(name.value) and not is_tuple(name) else "field"
    rows = [f"| {code(k)} | {write(said)} |" for k, said in table]
    return [
        *text,
        *([""] if text else []),
        f"| {what} | meaning |",
        "| --- | --- |",
        *rows,
    ]


def formula(text: str, write: Callable[[str], str]) -> list[str]:
    """A formula as written; links for the names in it follow, as code holds none."""
    named = dict.fromkeys(write(f"`{x}`") for x in TICKS.findall(text))
    links = ", ".join(x for x in named if x.startswith("["))
    code = ["```text", *text.splitlines(), "```"]
    return [*code, "", f"See {links}."] if links else code


def is_tuple(name: Name) -> bool:
    return isinstance(name.value, type) and issubclass(name.value, tuple)


def is_formula(lines: list[str]) -> bool:
    """Whether each line is an equation, as in `value(0) = I`."""
    return all(re.match(r"[\w(), ]+ = ", line) for line in lines)


def argument(line: str, known: set[str]) -> tuple[str, str] | None:
    """The names and the explanation, if it is a line of a list of arguments."""
    found = ARGUMENT.fullmatch(line)
    if not found or line.startswith(" "):
        return None
    names = [x.lstrip("*") for x in found["names"].split(", ")]
    return (found["names"], found["said"]) if set(names) <= known else None


def code(names: str) -> str:
    return ", ".join(f"`{x}`" for x in names.split(", "))


def escape(text: str) -> str:
    """Prose of a docstring, of which Markdown shall not read more than backticks."""

    def plain(part: str) -> str:
        marks = {"&": "&amp;", "<": "&lt;", "*": "\\*", "_": "\\_", "|": "\\|"}
        marks |= {"[": "&#91;", "$": "&#36;"}
        return "".join(marks.get(x, x) for x in part)

    parts = re.split(r"(`[^`]+`)", text)
    in_code = lambda part: part.replace("|", "\\|")
    return "".join(in_code(x) if x[:1] == "`" and x[1:] else plain(x) for x in parts)


def linked(text: str, name: Name, known: set[str], wrong: list[str]) -> str:
    """The text, with links for the names of Stepax between backticks."""

    def link(found: re.Match[str]) -> str:
        written = found[1]
        if written in known:
            return found[0]
        if (ROOT / written).suffix == ".md" and (ROOT / written).is_file():
            return f"[{written}](../{written.removeprefix('docs/')})"
        try:
            home = find(written, name.module)
        except LookupError as error:
            wrong.append(f"{place_of(name, written)}: {error}")
            return found[0]
        if isinstance(home, str):
            return f"[{found[0]}]({home}.md)"
        if home is None or home == name:
            return found[0]
        return f"[{found[0]}]({home.link(page_of(name.module))})"

    return TICKS.sub(link, text)


def methods(name: Name) -> list[str]:
    """The public methods of a class that say what they do."""
    if not inspect.isclass(name.value):
        return []
    found = {
        k: x
        for k, x in vars(name.value).items()
        if not k.startswith("_") and inspect.isfunction(x) and inspect.getdoc(x)
    }
    rows = []
    for k, x in found.items():
        shown = (
            str(inspect.signature(x)).replace("(self, ", "(").replace("(self)", "()")
        )
        said = linked(escape(first_line(x)), name, members(x), [])
        rows.append(f"| `{k}{shown.replace('|', chr(92) + '|')}` | {said} |")
    return ["| method | what it does |", "| --- | --- |", *rows] if rows else []


def source(name: Name) -> tuple[str, int] | None:
    """The file and the line in which it is defined."""
    try:
        value = inspect.unwrap(name.value)
        file = inspect.getsourcefile(value)
        line = inspect.getsourcelines(value)[1]
    except (OSError, TypeError):
        return None
    if not file or not Path(file).is_relative_to(ROOT):
        return None
    return Path(file).relative_to(ROOT).as_posix(), max(line, 1)


def place_of(name: Name, written: str) -> str:
    """File and line at which a docstring says `written`."""
    file, start = source(name) or (name.path, 1)
    lines = (ROOT / file).read_text().splitlines() if (ROOT / file).is_file() else []
    said = (i for i, x in enumerate(lines, 1) if i >= start and f"`{written}`" in x)
    return f"{file}:{next(said, start)}"


def elsewhere(module: str) -> list[str]:
    """The names of a module that are explained with another one."""
    mine = {x: home for x, home in homes().items() if x.rpartition(".")[0] == module}
    others = {x: home for x, home in mine.items() if x != home.path}
    if not others:
        return []
    show = lambda x, home: f"[`{x.rpartition('.')[2]}`]({home.link(page_of(module))})"
    return ["## Explained elsewhere", "", ",\n".join(show(*x) for x in others.items())]
