"""Converting states of PyTorch's optimizers to our slots.

PyTorch stores a dictionary for each parameter, by the index of the parameter, and does
not record which optimizer it belongs to.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from .._engine import rules as rx
from .._engine.inspect import Component, open_components
from .._engine.step.nest import Chain
from .._engine.trees.errors import list_some
from .._wrappers.chain import NamedChain
from . import Entry, entries
from .assemble import Held
from .place import template_of_state


# From PyTorch's names of arrays to our classes and fields; if there are several
# classes, the one in the state is used.
SLOTS = {
    "momentum_buffer": {"TraceState": "trace", "MuonState": "mu"},
    "exp_avg": {"ScaleByAdamState": "mu", "ScaleByNadamState": "mu"},
    "exp_avg_sq": {"ScaleByAdamState": "nu", "ScaleByNadamState": "nu"},
    "square_avg": {"ScaleByRmsState": "nu", "ScaleByRStdDevState": "nu"},
    "grad_avg": {"ScaleByRStdDevState": "mu"},
    "sum": {"ScaleByRssState": "sum_of_squares"},
}

# Options for which PyTorch's step has no equivalent here.
REFUSED = {
    "amsgrad": "its maximum is taken before bias correction, and that of Stepax's "
    "`amsgrad` after it",
    "dampening": "Stepax's `trace` adds undamped gradients",
}


class Parameter(NamedTuple):
    """A parameter of PyTorch: its path here, its state, and its group's options."""

    path: tuple[str, ...]
    state: Mapping[str, Any]
    options: Mapping[str, Any]


def held(
    state_dict: Mapping[str, Any],
    tx: Any,
    params: rx.Params,
    names: Any,
    transposed: Iterable[str],
    step: int | None,
) -> Held:
    """The slots that a state of PyTorch has for `tx`."""
    into = template_of_state(tx, params)
    owners = dict.fromkeys(x.owner for x in into.entries)
    factor = -1.0 if _follows_rate(open_components(tx, into.tree)) else None
    patterns = [*map(rx.selection.names_of, transposed)]
    found = _parameters(state_dict, entries(params), names)
    slots = {}
    for p in found:
        _check(p, owners)
        turn = any(rx.selection.is_match(pattern, p.path) for pattern in patterns)
        rate = {} if factor is None else {"momentum_buffer": factor * p.options["lr"]}
        for name, x in _arrays(p, turn):
            kinds = SLOTS[name]
            owner = next((k for k in kinds if k in owners), next(iter(kinds)))
            x = x * x.dtype.type(rate.get(name, 1.0))
            slots[_slot(owner, (kinds[owner], *p.path), x)] = x
    for own in (x for x in into.entries if len(x.own) == 1):
        if (number := _number(own.own[0], found, step)) is not None:
            slots[_slot(own.owner, own.own, number, own.where)] = number
    arrays = {("state", x.key): a for x, a in slots.items()}
    return Held("the state of PyTorch", None, list(slots), arrays)


def _slot(owner: str, own: tuple, x: Any, where: tuple = ()) -> Entry:
    return Entry((*where, owner, *own), where, owner, own, x.shape, str(x.dtype))


def _arrays(p: Parameter, turn: bool) -> Iterator[tuple[str, np.ndarray]]:
    for name, x in p.state.items():
        if name in SLOTS and x is not None:
            x = _array(x)
            yield name, x.T if turn else x


def _array(x: Any) -> np.ndarray:
    """A tensor as a NumPy array, in float32 if NumPy does not have its dtype."""
    torch: Any = sys.modules.get("torch")  # there are no tensors without it
    if torch is None or not isinstance(x, torch.Tensor):
        return np.asarray(x)
    x = x.detach().cpu()
    try:
        return x.numpy()
    except TypeError:  # bfloat16
        return x.float().numpy()


