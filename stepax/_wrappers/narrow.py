"""Steps and states in other dtypes than the parameters."""

import functools as ft
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.numerics import is_numeric
from .._engine.step.leafwise import step


def is_narrower(p: object, dtype: rx.DTypeLike) -> bool:
    if not rx.is_trainable(p):
        return False
    kind = jnp.result_type(p)
    is_real = jnp.issubdtype(kind, jnp.floating)
    return is_real and jnp.finfo(kind).bits < jnp.finfo(dtype).bits


def widen_narrow(params: rx.Params, dtype: rx.DTypeLike) -> rx.Params:
    slot = rx.Slot(rx.copy_of, dtype)
    return jax.tree.map(lambda p: slot.new(p) if is_narrower(p, dtype) else p, params)


class Widened:
    """Gradients and parameters, converted to `dtype` where parameters are narrower.

    gradients, params: the trees after conversion.
    narrow: the narrow parameters that have a gradient.
    to_narrow: (master, dtype, ...) -> parameter.
    more: lists of further arguments of `to_narrow`, in the order of `narrow`.
    kept: for each leaf what a state keeps, by default the wide parameter.
    """

    to_narrow: Callable = staticmethod(jax.lax.convert_element_type)
    more: Sequence[list] = ()

    def __init__(
        self,
        updates: rx.Updates,
        params: rx.Params,
        dtype: rx.DTypeLike,
        masters: rx.Params = None,
    ):
        """masters: replaces narrow parameters, if given."""
        gradients = self._gradients = rx.Gradients(updates, params)
        pairs = enumerate(zip(gradients.leaves, gradients.params, strict=True))
        self.at = [
            i
            for i, (g, p) in pairs
            if not rx.has_no_gradient(g) and is_narrower(p, dtype)
        ]
        self.narrow = [gradients.params[i] for i in self.at]
        self.stored = self.kept = gradients.params
        if masters is not None:
            self.kept = gradients.leaves_of(masters, "masters")
            self.stored = [*self.kept]
            for i, p in zip(self.at, self.narrow, strict=True):
                self.stored[i] = self._opened(i, p, self.stored[i])
        self.gradients = self._widen(gradients.leaves, gradients.leaves, dtype)
        self.params = self._widen(gradients.params, self.stored, dtype)

    def _opened(self, i, p, m):
        """The master weight of a parameter, of what is stored."""
        if not rx.is_array(m):
            raise ValueError(
                f"there is a low-precision parameter at {self._gradients.path(i)}, but "
                "no array in `masters`: did it exist, in that dtype, when `init` was "
                "called?"
            )
        self._gradients.check_shape(i, jnp.shape(m), "`masters` in the state")
        return m

    def _widen(self, leaves, wide, dtype):
        leaves = list(leaves)
        new = _cast([wide[i] for i in self.at], dtype=dtype)
        for i, x in zip(self.at, new, strict=True):
            leaves[i] = x
        return self._gradients.treedef.unflatten(leaves)

    def settle(self, u: rx.Updates, tx: Any) -> tuple[rx.Updates, rx.Params]:
        """The updates of parameters for those of `tx` of masters, and what is kept."""
        found = self._gradients.leaves_of(u, "updates")
        gs = rx.like_updates(self._gradients.leaves, tx)
        out, kept = list(found), list(self.kept)
        for i, (x, g) in enumerate(zip(found, gs, strict=True)):
            if not rx.has_no_gradient(x) and not rx.has_no_gradient(g):
                out[i] = jax.lax.convert_element_type(x, g.dtype)
        for i, p, *xs in zip(self.at, self.narrow, *self.more, strict=True):
            if not rx.has_no_gradient(found[i]):
                out[i], kept[i] = self._moved(i, gs[i], p, found[i], *xs)
        unflatten = self._gradients.treedef.unflatten
        return unflatten(out), unflatten(kept)

    def settle_params(self, new: rx.Params) -> tuple[rx.Params, rx.Params]:
        """The parameters of new master weights, and what the state keeps."""
        out, kept = self._gradients.leaves_of(new, "params"), list(self.kept)
        for i, p, *xs in zip(self.at, self.narrow, *self.more, strict=True):
            out[i], kept[i] = self._narrowed(p, out[i], *xs)
        unflatten = self._gradients.treedef.unflatten
        return unflatten(out), unflatten(kept)

    def _moved(self, i, g, p, u, *more):
        return _move(self.to_narrow, g, p, self.stored[i], u, *more)

    def _narrowed(self, p, m, *more):
        return _narrowed(self.to_narrow, jnp.result_type(p), m, *more), m


