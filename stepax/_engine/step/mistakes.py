"""Errors for states that do not fit, and for invalid results of rules.

They name the rule, the slot and the path.  A step without mistakes calls almost none of
this, so the checks cost no time.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from ..arrays import precision
from ..arrays.numerics import has_dtype
from ..base import ArrayTree, is_array
from ..functions.calls import refuse_operators
from ..trees import errors
from . import Gradients
from .rule import Rule


class Mistake(Exception):
    """A rule returned an invalid result; the caller that knows the path adds it."""

    def __init__(self, rule: Rule, text: str, hint: str = ""):
        super().__init__(f"`{rule.name or rule.State.__name__}` {text}", hint)

    def at(self, path: str) -> Exception:
        """The error for a user."""
        text, hint = self.args
        return errors.of_step(f"{text} for the gradient at {path}{hint}")


class Undeclared(Exception):
    """A rule reads something that it has not declared."""


class _Undeclared:
    """Passed for parameters that a rule does not declare to read; raises on any use."""

    # Not `None`: `p * 2` would then raise an error that names neither rule nor remedy.

    def refuse(self) -> NoReturn:
        """Raise the error, for whoever uses it."""
        raise Undeclared(
            "reads the parameters `p`, but does not declare it: pass "
            "`needs_params=True` to its `Rule`,"
        )

    def __getattr__(self, name: str) -> NoReturn:
        self.refuse()

    # The operators of JAX's arrays ask their other operand for this.
    __jax_array__ = property(refuse)


# Beside operators.
_USES = (
    "__eq__ __ne__ __bool__ __call__ __array__ __len__ __iter__ __getitem__ "
    "__contains__"
)
refuse_operators(_Undeclared, _USES)

UNDECLARED = _Undeclared()


class Keywords(dict):
    """The keywords of `update` that a rule declares to read."""

    rule: Rule

    def __missing__(self, key: str) -> NoReturn:
        raise ValueError(
            f"`{self.rule.name}` reads the keyword `{key}`, but does not declare it: "
            f'give `reads=("{key}",)` to its `Rule`'
        )


def declared(rule: Rule, extra: dict) -> Keywords:
    """The keywords that `prepare` may read; raises if one is missing."""
    read = Keywords()
    read.rule = rule
    for name in rule.reads:
        if name not in extra:
            raise errors.of_step(
                f"`{rule.name}` reads the keyword `{name}`: "
                f"call `update(updates, state, params, {name}=...)`",
                TypeError,
            )
        read[name] = extra[name]
    return read


def unprepared(rule: Rule, made: object) -> ValueError:
    """The error for an invalid result of `prepare`."""
    return ValueError(
        f"`prepare` of `{rule.name}` must return a context and a tuple of "
        f"{len(rule.scalars)} scalars, ({', '.join(rule.scalars)}), but returned {made}"
    )


def check_dtype(
    rule: Rule, what: str, new: jax.Array, old: jax.Array, rounds: bool = False
) -> None:
    """Raise if a cast to the old dtype would lose more than precision.

    rounds: whether rounding to integers is allowed: as in Optax, the slots of an
        integer parameter are integers.
    """
    # For example an imaginary part, or the fraction of a float.
    most = max(precision.rank(old.dtype), precision.rank(jnp.float32) * rounds)
    if precision.rank(new.dtype) > most:
        hint = ""
        if jnp.issubdtype(new.dtype, jnp.complexfloating):
            hint = "; a complex argument needs complex parameters"
            if what in map("`{}`".format, rule.slots):
                hint = "; a moment of complex numbers needs a complex dtype, or none"
        text = f"made {what} of dtype {new.dtype}, not {old.dtype},"
        raise Mistake(rule, text, hint)


def misfit(rule: Rule, what: str, new: ArrayTree, old: ArrayTree) -> Mistake:
    """The mistake of a result with another shape, or that is not an array."""
    shape = jax.tree.map(jnp.shape, new)
    hint = ": was this state made for other parameters, or with other arguments?"
    wanted = jax.tree.map(jnp.shape, old)
    return Mistake(rule, f"made {what} of shape {shape}, not {wanted},", hint)


def check_encoded(rule: Rule, name: str, new: ArrayTree, old: ArrayTree) -> None:
    """Raise unless a slot is stored in the same form as before."""
    if jax.tree.map(jnp.shape, new) != jax.tree.map(jnp.shape, old):
        raise misfit(rule, f"`{name}`", new, old)

    # Integers are codes, and another dtype another code.
    def is_code(x):
        return jnp.issubdtype(x.dtype, jnp.integer)

    for x, y in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
        if x.dtype != y.dtype and is_code(x) and is_code(y):
            hint = ": was this state made with other arguments?"
            what = f"made `{name}` in {x.dtype}, not {y.dtype},"
            raise Mistake(rule, what, hint)


def wrong_number(rule: Rule, out: object, number: int) -> Mistake:
    """The mistake of a wrong number of results."""
    is_several = isinstance(out, tuple | list)
    found = f"{len(out)} values" if is_several else errors.describe(out)
    found = "an array alone" if has_dtype(out) else found
    slots = "".join(f", {name}" for name in rule.slots)
    return Mistake(rule, f"returned {found}, not {number} (u{slots}),")


def check_stored(
    gradients: Gradients, i: int, rule: Rule, name: str, x: ArrayTree
) -> ArrayTree:
    """The array in slot `name` for leaf `i`; raises unless it has the right shape."""
    # An encoded slot may be a tree, of which only the decoder knows the shapes; one of
    # another shape than the parameter may be a tuple of no arrays, as for a vector.
    slot = rule.slots[name]
    if hasattr(x, "shape"):
        shape = gradients.leaves[i].shape
        # One number for each row, an index of the first axis.
        of_row = x.shape[:1] == shape[:1] and len(x.shape) == len(shape)
        pairs = zip(x.shape, shape, strict=False)
        by_rows = slot.by_rows and of_row and all(n in (1, m) for n, m in pairs)
        if slot.alike and not by_rows:
            gradients.check_shape(i, x.shape, f"`{name}` in its state")
    elif not jax.tree.leaves(x) and (slot.alike or type(x) is not tuple):
        raise errors.of_step(
            f"`{rule.name}` has nothing in `{name}` for the gradient at "
            f"{gradients.path(i)}: the parameter did not exist when `init` was called, "
            "or was masked"
        )
    elif slot.is_array and not is_array(x):
        raise errors.of_step(
            f"`{rule.name}` has {errors.describe(x)} in `{name}` for the gradient at "
            f"{gradients.path(i)}: was this state made by another optimizer, or for "
            "other parameters, or are these not the gradients?"
        )
    return jnp.asarray(x) if is_array(x) else x


def check_trained(
    gradients: Gradients,
    rules: Sequence[Rule],
    trains: Sequence[str],
    leaves: Sequence[Any],
) -> None:
    """Raise for an integer parameter of a pass, which each step would round."""
    # A rule that is not part of an optimizer raises if its slots accumulate gradients;
    # those of a sanitizer are flags.  The gradient of a floating-point parameter may be
    # an integer, so its slots and the parameter are looked at, too.  Python's integers
    # are scalars like any.
    for leaf in leaves:
        g = leaf.g
        if not leaf.on or precision.is_inexact(g) or jax.typeof(g).weak_type:
            continue
        on: tuple[int, ...] = leaf.on
        names = [
            trains[n] or rules[n].name
            for n in on
            if trains[n] or (rules[n].slots and not rules[n].sanitizes)
        ]
        row = [leaf.slots[n] for n in on]
        known = [x for x in jax.tree.leaves(row) if has_dtype(x)]
        if gradients.all_params is not None and is_array(gradients.params[leaf.at]):
            known.append(jnp.asarray(gradients.params[leaf.at]))
        if names and not any(map(precision.is_inexact, known)):
            raise errors.not_floating(names[0], gradients.path(leaf.at), g.dtype)
