"""The generated parts of `docs/which.md`, and of its page of evidence."""

from collections.abc import Callable, Sequence

import numpy as np

from . import rules
from .leaderboard import Found, in_all, number, ranked, table
from .results import TaskResults


# With fewer ranked tasks there is no median worth the name.
_LEAST = 3
# Bytes of state for each parameter in float32: one number, and some for each array.
_ONE_NUMBER = 5.0
_FEW = 4


def parts(found: Found) -> dict[str, list[str]]:
    """Lines for each mark of the page on which a reader decides."""
    return {"decisions": decisions(found), "from adamw": from_adamw(found)}


def evidence(found: Found) -> dict[str, list[str]]:
    """Lines for each mark of the page with the tuned learning rates."""
    return {"start": start(found), "others": others(found), "moves": moves(found)}


def decisions(found: Found) -> list[str]:
    over = ranked(found)
    if len(over) < _LEAST:
        few = f"{len(over)} of {len(found)} tasks"
        return [f"The leaderboard has ranked {few} so far; a choice needs {_LEAST}."]
    seeds = len(over[0].fresh[rules.REFERENCE].losses)
    return [
        f"Over {len(over)} tasks with {seeds} seeds each.",
        "",
        *table(["if", "first choice", "second choice"], _decisions(over, in_all(over))),
    ]


def _decisions(over: list[TaskResults], names: list[str]) -> list[list[str]]:
    """Situation and choices, with their figures and verdicts."""
    median = lambda f: lambda name: float(np.median([f(t, name) for t in over]))
    ratio = median(TaskResults.ratio)
    small = [x for x in names if _most(over, x, "bytes_per_number") <= _ONE_NUMBER]
    plain = [x for x in names if rules.ENTRIES[x].schedule == "constant"]
    others = [x for x in names if x != rules.REFERENCE]
    loss = "median loss {:.3g} of tuned AdamW's"
    rows = [
        ("there is time to tune", names, ratio, loss),
        (
            f"there is time for {_FEW} trials",
            names,
            median(_of_few),
            f"median expected loss of the best of {_FEW} trials {{:.3g}} of AdamW's",
        ),
        (
            "the learning rate will not be tuned finely",
            names,
            lambda name: -median(_width)(name),
            "loss within 25 % over a factor of {:.2g} in the learning rate (median)",
        ),
        (
            "one learning rate has to serve several tasks",
            names,
            lambda name: _moved(over, name),
            "good learning rates move by a factor of {:.2g} between tasks",
        ),
        (
            "each step is expensive",
            others,
            median(lambda t, name: t.comparisons[name].share),
            "reaches AdamW's loss after {:.0%} of the steps (median)",
        ),
        ("the state may hold one number for each parameter", small, ratio, loss),
        ("the length of the run is not known", plain, ratio, loss),
        (
            "no task may do badly",
            names,
            lambda name: max(_to_best(t, name) for t in over),
            "at most {:.3g} times the lowest loss, on every task",
        ),
    ]
    rows += _fast(over, names, ratio, loss)
    return [_decision(over, *row) for row in rows if row[1]]


def _fast(over, names, ratio, loss):
    """Where seconds were measured: those whose steps take as long as AdamW's."""
    if not all(x in t.seconds for t in over for x in names):
        return []
    slowest = lambda name: max(t.seconds[name]["ratio"] for t in over)
    quick = [x for x in names if slowest(x) <= 1.25]
    situation = "a step may take only as long as AdamW's"
    return [(situation, quick, ratio, loss)]


def _decision(over, situation, names, score: Callable, figure):
    chosen = sorted(names, key=score)[:2]
    said = lambda x: figure.format(abs(score(x))).replace("inf%", "more than all")
    cells = [f"`{x}`: {said(x)}; {verdicts_of(over, x)}" for x in chosen]
    return [situation, *cells, *[""] * (2 - len(cells))]


