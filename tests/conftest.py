"""Every test runs strictly: promotion, ranks, warnings, on eight virtual devices."""

import gc
import os
from pathlib import Path
from zlib import crc32

from flags import flags


_CACHE = Path(__file__).parents[1] / ".cache" / "jax"

# All of this must be in place before JAX starts its backend.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ["XLA_FLAGS"] = flags("--xla_force_host_platform_device_count=8")

import jax  # noqa: E402  (the environment above must come first)
import pytest  # noqa: E402


def pytest_collection_modifyitems(config, items):
    """Take those cases that `STEPAX_TESTS` says; all that are asked for by name."""
    if any("[" in x for x in config.args):
        return
    chosen = {"all": list, "quick": one_of_each}.get(os.environ.get("STEPAX_TESTS", ""))
    kept = (chosen or thinned)(items)
    ids = set(map(id, kept))
    config.hook.pytest_deselected(items=[x for x in items if id(x) not in ids])
    items[:] = kept


def pytest_collection_finish(session):
    """What has been collected stays: the garbage collector need not look at it."""
    gc.collect()
    gc.freeze()


def functions(items):
    """The cases of each test function."""
    found = {}
    for item in items:
        found.setdefault((item.path, item.originalname), []).append(item)
    return found.values()


def thinned(items):
    """Of the functions that are marked so a part of the cases, of the others all."""
    kept = set()
    for cases in functions(items):
        if cases[0].get_closest_marker("nightly"):
            continue
        mark = cases[0].get_closest_marker("thinned")
        kept.update(part_of(cases, *mark.args) if mark else cases)
    return [item for item in items if item in kept]


def part_of(cases, n=1):
    """Factories with all traits, and every n-th case of the product with other tables.

    For each row of the other tables, factories are taken until together they have
    every trait.  Those cases (i, j) are kept whose sum is a multiple of n, so that each
    row of one table still meets an n-th of the other.  Which factories these are, and
    where counting starts, differs from function to function.
    """
    tables = [_names(mark) for mark in cases[0].iter_markers("parametrize")]
    alike = {}
    for case in cases:
        key = tuple(_without_factory(case.callspec.params, names) for names in tables)
        alike.setdefault(key, []).append(case)
    columns = (dict.fromkeys(rows) for rows in zip(*alike, strict=True))
    places = [{x: i for i, x in enumerate(rows)} for rows in columns]
    turn = crc32(cases[0].originalname.encode())
    found = []
    for key, factories in alike.items():
        place = turn + sum(rows[x] for rows, x in zip(places, key, strict=True))
        chosen = with_all_traits(factories, place)
        found += [x for i, x in enumerate(chosen) if (place + i) % n == 0]
    return found


def with_all_traits(cases, turn):
    """Of cases that differ in their factory, so many that no trait is missing.

    In an order of their own for each `turn`, those that have a trait that none before
    them has.
    """
    from cases import traits  # after the environment is set

    if len(cases) == 1 or "row" not in cases[0].callspec.params:
        return cases
    of = {case: traits(case.callspec.params["row"].name) for case in cases}
    met, chosen = set(), []
    for case in sorted(cases, key=lambda x: crc32(f"{turn} {x.name}".encode())):
        if not of[case] <= met:
            met |= of[case]
            chosen.append(case)
    return chosen


def _names(mark):
    names = mark.args[0]
    return [x.strip() for x in names.split(",")] if isinstance(names, str) else names


def _without_factory(params, names):
    """What a row of a table holds beside a factory."""
    one = lambda x: x if isinstance(x, str) else id(x)
    return tuple(one(params[k]) for k in names if k != "row")


def one_of_each(items):
    """The middle case of each function that is neither slow nor nightly."""
    is_left_out = lambda item: any(map(item.get_closest_marker, ("slow", "nightly")))
    return [
        cases[len(cases) // 2]
        for cases in functions(items)
        if not is_left_out(cases[0])
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
