"""How close a step comes to the memory bandwidth of the device.

The bandwidth is measured by copying an array that exceeds all caches.  A step with
little arithmetic can at best be as fast as a copy of the same number of bytes.
"""

import statistics
from typing import Any

import jax
import jax.numpy as jnp

from .goals import COPIES
from .rounds import timed


def copy_rate(numbers: int = 2**28, rounds: int = 9, copies: int = 20) -> float:
    """Bytes read and written per second when copying this many float32 elements.

    copies: number of copies after which the host waits, as after the steps of a case.
    """
    program = copy(numbers)
    x = program(jnp.ones(numbers, jnp.float32))
    seconds = []

    def run(x):
        for _ in range(copies):
            x = program(x)
        return x

    for _ in range(rounds):
        x, passed = timed(lambda x=x: run(x))
        seconds.append(passed / copies)
    return 2 * 4 * numbers / statistics.median(seconds)


def copy(numbers: int) -> Any:
    """A program that reads and writes this many float32 elements in place."""
    # A product, because XLA would eliminate a plain copy.
    scale = jax.jit(lambda x: x * jnp.float32(1.0000001), donate_argnums=0)
    return scale.lower(jax.ShapeDtypeStruct((numbers,), jnp.float32)).compile()


def add_rates(rows: list[dict], rate: float) -> None:
    """Add to each row its bytes per second, absolute and as a fraction of `rate`.

    Also the inverse of the latter, which is how many copies would take as long.

    The bytes are those that XLA counts, including both sides of every branch.
    """
    for row in rows:
        if "bytes" in row and "step" in row:
            row["bytes per second"] = row["bytes"] * row["numbers"] / row["step"]
            row["of copy"] = row["bytes per second"] / rate
            row[COPIES] = 1 / row["of copy"]