def _parameters(state_dict: Any, known: list[Entry], names: Any) -> list[Parameter]:
    """The parameters in PyTorch's order, with their paths here."""
    try:
        groups, states = state_dict["param_groups"], state_dict["state"]
    except (TypeError, KeyError):
        raise ValueError(
            "`state_dict` is not that of a PyTorch optimizer: it needs `state` and "
            "`param_groups`, as in `optimizer.state_dict()`"
        ) from None
    rows = [(i, group) for group in groups for i in group["params"]]
    theirs = [g.get("param_names", [None] * len(g["params"])) for g in groups]
    paths = _paths([name for some in theirs for name in some], names, known)
    if len(paths) != len(rows):
        raise ValueError(f"`names` has {len(paths)} paths for {len(rows)} parameters")
    return [
        Parameter(path, states.get(i, {}), group)
        for path, (i, group) in zip(paths, rows, strict=True)
    ]


def _paths(theirs: list, names: Any, known: list[Entry]) -> list[tuple[str, ...]]:
    """The path of each PyTorch parameter here; `theirs` are its names, or `None`."""
    if names is None and len(theirs) == len(known) == 1:
        return [known[0].names]
    if names is None or isinstance(names, Mapping):
        if None in theirs:
            raise ValueError(
                "the parameters of `state_dict` have no names, only an order: pass "
                "`names`, the path of each parameter in Stepax, in the order of "
                "`optimizer.param_groups`"
            )
        given = names or {}
        names = [given.get(x, x.replace(".", "/")) for x in theirs]
    paths = [tuple(x.split("/")) for x in names]
    wrong = [x for x in names if tuple(x.split("/")) not in {e.names for e in known}]
    if wrong or len(set(paths)) < len(paths):
        raise ValueError(
            f"`names` leads to {list_some(f'`{x}`' for x in wrong or names)}, expected "
            f"different paths of the parameters {list_some(known)}"
        )
    return paths


def _check(p: Parameter, owners: Iterable[str]) -> None:
    """Raise for options of PyTorch's optimizer without an equivalent here."""
    for option, why in REFUSED.items():
        if p.options.get(option):
            raise ValueError(
                f"`{option}` of PyTorch cannot be converted: {why}; the parameter is "
                f"`{'/'.join(p.path)}`"
            )
    if "mu_product" in p.state and "ScaleByNadamState" not in owners:
        raise ValueError(
            "PyTorch's NAdam has a momentum schedule, and `tx` has none: create it "
            f"with `nadam(..., momentum_decay={p.options['momentum_decay']})`"
        )


# Scalars of our states, which PyTorch stores for each parameter.
NUMBERS = {"count": ("step", np.int32), "momentum_product": ("mu_product", np.float32)}


def _number(field: str, found: list[Parameter], step: int | None) -> Any:
    """The scalar of a field; `None` for a field that PyTorch does not have."""
    if field == "ns_coeffs":  # an option of PyTorch's
        name = "ns_coefficients"
        given = [p.options[name] for p in found if name in p.options]
        return np.asarray(given[0], np.float32) if given else None
    if field not in NUMBERS:
        return None
    name, dtype = NUMBERS[field]
    numbers = {float(_array(p.state[name])) for p in found if name in p.state}
    if not numbers and name == "step" and step is not None:
        numbers = {float(step)}
    if not numbers:
        raise ValueError(
            f"`state_dict` has no `{name}` for the `{field}` of `tx`"
            + (": pass `step`, the number of steps taken" if name == "step" else "")
        )
    if len(numbers) > 1:
        raise ValueError(
            f"`{name}` differs from parameter to parameter, "
            f"{list_some(sorted(numbers))}, "
            f"and `tx` has one `{field}` for all"
        )
    return dtype(numbers.pop())


def _follows_rate(component: Component) -> bool:
    """Whether a trace comes after the learning rate in its chain, as in `rmsprop`.

    It then accumulates steps, while PyTorch's buffer is multiplied by the learning rate
    later.
    """
    if isinstance(rx.node_of(component.tx), Chain | NamedChain):
        kinds = [[x.name for x in part.walk()] for part in component.parts]
        rates = [
            i for i, names in enumerate(kinds) if "scale_by_learning_rate" in names
        ]
        traces = [i for i, names in enumerate(kinds) if "trace" in names]
        if rates and traces and min(rates) < max(traces):
            return True
    return any(map(_follows_rate, component.parts))
