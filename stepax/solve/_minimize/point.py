"""Points of a constrained minimization: one vector, with all derivatives there.

Values and derivatives of the function and of the constraints are divided by their
slopes at the start, so that the units in which they are given do not matter.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..._linesearch.line import search_dtype
from .augmented import excess, within
from .loop import Inputs
from .pack import Flat
from .pairs import times
from .scaling import greatest
from .watch import FAR


class Place(NamedTuple):
    """A point, flat, with the values of the function and the constraints.

    value, norm: in the caller's units, the largest element of the projected gradient
        of the Lagrangian.
    g, c, slopes: df, c and dc, in those of the run; low, high: limits of c.
    """

    xs: jax.Array
    value: jax.Array
    norm: jax.Array
    g: jax.Array
    c: jax.Array
    slopes: jax.Array
    low: jax.Array
    high: jax.Array

    @property
    def beyond(self) -> jax.Array:
        """How far each constraint is beyond its limits, with a sign."""
        return excess(self.c, self.low, self.high)

    def slope(self, y: jax.Array) -> jax.Array:
        """The gradient of the Lagrangian for multipliers y."""
        return self.g + times(self.slopes.T, y)

    def is_finite(self) -> jax.Array:
        numbers = jnp.append(self.g, self.value), self.slopes
        is_fine = jnp.stack([jnp.isfinite(x).all() for x in numbers]).all()
        return is_fine & ~jnp.isnan(self.c).any()


class Units(NamedTuple):
    """The slopes at the start, of the function and of each constraint.

    floor: a value so low that there seems to be no minimum.
    """

    cost: jax.Array
    rows: jax.Array
    floor: jax.Array


class Points:
    """The points of one problem.

    box: the bounds of x, infinite where there are none.
    unpack: makes of x the moving arrays in the caller's form.
    """

    def __init__(self, both: Callable, inputs: Inputs):
        """both: as for `Solver`; the second part of its aux is `Opened.values`."""
        self._both, self._inputs = both, inputs
        self._dtype = search_dtype(inputs.moving)
        self._flat = Flat(inputs.moving, self._dtype)
        far = jnp.full(self._flat.size, jnp.inf, self._dtype)
        self.box = self._flat.sides(inputs.box) or (-far, far)
        self.unpack = self._flat.split

    def first(self) -> tuple[Place, Units]:
        at = self._measured(self._flat.join(self._inputs.moving))
        cost, rows = greatest(at.g), jnp.max(jnp.abs(at.slopes), 1, initial=0)
        rise = within(cost) * jnp.maximum(greatest(at.xs), 1)
        floor = at.value - FAR * jnp.maximum(jnp.abs(at.value), rise)
        units = Units(within(cost), within(rows), floor)
        return _over(at, units)._replace(norm=cost), units

    def at(self, x: jax.Array, units: Units) -> Place:
        """The point at x; its norm is not known yet."""
        return _over(self._measured(x), units)

    def moved(self, x: jax.Array, d: jax.Array, is_full: jax.Array) -> jax.Array:
        """x + d within the bounds, and exactly at those that d reaches."""
        lower, upper = self.box
        new = jnp.clip(x + d, lower, upper)
        new = jnp.where(is_full & (d == lower - x), lower, new)
        return jnp.where(is_full & (d == upper - x), upper, new)

    def norm(self, at: Place, y: jax.Array, units: Units) -> jax.Array:
        """The largest element of the projected gradient of the Lagrangian."""
        lower, upper = self.box
        steep = -units.cost * at.slope(y)
        return greatest(jnp.clip(steep, lower - at.xs, upper - at.xs))

    def misfit(self, at: Place, units: Units) -> jax.Array:
        """The largest violation, relative to limits above 1."""
        sides = jnp.stack([at.low, at.high])
        sides = jnp.where(jnp.isfinite(sides), jnp.abs(sides) * units.rows[None], 0)
        limits = jnp.maximum(*sides)
        return greatest(at.beyond * units.rows / jnp.maximum(1, limits))

    def _measured(self, x: jax.Array) -> Place:
        def outputs(x):
            value, (_, limits) = self._both(self.unpack(x), self._inputs.data)
            c, low, high = map(self._flat.join, map(jax.tree.leaves, limits))
            found = jnp.append(jnp.asarray(value).astype(self._dtype), c)
            return found, (found, low, high)

        count = len(jax.eval_shape(outputs, x)[0])
        derive = jax.jacrev if count <= x.size else jax.jacfwd
        slopes, (found, low, high) = derive(outputs, has_aux=True)(x)
        none = jnp.zeros([], self._dtype)
        return Place(x, found[0], none, slopes[0], found[1:], slopes[1:], low, high)


def _over(at: Place, units: Units) -> Place:
    """A point with derivatives and constraints divided by units; not the value."""
    rows = units.rows
    c, low, high = (x / rows for x in (at.c, at.low, at.high))
    slopes = at.slopes / rows[:, None]
    return at._replace(g=at.g / units.cost, c=c, slopes=slopes, low=low, high=high)
