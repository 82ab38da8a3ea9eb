"""The generated parts of `docs/leaderboard.md`, and of its page of evidence."""

import importlib
from collections.abc import Callable, Sequence

import numpy as np

from . import rules, statistics, tasks
from .results import Result, TaskResults


DRAWS = (1, 2, 4, 8, 16, 32, 64)
FACTORS = (1.05, 1.1, 1.25, 1.5, 2, 4, 10)
Found = dict[str, TaskResults]


def parts(found: Found) -> dict[str, list[str]]:
    """Lines for each mark of the page on which a reader decides."""
    return {"over": over(found)}


def evidence(found: Found) -> dict[str, list[str]]:
    """Lines for each mark of the page with all figures."""
    return {"state": state(found), "tasks": all_tasks(found)}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def number(x: float) -> str:
    """Three digits."""
    return f"{x:.3g}" if 1e-4 <= abs(x) < 1e4 or x == 0 else f"{x:.2e}"


def ranked(found: Found) -> list[TaskResults]:
    return [task for task in found.values() if task.is_ranked]


def in_all(over: list[TaskResults]) -> list[str]:
    """The optimizers that may be compared on all of these tasks."""
    return [x for x in rules.ENTRIES if all(x in task.fresh for task in over)]


def state(found: Found) -> list[str]:
    """What has been run, and what is left."""
    rows = [[f"[{of}](#{of})", *_state(task)] for of, task in found.items()]
    return table(["task", "optimizers run", "ranked"], rows)


def _state(task):
    count = f"{len(task.results)} of {len(rules.ENTRIES)}"
    stale = [x for x, r in task.results.items() if r.stale]
    return [count + (f", {len(stale)} stale" if stale else ""), _standing(task)]


def _standing(task):
    if task.partial:
        return "no, incomplete"
    if not task.is_complete:
        return f"no, `{rules.REFERENCE}` is stale"
    apart = f"(losses differ by {task.apart:.1f} times the seed noise"
    return f"yes {apart})" if task.is_ranked else f"no {apart}, {rules.APART:g} asked)"


def over(found: Found) -> list[str]:
    """The performance profile and the median ratio over the ranked tasks."""
    tasks_ = ranked(found)
    names = in_all(tasks_)
    if not tasks_ or len(names) < 2:
        return ["No task is complete, so there is nothing to compare yet."]
    means = np.asarray([[task.fresh[x].mean for task in tasks_] for x in names])
    shares = statistics.profile(means / means.min(0), FACTORS)
    medians = [np.median([task.ratio(x) for task in tasks_]) for x in names]
    rows = []
    for i in np.argsort(medians, kind="stable"):
        verdicts = [
            task.comparisons[names[i]].verdict
            for task in tasks_
            if names[i] != rules.REFERENCE
        ]
        counts = [str(verdicts.count(x)) if verdicts else "" for x in _VERDICTS]
        share = [f"{100 * x:.0f} %" for x in shares[i]]
        rows.append([f"`{names[i]}`", number(medians[i]), *counts, *share])
    within = [f"within {x:g}" for x in FACTORS]
    header = ["optimizer", "median ratio to AdamW", "better on", "worse on", *within]
    count = f"Over {len(tasks_)} ranked task{'s' * (len(tasks_) > 1)}: "
    return [
        count + ", ".join(task.name for task in tasks_) + ".",
        "",
        *table(header, rows),
    ]


_VERDICTS = "better", "worse"


def all_tasks(found: Found) -> list[str]:
    return [line for task in found.values() for line in _task(task)]


def _task(task: TaskResults) -> list[str]:
    module = importlib.import_module(f"{tasks.__name__}.{task.name}")
    about = str(module.__doc__).strip().split("\n\n")
    lines = [f"## {task.name}", "", *_paragraph(about[0]), ""]
    if not task.results:
        return [*lines, "Nothing has been run yet.", ""]
    lines += [*_conditions(task), "", *losses(task), ""]
    if task.is_complete:
        picture = f"../assets/board/{task.name}.svg"
        ends = [f(r.curve) for f in (np.min, np.max) for r in task.fresh.values()]
        scale = (
            f"In each panel, losses go from {number(min(ends))} to {number(max(ends))}."
        )
        lines += ["### Loss against learning rate", "", scale, ""]
        lines += [f"![{_ALT}]({picture})", ""]
        lines += ["### Expected loss of the best trial", "", *draws(task), ""]
    return lines


