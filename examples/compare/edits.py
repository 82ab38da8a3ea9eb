"""Known differences between optimizers, as changes of one that may make it the other.

A change replaces arguments of the calls that made a transformation, at their places: a
place is a path of names and positions of arguments, from the outermost call on.
"""

import functools as ft
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import BoundArguments
from typing import Any

import jax
import numpy as np

from stepax import GradientTransformation, chain, scale, scale_by_schedule, weight_decay
from stepax._engine.base.call import call_of
from stepax._engine.factories.by_path import Wraps


@dataclass(frozen=True)
class Edit:
    """A change.

    words: the difference that it removes.
    arguments: new values by place; for a chain, the order of its members.
    around: wraps the result, if the change is none of arguments.
    options: new values of options of PyTorch's optimizer, by name.
    """

    words: str
    arguments: Mapping[tuple, Any] = field(default_factory=dict)
    around: Callable[[Any], Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


_FLAGS = {
    "bias_correction": "means are corrected for their bias in one only",
    "debias": "means are corrected for their bias in one only",
    "eps_in_sqrt": "`eps` is inside the root in one, outside in the other",
    "nesterov": "one has Nesterov momentum",
    "use_grad_mean": "gradients are summed in one, averaged in the other",
}
# Options of PyTorch's optimizers that have no counterpart, and what they are without.
_OPTIONS = {"amsgrad": False, "dampening": 0, "maximize": False}


def calls(tx: Any, place: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """The calls in a nest, with their places."""
    call = call_of(tx)
    if call is None:
        return
    yield place, call
    for name, x in call.bound.arguments.items():
        for i, member in enumerate(x if type(x) is tuple else (x,)):
            if isinstance(member, GradientTransformation):
                yield from calls(member, (*place, name, i))


def edited(tx: Any, changes: Mapping[tuple, Any], place: tuple = ()) -> Any:
    """A transformation made again with other arguments."""
    call = call_of(tx)
    if call is None:
        return tx
    arguments = OrderedDict(call.bound.arguments)
    for name, x in arguments.items():
        here = (*place, name)
        if type(x) is tuple:
            made = [edited(y, changes, (*here, i)) for i, y in enumerate(x)]
            arguments[name] = tuple(made[i] for i in changes.get(here, range(len(x))))
        else:
            arguments[name] = changes.get(here, edited(x, changes, (*here, 0)))
    given = BoundArguments(call.bound.signature, arguments)
    return call.factory(*given.args, **given.kwargs)


def known(tx: Any) -> dict[str, Any]:
    """The arguments in a nest by name, those of the innermost call last."""
    found = {}
    for _, call in calls(tx):
        found |= call.bound.arguments
    return found


def toward(tx: Any, other: Mapping[str, Any], which: tuple[str, str]) -> list[Edit]:
    """A change for each argument that has another value in the other optimizer."""
    one, two = which
    return [
        Edit(
            f"`{name}` is {_shown(x)} in {one}, {_shown(other[name])} in {two}",
            {(*place, name): other[name]},
        )
        for place, call in calls(tx)
        for name, x in call.bound.arguments.items()
        if name in other
        and type(x) is not tuple
        and not isinstance(x, GradientTransformation)
        if not _is_same(x, other[name])
    ]


def _shown(x: Any) -> str:
    name = getattr(x, "__name__", "")
    return f"`{name}`" if name else f"{x!r}"


def _is_same(x: Any, y: Any) -> bool:
    try:
        return bool(np.all(x == y))
    except (TypeError, ValueError):
        return False


def structural(tx: Any, other: Mapping[str, Any]) -> Iterator[Edit]:
    """Changes that are no numbers, of a transformation."""
    words = "one ascends: its gradients have the other sign (`maximize`)"
    yield Edit(words, {}, ft.partial(chain, scale(-1.0)))
    for place, call in calls(tx):
        given = call.bound.arguments
        for name, x in given.items():
            if type(x) is bool and name in _FLAGS:
                yield Edit(_FLAGS[name], {(*place, name): not x})
            if type(x) is tuple and len(x) > 1:
                yield from _orders((*place, name), x)
        if {"eps", "eps_root"} <= {*given}:
            eps, root = given["eps"], given["eps_root"]
            for inside in (eps**2 if isinstance(eps, float | int) else eps, eps):
                swapped = {(*place, "eps"): root, (*place, "eps_root"): inside}
                yield Edit(_FLAGS["eps_in_sqrt"], swapped)
        if "weight_decay" in given:
            yield from _decays(place, given, other)
        if callable(rate := given.get("learning_rate")):
            yield from _shifted((*place, "learning_rate"), rate)
        if {"b1", "b2"} <= {*given} and "bias_correction" not in given:
            around = _uncorrected(given["b1"], given["b2"])
            yield Edit(_FLAGS["bias_correction"], {}, around)


def of_torch(tx: Any) -> Iterator[Edit]:
    """Options of PyTorch's optimizer that have no counterpart here, and are in use."""
    for name, without in _OPTIONS.items():
        used = [group.get(name, without) for group in tx.param_groups]
        if any(x != without for x in used):
            words = f"PyTorch's `{name}` is {used[0]!r}"
            yield Edit(words, options={name: without})


def _orders(place: tuple, members: tuple) -> Iterator[Edit]:
    """A chain without one of its members, and neighbors the other way round."""
    names, n = [_name(x) for x in members], range(len(members))
    for i in n:
        yield Edit(f"{names[i]} is in one only", {place: [*n[:i], *n[i + 1 :]]})
    for i in n[1:]:
        order = [*n[: i - 1], i, i - 1, *n[i + 1 :]]
        yield Edit(f"the order of {names[i - 1]} and {names[i]}", {place: order})


def _name(tx):
    call = call_of(tx)
    return f"`{call.name}`" if call else "a part"


def _decays(place: tuple, given: Mapping, other: Mapping) -> Iterator[Edit]:
    own, theirs = given["weight_decay"], other.get("weight_decay")
    at = (*place, "weight_decay")
    if isinstance(own, Wraps):
        yield Edit(f"one has {own!r}", {at: own.amount})
    kinds: Any = {
        "coupled": "the decay is added to the gradient in one only (coupled)",
        "independent": "the decay is multiplied by the learning rate in one only",
    }
    for amount in (theirs, own):
        if isinstance(amount, float | int | dict) and amount:
            for kind, words in kinds.items():
                yield Edit(words, {at: weight_decay(amount, kind)})
    for name in ("weight_decay_mask", "mask"):
        if name in given and given[name] is None:
            matrices = ft.partial(jax.tree.map, lambda p: np.ndim(p) > 1)
            yield Edit("vectors decay in one only", {(*place, name): matrices})


def _shifted(place: tuple, rate: Callable) -> Iterator[Edit]:
    words = "the schedule is one step {} in the other"
    yield Edit(words.format("ahead"), {place: lambda count: rate(count + 1)})
    yield Edit(words.format("behind"), {place: lambda count: rate(count - 1)})


def _uncorrected(b1, b2):
    """Takes the corrections back, as if `eps` were 0."""

    def factor(count):
        return (1 - b1 ** (count + 1)) / (1 - b2 ** (count + 1)) ** 0.5

    return lambda tx: chain(tx, scale_by_schedule(factor))
