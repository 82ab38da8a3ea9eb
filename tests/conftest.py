"""Every test runs strictly: promotion, ranks, warnings, on eight virtual devices."""

import gc
import os
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

from flags import flags


_ROOT = Path(__file__).parents[1]

# All of this must be in place before JAX starts its backend.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ["XLA_FLAGS"] = flags("--xla_force_host_platform_device_count=8")

import jax  # noqa: E402  (the environment above must come first)
import pytest  # noqa: E402


# --- which cases run: all, or `3/24` of them, or by default those of `make test` -----

CHOSEN = os.environ.get("STEPAX_TESTS", "")


def pytest_collection_modifyitems(config, items):
    """Take those cases that `STEPAX_TESTS` says; all that are asked for by name."""
    if any("::" in x for x in config.args):
        return
    kept = set(chosen(items, CHOSEN))
    config.hook.pytest_deselected(items=[x for x in items if x not in kept])
    items[:] = [x for x in items if x in kept]


def chosen(items, which):
    """The cases of `make test`, `all` cases, or the third part of 24 as `3/24`."""
    if which == "all":
        return items
    if which:
        part, parts = map(int, which.split("/"))
        return [x for x in items if crc32(x.nodeid.encode()) % parts == part - 1]
    functions = {}
    for item in items:
        functions.setdefault((item.path, item.originalname), []).append(item)
    return [x for cases in functions.values() for x in in_short(cases)]


def in_short(cases):
    """Of the cases of a function those that `make test` runs."""
    marks = {mark.name for mark in cases[0].iter_markers()}
    if "slow" in marks:
        return []
    turn = cases[0].originalname  # other cases for other functions
    by_turn = sorted(cases, key=lambda x: crc32(f"{turn} {x.name}".encode()))
    if "one" in marks:
        return by_turn[:1]
    return covering(by_turn) if "thinned" in marks else cases


def covering(cases):
    """So many that each trait of a factory is met, or each value of each parameter."""
    met, found = set(), []
    for case in cases:
        new = features(case.callspec.params)
        if not new <= met:
            met |= new
            found.append(case)
    return found


def features(params):
    if "row" in params:
        from cases import traits  # after the environment is set

        return traits(params["row"].name)
    return {(k, x if isinstance(x, str) else id(x)) for k, x in params.items()}


def pytest_collection_finish(session):
    """What has been collected stays: the garbage collector need not look at it."""
    gc.collect()
    gc.freeze()


# --- optional packages: without one, the tests that need it are skipped ---------------


class Module(pytest.Module):
    """A file of tests, skipped as a whole where it imports what is not installed."""

    def collect(self):
        try:
            return list(super().collect())
        except self.CollectError as error:
            skip_without(error.__cause__)
            raise


def pytest_pycollect_makemodule(module_path, parent):
    return Module.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    try:
        return (yield)
    except ImportError as error:
        skip_without(error)
        raise


def skip_without(error):
    """Skip for want of a package of others; where `CI` is set, none may be missing."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    ours = (_ROOT / name).exists() or (_ROOT / "tests" / f"{name}.py").exists()
    if name and not ours and find_spec(name) is None and not os.environ.get("CI"):
        pytest.skip(f"needs {name}, which is not installed", allow_module_level=True)


# --- how they run --------------------------------------------------------------------


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
