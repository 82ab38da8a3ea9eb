"""Records which transformations a program initializes, and with which parameters."""

import contextlib
import functools as ft
from collections.abc import Iterator
from typing import Any

import jax
from jax.core import Tracer

from stepax._engine.base.protocol import Transformation


@contextlib.contextmanager
def recorded() -> Iterator[list[tuple[Any, Any]]]:
    """The outermost calls of `init` of Stepax's transformations, with shapes."""
    made: list[tuple[Any, Any]] = []
    depth = [0]
    original = vars(Transformation)["of"].__func__

    def of(cls, init, update, record):
        @ft.wraps(init)
        def noted(params):
            if not depth[0] and not _is_traced(params):
                made.append((tx, params))
            depth[0] += 1
            try:
                return init(params)
            finally:
                depth[0] -= 1

        tx = original(cls, noted, update, record)
        return tx

    Transformation.of = classmethod(of)  # type: ignore[method-assign]
    try:
        yield made
    finally:
        Transformation.of = classmethod(original)  # type: ignore[method-assign]


def _is_traced(params: Any) -> bool:
    return any(isinstance(x, Tracer) for x in jax.tree.leaves(params))
