"""Splitting trees into optimized arrays, fixed arrays, and everything else.

A compiled loop carries only arrays.  A tree of parameters may hold more: functions and
flags of a module, random keys, `None`.  Leaves with a derivative are optimized
("moving"), other arrays are fixed ("staying").

Arrays that a function closes over are inputs of its program, too, if they are tracers,
which a compiled program cannot keep, or large, since it would keep a copy of a
constant.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ..._engine.arrays.numerics import strong_type
from ..._engine.base import is_array, is_none
from ..._engine.functions.calls import require_takes
from ..._engine.trees import errors
from ..._engine.xla.jaxprs import ClosedJaxpr, jaxpr_as_fun


# Arrays of up to this many elements stay constants, which XLA can fold.
_SMALL = 1024

_MOVES, _STAYS = object(), object()


class Frame(NamedTuple):
    """A tree without its arrays, which can be compared and hashed.

    treedef: the structure, with `None` as a leaf.
    marks: for each leaf, whether it moves or stays, or the leaf itself if not an array.
    """

    treedef: Any
    marks: tuple

    def whole(self, moving: Iterable, staying: Iterable) -> Any:
        """The tree with its arrays put back."""
        xs, ys = iter(moving), iter(staying)
        return self.treedef.unflatten(
            next(xs) if m is _MOVES else next(ys) if m is _STAYS else m
            for m in self.marks
        )

    def params(self, moving: Iterable) -> Any:
        """The tree of moving leaves, with `None` for the others."""
        xs = iter(moving)
        leaves = (next(xs) if m is _MOVES else None for m in self.marks)
        return self.treedef.unflatten(leaves)

    @property
    def is_one(self) -> bool:
        return self.treedef.num_nodes == 1

    @property
    def live(self) -> list[int]:
        return [i for i, mark in enumerate(self.marks) if mark is _MOVES]

    def pick(self, tree: Any) -> list:
        """The moving leaves of a tree, which must have the same structure."""
        leaves = self.treedef.flatten_up_to(tree)
        found = [leaves[i] for i in self.live]
        if not jax.tree_util.all_leaves(found):  # a tree where there was an array
            raise ValueError(f"expected the structure {self.treedef}")
        return found


def open_start(x0: Any) -> tuple[Frame, list, list]:
    """The frame of the parameters, their moving arrays and their staying arrays."""
    leaves = jax.tree.leaves(x0, is_leaf=is_none)
    for i, x in enumerate(leaves):
        if is_array(x) and jnp.issubdtype(jnp.result_type(x), jnp.integer):
            raise TypeError(
                f"`x0` at {errors.paths(x0)[i]} holds integers ({jnp.result_type(x)}), "
                "which cannot be optimized: convert it, as in `jnp.asarray(x, float)`, "
                "or pass it in `args`"
            )
    frame, moving, staying = split(x0)
    if not moving:
        raise ValueError(
            f"`x0` is {errors.describe(x0)} in which nothing can be optimized, "
            "expected a tree with floating-point arrays"
        )
    return frame, moving, staying


def split(tree: Any) -> tuple[Frame, list, list]:
    """The frame of any tree, its inexact arrays, which move, and its other arrays."""
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_none)
    is_moving = lambda x: jnp.issubdtype(jnp.result_type(x), jnp.inexact)
    mark = lambda x: _MOVES if is_moving(x) else _STAYS
    marks = tuple(mark(x) if is_array(x) else x for x in leaves)
    frame = Frame(treedef, marks)
    moving = [strong_type(jnp.asarray(leaves[i])) for i in frame.live]
    return frame, moving, _staying(leaves, marks)


def open_arguments(args: Any) -> tuple[Frame, list]:
    """The frame of the further arguments, and their arrays, including scalars."""
    leaves, treedef = jax.tree.flatten(args, is_leaf=is_none)
    marks = tuple(_STAYS if is_array(x) else x for x in leaves)
    return Frame(treedef, marks), _staying(leaves, marks)


def arguments_of(name: str, fun: Callable, args: Any) -> tuple[Frame, list]:
    """`open_arguments` for those of a function, with which it must be callable."""
    args = args if isinstance(args, tuple) else (args,)
    require_takes(name, fun, ("params", *(f"args[{i}]" for i in range(len(args)))))
    return open_arguments(args)


def _staying(leaves, marks):
    pairs = zip(leaves, marks, strict=True)
    return [jnp.asarray(x) for x, mark in pairs if mark is _STAYS]


def open_closure(fun: Callable, *examples: Any) -> tuple[Callable, list]:
    """A function with closed-over arrays as a further argument, and these arrays.

    `jax.closure_convert` handles tracers, but keeps every function that it has seen
    alive.

    examples: arguments of `fun`, trees of arrays; the result is for these shapes only.
    """
    closed, out = jax.make_jaxpr(fun, return_shape=True)(*examples)
    treedef = jax.tree.structure(out)
    leads = [isinstance(x, Tracer) or x.size > _SMALL for x in closed.consts]
    jaxpr, pairs = closed.jaxpr, list(zip(closed.consts, leads, strict=True))
    kept = [x for x, is_input in pairs if not is_input]

    def opened(*args):
        *args, given = args
        more, rest = iter(given), iter(kept)
        consts = [next(more) if is_input else next(rest) for is_input in leads]
        run = jaxpr_as_fun(ClosedJaxpr(jaxpr, consts))
        return treedef.unflatten(run(*jax.tree.leaves(args)))

    return opened, [x for x, is_input in pairs if is_input]


# --- what functions return -----------------------------------------------------------


def check_arrays(out: Any, name: str, kind: Any, wanted: str, hint: str = "") -> None:
    """Raise an error, with the path, unless all leaves are arrays of a kind of numbers.

    wanted: what is expected instead of a leaf that is not an array.
    hint: what to do about numbers of another kind.
    """
    for path, x in jax.tree.leaves_with_path(out, is_leaf=is_none):
        where = f" at {jax.tree_util.keystr(path)}" if path else ""
        if not is_array(x):
            raise TypeError(
                f"{name} returns{where} {errors.describe(x)}, expected {wanted}"
            )
        if not jnp.issubdtype(jnp.result_type(x), kind):
            raise TypeError(
                f"{name} returns{where} an array of {jnp.result_type(x)}, expected "
                f"floating-point numbers{hint}"
            )
