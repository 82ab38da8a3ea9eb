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
    """Take those cases that `STEPAX_TESTS` says; all that are asked for by name."""
    if any("[" in x for x in config.args):
        return
    chosen = {"all": list, "quick": two_of_each}.get(os.environ.get("STEPAX_TESTS", ""))
    kept = (chosen or thinned)(items)
    ids = set(map(id, kept))
    config.hook.pytest_deselected(items=[x for x in items if id(x) not in ids])
    items[:] = kept


def thinned(items):
    """Of the cases (i, j) of a large product those whose sum is a multiple of n.

    Each row of the one table still meets an n-th of the other.
    """
    place = lambda item: sum(item.callspec.indices.values())
    marks = ((item, item.get_closest_marker("thinned")) for item in items)
    return [item for item, mark in marks if not mark or place(item) % mark.args[0] == 0]


def two_of_each(items):
    """The first and the middle case of each function that is not slow."""
    functions = {}
    for item in items:
        if not item.get_closest_marker("slow"):
            functions.setdefault((item.path, item.originalname), []).append(item)
    pairs = ({0, len(cases) // 2} for cases in functions.values())
    return [
        cases[i]
        for cases, pair in zip(functions.values(), pairs, strict=True)
        for i in sorted(pair)
    ]


@pytest.fixture(autouse=True)
def strict():
    """Mixed dtypes and mixed ranks are errors, in our code as in the tests."""
    if os.environ.get("STEPAX_REPORTS_ON", "stepax") != "stepax":
        yield  # another library need not be as strict
        return
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield
    assert not jax.config.read("jax_enable_x64"), (
        "the test left 64-bit numbers switched on"
    )


@pytest.fixture
def x64():
    """Sixty-four bit numbers, for one test."""
    with jax.enable_x64(True):
        yield
