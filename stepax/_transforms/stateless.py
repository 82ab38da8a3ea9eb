"""Transformations from stateless functions."""

from collections.abc import Callable
from typing import Any

from .._engine.base.protocol import (
    GradientTransformation,
    Params,
    Updates,
    init_empty_state,
    transformation,
)
from .._engine.factories.registry import public
from .._engine.step.leafwise import map_gradients


@public()
def stateless(f: Callable[[Updates, Params | None], Updates]) -> GradientTransformation:
    """Make a transformation from a function of the gradients: u = f(g, p).

    f: a function of two trees, the gradients and the parameters; the latter is `None`
        if `update` is called without parameters.
    """

    def update(updates, state, params=None, **extra_args):
        return f(updates, params), state

    return transformation(init_empty_state, update)


@public()
def stateless_with_tree_map(f: Callable[[Any, Any], Any]) -> GradientTransformation:
    """Make a transformation from a function of single arrays: u = f(g, p).

    f: a function of two arrays, a gradient and its parameter; the latter is `None` if
        `update` is called without parameters.  Not called for missing gradients.
    """

    def update(updates, state, params=None, **extra_args):
        if params is None:
            return map_gradients(lambda g: f(g, None), updates), state
        return map_gradients(f, updates, params=params), state

    return transformation(init_empty_state, update)
