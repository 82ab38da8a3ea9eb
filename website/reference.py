"""The reference: a page for each subject, whose names mkdocstrings explains.

The pages hold a block `::: stepax.adamw` for each public name.  The builder has
mkdocstrings render it from the files, with docstrings as `extension.py` makes them.
The first page lists subjects, and modules with their names.
"""

from pathlib import Path

from stepax._engine.factories.registry import ROWS

from .cards import sources
from .docstrings import escape
from .entries import entry
from .extension import read
from .names import INDEX, Name, explained, homes
from .subjects import RECOMMENDED, SUBJECTS, TASKS, subject


def write(folder: Path) -> None:
    """Write `reference/`, a page for each subject and one for all modules.

    Raises `SystemExit`, and names file and line, if a docstring names what is none.
    """
    wrong = read()[1]
    if wrong:
        raise SystemExit("\n".join(wrong))
    (folder / "reference").mkdir(parents=True, exist_ok=True)
    for key in SUBJECTS:
        (folder / "reference" / f"{key}.md").write_text(page(key))
    (folder / INDEX).write_text(index())


def names_of(key: str) -> list[Name]:
    """The names of a subject, from A to Z."""
    every = {x.path: x for x in homes().values()}.values()
    found = [x for x in every if subject(*x) == key]
    return sorted(found, key=lambda x: (x.name.lower(), x.path))


def index() -> str:
    """The table of subjects, and each module with its names."""
    lines = [
        "# Reference",
        "",
        "Every public name is explained on the page of its subject.",
        "",
        "| subject | names | for |",
        "| --- | --- | --- |",
    ]
    for key, x in SUBJECTS.items():
        lines.append(f"| [{x.title}]({key}.md) | {len(names_of(key))} | {x.about} |")
    lines += ["", "## By module", ""]
    for module in explained():
        lines += [f"### {module} {{ #{module} }}", "", docstring(module), ""]
        lines += [*links(module), ""]
    return "\n".join(lines)


def links(module: str) -> list[str]:
    """A link to each name that can be imported from a module."""
    mine = {x: home for x, home in homes().items() if x.rpartition(".")[0] == module}
    own = lambda path: path.rpartition(".")[2]
    paths = sorted(mine, key=lambda x: (own(x).lower(), x))
    return [f"[`{own(x)}`]({mine[x].link(INDEX)})" for x in paths]


def docstring(module: str) -> str:
    return read()[0][module].docstring.value


def page(key: str) -> str:
    """The page of a subject; an optimizer has a page of its own, its card."""
    about, here = SUBJECTS[key].about, f"reference/{key}.md"
    lines = [f"# {SUBJECTS[key].title}", "", f"{about[0].upper()}{about[1:]}.", ""]
    lines += by_task() if key == "optimizers" else []
    for name in names_of(key):
        lines += entry(name) if name.page == here else []
    return "\n".join(lines) + "\n"


def by_task() -> list[str]:
    """The recommended optimizers, and all of them by task, with links to their cards.

    A link has the anchor of the name, so that links to the reference arrive.
    """
    card = lambda name: f"[`{name}`](../cards/{name}.md)"
    lines = ["## Recommended", "", "| optimizer | for |", "| --- | --- |"]
    lines += [f"| {card(name)} | {what} |" for name, what in RECOMMENDED.items()]
    lines += ["", "[Which optimizer?](../which.md) compares them.", ""]
    paths = {x.name: x.path for x in names_of("optimizers")}
    for task, names in TASKS.items():
        lines += [f"## {task}", "", "| optimizer | what it does |", "| --- | --- |"]
        for name in names:
            what = escape(sources.what(ROWS[name])).partition(": ")[0].rstrip(".")
            lines.append(f"| {card(name)}{{ #{paths[name]} }} | {what} |")
        lines.append("")
    return lines
