"""What a proximal operator is, for any tree, and its kinds.

Parikh and Boyd, 2014, Proximal Algorithms (DOI 10.1561/2400000003).  The operator of a
function g with a step s maps x to the minimizer z of

    s g(z) + |z - x|² / 2

An operator is itself a tree, whose leaves are its weights: these may be traced and
differentiated, and other values of them do not recompile a program.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..._engine.arrays.numerics import broadcasts_to, is_numeric, upcast
from ..._engine.arrays.precision import promote_freely, real_dtype
from ..._engine.base import is_array, is_none
from ..._engine.functions.calls import frozen
from ..._engine.trees import errors, selection


class Operator:
    """A function g of a tree, and its proximal operator."""

    @property
    def by_element(self) -> bool:
        """Whether each element of the result depends on the same element alone."""
        return False

    @property
    def by_leaf(self) -> bool:
        """Whether each leaf of the result depends on the same leaf alone."""
        return False

    def value(self, x: Any) -> jax.Array:
        """g(x), a scalar, which is infinite outside of a set.

        x: a tree of arrays; leaves that are not floating-point arrays are ignored.
        """
        raise NotImplementedError

    def __call__(self, x: Any, step: ArrayLike) -> Any:
        """The minimizer z of step g(z) + |z - x|² / 2.

        x: a tree of arrays, which keep their dtypes and are computed in float32 or
            wider; leaves that are not floating-point arrays are returned as they are.
        step: a scalar, > 0.
        """
        raise NotImplementedError

    def _key(self) -> Any:
        return frozen(tuple(vars(self).values()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Operator) or type(self) is not type(other):
            return False
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


@dataclass(frozen=True, eq=False, repr=False)
class Leafwise(Operator):
    """A sum over leaves.

    name: the factory that made it.
    weights: each a scalar, an array, or a tree of x's structure or a prefix of it.
    cost: (x, axes, *weights) -> the value for one array.
    point: (x, s, axes, *weights) -> the minimizer.
    axes: the axes whose elements depend on each other; `None` for all.
    given: further arguments of the factory.
    """

    name: str
    weights: tuple
    cost: Callable[..., jax.Array]
    point: Callable[..., jax.Array]
    axes: tuple[int, ...] | None = ()
    given: tuple = ()

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.weights + self.given))})"

    @property
    def by_element(self) -> bool:
        return self.axes == () and self.by_leaf

    @property
    def by_leaf(self) -> bool:
        return all(is_array(w) and np.ndim(w) == 0 for w in self.weights)

    @promote_freely
    def value(self, x: Any) -> jax.Array:
        rows = [(upcast(x), own) for x, own in self._rows(x) if _acts(x)]
        found = [self.cost(x, self.axes, *own) for x, own in rows]
        return sum(found, jnp.zeros([], jnp.float32))

    @promote_freely
    def __call__(self, x: Any, step: ArrayLike) -> Any:
        def leaf(x, own):
            if not _acts(x):
                return x
            wide = upcast(x)
            s = jnp.asarray(step).astype(real_dtype(wide.dtype))
            return self.point(wide, s, self.axes, *own).astype(jnp.result_type(x))

        treedef = jax.tree.structure(x, is_leaf=is_none)
        return treedef.unflatten(leaf(x, own) for x, own in self._rows(x))

    def _rows(self, tree: Any) -> list[tuple]:
        """The leaves of a tree, each with its weights."""
        leaves = jax.tree.leaves(tree, is_leaf=is_none)
        columns = [_spread(w, tree, self.name) for w in self.weights]
        return [
            (x, [self._weight(column[i], x, tree, i) for column in columns])
            for i, x in enumerate(leaves)
        ]

    def _weight(self, w: Any, x: Any, tree: Any, i: int) -> Any:
        """The weight of a leaf, with its number of axes, unless it is a scalar."""
        if not _acts(x):
            return w
        shape, rank = np.shape(x), np.ndim(x)
        axes = range(rank) if self.axes is None else self.axes
        if any(not -rank <= a < rank for a in axes):
            raise ValueError(
                f"`{self!r}` needs the axes {self.axes}, but the leaf at "
                f"{errors.paths(tree)[i]} has shape {shape}; leave it out by a pattern,"
                f' as in {{"**/kernel": prox.{self.name}(...)}}'
            )
        joined = [n % rank for n in axes]
        wanted = tuple(1 if k in joined else n for k, n in enumerate(shape))
        if not is_array(w) or not broadcasts_to(np.shape(w), wanted):
            found = f"shape {np.shape(w)}" if is_array(w) else errors.describe(w)
            raise ValueError(
                f"the weight of `{self.name}` for {errors.paths(tree)[i]} has {found}, "
                f"expected a scalar, or an array that broadcasts to {wanted}"
            )
        w = jnp.asarray(w).astype(real_dtype(upcast(x).dtype))
        return w.reshape((1,) * (rank - w.ndim) + w.shape) if w.ndim else w


@dataclass(frozen=True, eq=False, repr=False)
class Projection(Operator):
    """The indicator of a set, which is 0 inside and infinite outside.

    project: (x, *sizes) -> the nearest point of the set, for a tree x.
    sizes: what describes the set, such as its radius.
    """

    name: str
    project: Callable[..., Any]
    sizes: tuple
    is_elementwise: bool = False

    def __repr__(self) -> str:
        own = self.sizes or ((self.project,) if self.name == "from_projection" else ())
        return f"{self.name}({', '.join(map(repr, own))})"

    @property
    def by_element(self) -> bool:
        flat = all(x is None or is_array(x) and np.ndim(x) == 0 for x in self.sizes)
        return self.is_elementwise and flat

    @property
    def by_leaf(self) -> bool:
        return self.by_element

    @promote_freely
    def value(self, x: Any) -> jax.Array:
        sides = (jax.tree.leaves(y, is_leaf=is_none) for y in (x, self(x, 1.0)))
        pairs = [(y, z) for y, z in zip(*sides, strict=True) if _acts(y)]
        inside = jnp.ones([], bool)
        for y, z in pairs:
            inside &= _is_near(upcast(y), upcast(z), jnp.result_type(y))
        dtype = jnp.result_type(jnp.float32, *(upcast(y).real for y, _ in pairs))
        return jnp.where(inside, 0.0, jnp.inf).astype(dtype)

    def __call__(self, x: Any, step: ArrayLike) -> Any:
        # What the projection must not see, such as a function, is `None` for it.
        seen = jax.tree.map(lambda x: x if _acts(x) else None, x)
        found = self.project(seen, *self.sizes)
        return jax.tree.map(lambda x, z: z if _acts(x) else x, x, found)


@dataclass(frozen=True, eq=False, repr=False)
class ByPath(Operator):
    """Operators for parts of a tree; leaves that no pattern matches are free.

    patterns: for each operator a path pattern; the first one that matches a leaf
        decides.
    """

    patterns: tuple[str, ...]
    operators: tuple

    def __repr__(self) -> str:
        return repr(dict(zip(self.patterns, self.operators, strict=True)))

    def indices(self, tree: Any) -> list[int | None]:
        """The index of the operator of each leaf, their number if it is free.

        `None` for what is not an array.
        """
        return selection.resolve_patterns(self.patterns, tree, "prox", is_open=True)

    def value(self, x: Any) -> jax.Array:
        labels = self.indices(x)
        costs = [g.value(_part(x, labels, i)) for i, g in enumerate(self.operators)]
        with jax.numpy_dtype_promotion("standard"):
            return sum(costs, jnp.zeros([], jnp.float32))

    def __call__(self, x: Any, step: ArrayLike) -> Any:
        labels = self.indices(x)
        leaves, treedef = jax.tree.flatten(x, is_leaf=is_none)
        for i, g in enumerate(self.operators):
            found = treedef.flatten_up_to(g(_part(x, labels, i), step))
            rows = zip(leaves, found, labels, strict=True)
            leaves = [z if label == i else x for x, z, label in rows]
        return treedef.unflatten(leaves)


def _register(kind: type, *data: str) -> None:
    fields = vars(kind)["__dataclass_fields__"]
    meta = [name for name in fields if name not in data]
    jax.tree_util.register_dataclass(kind, data, meta)


_register(Leafwise, "weights")
_register(Projection, "sizes")
_register(ByPath, "operators")


def as_operator(g: Any, name: str = "prox") -> Any:
    """An operator from what users write: an object, or a dict from path patterns."""
    if isinstance(g, Mapping):
        made = {str(k): as_operator(x, f"{name}[{k!r}]") for k, x in g.items()}
        return ByPath(tuple(made), tuple(made.values()))
    if isinstance(g, type) or not callable(g) or not hasattr(g, "value"):
        function = (
            " (for a projection, `prox.from_projection(p)`)" if callable(g) else ""
        )
        raise TypeError(
            f"`{name}` is {errors.describe(g)}, expected an operator of "
            "`stepax.solve.prox`, such as `prox.l1(0.1)`, an object with `value(x)` "
            "and `__call__(x, step)`, or a dict from path patterns to these"
            f"{function}"
        )
    return g


def _part(tree: Any, labels: list, i: int) -> Any:
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_none)
    pairs = zip(leaves, labels, strict=True)
    return treedef.unflatten(x if label == i else None for x, label in pairs)


def _acts(x: Any) -> bool:
    is_known = is_array(x) and is_numeric(x)
    return is_known and jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def _is_near(x: jax.Array, z: jax.Array, dtype: Any) -> jax.Array:
    """Whether a point equals its projection, but for rounding."""
    if not x.size:
        return jnp.ones([], bool)
    size = jnp.maximum(1, jnp.max(jnp.abs(x)))
    return jnp.max(jnp.abs(x - z)) <= 64 * float(jnp.finfo(dtype).eps) * size


def _spread(weight: Any, tree: Any, name: str) -> list:
    """The weight of each leaf."""
    try:
        return selection.by_structure(weight, tree)
    except (ValueError, TypeError):
        what = f"weight of {name}"
        raise errors.mismatch(what, weight, "the parameters", tree) from None
