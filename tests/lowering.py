"""Many programs are lowered in one context of MLIR.

JAX makes a context for each program and loads its dialects into it, which is a sixth of
the time of a test that calls small programs.  What a context keeps, it keeps for all: a
new one follows in time, and threads share none.
"""

import functools
import itertools
import threading


PROGRAMS = 100  # in one context


def pytest_configure() -> None:
    """As a plugin, for Optax's own tests."""
    share_contexts()


@functools.cache
def share_contexts() -> None:
    """From now on, where JAX makes its contexts as it does today."""
    from jax.interpreters import mlir

    make = getattr(mlir, "make_ir_context", None)
    if make is None:
        return
    local = threading.local()

    def shared():
        local.lowered = getattr(local, "lowered", itertools.count())
        if next(local.lowered) % PROGRAMS == 0:
            local.context = make()
        return local.context

    make.__globals__["make_ir_context"] = shared  # no part of JAX's interface
