"""How near a step comes to the rate at which the device copies memory.

That rate is measured, by copies of an array that no cache holds, not looked up.  A step
that does little arithmetic can at best be as fast as a copy of as many bytes.
"""

import statistics
from typing import Any

import jax
import jax.numpy as jnp

from .measure import timed


def copy_rate(numbers: int = 2**28, rounds: int = 20) -> float:
    """Bytes read and written in a second by the device, copying so many float32."""
    program = copy(numbers)
    x = program(jnp.ones(numbers, jnp.float32))
    seconds = []
    for _ in range(rounds):
        x, passed = timed(lambda x=x: program(x))
        seconds.append(passed)
    return 2 * 4 * numbers / statistics.median(seconds)


def copy(numbers: int) -> Any:
    """A program that reads and writes so many float32, in place."""
    # A product, because a plain copy would be left out.
    scale = jax.jit(lambda x: x * jnp.float32(1.0000001), donate_argnums=0)
    return scale.lower(jax.ShapeDtypeStruct((numbers,), jnp.float32)).compile()


def add_rates(rows: list[dict], rate: float) -> None:
    """Write into each row with a program its bytes in a second, and as part of `rate`.

    The bytes are those that XLA counts, both sides of every branch included.
    """
    for row in rows:
        if "bytes" in row and "step" in row:
            row["bytes per second"] = row["bytes"] * row["numbers"] / row["step"]
            row["of copy"] = row["bytes per second"] / rate
