"""The longest step of optimizers that decompose matrices, beside their median step.

Run it with `python -m studies.stagger`, or with names and a number of layers:
`python -m studies.stagger soap splus --layers 4`.

Parameters are the matrices of a small GPT-2 of width 256.  Decompositions are renewed
every tenth step, of all matrices at once and with `stagger=True`, in turn on the same
gradients.  For each of the ten steps of a cycle the median over the cycles is taken,
so that a busy machine does not make one of them long; given are the longest of these
and their median, in milliseconds, and the quotient.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import stepax.contrib

from .matrix_steps import params, seconds, step_of


EVERY = 10
# Of its options: that of the frequency.
FREQUENCY = {
    "soap": "precondition_frequency",
    "kl_shampoo": "precondition_frequency",
    "kl_soap": "precondition_frequency",
    "splus": "inverse_every",
    "shampoo": "precondition_frequency",
}


class Run:
    """Steps of one optimizer, and how long each took."""

    def __init__(self, name, p, g, stagger):
        factory = getattr(stepax.contrib, name)
        self.tx = factory(1e-3, stagger=stagger, **{FREQUENCY[name]: EVERY})
        self.step, self.g, self.times = step_of(self.tx), g, []
        self.p, self.state = jax.tree.map(jnp.copy, p), self.tx.init(p)

    def go_on(self):
        def one():
            self.state, self.p = self.step(self.g, self.state, self.p)
            return self.p

        self.times.append(1e3 * seconds(one)[0])

    def longest(self, cycles: int) -> tuple[float, float]:
        """Milliseconds of the longest step of a cycle, and of the median step."""
        # The first two cycles compile, and begin: all bases are new in the first step.
        times = np.reshape(self.times[2 * EVERY :], (cycles, EVERY))
        each = np.median(times, 0)
        return each.max(), float(np.median(each))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(FREQUENCY))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--cycles", type=int, default=5)
    args = parser.parse_args()
    p = params(args.layers)
    rng = np.random.default_rng(1)
    g = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), p)
    print(f"{'':12} {'all at once':>28} {'staggered':>28}")
    for name in args.names:
        runs = [Run(name, p, g, stagger) for stagger in (False, True)]
        for _ in range((2 + args.cycles) * EVERY):
            for run in runs:
                run.go_on()
        columns = []
        for run in runs:
            longest, median = run.longest(args.cycles)
            columns += [f"{longest:7.0f} / {median:6.0f} ms = {longest / median:5.2f}"]
        print(f"{name:12} {columns[0]:>28} {columns[1]:>28}", flush=True)


if __name__ == "__main__":
    main()
