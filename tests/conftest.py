"""Every test runs strictly: promotion, ranks, warnings, on eight virtual devices."""

import os
from pathlib import Path

from flags import flags


_CACHE = Path(__file__).parents[1] / ".cache" / "jax"

# All of this must be in place before JAX starts its backend.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ["XLA_FLAGS"] = flags("--xla_force_host_platform_device_count=8")

import jax  # noqa: E402  (the environment above must come first)
import pytest  # noqa: E402


def pytest_collection_modifyitems(config, items):
    """Take a part of the large products, or all of them with STEPAX_TESTS=all.

    Of the cases (i, j) those whose sum is a multiple of n: each row of the one table
    still meets an n-th of the other.  Cases that are asked for by name are all taken.
    """
    if os.environ.get("STEPAX_TESTS") == "all" or any("[" in x for x in config.args):
        return
    kept, left_out = [], []
    for item in items:
        mark = item.get_closest_marker("thinned")
        is_kept = (
            mark is None or sum(item.callspec.indices.values()) % mark.args[0] == 0
        )
        (kept if is_kept else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.fixture(autouse=True)
def strict():
    """Mixed dtypes and mixed ranks are errors, in our code as in the tests."""
    if os.environ.get("STEPAX_ROWS_OF", "stepax") != "stepax":
        yield  # another library need not be as strict
        return
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield
    assert not jax.config.jax_enable_x64, "the test left 64-bit numbers switched on"


@pytest.fixture
def x64():
    """Sixty-four bit numbers, for one test."""
    with jax.enable_x64(True):
        yield
