"""Quadratic programs, and their scaling by Ruiz equilibration.

Ruiz, 2001, A scaling algorithm to equilibrate both rows and columns norms in matrices
(RAL-TR-2001-034): divide each row and column of the symmetric matrix

    [ Q  R' ]
    [ R  0  ]

by the square root of its largest element, until all of these are near 1.  Then the cost
is divided by its largest element.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .pairs import times


# Passes over the matrix; each takes the square root of what is left.
_PASSES = 10


class Program(NamedTuple):
    """A quadratic program: the names of the module's docstring.

    limits: the lower and the upper ones, of the rows and then of the parameters.
    soft: 0, or for each row the weight of a cost of y²/2: rows may then be violated by
        that times y, the least sum of squares.
    """

    q: jax.Array
    c: jax.Array
    rows: jax.Array
    limits: tuple[jax.Array, jax.Array]
    soft: jax.typing.ArrayLike = 0.0

    def values(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """The values of all rows, less their violations if soft, and the parameters."""
        return jnp.append(times(self.rows, x) - self.soft * y[: len(self.rows)], x)

    def slope(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """The gradient of the Lagrangian; y has the multipliers of rows and bounds."""
        m = len(self.rows)
        return times(self.q, x) + self.c + times(self.rows.T, y[:m]) + y[m:]


def equilibrated(p: Program) -> tuple[Program, jax.Array, jax.Array]:
    """The program for x / columns, whose multipliers are y / sizes; columns; sizes."""
    m = len(p.rows)
    ones = jnp.ones_like(p.c), jnp.ones_like(p.limits[0][:m])
    columns, rows = jax.lax.fori_loop(0, _PASSES, lambda _, d: _passed(p, *d), ones)
    q, c = columns[:, None] * p.q * columns[None], columns * p.c
    cost = jnp.maximum(greatest(c), greatest(q))
    unit = jnp.where((cost > 0) & jnp.isfinite(cost), cost, 1)
    low, high = (jnp.append(rows * x[:m], x[m:] / columns) for x in p.limits)
    scaled, soft = rows[:, None] * p.rows * columns[None], p.soft * unit * rows**2
    program = Program(q / unit, c / unit, scaled, (low, high), soft)
    return program, columns, jnp.append(unit * rows, unit / columns)


def _passed(p: Program, columns: jax.Array, rows: jax.Array) -> tuple:
    """The factors of columns and rows after another pass."""
    q = columns[:, None] * jnp.abs(p.q) * columns[None]
    r = rows[:, None] * jnp.abs(p.rows) * columns[None]
    wide = jnp.maximum(jnp.max(q, 0, initial=0), jnp.max(r, 0, initial=0))
    return columns * _root(wide), rows * _root(jnp.max(r, 1, initial=0))


def _root(size: jax.Array) -> jax.Array:
    """1 / the square root; 1 for an empty row, and within what rounding allows."""
    is_fine = jnp.isfinite(size) & (size > 0)
    return jax.lax.rsqrt(jnp.where(is_fine, size, 1))


def greatest(x: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(x), initial=0)