@ft.partial(jax.jit, static_argnames="dtype")
def _cast(xs, dtype):
    return [x.astype(dtype) for x in xs]


# The update is relative to the actual parameter, so that it corrects the rounding error
# of the previous update.
@ft.partial(jax.jit, static_argnums=0)
@rx.promote_freely
def _move(to_narrow, g, p, m, u, *more):
    wide = m.astype(u.dtype) + u
    new = to_narrow(wide, p.dtype, *more)
    return (new.astype(u.dtype) - p.astype(u.dtype)).astype(g.dtype), wide


@ft.partial(jax.jit, static_argnums=(0, 1))
@rx.promote_freely
def _narrowed(to_narrow, dtype, m, *more):
    return to_narrow(m, dtype, *more)


def on_wide(init, inner, widened: Callable, after: Callable, **known: Any) -> Any:
    """A transformation whose inner one sees gradients and parameters widened.

    widened: makes them of gradients, state and parameters.
    after: makes the next state of them, of what it keeps, of the state of the inner
        transformation and of the last state.
    known: more fields of its `Closure`.
    """

    def update(updates, state, params=None, **extra_args):
        seen, old = widened(updates, state, params), state.inner_state
        u, new = inner.update(seen.gradients, old, seen.params, **extra_args)
        u, kept = seen.settle(u, inner)
        return u, after(seen, kept, rx.keep_dtypes(new, old), state)

    def take_step(gradients, state, params, extra):
        seen, old = widened(gradients, state, params), state.inner_state
        new_p, new = step(inner, seen.gradients, old, seen.params, **extra)
        new_p, kept = seen.settle_params(new_p)
        return new_p, after(seen, kept, rx.keep_dtypes(new, old), state)

    known |= {"inner": {"inner_state": inner}, "hands_on": "inner_state"}
    return rx.transformation(init, update, take_step=take_step, **known)


@rx.traits("stores")
@rx.public("wrapper")
def with_state_dtypes(
    inner: rx.TransformationLike, dtypes: Mapping[str, rx.DTypeLike]
) -> rx.GradientTransformationExtraArgs:
    """Store parts of a state in other dtypes, such as `nu` in bfloat16.

    Fields that are shaped like the parameters are selected by name.  Arithmetic is in
    float32 or wider, and rounded once, when stored: for parameters in bfloat16, `{"mu":
    "float32", "nu": "float32"}` keeps moments from being rounded away.  The state has
    the structure of that of the inner transformation.

    inner: the transformation.
    dtypes: a dict from names to floating-point dtypes; complex and integer arrays are
        unchanged.

    Raises a `TypeError` for a dtype that is not floating-point; `init` raises a
    `ValueError` for unknown names, and lists the known ones.

    >>> tx = stepax.with_state_dtypes(stepax.adamw(1e-3), {"mu": "bfloat16"})
    """
    tx = rx.with_keywords(inner, "`inner` of `with_state_dtypes`")
    at = "dtypes[{!r}]` of `with_state_dtypes".format
    asked = {k: rx.require_floating(at(k), x) for k, x in dtypes.items()}

    def init(params):
        parts, treedef = rx.slots_like_params(tx)
        names = [part.name if part else "" for part in parts]
        known = dict.fromkeys(filter(None, names))
        if unknown := [k for k in asked if k not in known]:
            raise ValueError(
                f"`with_state_dtypes` is given {unknown}, but the fields shaped like "
                f"the parameters are {list(known)}"
            )
        pairs = zip(names, treedef.flatten_up_to(tx.init(params)), strict=True)
        return treedef.unflatten(_stored(x, asked.get(name)) for name, x in pairs)

    # The engine preserves the dtypes that it finds in a state.
    if isinstance(tx, rx.Transformation) and tx.node.keeps_dtypes:
        return rx.with_init(tx, init)

    def update(updates, state, params=None, **extra_args):
        u, new = tx.update(updates, state, params, **extra_args)
        like = rx.like_updates(updates, tx)
        return rx.keep_dtypes(u, like), rx.keep_dtypes(new, state)

    return rx.transformation(init, update, inner={"": tx}, hands_on="")


def _stored(part: Any, dtype: rx.DTypeLike | None) -> rx.Params:
    def one(x):
        if not is_numeric(x) or not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return x.astype(dtype)

    return part if dtype is None else jax.tree.map(one, part)
