"""What an optimizer needs and reads, as the engine knows it."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import stepax
import stepax.contrib  # enters its factories into the registry
from stepax._engine.base.node import node_of
from stepax._engine.factories.arguments import Arguments
from stepax._engine.factories.ranges import RANGES
from stepax._engine.factories.registry import ROWS, Row
from stepax._engine.inspect import Component, open_components
from stepax._engine.step.rule import Rule
from tests.arguments import example


ELEMENTS, ARRAYS = "elementwise", "per array"
MATRICES, TREE = "per matrix", "all arrays"


def optimizers() -> list[Row]:
    """The rows of all optimizers, sorted by name."""
    rows = (row for row in ROWS.values() if row.kind == "optimizer")
    return sorted(rows, key=lambda row: row.name)


def make(row: Row, **more: Any) -> Any:
    """An optimizer with the example's arguments."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return row.factory(**example(row) | more)


def public_module(row: Row) -> str:
    return "stepax" if row.name in stepax.__all__ else "stepax.contrib"


def takes_rate(row: Row) -> bool:
    """Whether its learning rate is searched; a line search finds its own."""
    parameters = inspect.signature(row.factory).parameters
    return "learning_rate" in parameters and "linesearch" not in parameters


def is_rate_free(row: Row) -> bool:
    """Whether it finds a rate itself: its rate is a factor of 1, or it has none."""
    rate = inspect.signature(row.factory).parameters.get("learning_rate")
    return rate is None or rate.default == 1.0 or not takes_rate(row)


def components(tx: Any) -> list[Component]:
    return list(open_components(tx, None).walk())


# What a line search reads, which hands all other keywords on to the loss function.
OF_LINE_SEARCHES = ["grad", "value", "value_fn"]


def keywords(tx: Any) -> list[str]:
    """The keywords of `update` that it reads by name."""
    known = node_of(tx).keywords()
    return OF_LINE_SEARCHES if known is None else sorted(known)


def rules(tx: Any) -> list[Rule]:
    nodes = [node_of(part.tx) for part in components(tx)]
    return [node for node in nodes if isinstance(node, Rule)]


def is_for_matrices(row: Row, tx: Any) -> bool:
    """Whether it computes with whole matrices, as a stage or with smaller ones."""
    if row.matrices_only or any(rule.batched for rule in rules(tx)):
        return True
    # Or a state with matrices of another shape, such as a projection to a smaller one.
    shape = (1024, 1024)
    state = jax.eval_shape(tx.init, {"w": jax.ShapeDtypeStruct(shape, jnp.float32)})
    ends = (x.shape[-2:] for x in jax.tree.leaves(state) if x.ndim > 1)
    return any(end != shape and 1024 in end and min(end) > 1 for end in ends)


def reach(row: Row, tx: Any) -> str:
    """What an element of the update depends on."""
    found = rules(tx)
    if is_for_matrices(row, tx):
        return MATRICES
    if any(rule.leaf_stat or rule.global_stat for rule in found):
        return TREE
    if any(_is_closure(part) for part in components(tx)):
        return _measured_reach(tx)
    return ELEMENTS if all(rule.elementwise for rule in found) else ARRAYS


def _is_closure(part: Component) -> bool:
    is_rule = isinstance(node_of(part.tx), Rule)
    return part.is_leaf and not is_rule and not part.parts


def _measured_reach(tx: Any) -> str:
    """From which elements of the update change with one element of the gradients."""
    p = {"a": jnp.ones((4, 3)), "b": jnp.ones(3)}
    more: dict[str, Any] = {}
    loss = lambda p: sum(jnp.sum(x**4) for x in jax.tree.leaves(p))
    if known := keywords(tx):
        all_ = {"value": loss(p), "grad": p, "value_fn": loss, "obj_fn": loss}
        more = {k: all_[k] for k in known if k in all_}

    @jax.jit
    def second(g, h):
        u, state = tx.update(g, tx.init(p), p, **more)
        q = stepax.apply_updates(p, jax.tree.map(lambda x: x * 0.1 + 0.1, u))
        return tx.update(h, state, q, **more)[0]

    rising = lambda x: 0.1 + jnp.linspace(0, 2, x.size).reshape(x.shape)
    shape = jax.tree.map(rising, p)
    other = dict(shape, a=shape["a"].at[1, 1].add(0.5))
    changed = jax.tree.map(lambda x, y: x != y, second(p, shape), second(p, other))
    if changed["b"].any():
        return TREE
    return ARRAYS if changed["a"].sum() > 1 else ELEMENTS


def arguments(row: Row) -> list[dict[str, str]]:
    """Each argument: name, default, range, whether it takes a schedule, and changes."""
    checks = vars(row.factory)["scalars"]
    live = at_run_time(row)
    found = []
    for name, p in inspect.signature(row.factory).parameters.items():
        takes = checks.takes.get(name)
        is_number = takes is not None and takes.number
        allowed = row.ranges.get(name) or RANGES.get(name)
        found.append(
            {
                "argument": name,
                "default": "required" if p.default is p.empty else shown(p.default),
                "range": str(allowed) if allowed and is_number else "",
                "schedule": "yes" if takes and takes.schedule else "",
                "run time": "yes" if name in live else "",
            }
        )
    return found


def at_run_time(row: Row) -> set[str]:
    """The arguments that `inject_hyperparams` puts into the state, once given."""
    checks = vars(row.factory)["scalars"]
    parameters = inspect.signature(row.factory).parameters
    missing = {
        k: 1.0
        for k, takes in checks.takes.items()
        if takes.number and parameters[k].default is None
    }
    return set(Arguments(row.factory, (), missing | example(row)).sort(())[0])


def shown(x: object) -> str:
    """A default as it is written."""
    if isinstance(x, Callable) and not isinstance(x, type):
        call = getattr(x, "call", None)
        return repr(call) if call else getattr(x, "__name__", type(x).__name__)
    call = getattr(x, "call", None)
    return repr(call) if call else repr(x)
