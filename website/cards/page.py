"""The card of an optimizer as Markdown."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.board.results import numbers_to_start_with
from benchmarks.board.rules import ENTRIES
from stepax._engine.factories.registry import Row
from stepax._engine.functions.deprecated import DEPRECATED as TABLE

from ..docstrings import escape
from ..entries import entry
from ..names import homes
from ..stage import with_names
from . import picture, sources, traits


TEX = Path(__file__).with_name("tex")
USE = Path(__file__).with_name("use.md")


def page(row: Row, found: dict[str, Any]) -> str:
    """A card, from what was measured and from the sources."""
    sections = [
        [f"# {row.name}", "", escape(sources.what(row)), "", *head(row)],
        [picture.figure(row.name, found)],
        use(row),
        signature(row),
        update(row),
        ["## Costs", "", *costs(found)],
        ["## Traits", "", *traits_of(row, found)],
        numbers(row),
        paper(row),
    ]
    linked = with_names(text_of(sections), f"docs/cards/{row.name}.md")[0]
    # An argument may have the name of a function, and is no link to it.
    values = text_of([["## Values of arguments", "", *arguments(row)]])
    before, mark, after = linked.partition("## Costs\n")
    return f"{before}{values}\n{mark}{after}"


def signature(row: Row) -> list[str]:
    """Its signature and docstring, as in the reference."""
    return entry(homes()[f"{traits.public_module(row)}.{row.name}"])


def text_of(sections: list[list[str]]) -> str:
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def head(row: Row) -> list[str]:
    module = traits.public_module(row)
    links = [
        f"`{module}.{row.name}`",
        f"source `{sources.file_of(row)}`",
        "[all optimizers](index.md)",
    ]
    said = [" · ".join(links)]
    if row.deprecated:
        said += ["", f"Deprecated: use `{TABLE[row.name].new}` instead."]
    return said


def use(row: Row) -> list[str]:
    """When to use it and when not, where somebody wrote that."""
    _, _, rest = USE.read_text().partition(f"\n## {row.name}\n")
    return [rest.partition("\n## ")[0].strip()] if rest else []


def update(row: Row) -> list[str]:
    """Its equations, if somebody typeset them, and those of its parts."""
    lines, tex = [], TEX / f"{row.name}.md"
    if tex.is_file():
        lines += [tex.read_text()]
    for name, text in sources.formulas(row, traits.make(row)).items():
        if name != row.name:  # which its docstring shows
            lines += [f"`{name}`:", "", "```text", text, "```", ""]
    return ["## Update", "", *lines] if lines else []


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def per_element(x: float | None) -> str:
    """Bytes for each element; less than a hundredth is shared by all of them."""
    return "–" if x is None else f"{x:.2f}".rstrip("0").rstrip(".")


def costs(found: dict[str, Any]) -> list[str]:
    rows = []
    for name, shape in (("matrix", "1024 × 1024"), ("vector", "1024")):
        state = found["bytes"][name]
        if state is not None:
            read, written = traffic(state, found["needs_params"])
            cells = [f"{name}, {shape}", *map(per_element, (state, read, written))]
            rows.append(cells)
    heads = ["float32, bytes per element", "state", "read in a step", "written"]
    return [
        *table(heads, rows),
        "",
        f"A step on one matrix is lowered to {found['lines']} lines of StableHLO; "
        "[At a glance](index.md) says what is counted.",
    ]


def traffic(state: float, needs_params: bool) -> tuple[float, float]:
    """Bytes that a step reads and writes at least, for each element in float32."""
    return 4 + state + 4 * needs_params, 4 + state


def arguments(row: Row) -> list[str]:
    rows = [
        [
            code(x["argument"]),
            default(x["default"]),
            x["range"],
            x["schedule"],
            x["run time"],
        ]
        for x in traits.arguments(row)
    ]
    heads = ["argument", "default", "range", "schedule", "can be injected"]
    return [
        *table(heads, rows),
        "",
        "[Schedules](../schedules.md) are functions of the step count; "
        "[injected](../hyperparameters.md) arguments can change during a run.",
    ]


def code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def default(text: str) -> str:
    return text if text == "required" else code(text)


def traits_of(row: Row, found: dict[str, Any]) -> list[str]:
    yes = lambda x: "yes" if x else "no"
    keywords = ", ".join(map(code, found["keywords"])) or "none"
    rows = [
        ["scope", found["reach"]],
        ["`update` needs the parameters", yes(found["needs_params"])],
        ["keywords that `update` reads", keywords],
        ["takes arrays that are not matrices", yes(not row.matrices_only)],
        ["takes complex parameters", yes(row.holomorphic)],
        ["finds its learning rate itself", yes(traits.is_rate_free(row))],
        ["deprecated", yes(row.deprecated)],
    ]
    parts = [f"{'  ' * depth}{name}" for depth, name in found["parts"]]
    told = [
        "",
        "What it consists of, as `stepax.describe` prints it:",
        "",
        "```text",
        *parts,
        "```",
    ]
    return [*table(["trait", ""], rows), *told]


def numbers(row: Row) -> list[str]:
    """The tuned learning rate on each task of the leaderboard, and those as good.

    Nothing for an optimizer without a run.
    """
    found = numbers_to_start_with(row.name)
    if not found:
        return []
    others = list(dict.fromkeys(k for x in found.values() for k in x["point"]))
    others.remove("rate")
    rows = [
        [task, short(x["rate"]), span(x), *(short(x["point"][k]) for k in others)]
        for task, x in found.items()
    ]
    names = [k.replace("one_minus_", "1 - ") for k in others]
    given = ", ".join(f"{k}={x!r}" for k, x in ENTRIES[row.name].fixed.items())
    return [
        "## Tuned on the leaderboard",
        "",
        "As tuned for the small models of the [leaderboard](../leaderboard.md)"
        + (f", with `{given}`." if given else "."),
        "Do not copy these learning rates: larger models need far smaller ones, see "
        "[where to start](../which.md#where-to-start-default-learning-rates). "
        "The wider the range of good ones, the less tuning is needed.",
        "",
        picture.spans(row.name, found),
        "",
        *table(["task", "learning rate", "within 25 % of the best loss", *names], rows),
    ]


def short(x: float) -> str:
    return f"{x:.2g}"


def span(x: dict[str, Any]) -> str:
    more = ", or further" if x["at_least"] else ""
    return f"{short(x['low'])} to {short(x['high'])}{more}"


def paper(row: Row) -> list[str]:
    cited, differs = cited_paper(row), sources.departures(row)
    if not cited and not differs:
        return []
    lines = ["## Paper", "", f"{cited}."] if cited else ["## Paper"]
    if cited and not differs:
        lines += ["", "As the paper."]
    for block in differs:
        lines += ["", escape(block)]
    return lines


def cited_paper(row: Row) -> str:
    """What the file says of it, with a link at its number or after it."""
    if not row.paper:
        return ""
    said, to = escape(sources.citation(row)), sources.link(row.paper)
    label = "address" if row.paper == to else row.paper
    if label in said:
        return said.replace(label, f"[{label}]({to})", 1)
    return f"{said}; [{label}]({to})" if said else f"[{label}]({to})"
