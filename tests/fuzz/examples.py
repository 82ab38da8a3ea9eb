"""How many random examples are tried, and which.

`make test` tries 50 programs and `make test-all` 300, the same ones each time;
`make fuzz` sets the variables, and tries thousands of others.
"""

import functools as ft
import math
import os
from collections.abc import Callable
from typing import Any

import hypothesis
import jax
import pytest
from hypothesis import HealthCheck as Check
from hypothesis.internal.conjecture.providers import (
    AVAILABLE_PROVIDERS,
    HypothesisProvider,
)
from hypothesis.internal.constants_ast import Constants


EXAMPLES = int(os.environ.get("STEPAX_FUZZ_EXAMPLES", 300))
SEED = int(os.environ.get("STEPAX_FUZZ_SEED", 0))


class Steady(HypothesisProvider):
    """Draws the same whatever modules are loaded; by default their constants count."""

    @ft.cached_property
    def _local_constants(self) -> Constants:
        return Constants()


AVAILABLE_PROVIDERS["steady"] = "fuzz.examples.Steady"

# Each part is a test of its own, so that processes share them and progress is seen.
_LENGTH = 50 if EXAMPLES <= 1000 else 100
parts = pytest.mark.parametrize("part", range(math.ceil(EXAMPLES / _LENGTH)))

# Of programs that are compared with themselves there are a quarter as many.
other_parts = pytest.mark.parametrize("part", range(math.ceil(EXAMPLES / 4 / _LENGTH)))


def fuzz(check: Callable[..., None], part: int, **strategies: Any) -> None:
    """Call `check` with examples of one part, and shrink one that fails."""
    wrapped = hypothesis.settings(
        max_examples=min(_LENGTH, EXAMPLES - part * _LENGTH),
        deadline=None,
        database=None,
        backend="steady",
        suppress_health_check=[Check.too_slow, Check.data_too_large],
    )(hypothesis.given(**strategies)(check))
    try:
        hypothesis.seed(f"{SEED} {part}")(wrapped)()
    finally:
        jax.clear_caches()  # some 5 MB of compiled operations for each program
