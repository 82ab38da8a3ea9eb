"""A performance profile: the problems solved within a multiple of the least effort.

Dolan and Moré, 2002, Benchmarking optimization software with performance profiles,
DOI 10.1007/s101070100263:

    r = evaluations / least evaluations of any solver, infinite where it fails,
    rho(tau) = fraction of the problems with r <= tau.
"""

import numpy as np


# Stepax is drawn first, with a thick line, so that equal curves stay visible on top.
COLOURS = {
    "stepax": "#d1495b",
    "optax": "#1f6fb2",
    "scipy": "#2a9d5c",
    "jaxopt": "#8e6bbf",
    "optimistix": "#e09f3e",
    "torch": "#6c757d",
    "stepax by hand": "#f4a6b0",
}
MARKS = dict(zip(COLOURS, ["-", "-", "--", "-.", ":", "--", ":"], strict=True))


def profile(rows, names):
    """The ratios r of each solver, as arrays over the problems."""
    tasks = list(dict.fromkeys(row["problem"] for row in rows))
    needed = {name: np.full(len(tasks), np.inf) for name in names}
    for row in rows:
        if row["solved"] and row["solver"] in needed:
            needed[row["solver"]][tasks.index(row["problem"])] = row["evaluations"]
    least = np.min(list(needed.values()), axis=0)
    is_solved = np.isfinite(least)
    least = np.where(is_solved, least, 1)
    return {name: np.where(is_solved, x / least, np.inf) for name, x in needed.items()}


def draw(rows, names, file, subtitle):
    """Write the plot to a file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = profile(rows, names)
    count = len(next(iter(found.values())))
    figure, axes = plt.subplots(figsize=(8, 4.8), dpi=150, layout="constrained")
    for name in names:
        r = np.sort(found[name][np.isfinite(found[name])])
        tau = np.concatenate([[1], r, [100]])
        share = np.concatenate([[0], np.arange(1, r.size + 1), [r.size]]) / count
        axes.step(
            tau,
            share,
            where="post",
            label=name,
            color=COLOURS[name],
            linestyle=MARKS[name],
            linewidth=4 if name == "stepax" else 1.5,
        )
    decorate(axes, count, subtitle)
    figure.savefig(file)
    plt.close(figure)


def decorate(axes, count, subtitle):
    axes.set_xscale("log")
    ticks = [1, 1.5, 2, 3, 5, 10, 20, 50, 100]
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.set_xticks([], minor=True)
    axes.set(xlim=(1, 100), ylim=(0, 1.01))
    axes.set_xlabel("evaluations, as a multiple of the least of any solver")
    axes.set_ylabel("share of problems solved")
    axes.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.0f} %")
    axes.set_title(f"{count} smooth problems, {subtitle}", loc="left", fontsize=11)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