_ALT = "Loss against learning rate, a panel for each optimizer, both axes logarithmic"


def _paragraph(text: str) -> list[str]:
    return [" ".join(text.split())]


def _conditions(task: TaskResults) -> list[str]:
    first = next(iter(task.results.values())).row
    lines = [
        f"{first['parameters']:,} parameters are trained for {first['steps']:,} steps.",
        f"Ranked: {_standing(task)}.",
    ]
    if task.partial:
        lines.append(f"Not complete yet: {_names(task.partial)}.")
    for name, result in task.results.items():
        if result.stale:
            why = f"because its {' and '.join(result.stale)} changed"
            lines.append(f"`{name}` is stale, {why}, and is not compared.")
        elif task.fresh and name not in task.fresh:
            lines.append(f"`{name}` was run on other data, and is not compared.")
    for kind in ("machine", "versions"):
        made = {_said(r.row[kind]): None for r in task.results.values()}
        lines.append(f"{kind.capitalize()}: {'; '.join(made)}.")
    return lines


def _names(names):
    return ", ".join(f"`{x}`" for x in names)


def _said(about: dict) -> str:
    return ", ".join(f"{k} {v}" for k, v in about.items())


def losses(task: TaskResults) -> list[str]:
    """A row for each optimizer that has been run, from the lowest loss if complete."""
    order: Callable = (lambda r: r.mean) if task.is_complete else (lambda r: 0)
    shown = sorted(task.results.values(), key=order)
    header = ["optimizer", "loss", "ratio", "p", "against AdamW"]
    header += ["steps to AdamW's loss", "seconds per step", "state bytes per number"]
    header += ["tuned learning rate", "learning rates within 25 %"]
    header += ["trials within 10 %"]
    return table(header, [_row(task, r) for r in shown])


def _row(task, result):
    cells = [f"`{result.name}`" + " (stale)" * bool(result.stale), _loss(result)]
    cells += _compared(task, result)
    seconds = task.seconds.get(result.name)
    cells.append(
        f"{number(seconds['seconds'])}, × {seconds['ratio']:.2f}" if seconds else ""
    )
    edge = " (end)" if result.is_at_end else ""
    cells += [f"{result.bytes_per_number:.1f}", number(result.point["rate"]) + edge]
    low, high, *is_open = result.span
    least = "≥ " if any(is_open) else ""
    width = float(f"{high / low:.2g}")
    cells.append(f"{number(low)} to {number(high)}, × {least}{width:g}")
    return [*cells, f"{result.close} of {len(result.tuned)}"]


def _loss(result: Result) -> str:
    losses = result.losses
    text = f"{number(losses.mean())} ± {losses.std(ddof=1):.1g}"
    count = f"{result.diverged} of {len(losses)} diverged"
    return f"{text}, {count}" if result.diverged else text


def _compared(task, result):
    if result.name == rules.REFERENCE and task.is_complete:
        return ["1", "", "", ""]
    compared = task.comparisons.get(result.name)
    if compared is None:
        return [""] * 4
    reached = f"{compared.reached} of {len(result.losses)}"
    share = f"{100 * compared.share:.0f} %, {reached}"
    if not np.isfinite(compared.share):
        share = f"not reached, {reached}"
    p = f"{compared.p:.1g}"
    return [number(compared.ratio), p, compared.verdict, share]


def draws(task: TaskResults) -> list[str]:
    """The expected best of so many trials, as a multiple of AdamW's best of all."""
    least = task.fresh[rules.REFERENCE].tuned.min()
    shown = sorted(task.fresh.values(), key=lambda r: r.expected(DRAWS[0]))
    rows = [
        [f"`{r.name}`", *(number(r.expected(k) / least) for k in DRAWS)] for r in shown
    ]
    return table(["optimizer", *map(str, DRAWS)], rows)
