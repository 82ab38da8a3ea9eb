"""Many cheap cases in one test: a case of its own costs more than what it asserts."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest


SHOWN = 20  # of the cases that fail


def each(table: Iterable) -> Callable:
    """Call the test with each row of a table, and fail with all that fail.

    Rows are as `pytest.mark.parametrize` takes them; the test takes nothing else.
    """
    rows = [(getattr(x, "id", None), getattr(x, "values", x)) for x in table]

    def decorate(test: Callable) -> Callable:
        @functools.wraps(test)
        def run() -> None:
            failed = []
            for name, row in rows:
                row = row if isinstance(row, tuple) else (row,)
                try:
                    test(*row)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"for {name or ', '.join(map(str, row))}")
                    failed.append(error)
            if failed:
                said = f"{len(failed)} of {len(rows)} cases fail"
                raise BaseExceptionGroup(said, failed[:SHOWN])

        made: Any = run
        del made.__wrapped__  # in which pytest would look for arguments
        return made

    return decorate
