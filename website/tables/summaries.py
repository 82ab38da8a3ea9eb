"""Summaries that are made of evidence: of README.md, two pages, and a picture."""

from collections.abc import Callable

from . import user_reports
from .measured import (
    ROOT,
    gpu,
    machine,
    muon_on_a_mesh,
    on_gpu,
    ratio,
    replayed,
    reports,
    solved,
    two,
    versus_torch,
    whole,
)


README = "README.md"
PICTURE = "docs/assets/speed.svg"

# What a bar of the picture is called, its shape and case in the run on a CPU, and the
# shapes on a GPU, all if there are none.
BARS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("clip + AdamW", "large", "clip + adamw", ()),
    ("LAMB", "large", "lamb", ()),
    ("Adafactor", "large", "adafactor", ()),
    ("Muon", "vit", "muon", ()),
    ("AdamW in MultiSteps", "large", "multi_steps(adamw, 4)", ()),
    ("AdamW, 600 arrays, packed", "small", "adamw, packed", ("small",)),
)


def switch() -> list[str]:
    """The table of reasons to switch, in README.md."""
    found, (runs, error) = reports(), replayed()
    (ours, ms), (theirs, their_ms) = map(muon_on_a_mesh, ("stacked", "Optax"))
    gathers = theirs.partition(",")[0]
    rows = [
        (
            "[problems that users of Optax reported](docs/user_reports.md), as "
            f"{whole(found.cases)} test cases",
            f"passes {whole(found.optax)}",
            f"passes all; {user_reports.skipped()} more do not apply, such as the "
            "wrong state of an optimizer without one"
            if found.stepax == found.cases
            else "fails some",
            "test_reported_problems",
        ),
        (
            "a gradient of the wrong shape",
            "may be broadcast",
            "[an error that names the parameter](docs/faq.md#shapes-differ)",
            "test_wrong_shape",
        ),
        (
            "one NaN, with `zero_nans` inside `MultiSteps`",
            "that element never trains again",
            "[that element skips one update]"
            "(docs/accumulation.md#when-a-gradient-is-nan)",
            "test_nan_in_accumulation",
        ),
        (
            "Adam on bfloat16 parameters, after 1,000 steps of noise, or of constant "
            "gradients",
            "updates are off by 13 %, or 9.8 %: each operation rounds",
            "by [2.9 %, or 55 %](docs/precision.md): each step rounds once, but `nu` "
            "stalls; by 0.42 %, or 1.6 %, with "
            '`with_state_dtypes(tx, {"nu": "float32"})`, which `diagnose` suggests',
            "test_bfloat16",
        ),
        (
            "which parameters decay, freeze or get Muon",
            "a tree of labels, or a function",
            '[patterns of paths](docs/masks.md): `{"bias": False, "**": True}`',
            "test_patterns",
        ),
        (
            "models that scan over layers",
            "one norm and one trust ratio for all layers",
            "[each layer its own](docs/stacked.md), with any optimizer: "
            '`stacked(tx, {"layers/**": 0})`',
            "test_layers",
        ),
        (
            "the authors' own code, replayed",
            "not replayed",
            f"[{runs} runs](docs/references.md), to within {error:.0e} in float64",
            "test_authors_code",
        ),
        (
            "Muon on 16 sharded matrices, 8 virtual devices",
            f"{their_ms} ms, {gathers}",
            f"[{ms} ms, {ours}](docs/distributed_matrices.md#muon)",
            "test_muon_on_a_mesh",
        ),
        (
            "minimizers: of 109 test functions, float64",
            f"{solved('optax').partition(' ')[0]} solved",
            f"[{solved('stepax').partition(' ')[0]} solved](docs/minimize-benchmark.md)"
            f" (SciPy {solved('scipy').partition(' ')[0]})",
            "test_minimizers",
        ),
    ]
    head = ["| | Optax 0.2.8 | Stepax | test |", "| --- | --- | --- | --- |"]
    return [*head, *(f"| {' | '.join(row[:-1])} | `{row[-1]}` |" for row in rows)]


