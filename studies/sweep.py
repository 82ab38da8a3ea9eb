"""One sweep of 32 rates and 4 seeds, compared with as many single runs.

    python -m studies.sweep [--steps 100] [--rates 32] [--seeds 4] [--singles 128]

Both train the demo's network on the digits with `adamw`.  A single run is the loop that
one writes by hand: a step under `jax.jit`, made for each run because it closes
over the optimizer and thus the rate, and called from Python for each mini-batch.
Everything runs in this process, without a compilation cache.  Times include
compilation, and the losses of both are compared.

Single runs take long: `--singles N` measures N of them, evenly over the rates, and
scales the time up to all.
"""

import argparse
import time

import jax
import numpy as np

import stepax
from examples.demo import digits, network, training


def single(loss, rate: float, seed: int, steps: int) -> np.ndarray:
    """The losses of a run, as a user's loop would make it."""
    tx = stepax.adamw(rate)
    init_key, data_key = jax.random.split(jax.random.key(seed))
    params = network.init(init_key)
    state = tx.init(params)

    @jax.jit
    def step(params, state, key):
        value, grads = jax.value_and_grad(loss)(params, key)
        updates, state = tx.update(grads, state, params)
        return stepax.apply_updates(params, updates), state, value

    losses = []
    for key in jax.random.split(data_key, steps):
        params, state, value = step(params, state, key)
        losses.append(value)
    return np.asarray(losses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("steps", 100), ("rates", 32), ("seeds", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--singles", type=int)
    args = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    draw = training.draw_from(digits.load()[0])
    loss = lambda params, key: training.loss(params, *draw(key))[0]
    rates = [float(x) for x in np.geomspace(1e-4, 1e-1, args.rates)]

    begin = time.perf_counter()
    grid = {"learning_rate": rates}
    result = stepax.sweep(
        loss, network.init, stepax.adamw, grid, args.steps, seeds=args.seeds
    )
    ours = time.perf_counter() - begin
    runs = args.rates * args.seeds
    print(f"sweep: {runs} runs of {args.steps} steps in {ours:.1f} s", flush=True)

    count = min(args.singles or runs, runs)
    chosen = np.linspace(0, runs - 1, count).round().astype(int)
    begin, gaps = time.perf_counter(), []
    for i in chosen:
        at = divmod(int(i), args.seeds)
        found = single(loss, rates[at[0]], at[1], args.steps)
        gaps.append(float(np.max(np.abs(found[:10] - result.losses[at][:10]))))
    theirs = (time.perf_counter() - begin) * runs / count
    print(f"single runs: {theirs:.1f} s for {runs}, from {count} of them")
    print(f"ratio {ours / theirs:.3f}; losses of the first 10 steps differ by "
          f"{max(gaps):.1e} at most")  # fmt: skip


if __name__ == "__main__":
    main()