def verdicts_of(over: list[TaskResults], name: str) -> str:
    """On how many tasks the tests show it better and worse than the reference."""
    if name == rules.REFERENCE:
        return "the same"
    said = [t.comparisons[name].verdict for t in over]
    return f"better on {said.count('better')}, worse on {said.count('worse')}"


def _most(over, name, what):
    return max(getattr(t.fresh[name], what) for t in over)


def _of_few(task, name):
    reference = task.fresh[rules.REFERENCE]
    return task.fresh[name].expected(_FEW) / reference.expected(_FEW)


def _width(task, name):
    low, high, *_ = task.fresh[name].span
    return high / low


def _to_best(task, name):
    return task.fresh[name].mean / min(r.mean for r in task.fresh.values())


def _moved(over: Sequence[TaskResults], name: str) -> float:
    rates = [t.fresh[name].middle_rate for t in over]
    return max(rates) / min(rates)


def _with(found: Found, name: str) -> list[TaskResults]:
    return [t for t in found.values() if name in t.fresh]


def _absent(found: Found) -> list[str]:
    is_empty = not any(t.fresh for t in found.values())
    return ["Nothing has been run yet."] if is_empty else []


def start(found: Found) -> list[str]:
    """The tuned rate and the span of each optimizer on each task."""
    shown = [t for t in found.values() if t.fresh]
    rows = []
    for name in rules.ENTRIES:
        cells = [_rate(t.fresh[name]) if name in t.fresh else "" for t in shown]
        rows += [[f"`{name}`", *cells]] if any(cells) else []
    header = ["optimizer", *(t.name for t in shown)]
    return _absent(found) or table(header, rows)


def _rate(result):
    low, high, *is_open = result.span
    tuned = result.point["rate"]
    outside = "" if low <= tuned <= high else "†"
    least, most = ("≤ " * is_open[0], "≥ " * is_open[1])
    span = f"{least}{number(low)} to {most}{number(high)}"
    return f"**{number(tuned)}**{outside}, {span}"


def others(found: Found) -> list[str]:
    """What else was tuned: medians over the tasks."""
    kinds = {"one_minus_b1": "1 − b1", "one_minus_b2": "1 − b2", "decay": "decay"}
    rows = []
    for name, entry in rules.ENTRIES.items():
        over = _with(found, name)
        middle = lambda k, over=over, name=name: number(
            float(np.median([t.fresh[name].point[k] for t in over]))
        )
        cells = [middle(k) if k in entry.names else "" for k in kinds] if over else []
        rows += [[f"`{name}`", *cells, str(len(over))]] if over else []
    return _absent(found) or table(["optimizer", *kinds.values(), "tasks"], rows)


def from_adamw(found: Found) -> list[str]:
    """The good rate over AdamW's: the geometric mean and the range over the tasks."""
    rows = []
    for name in rules.ENTRIES:
        over = _with(found, name)
        if name == rules.REFERENCE or not over:
            continue
        to = lambda t, name=name: (
            t.fresh[name].middle_rate / t.fresh[rules.REFERENCE].middle_rate
        )
        ratios = [to(t) for t in over]
        middle = float(np.exp(np.mean(np.log(ratios))))
        span = f"{number(min(ratios))} to {number(max(ratios))}"
        rows.append([f"`{name}`", f"{middle:.2g} r", span, str(len(over))])
    header = ["to", "start at", "over the tasks from", "tasks"]
    return _absent(found) or table(header, rows)


def moves(found: Found) -> list[str]:
    """How far the good rates of an optimizer move from task to task."""
    rows = []
    for name in rules.ENTRIES:
        over = sorted(_with(found, name), key=lambda t: t.fresh[name].middle_rate)
        if len(over) < 2:
            continue
        ends = [f"{number(t.fresh[name].middle_rate)} ({t.name})" for t in over]
        factor = _moved(over, name)
        rows.append((factor, [f"`{name}`", f"{factor:.2g}", ends[0], ends[-1]]))
    cells = [row for _, row in sorted(rows)]
    header = ["optimizer", "moves by", "lowest", "highest"]
    if not cells:
        return _absent(found) or ["One task has been run so far."]
    return table(header, cells)
