"""Every test runs strictly: promotion, ranks, warnings, on eight virtual devices."""

import gc
import os

from flags import flags
from selection import PROJECT, ROOT, chosen, is_short, narrow, skip_without


# All of this must be in place before JAX starts its backend.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Where each operation came from is written into each program, and no test reads it.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
os.environ["XLA_FLAGS"] = flags("--xla_force_host_platform_device_count=8")

import pytest


def which_cases(config):
    """What `STEPAX_TESTS` says; all that are asked for by name."""
    if any("::" in x for x in config.args):
        return "all"
    paths = [config.invocation_params.dir / x for x in config.args]
    named = "project" if all(x.is_relative_to(PROJECT) for x in paths) else ""
    return os.environ.get("STEPAX_TESTS") or named


def pytest_configure(config):
    """`make test` compiles in a hurry, which takes two thirds of the time."""
    if is_short(which_cases(config)):
        # Read when JAX is imported, which the process that hands out tests never does.
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"


def pytest_ignore_collect(collection_path, config):
    """Collect nothing in vain, which takes seconds."""
    return True if collection_path == PROJECT and not which_cases(config) else None


def is_optimized(item):
    return "optimized" in getattr(item, "fixturenames", ())


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc):
    """Of 49,000 cases those are made that run, which halves the time of collecting."""
    yield
    narrow(metafunc, which_cases(metafunc.config))


def pytest_collection_modifyitems(config, items):
    kept = set(chosen(items, which_cases(config)))
    config.hook.pytest_deselected(items=[x for x in items if x not in kept])
    # Those that compile otherwise come first, when there is little to drop after them.
    items[:] = sorted((x for x in items if x in kept), key=is_optimized, reverse=True)


def pytest_collection_finish(session):
    """What has been collected stays: the garbage collector need not look at it.

    Tracing makes many objects and few cycles: rarer collections save 7 % of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish():
    """pytest and Python look for garbage six times more, among millions of objects."""
    gc.collect()
    gc.freeze()


class Module(pytest.Module):
    """A file of tests, skipped as a whole if it imports what is not installed."""

    def collect(self):
        try:
            return list(super().collect())
        except self.CollectError as error:
            skip_without(error.__cause__)
            raise


def pytest_pycollect_makemodule(module_path, parent):
    return Module.from_parent(parent, path=module_path)


def pytest_runtest_setup(item):
    """Compile the next test as it asks for, which JAX does not know what it has for."""
    import jax

    in_a_hurry = is_short(which_cases(item.config)) and not is_optimized(item)
    if in_a_hurry != jax.config.read("jax_disable_most_optimizations"):
        jax.clear_caches()
        jax.config.update("jax_disable_most_optimizations", in_a_hurry)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    try:
        return (yield)
    except ImportError as error:
        skip_without(error)
        raise


@pytest.fixture(autouse=True)
def strict():
    """Mixed dtypes and mixed ranks are errors, in our code as in the tests."""
    if os.environ.get("STEPAX_REPORTS_ON", "stepax") != "stepax":
        yield  # another library need not be as strict
        return
    import jax

    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield
    assert not jax.config.read("jax_enable_x64"), (
        "the test left 64-bit numbers switched on"
    )


@pytest.fixture
def x64():
    """Sixty-four bit numbers, for one test."""
    import jax

    with jax.enable_x64(True):
        yield


@pytest.fixture
def optimized():
    """Programs as users have them, for tests of bits that depend on how LLVM rounds."""
