"""What `restore` tells of: other optimizers, and hyperparameters that it replaces."""

import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._config import TARGET
from .._config.to_config import to_config
from .._distributed import init_and_arrays
from .._engine.base import Params, as_array
from .._engine.factories.registry import ROWS
from .._engine.functions.calls import level_of_user
from .._engine.trees.errors import list_some
from . import Entry, arrays_of
from .values import traceable


class RestoreWarning(UserWarning):
    """`restore` reads a state into a transformation that is another one in part."""


def recipe_of(tx: Any) -> Any:
    """`to_config` of a transformation; `None` where it holds what is not data."""
    try:
        return None if tx is None else to_config(tx)
    except TypeError:
        return None


def tell(source: Any, tx: Any, params: Params, into: list[Entry], found: list) -> None:
    """Warn of other optimizers than saved, and of hyperparameters that are replaced.

    found: what is restored to each of `into`, or `None`.
    """
    notes, recipes = [], (getattr(source, "recipe", None), recipe_of(tx))
    old, new = (sorted({*_optimizers(x)}) for x in recipes)
    if old and new and old != new:
        notes.append(f"saved with {list_some(old)}, restored with {list_some(new)}")
    if replaced := _replaced(tx, params, into, found):
        notes.append(
            f"the state replaces hyperparameters of `tx`: {list_some(replaced)}; "
            "`stepax.tree.set` changes them"
        )
    if notes:
        text = f"{source}: {'; '.join(notes)}"
        warnings.warn(text, RestoreWarning, stacklevel=level_of_user())


def _optimizers(recipe: Any) -> Iterator[str]:
    """The names of optimizers, and of their directions, in a configuration."""
    left = [recipe]
    while left:
        x = left.pop()
        if isinstance(x, dict):
            name = str(x.get(TARGET)).rpartition(".")[2]
            row = ROWS.get(name)
            if row and (row.kind == "optimizer" or name.startswith("scale_by_")):
                yield f"`{name}`"
            left += x.values()
        elif isinstance(x, list):
            left += x


# Fields of states that are arguments: of `schedule_free`, `gpa` and `muon`.
_ARGUMENTS = ("b1",), ("interpolation",), ("ns_coeffs",)


def _replaced(tx: Any, params: Params, into: list[Entry], found: list) -> list[str]:
    scheduled = {x.where for x in into}
    at = [
        i
        for i, x in enumerate(into)
        if found[i] is not None
        and (x.own[:1] == ("hyperparams",) or x.own in _ARGUMENTS)
        and (*x.where, "hyperparams_states", *x.own[1:2]) not in scheduled
    ]
    init, arrays = init_and_arrays(tx, traceable(params))
    if not at or any(jnp.issubdtype(x.dtype, jax.dtypes.extended) for x in arrays):
        return []

    # XLA leaves out all that these do not depend on: no state is made.
    @jax.jit
    def made() -> list:
        zeros = [jnp.zeros(x.shape, x.dtype) for x in arrays]
        values = [as_array(x) for _, x in arrays_of(init(zeros))]
        return [values[i] for i in at]

    pairs = zip(at, made(), strict=True)
    rows = [(into[i], *map(np.asarray, (found[i], x))) for i, x in pairs]
    return [
        f"`{x.key}` is {old[()]!s}, not {new[()]!s}"
        for x, old, new in rows
        if not np.array_equal(old.astype(new.dtype), new, equal_nan=True)
    ]
