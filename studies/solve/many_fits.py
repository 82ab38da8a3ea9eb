"""Ten thousand fits of four parameters in one `vmap`, beside SciPy's loop.

Seconds are those of the processor, of all threads, so that other work on the machine
does not count, and the program and the loops take turns.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

import stepax

from .table import Table, goal, head, line


MANY, SAMPLE, POINTS, ROUNDS = 10_000, 200, 40, 5
_X = np.linspace(0, 4, POINTS)


def model(p, x):
    return p[0] * jnp.exp(-p[1] * x) + p[2] * jnp.cos(p[3] * x)


def data() -> tuple[np.ndarray, np.ndarray]:
    """Noisy observations of random parameters, and starts near these."""
    random = np.random.default_rng(0)
    exact = random.uniform([2, 0.5, 0.5, 2], [3, 1, 1, 2.5], (MANY, 4))
    ys = np.asarray(model(exact.T[:, :, None], _X[None]))
    starts = exact * random.uniform(0.8, 1.2, exact.shape)
    return ys + 0.05 * random.normal(size=ys.shape), starts


def in_numpy(p, y):
    return p[0] * np.exp(-p[1] * _X) + p[2] * np.cos(p[3] * _X) - y


def jacobian(p, y):
    wave, fall = np.cos(p[3] * _X), np.exp(-p[1] * _X)
    last = -p[2] * _X * np.sin(p[3] * _X)
    return np.stack([fall, -p[0] * _X * fall, wave, last], 1)


def clocked(run: Callable) -> tuple[Any, np.ndarray]:
    """What it returns, and the seconds of a clock and of the processor."""
    begin = np.array([time.perf_counter(), time.process_time()])
    found = run()
    return found, [time.perf_counter(), time.process_time()] - begin


def measure() -> dict[str, Table]:
    ys, starts = data()
    x = jnp.asarray(_X)

    def fit(start, y):
        return stepax.solve.least_squares(
            lambda p, y: model(p, x) - y, start, args=(y,)
        )

    given = jnp.asarray(starts), jnp.asarray(ys)
    compiled = jax.jit(jax.vmap(fit)).lower(*given).compile()
    solve: Any = optimize.least_squares  # its types know no function for `jac`

    def loop(*more, **options):
        pairs = zip(starts[:SAMPLE], ys[:SAMPLE], strict=True)
        return [solve(in_numpy, p, *more, args=(y,), **options).cost for p, y in pairs]

    runs = {
        "Stepax, one `vmap`": (lambda: jax.block_until_ready(compiled(*given)), 1),
        "SciPy, defaults": (loop, MANY // SAMPLE),
        "SciPy, MINPACK and a Jacobian in NumPy": (
            lambda: loop(jacobian, method="lm"), MANY // SAMPLE
        ),
    }  # fmt: skip
    seconds, values = {name: [] for name in runs}, {}
    for _ in range(ROUNDS):
        for name, (run, times) in runs.items():
            values[name], taken = clocked(run)
            seconds[name].append(taken * times)
    own, plain, fastest = (
        np.median(np.array(x) / seconds["Stepax, one `vmap`"], 0)
        for x in seconds.values()
    )
    top = head("10,000 fits", "seconds", "of a processor", "times Stepax's, processor")
    rows = [
        line(name, *(f"{x:.2f}" for x in np.median(seconds[name], 0)), f"{by[1]:.1f}")
        for name, by in zip(runs, (own, plain, fastest), strict=True)
    ]
    found, _, costs = values.values()
    excess = np.max(np.asarray(found.value)[:SAMPLE] / costs - 1)
    got = (
        f"{plain[0]:.0f}, in processor time {plain[1]:.0f}; with MINPACK and a "
        f"Jacobian in NumPy {fastest[0]:.1f} and {fastest[1]:.1f}; "
        f"{int(np.sum(np.asarray(found.success))):,} converged, to values at most "
        f"{excess:.0e} above SciPy's"
    )
    what = "10,000 fits in one `vmap`: time of SciPy's loop by that of Stepax"
    return {"many fits": Table(top, rows, [goal(what, "20", got)])}
