"""Check whether activations keep their size as a model gets wider."""

import functools as ft
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ._engine.base import ArrayTree, Params, require_transformation
from ._engine.factories.ranges import whole_number
from ._engine.functions.calls import explain_misuse
from ._engine.inspect import Printable, Table
from ._engine.trees import errors
from ._engine.trees.apply import apply_updates
from ._schedules.picture import new_figure


class Model(NamedTuple):
    """A model of one width, on one batch.

    params: the initial parameters.
    tx: the transformation to train with.
    loss: a function from parameters to the loss.
    activations: a function from parameters to a dict of arrays by name.
    """

    params: Params
    tx: Any
    loss: Callable[[Params], jax.Array]
    activations: Callable[[Params], Mapping[str, ArrayTree]]


@dataclass(frozen=True, repr=False, eq=False)
class Coordinates(Printable):
    """Root mean squares of activations by width.

    widths: the widths that were passed.
    sizes: sizes of activations by name, (widths, seeds, steps + 1).
    changes: sizes of their differences from the activations before the first step, by
        name, of the same shape.
    """

    widths: tuple[int, ...]
    sizes: dict[str, np.ndarray]
    changes: dict[str, np.ndarray]

    @property
    def slopes(self) -> dict[str, float]:
        """The exponent of the width in the change after the last step, by name.

        It is about 0 where a learning rate transfers.  If it is larger, the largest
        models diverge; if it is smaller, they do not learn in these layers.
        """
        return {k: _slope(self.widths, x[..., -1]) for k, x in self.changes.items()}

    def tables(self) -> list[Table]:
        header = ["change of", *map(str, self.widths), "~ width^"]
        rows = []
        for name, x in self.changes.items():
            cells = [f"{y:.3g}" for y in x[..., -1].mean(1)]
            rows.append([name, *cells, f"{self.slopes[name]:+.2f}"])
        return [(header, rows)]

    def table(self) -> str:
        """A line for each activation: its change at each width, and the exponent."""
        return str(self)

    def plot(self, path: str | os.PathLike) -> None:
        """Plot the changes against the width, with matplotlib.

        path: the file to write; its suffix is the format.
        """
        figure = new_figure("plot")
        axes = figure.subplots()
        for name, x in self.changes.items():
            label = f"{name}: width^{self.slopes[name]:+.2f}"
            axes.plot(self.widths, x[..., -1].mean(1), marker=".", label=label)
        axes.set(xscale="log", yscale="log", xlabel="width", ylabel="change")
        axes.set_xticks(self.widths, list(map(str, self.widths)), minor=False)
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(path)


@explain_misuse
def coordinate_check(
    make: Callable[[int, jax.Array], Sequence[Any]],
    widths: Sequence[int],
    *,
    steps: int = 3,
    seeds: int = 3,
) -> Coordinates:
    """Train models of several widths for a few steps, and compare their activations.

    make: a function from a width and a key to the parameters, a transformation, the
        loss as a function of the parameters, and a function from the parameters to a
        dict of activations.  Both functions use the same batch for all widths.
    widths: two or more.
    steps: number of steps with that batch, >= 1.
    seeds: number of models of each width, >= 1.

    Raises a `ValueError` for fewer widths, or if the names of activations differ
    between widths.
    """
    widths = tuple(map(int, widths))
    if len(set(widths)) < 2:
        raise ValueError(f"`widths` is {widths}, expected two or more")
    steps, seeds = whole_number("steps", steps), whole_number("seeds", seeds)
    sizes: dict[str, list] = {}
    changes: dict[str, list] = {}
    for width in widths:
        names: list[str] = []  # in the order of the user's dict, which JAX would sort
        run = ft.partial(_run, ft.partial(make, width), steps, names)
        found = jax.lax.map(jax.jit(run), jax.random.split(jax.random.key(0), seeds))
        if sizes and found[0].keys() != sizes.keys():
            raise ValueError(
                f"the activations at width {width} are {names}, but those at width "
                f"{widths[0]} are {[*sizes]}"
            )
        for all_of, these in zip((sizes, changes), found, strict=True):
            for name in names:
                all_of.setdefault(name, []).append(np.asarray(these[name]))
    columns = ({k: np.stack(x) for k, x in found.items()} for found in (sizes, changes))
    return Coordinates(widths, *columns)


def _run(
    make: Callable[[jax.Array], Sequence[Any]],
    steps: int,
    names: list[str],
    key: jax.Array,
) -> tuple[dict, dict]:
    """Sizes and changes of the activations, before the first step and after each.

    names: a list to which the names of the activations are added.
    """
    model = Model(*make(key))
    tx = model.tx
    require_transformation(tx, "the transformation from `make`")
    first = _measured(model.activations(model.params))
    names[:] = first
    start = model.params, tx.init(model.params)

    def step(carry, _):
        params, state = carry
        updates, state = tx.update(jax.grad(model.loss)(params), state, params)
        params = apply_updates(params, updates)
        now = _measured(model.activations(params))
        change = {k: _rms(now[k] - first[k]) for k in now}
        return (params, state), ({k: _rms(x) for k, x in now.items()}, change)

    _, (sizes, changes) = jax.lax.scan(step, start, None, steps)
    sizes = {k: _put_first(_rms(first[k]), x) for k, x in sizes.items()}
    return sizes, {k: _put_first(0.0, x) for k, x in changes.items()}


def _put_first(x: ArrayLike, xs: jax.Array) -> jax.Array:
    return jnp.concatenate([jnp.asarray(x, xs.dtype)[None], xs])


def _measured(found: Any) -> dict[str, jax.Array]:
    if not isinstance(found, Mapping) or not found:
        raise TypeError(
            f"the activations from `make` are {errors.describe(found)}, expected a "
            "dict of arrays by name"
        )
    return {str(k): jnp.asarray(x).astype(jnp.float32) for k, x in found.items()}


def _rms(x: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.mean(jnp.square(x)))


def _slope(widths: Sequence[int], changes: np.ndarray) -> float:
    """The exponent by least squares of logarithms, averaged over seeds."""
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.log(changes).mean(1)
    if not np.isfinite(mean).all():
        return float("nan")
    return float(np.polyfit(np.log(np.asarray(widths, np.float64)), mean, 1)[0])
