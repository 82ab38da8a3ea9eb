"""Each test here belongs to a row of the table of what users of Optax report."""

import pytest


def pytest_collection_modifyitems(items):
    """Write the row of a test, and what Optax 0.2.8 makes of it, into the report."""
    for item in items:
        mark = item.get_closest_marker("row")
        if mark is None:
            continue
        (theme,) = mark.args
        optax = mark.kwargs["optax"]
        if optax not in ("passes", "fails"):
            raise pytest.UsageError(f"{item.nodeid}: `optax` is passes or fails")
        item.user_properties += [("row", theme), ("optax", optax)]
