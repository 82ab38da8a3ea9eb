"""Ten thousand fits of four parameters in one `vmap`, beside SciPy's loop."""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

import stepax


MANY, SAMPLE, POINTS = 10_000, 200, 40
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


def main() -> None:
    ys, starts = data()
    x = jnp.asarray(_X)

    def fit(start, y):
        return stepax.least_squares(lambda p, y: model(p, x) - y, start, args=(y,))

    batch = jax.jit(jax.vmap(fit))
    given = jnp.asarray(starts), jnp.asarray(ys)
    begin = time.perf_counter()
    compiled = batch.lower(*given).compile()
    compiling = time.perf_counter() - begin
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        found = jax.block_until_ready(compiled(*given))
        seconds.append(time.perf_counter() - begin)

    def slow(p, y):
        return p[0] * np.exp(-p[1] * _X) + p[2] * np.cos(p[3] * _X) - y

    def slope(p, y):
        wave, fall = np.cos(p[3] * _X), np.exp(-p[1] * _X)
        last = -p[2] * _X * np.sin(p[3] * _X)
        return np.stack([fall, -p[0] * _X * fall, wave, last], 1)

    def loop(jacobian, **options):
        """Seconds of the whole loop, from a sample of it, and the values."""
        begin = time.perf_counter()
        found = [
            optimize.least_squares(slow, p, jacobian, args=(y,), **options).cost
            for p, y in zip(starts[:SAMPLE], ys[:SAMPLE], strict=True)
        ]
        return (time.perf_counter() - begin) * MANY / SAMPLE, np.array(found)

    plain, _ = loop("2-point")
    fastest, costs = loop(slope, method="lm")
    ours = statistics.median(seconds)
    excess = np.max(np.asarray(found.value)[:SAMPLE] / costs - 1)
    print(
        f"{MANY} fits: {ours:.2f} s, compiled in {compiling:.1f} s; "
        f"{int(np.sum(np.asarray(found.success)))} converged; the largest value is "
        f"{excess:.1e} above SciPy's\n"
        f"SciPy's loop, estimated from {SAMPLE}: with its defaults {plain:.1f} s, "
        f"{plain / ours:.0f} times as long; with MINPACK and a Jacobian in NumPy "
        f"{fastest:.1f} s, {fastest / ours:.0f} times as long"
    )
