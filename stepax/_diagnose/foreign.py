"""Optax's transformations as Stepax's, so that rules know what they do.

The closure of an `update` of Optax holds the arguments of the factory that made it, by
their names, which are those of the factory of the same name here.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax

from .._engine import rules as rx
from .._engine.base import call_of_pair
from .._engine.factories.registry import ROWS
from .._engine.functions import calls
from .._wrappers.accumulate import MultiSteps
from .._wrappers.chain import chain, named_chain
from .._wrappers.inject import inject_hyperparams


def opened(tx: Any, params: rx.Params) -> Any:
    """A transformation in which ours replace the parts that Optax made.

    It is only to be read; one whose state would hold other arrays is left as it is.
    """

    def shapes(tx):
        return [x.shape for x in jax.tree.leaves(jax.eval_shape(tx.init, params))]

    try:
        made = _opened(tx)
        return made if made is tx or shapes(made) == shapes(tx) else tx
    except Exception:  # whatever others wrote
        return tx


def _opened(x: Any) -> Any:
    """The same for any argument of a factory; the object itself if nothing changes."""
    if type(x) is dict:
        found = {k: _opened(y) for k, y in x.items()}
        return x if all(found[k] is y for k, y in x.items()) else found
    if type(x) in (list, tuple):
        found = type(x)(map(_opened, x))
        return x if all(a is b for a, b in zip(found, x, strict=True)) else found
    if isinstance(x, type) or not calls.is_transformation(x):
        return x
    if (call := call_of_pair(x)) is not None:
        given = dict(call.bound.arguments)
        found, signature = _opened(given), call.bound.signature
        # Of ours in a chain of Optax only the two functions are left.
        is_whole = found is given and rx.call_of(x) is not None
        return x if is_whole else calls.call_with(call.factory, signature, found)
    name, held = _call(x)
    make = _MAKERS.get(name) or (ROWS[name].factory if name in ROWS else None)
    if make is None:
        return x
    known = inspect.signature(make).parameters
    try:
        return make(**{k: _opened(y) for k, y in held.items() if k in known})
    except Exception:  # an argument that ours does not take, for one
        return x


def _call(tx: Any) -> tuple[str, dict[str, Any]]:
    """The factory of Optax that made a transformation, and its arguments."""
    owner = getattr(tx.update, "__self__", None)
    if not (getattr(tx.update, "__module__", None) or "").startswith("optax."):
        return "", {}
    if owner is not None:
        return type(owner).__name__, {k.strip("_"): x for k, x in vars(owner).items()}
    functions = [f for f in (tx.init, tx.update) if inspect.isfunction(f)]
    held = [inspect.getclosurevars(f).nonlocals for f in functions]
    name = tx.update.__qualname__.partition(".")[0]
    return name, {k: x for own in held for k, x in own.items()}


def _chain(init_fns: tuple, update_fns: tuple) -> Any:
    pairs = zip(init_fns, update_fns, strict=True)
    return chain(*(_opened(rx.GradientTransformation(*pair)) for pair in pairs))


def _injected(
    inner_factory: Callable, numeric_hps: dict, sched_hps: dict, other_hps: dict
) -> Any:
    schedules = {k: getattr(f, "schedule_fn", f) for k, f in sched_hps.items()}
    make = inject_hyperparams(ROWS[inner_factory.__name__].factory, [*other_hps])
    return make(**other_hps, **numeric_hps, **schedules)


def _multi_steps(opt: Any, every_k_schedule: Callable) -> Any:
    return MultiSteps(opt, every_k_schedule).gradient_transformation()


_MAKERS: dict[str, Callable] = {
    "MultiSteps": _multi_steps,
    "chain": _chain,
    "inject_hyperparams": _injected,
    "named_chain": lambda transforms: named_chain(*transforms),
    "with_extra_args_support": lambda tx: tx,
}
