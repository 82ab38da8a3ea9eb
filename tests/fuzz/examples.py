"""How many random examples are tried, and which.

`make test` tries 300 of each kind, the same ones each time; `make fuzz` sets the
variables, and tries thousands of others.
"""

import math
import os
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck as Check


EXAMPLES = int(os.environ.get("STEPAX_FUZZ_EXAMPLES", 300))
SEED = int(os.environ.get("STEPAX_FUZZ_SEED", 0))

# Each part is a test of its own, so that processes share them and progress is seen.
_LENGTH = 50 if EXAMPLES <= 1000 else 100
parts = pytest.mark.parametrize("part", range(math.ceil(EXAMPLES / _LENGTH)))


def fuzz(check: Callable[..., None], part: int, **strategies: Any) -> None:
    """Call `check` with examples of one part, and shrink one that fails."""
    wrapped = hypothesis.settings(
        max_examples=min(_LENGTH, EXAMPLES - part * _LENGTH),
        deadline=None,
        database=None,
        suppress_health_check=[Check.too_slow, Check.data_too_large],
    )(hypothesis.given(**strategies)(check))
    hypothesis.seed(f"{SEED} {part}")(wrapped)()
