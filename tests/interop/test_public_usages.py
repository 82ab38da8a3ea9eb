"""Programs as people write them with Optax compute the same with Stepax."""

import inspect
import warnings

import jax
import numpy as np
import optax
import optax.contrib
import pytest
import usages
import usages_of_parts
import usages_of_states

import stepax


PROGRAMS = [
    f
    for module in (usages, usages_of_states, usages_of_parts)
    for f in vars(module).values()
    if inspect.isfunction(f) and [*inspect.signature(f).parameters] == ["optax"]
]


def outcome(program, library):
    """What a program returns, or the type of its error."""
    usual = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with warnings.catch_warnings(), usual[0], usual[1]:
        warnings.simplefilter("ignore")
        try:
            return program(library)
        except Exception as error:
            return type(error).__name__


def difference(found, wanted):
    """What differs between two results; "" if nothing does."""
    x, y = jax.tree.leaves(found), jax.tree.leaves(wanted)
    if len(x) != len(y):
        return f"{len(x)} leaves, not {len(y)}"
    for a, b in zip(x, y, strict=True):
        if isinstance(b, str | bool):
            if a != b:
                return f"{a!r}, not {b!r}"
        elif np.shape(a) != np.shape(b):
            return f"shape {np.shape(a)}, not {np.shape(b)}"
        # Sums in another order and fused products differ in the last bits, of 1 where
        # it is subtracted from, as in a cosine distance.
        elif not np.allclose(a, b, rtol=2e-6, atol=4e-7, equal_nan=True):
            return f"{a}, not {b}"
    return ""


@pytest.mark.slow
def test_programs_of_others_compute_what_they_do_with_optax():
    assert len(PROGRAMS) >= 100
    found = {f.__name__: (outcome(f, stepax), outcome(f, optax)) for f in PROGRAMS}
    wrong = {k: difference(*pair) for k, pair in found.items()}
    assert not "\n".join(f"{k}: {text}" for k, text in wrong.items() if text)
    # An error that both raise is returned by the program, which catches it.
    failed = [k for k, (_, wanted) in found.items() if isinstance(wanted, str)]
    assert {*failed} <= {"ambiguous_get", "a_missing_label", "a_missing_schedule"}


@pytest.mark.project
def test_each_program_says_where_it_is_seen():
    assert all(f.__doc__ for f in PROGRAMS)
