"""Records which transformations a program uses, and with which parameters."""

import contextlib
import functools as ft
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.core import Tracer

from stepax._engine.base.protocol import Transformation


@contextlib.contextmanager
def recorded() -> Iterator[list[tuple[Any, Any]]]:
    """Stepax's transformations that are not inside of others, with parameters.

    Those of an `init`, or of a first `update` with a state from elsewhere.
    """
    made: list[tuple[Any, Any]] = []
    depth = [0]
    original = vars(Transformation)["of"].__func__

    def of(cls, init, update, record):
        def noted(f: Callable, at: int) -> Callable:
            @ft.wraps(f)
            def called(*args, **kwargs):
                params = args[at] if len(args) > at else kwargs.get("params")
                is_new = params is not None and all(x is not tx for x, _ in made)
                if not depth[0] and is_new and not _is_traced(params):
                    made.append((tx, params))
                depth[0] += 1
                try:
                    return f(*args, **kwargs)
                finally:
                    depth[0] -= 1

            return called

        tx = original(cls, noted(init, 0), noted(update, 2), record)
        return tx

    Transformation.of = classmethod(of)  # type: ignore[method-assign]
    try:
        yield made
    finally:
        Transformation.of = classmethod(original)  # type: ignore[method-assign]


def _is_traced(params: Any) -> bool:
    return any(isinstance(x, Tracer) for x in jax.tree.leaves(params))
