"""An exhibit: a program with a mistake that `diagnose` finds, and its cure."""

from dataclasses import dataclass, field
from typing import Any

import stepax


# What all programs begin with, and the page shows once.
PREAMBLE = """\
import jax
import jax.numpy as jnp
import optax
import stepax


def arrays(dtype="float32", **shapes):
    return {k: jnp.full(shape, 0.5, dtype) for k, shape in shapes.items()}


net = {
    "embed": arrays(kernel=(32, 16)),
    "dense": arrays(kernel=(16, 16), bias=(16,)),
    "norm": arrays(scale=(16,)),
}
stack = {"layers": arrays(kernel=(4, 16, 16), bias=(4, 16))}
half = jax.tree.map(lambda p: p.astype("bfloat16"), net)
cosine = stepax.cosine_decay_schedule(0.05, 100)
axes = stepax.contrib.MuonDimensionNumbers(-2, -1)
gradients = jax.tree.map(lambda p: 0 * p / 0, net)
"""

# The paths of `net`.
ALL = ("dense/bias", "dense/kernel", "embed/kernel", "norm/scale")
VECTORS = ("dense/bias", "norm/scale")


@dataclass(frozen=True)
class Exhibit:
    """A program and its cure.

    code: what `diagnose` finds in it.
    program, cure: at most ten lines of Python that assign to `tx`.
    happens: what the mistake does.
    paths: the paths of the finding.
    thread: where it was met, or "common".
    params: the expression for the parameters.
    more: further arguments of `diagnose`.
    measure: the name of what is measured in `measures.py`, of which less is better.
    options: its arguments.
    remains: why the cure keeps the finding, a note; "" if it does not.
    """

    code: str
    program: str
    cure: str
    happens: str
    paths: tuple[str, ...]
    thread: str = "common"
    params: str = "net"
    more: str = ""
    measure: str = "loss"
    options: dict[str, Any] = field(default_factory=dict)
    remains: str = ""

    @property
    def call(self) -> str:
        """The call of `diagnose`, after the program."""
        more = f", {self.more}" if self.more else ""
        return f"stepax.diagnose(tx, {self.params}{more})"

    def names(self, text: str) -> dict[str, Any]:
        """The names that the program or its cure assigns."""
        found: dict[str, Any] = {}
        exec(PREAMBLE + text, found)
        found["params"] = eval(self.params, found)
        return found

    def diagnosis(self, text: str) -> stepax.Diagnosis:
        """What `diagnose` finds in the program or its cure."""
        return eval(self.call, self.names(text))
