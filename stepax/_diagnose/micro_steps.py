"""What acts once in each call of `update`, outside of an accumulation.

What Stepax alone has acts in calls that are steps (`Rule.in_steps`), wherever it is; in
the numbers of Optax, calls count.
"""

from collections.abc import Callable

import jax
import numpy as np

from .._engine import rules as rx
from .findings import Found, Problem
from .stages import Place, Stage, accumulated
from .view import View


def _has_momentum(stage: Stage) -> bool:
    node = rx.node_of(stage.part.tx)
    if isinstance(node, rx.Closure) and not node.members:  # such as L-BFGS
        return any(np.ndim(x) for x in jax.tree.leaves(stage.part.state))
    rules = [x for x in node.walk() if isinstance(x, rx.Rule) and not x.sanitizes]
    return any(map(_follows_gradients, rules))


def _follows_gradients(rule: rx.Rule) -> bool:
    if rule.in_steps:
        return False
    # A sum to which zeros are added stays as it is, unless it is read by the count.
    kinds = {"average", "other", *(["sum"] if rule.scalars else [])}
    return any(slot.kind in kinds for slot in rule.slots.values())


def _decays(stage: Stage) -> bool:
    node = rx.node_of(stage.part.tx)
    return stage.decays and not (isinstance(node, rx.Rule) and node.in_steps)


def _is(name: str) -> Callable[[Stage], bool]:
    return lambda stage: stage.name == name


# What is found of stages, by what they do.
_STAGES: dict[str, tuple[Callable[[Stage], bool], str]] = {
    "momentum": (_has_momentum, "averages the zeros of calls that accumulate, too"),
    "decay": (_decays, "decays in each call"),
    "averages": (_is("average_iterates"), "averages the parameters in each call"),
    "noise": (_is("add_noise"), "adds noise in each call"),
    "plateau": (_is("reduce_on_plateau"), "counts the value of each call"),
}


def of_stage(kind: str) -> Callable[[Place], Found]:
    """The rule for stages that do something after an accumulation."""
    does, what = _STAGES[kind]

    def rule(at: Place) -> Found:
        around = [
            x for y in at.before for x in y.around if accumulated(x) not in (1, None)
        ]
        if around and not {*around} & {*at.stage.around} and does(at.stage):
            yield f"{at.stage} is outside of the accumulation: it {what}"

    rule.__doc__ = f"What {what}, outside of an accumulation."
    return rule


def of_wrapper(name: str) -> Callable[[View], Found]:
    """The rule for a wrapper around an accumulation."""

    def rule(view: View) -> Found:
        for part in (x for x in view.parts if x.name == name):
            if any(accumulated(x) not in (1, None) for x in part.walk()):
                message = f"`{name}` is outside of the accumulation: it counts calls"
                yield Problem(message, (part.place,))

    rule.__doc__ = f"`{name}` around an accumulation, whose calls it counts."
    return rule