def short() -> list[str]:
    """The summary of docs/bench.md: what a reader should know in ten lines."""
    times = lambda names, shape="large", way="stepax": ", ".join(
        f"{name} {two(ratio(shape, case, way=way))}" for name, case in names.items()
    )
    faster = {
        "clip + AdamW": "clip + adamw",
        "LAMB": "lamb",
        "Adafactor": "adafactor",
        "MultiSteps": "multi_steps(adamw, 4)",
    }
    fused = {"Lion": "lion", "MultiSteps": "multi_steps(adamw, 4)"}
    small = {"AdamW": "adamw", "clip + AdamW": "clip + adamw"}
    return [
        f"- Times of a step on {machine()}, as ratios to Optax's:",
        f"    - as fast: {times({'AdamW': 'adamw', 'Adam': 'adam'})}",
        f"    - faster: {times(faster)}, Muon {two(ratio('vit', 'muon'))}",
        f"    - fused, by `stepax.step`: {times(fused, way='stepax.step')}",
        f"    - 600 small arrays: {times(small, 'small')}; packed, AdamW "
        f"{two(ratio('small', 'adamw, packed'))}",
        f"- On {gpu()}: AdamW {on_gpu('adamw')}, clip + AdamW "
        f"{on_gpu('clip + adamw')}, LAMB {on_gpu('lamb')}, Adafactor "
        f"{on_gpu('adafactor')}, Muon {on_gpu('muon')}; fused, MultiSteps "
        f"{on_gpu('multi_steps(adamw, 4)', way='stepax.step')}",
        "- PyTorch's fused AdamW on the same cores: Stepax takes "
        f"{two(versus_torch('adamw'))} of its time, with clipping "
        f"{two(versus_torch('clip + adamw'))}",
    ]


def board() -> list[str]:
    """The summary of docs/leaderboard.md."""
    text = (ROOT / "docs/leaderboard.md").read_text()
    table = text.partition("<!-- over -->")[2].partition("<!-- end -->")[0]
    rows = [
        [x.strip() for x in row.strip("|").split("|")]
        for row in table.splitlines()
        if row.startswith("| `")
    ]
    say = lambda row: (
        f"- {row[0]}: median loss {row[1]} of tuned AdamW's; better on {row[2]} tasks, "
        f"worse on {row[3]}"
    )
    better = [say(row) for row in rows[:5]]
    worst = [say(row) for row in rows if row[2] and int(row[3]) > int(row[2])]
    return [
        "Lowest losses:",
        "",
        *better,
        "",
        "More often worse than better:",
        "",
        *worst,
    ]


def picture() -> str:
    """Six bars for a CPU, and beside each what a GPU took, as SVG."""
    left, top, unit, height = 204, 44, 290, 26
    width, bottom = 640, top + height * len(BARS)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 34}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#808080">',
        f"<title>Time of a step relative to Optax, on {machine()}</title>",
        f'<text x="{left}" y="18" font-weight="bold">time of a step on {machine()}, '
        "Optax = 1</text>",
        f'<text x="{width}" y="18" text-anchor="end">{gpu()}</text>',
    ]
    for i, (name, shape, case, shapes) in enumerate(BARS):
        y, x = top + height * i, ratio(shape, case)
        lines += [
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{name}</text>',
            f'<rect x="{left}" y="{y + 2}" width="{x * unit:.0f}" height="16" rx="2" '
            'fill="#5b6ee1"/>',
            f'<text x="{left + x * unit + 6:.0f}" y="{y + 14}">{two(x)}</text>',
            f'<text x="{width}" y="{y + 14}" text-anchor="end">'
            f"{on_gpu(case, shapes)}</text>",
        ]
    lines += [
        f'<path d="M{left + unit} {top - 4}V{bottom}" stroke="#808080" '
        'stroke-dasharray="3 3"/>',
        f'<text x="{left + unit}" y="{bottom + 16}" text-anchor="middle">Optax</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


TABLES: dict[tuple[str, str], Callable[[], list[str]]] = {
    (README, "switch"): switch,
    ("docs/bench.md", "short"): short,
    ("docs/leaderboard.md", "short"): board,
}
