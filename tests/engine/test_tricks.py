"""Without each trick on the compiler a step needs more memory, or more copies.

If one of these fails with a new version of JAX, try to delete the trick.
"""

import pytest

from benchmarks.tricks import TRICKS, build


@pytest.mark.slow
@pytest.mark.parametrize(
    "trick", [x for x in TRICKS if x.platform == "cpu"], ids=lambda x: x.name
)
def test_a_cpu_needs_more_without_it(trick, optimized):
    found, without = (build(trick, is_on) for is_on in (True, False))
    assert found.temporaries <= without.temporaries
    # Beside what a compiler may need for sums and counts.
    is_smaller = found.temporaries < without.temporaries - 0.1
    assert is_smaller or found.copies < without.copies
