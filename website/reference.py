"""The reference: a page for each public module, whose names mkdocstrings explains.

The pages hold a block `::: stepax.adamw` for each public name.  The builder has
mkdocstrings render it from the files, with docstrings as `extension.py` makes them.
"""

import inspect
from pathlib import Path

from stepax._engine.factories.registry import ROWS

from .extension import read
from .names import Name, explained, homes, page_of


SECTIONS = {
    "optimizer": "Optimizers",
    "transform": "Transformations",
    "wrapper": "Wrappers",
    "function": "Functions",
    "class": "Classes and types",
    "state": "States",
}

CALLED = """    options:
      members: [__call__]
      show_if_no_docstring: true"""


def write(folder: Path) -> None:
    """Write `reference/`, a page for each public module and one for all names.

    Raises `SystemExit`, and names file and line, if a docstring names what is none.
    """
    wrong = read()[1]
    if wrong:
        raise SystemExit("\n".join(wrong))
    (folder / "reference").mkdir(parents=True, exist_ok=True)
    for module, names in explained().items():
        (folder / page_of(module)).write_text(page(module, names, folder))
    (folder / "reference" / "index.md").write_text(index())


def index() -> str:
    """The table of modules, and all names from A to Z."""
    here = "reference/index.md"
    lines = [
        "# Reference",
        "",
        "All public names by subject, by module, and from A to Z.",
        "",
        *by_subject(here),
        "## By module",
        "",
        "| module | contents | names |",
        "| --- | --- | --- |",
    ]
    for module, names in explained().items():
        said = docstring(module).partition("\n")[0]
        lines.append(f"| [`{module}`]({module}.md) | {said} | {len(names)} |")
    every = {x.path: x for names in explained().values() for x in names}.values()
    lines += ["", "## All names", ""]
    for name in sorted(every, key=lambda x: (x.name.lower(), x.path)):
        lines.append(f"[`{name.name}`]({name.link(here)})")
    return "\n".join(lines) + "\n"


# The modules of a subject; names of `stepax` itself are sorted by their kind.
SUBJECTS = {
    "Optimizers": ("stepax.contrib",),
    "Transformations": ("stepax.transforms", "stepax.experimental.aggregating"),
    "Wrappers": (),
    "Learning-rate schedules": ("stepax.schedules",),
    "Losses": ("stepax.losses",),
    "Minimization": ("stepax.constraints", "stepax.projections"),
    "Trees and paths": ("stepax.tree", "stepax.tree_utils"),
    "Checkpoints": ("stepax.checkpoint",),
    "Distribution": ("stepax.distributed", "stepax.microbatching"),
    "Measuring and logging": ("stepax.metrics", "stepax.testing"),
    "Second order, assignment and perturbations": (
        "stepax.second_order", "stepax.assignment", "stepax.perturbations",
    ),
    "Your own": ("stepax.rules",),
    "With other libraries": ("stepax.interop.optax", "stepax.interop.keras"),
    "Other functions": (),
}  # fmt: skip
KINDS = {
    "optimizer": "Optimizers",
    "transform": "Transformations",
    "wrapper": "Wrappers",
}
# Classes of which users think as wrappers, and words in names of one subject.
WRAPPING = ("MultiSteps",)
WORDS = {
    "schedule": "Learning-rate schedules",
    "minimize": "Minimization",
    "Minimize": "Minimization",
}


def subject(name: Name) -> str:
    """Where users look for a name; states are left out, and are "" here."""
    of = kind(name)
    if of == "state":
        return ""
    if name.name in WRAPPING:
        return "Wrappers"
    if of in KINDS:
        return KINDS[of]
    for title, modules in SUBJECTS.items():
        if name.module in modules:
            return title
    return next(
        (x for word, x in WORDS.items() if word in name.name), "Other functions"
    )


def by_subject(here: str) -> list[str]:
    """The names of each subject, with links."""
    every = {x.path: x for names in explained().values() for x in names}.values()
    lines = []
    for title in SUBJECTS:
        names = [x for x in every if subject(x) == title]
        found = sorted(names, key=lambda x: x.name.lower())
        lines += [f"## {title}", ""] if found else []
        lines += [f"[`{name.name}`]({name.link(here)})" for name in found]
        lines += [""] if found else []
    return lines


def docstring(module: str) -> str:
    return read()[0][module].docstring.value


def page(module: str, names: list[Name], folder: Path) -> str:
    """The page of a module."""
    lines = [f"# {module} {{ #{module} }}", "", docstring(module), ""]
    sections: dict[str, list[Name]] = {title: [] for title in SECTIONS.values()}
    for name in sorted(names, key=lambda x: x.name.lower()):
        sections[SECTIONS[kind(name)]].append(name)
    for title, members in sections.items():
        lines += [f"## {title}", ""] if members else []
        for name in members:
            lines += entry(name, folder)
    return "\n".join([*lines, *elsewhere(module)]) + "\n"


def kind(name: Name) -> str:
    row = ROWS.get(name.name)
    if row and row.factory is name.value:
        return row.kind if row.kind in SECTIONS else "transform"
    if name.name.endswith("State"):
        return "state"
    return "function" if inspect.isfunction(name.value) else "class"


def entry(name: Name, folder: Path) -> list[str]:
    """A name for mkdocstrings, and where there is more about it."""
    lines = [f"::: {name.path}"]
    lines += [CALLED] if getattr(name.value, "_is_protocol", False) else []
    said = []
    if (folder / "cards" / f"{name.name}.md").is_file():
        said.append(f"See its [card](../cards/{name.name}.md).")
    again = [f"`{x}`" for x, home in homes().items() if home == name and x != name.path]
    said += [f"Also {', '.join(again)}."] if again else []
    return [*lines, "", *said, ""]


def elsewhere(module: str) -> list[str]:
    """The names of a module that are explained with another one."""
    mine = {x: home for x, home in homes().items() if x.rpartition(".")[0] == module}
    others = {x: home for x, home in mine.items() if x != home.path}
    if not others:
        return []
    show = lambda x, home: f"[`{x.rpartition('.')[2]}`]({home.link(page_of(module))})"
    return ["## Explained elsewhere", "", ",\n".join(show(*x) for x in others.items())]
