"""The schedule of work that is done for each matrix once every few steps.

If all matrices are decomposed in one step, that step takes many times as long as the
others.  So the matrices take turns: a cycle of steps is divided among them in
proportion to their cost, and a matrix is decomposed at the start of its part of the
cycle.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike


@dataclass(frozen=True)
class Turns:
    """The part of a cycle for some matrices of one shape.

    at_turn: a function from a context and a turn to the context of one matrix; if
        `None`, all matrices share the context.
    start, end: bounds of the part, in a cycle from 0 to 1.
    """

    at_turn: Callable | None
    start: float = 0.0
    end: float = 1.0

    def contexts(self, ctx: object, number: int) -> list[object]:
        """The context of each matrix, with the part divided evenly."""
        if self.at_turn is None:
            return [ctx] * number
        length = self.end - self.start
        turns = [self.start + length * i / number for i in range(number)]
        return [self.at_turn(ctx, turn) for turn in turns]

    def stack(self, ctx: object, at: Sequence[int], number: int) -> object:
        """The contexts of the matrices at these indices among a number, stacked."""
        length, at_turn = self.end - self.start, cast(Callable, self.at_turn)
        turns = [self.start + length * i / number for i in at]
        return jax.vmap(lambda turn: at_turn(ctx, turn))(jnp.asarray(turns, float))

    def mapped(self, one: Callable, ctx: object) -> Callable:
        """The function from stacks to a stack of `one(ctx, *xs)`."""
        if self.at_turn is None:
            return jax.vmap(lambda *xs: one(ctx, *xs))

        # Not by `jax.vmap`, which would run both sides of a branch for every matrix if
        # some of them take it and others do not.
        def run(*stacks):
            n = len(jax.tree.leaves(stacks)[0])
            rows = [jax.tree.map(lambda x, i=i: x[i], stacks) for i in range(n)]
            pairs = zip(self.contexts(ctx, n), rows, strict=True)
            made = [one(own, *row) for own, row in pairs]
            return jax.tree.map(lambda *xs: jnp.stack(xs), *made)

        return run


def divided(at_turn: Callable | None, costs: Sequence[float]) -> list[Turns]:
    """A part of the cycle for each group of matrices, in proportion to its cost."""
    found, total, done = {}, sum(costs) or 1.0, 0.0
    # Expensive ones first: where the part of one is longer than a step, fewer others
    # are decomposed in the same step.
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        found[i] = Turns(at_turn, done / total, (done + costs[i]) / total)
        done += costs[i]
    return [found[i] for i in range(len(costs))]


def cubes(sides: Sequence[int]) -> float:
    """The cost of decomposing a matrix for each of these sides."""
    return sum(float(n) ** 3 for n in sides)


def since_turn(step: jax.Array, every: ArrayLike, turn: float) -> jax.Array:
    """The number of steps since the first turn of a matrix; negative before it."""
    start = jnp.floor(turn * jnp.asarray(every, float))
    return step - start.astype(step.dtype)


def once_in(step: jax.Array, every: ArrayLike) -> jax.Array:
    """Whether a cycle of `every` steps starts."""
    return step % every == 0


class Renewal:
    """When a stage renews decompositions: of all matrices at once, or in turn.

    due: (step, *numbers) -> the first entry of the context of the stage.
    numbers: arguments of `due`; the first is the number of steps in a cycle.
    stagger: whether matrices take turns.
    """

    def __init__(self, due: Callable, numbers: Sequence[ArrayLike], stagger: bool):
        self.due, self.numbers = due, numbers
        self.at_turn = self._at_turn if stagger else None

    def context(self, step: jax.Array) -> Any:
        """That entry, or with `stagger` the inputs from which `at_turn` computes it."""
        if self.at_turn is None:
            return self.due(step, *self.numbers)
        return step, *map(jnp.asarray, self.numbers)

    def _at_turn(self, ctx: tuple, turn: float) -> tuple:
        (step, every, *others), *rest = ctx
        return self.due(since_turn(step, every, turn), every, *others), *rest
