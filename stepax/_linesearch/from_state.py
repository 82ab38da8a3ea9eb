"""Value and gradient that a line search has already computed."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.trees.search import get, is_present
from .line import put


_MISSING = object()


@rx.explain_misuse
def value_and_grad_from_state(
    value_fn: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """Like `jax.value_and_grad`, but reuse the results stored by a line search.

    Returns a function of the arguments of `value_fn` and the keyword `state`.  It only
    differentiates `value_fn` if the value in the state is not finite, as at the start.
    The stored results belong to the parameters that the last search led to, and are
    wrong for any others.

    value_fn: the function to minimize; its value is a scalar.
    argnums: which arguments are the parameters of the state; several of them form a
        tuple, as does the gradient.
    has_aux: whether `value_fn` returns a pair (value, aux); the result is then
        ((value, aux), grad).  Searches do not store `aux`: it is recomputed here,
        without derivatives if the value is known.

    The function raises a `ValueError` if the state holds no value or gradient, or if an
    argument is missing, and a `KeyError` if the state holds several values.
    """

    def from_state(*args, state, **kwargs):
        if not args and "params" in kwargs:
            args = (kwargs.pop("params"),)
        params, insert = _parameters(argnums, args)

        def function(params):
            found = value_fn(*insert(params), **kwargs)
            return found if has_aux else (found, None)

        value, aux, grad = _reused(function, params, state, has_aux)
        return ((value, aux) if has_aux else value), grad

    return from_state


def _parameters(argnums, args):
    """The parameters among some arguments, and a function that replaces them."""
    is_one = isinstance(argnums, int)
    numbers = [argnums] if is_one else list(argnums)
    for i in numbers:
        if not -len(args) <= i < len(args):
            raise ValueError(
                f"`argnums` has {i}, but the call has {len(args)} positional arguments"
            )

    def insert(params):
        new = list(args)
        for i, p in zip(numbers, [params] if is_one else params, strict=True):
            new[i] = p
        return new

    found = tuple(args[i] for i in numbers)
    return found[0] if is_one else found, insert


def _reused(function, params, state, has_aux):
    """Value, aux and gradient; from the state if finite."""
    value, grad = _stored(state, "value"), _stored(state, "grad")
    gradients = rx.Gradients(grad, params)
    live = [
        i for i, g in enumerate(gradients.leaves) if g is not None and rx.is_inexact(g)
    ]
    known = jnp.asarray(value), [gradients.leaves[i] for i in live]
    whole = lambda leaves: put(gradients, live, leaves, gradients.params)

    def compute():
        leaves = [jnp.asarray(gradients.params[i]) for i in live]
        gradient = jax.value_and_grad(lambda x: function(whole(x)), has_aux=True)
        (value, aux), grads = gradient(leaves)
        return *rx.keep_dtypes((value, grads), known), aux

    def reuse():
        return *known, function(params)[1] if has_aux else None

    value, grads, aux = rx.branch(jnp.isfinite(value), reuse, compute)
    return value, aux, put(gradients, live, grads, [None] * len(gradients.leaves))


def _stored(state: Any, name: str) -> Any:
    found = get(state, name, _MISSING, is_present)
    if found is _MISSING:
        raise ValueError(f"`state` has no `{name}`, unlike the state of a line search")
    if found is None:
        raise ValueError(
            f"`{name}` in `state` is `None`; search with `store_grad=True`"
        )
    return found
