"""Records which transformations a program uses, and with which parameters."""

import contextlib
import functools as ft
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.core import Tracer

from stepax.rules import Transformation


class _Record:
    """depth: of calls.  owners: all transformations.  made: those that were used."""

    depth = 0

    def __init__(self) -> None:
        self.owners: list[Any] = []
        self.made: list[tuple[Any, Any]] = []


# Not in the closures of functions, which Optimistix walks through.
_RECORDS: list[_Record] = []


@contextlib.contextmanager
def recorded() -> Iterator[list[tuple[Any, Any]]]:
    """Stepax's transformations that are not inside of others, with parameters.

    Those of an `init`, or of a first `update` with a state from elsewhere, unless they
    fail, as a page may show.
    """
    record = _Record()
    original = vars(Transformation)["of"].__func__
    _RECORDS.append(record)

    def of(cls, init, update, call):
        key = len(record.owners)
        record.owners.append(None)
        tx = original(cls, _noted(init, 0, key), _noted(update, 2, key), call)
        record.owners[key] = tx
        return tx

    Transformation.of = classmethod(of)  # type: ignore[method-assign]
    try:
        yield record.made
    finally:
        Transformation.of = classmethod(original)  # type: ignore[method-assign]
        _RECORDS.pop()


def _noted(f: Callable, at: int, key: int) -> Callable:
    """A function that is recorded; `at` is the place of the parameters."""

    @ft.wraps(f)
    def called(*args, **kwargs):
        if not _RECORDS:  # of a transformation that outlived its program
            return f(*args, **kwargs)
        record = _RECORDS[-1]
        record.depth += 1
        try:
            result = f(*args, **kwargs)
        finally:
            record.depth -= 1
        params = args[at] if len(args) > at else kwargs.get("params")
        tx = record.owners[key] if key < len(record.owners) else None
        is_new = params is not None and all(x is not tx for x, _ in record.made)
        if tx and not record.depth and is_new and not _is_traced(params):
            record.made.append((tx, params))
        return result

    return called


def _is_traced(params: Any) -> bool:
    return any(isinstance(x, Tracer) for x in jax.tree.leaves(params))
