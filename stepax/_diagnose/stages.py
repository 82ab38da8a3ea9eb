"""Stages, which change updates, and what they do to them: sign, scale, decay, ...

This is known of Stepax's own factories only; a test measures it for all of these.
Most parameters are treated alike.  Those that the same stages change, with the same
arguments, are one track, so that a rule looks at each kind of treatment once.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from .._engine import rules as rx
from .._engine.factories.registry import ROWS
from .._engine.factories.scheduled import values_of
from .._engine.inspect import Component, Made, part_name
from .._wrappers import accumulate, inject


# The factors of scales: a number, and a schedule.
_FACTORS = ("step_size", "step_size_fn")
# The amount of decay in each of these; of optimizers it is `weight_decay`.
_AMOUNTS = {"_decay_by": "amount", "_decay_of_sum": "amount"}
# Kinds of factories that make whole steps, with the learning rate and the sign.
COMPLETE = ("optimizer", "functional")
# From the first steps to more than any run has.
COUNTS = (0, *dict.fromkeys(int(10 ** (n / 3)) for n in range(28)))


@dataclass(frozen=True, eq=False)
class Stage(Made):
    """A part that changes updates, with its arguments for some parameters.

    call: that of the factory that made it, if it is known.
    is_varied: whether its arguments differ by path.
    owner: the optimizer of the registry that contains it, or that it is.
    around: the components that contain it, outermost first.
    """

    part: Component
    call: rx.Call | None
    is_varied: bool
    owner: Component | None
    around: tuple[Component, ...]

    def __str__(self) -> str:
        owner = None if self.owner is self.part else self.owner
        return f"`{part_name(self.part)}`" + (f" of `{owner.name}`" if owner else "")

    def is_beside(self, other: "Stage") -> bool:
        return self.owner is not None and self.owner is other.owner

    @property
    def factor(self) -> Any:
        """The number or schedule by which a scale multiplies; `None` if it is none."""
        return next((self.given[k] for k in _FACTORS if k in self.given), None)

    @property
    def rate(self) -> Any:
        """The number or schedule by which it multiplies steps; `None` without one."""
        return self.given.get("learning_rate") if self.descends else self.factor

    @property
    def descends(self) -> bool:
        """Whether it makes whole steps, with the learning rate and the sign."""
        row = ROWS.get(self.name)
        return "descends" in self.traits or bool(row and row.kind in COMPLETE)

    @property
    def scales(self) -> bool:
        """Whether it multiplies updates by a factor of the user."""
        return self.factor is not None or self.descends

    @property
    def is_rate(self) -> bool:
        return self.scales and (self.descends or "learning_rate" in self.part.given)

    @property
    def sign(self) -> int | None:
        """The sign of the factor from what comes in to what goes out, if known."""
        if not self.name or "calls a function" in self.traits:
            return None
        if self.descends:
            own = _sign_of(self.given.get("learning_rate", 1.0))
            return None if own is None else -own
        factor = 0 if "freezes" in self.traits else self.factor
        return 1 if factor is None else _sign_of(factor)

    @property
    def is_frozen(self) -> bool:
        """Whether it multiplies updates by 0, and is meant to.

        A learning rate of 0 for some paths is how to freeze them, and an injected
        number may be set in the state before each step.
        """
        is_settable = any(map(is_injection, self.around)) and not callable(self.rate)
        is_meant = "freezes" in self.traits or self.is_varied or is_settable
        return is_meant and self.sign == 0

    @property
    def rules(self) -> list[rx.Rule]:
        nodes = [rx.node_of(part.tx) for part in self.part.walk()]
        return [node for node in nodes if isinstance(node, rx.Rule)]

    @property
    def normalizes(self) -> bool:
        """Whether its updates have a size of their own, whatever gradients have."""
        rules = self.rules
        is_said = "normalizes" in self.traits
        if is_said or not rules or not self.name or "clips norms" in self.traits:
            return is_said
        slots = rules[0].slots.values()
        # Squares, and their means over rows, are what is kept wide.
        return bool(rules[0].batched) or any(x.is_positive or x.is_wide for x in slots)

    @property
    def decays(self) -> bool:
        """Whether it pulls parameters to zero."""
        amount = self.given.get(_AMOUNTS.get(self.name, "weight_decay"))
        is_some = amount is not None and value_of(amount, otherwise=1) != 0
        return bool(self.name) and is_some


class Track(NamedTuple):
    """Parameters that the same stages change, in this order, by their paths."""

    stages: tuple[Stage, ...]
    leaves: dict[str, jax.ShapeDtypeStruct]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(self.leaves)

    @property
    def is_frozen(self) -> bool:
        """Whether they are meant not to move."""
        return any(stage.is_frozen for stage in self.stages)


class Place(NamedTuple):
    """A stage between those of its track; matrices: paths of what it orthogonalizes."""

    track: Track
    before: tuple[Stage, ...]
    stage: Stage
    after: tuple[Stage, ...]
    matrices: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return self.track.paths


def product(stages: Iterable[Stage]) -> int | None:
    """The sign of several stages together, if it is known."""
    signs = [stage.sign for stage in stages]
    return math.prod(x for x in signs if x is not None) if None not in signs else None


def kind_of(part: Component) -> str:
    """The kind of a factory in the registry; that of what a wrapper rewrites."""
    call = part.call
    while call is not None and "stores" in call.traits:
        call = rx.call_of(call.bound.arguments["inner"])
    row = ROWS.get(call.name) if call else None
    return row.kind if row and call and row.factory is call.factory else ""


def is_injection(part: Component) -> bool:
    return part.call is not None and part.call.factory is inject._injected


def has_schedules(part: Component) -> bool:
    """Whether it injects hyperparameters that follow a schedule, which it counts."""
    return is_injection(part) and bool(part.state and part.state.hyperparams_states)


def accumulated(part: Component) -> int | None:
    """How many calls an accumulation takes for a step; 0 if unknown, `None` if none."""
    made = part.call
    if made is not None and made.factory is accumulate._pair:
        made = made.bound.arguments["multi_steps"].call
    if made is not None and made.build is accumulate.MultiSteps:
        every = made.bound.arguments["every_k_schedule"]
        return value_of(every(0) if callable(every) else every, otherwise=0)
    return 0 if made is None and hasattr(part.tx, "inner_opt") else None


def value_of(x: Any, otherwise: Any = None) -> Any:
    """A scalar as a Python number, if it is known."""
    is_array = isinstance(x, np.ndarray | np.generic | jax.Array)
    if not (is_array or isinstance(x, int | float)) or isinstance(x, Tracer):
        return otherwise
    return otherwise if np.ndim(x) or np.iscomplexobj(x) else np.asarray(x).item()


def sampled(schedule: Callable, counts: Any = COUNTS) -> np.ndarray | None:
    """The values of a schedule after some numbers of steps, if it has any."""
    try:
        return values_of(schedule, counts)
    except Exception:
        return None


def _sign_of(x: object) -> int | None:
    """The sign of a number, or of all values of a schedule."""
    values = sampled(x) if callable(x) else np.asarray([value_of(x, np.nan)])
    if values is None or np.isnan(values).any():
        return None
    is_up, is_down = bool((values > 0).any()), bool((values < 0).any())
    return None if is_up and is_down else is_up - is_down
