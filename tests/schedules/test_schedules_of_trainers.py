"""What trainers pass to schedules, and Optax takes: boundaries and lengths of none."""

import jax
import numpy as np
import optax
import pytest

import stepax


TRAINERS = {
    "the end of the last one": ([0.0, 0.5, 1.0, 0.5, 0.0003, 0.0], [10, 100]),
    "several": ([0.0, 0.5, 1.0, 0.5, 0.0003, 0.0], [10, 100, 50, 200]),
    "of NumPy": ([0.0, 0.5, 1.0, 0.5, 0.0003, 0.0], np.array([10, 100])),
    "unsorted": ([0.0, 0.5, 1.0, 0.5, 0.0003, 0.0], [10, -5]),
}


@pytest.mark.parametrize(("wanted", "boundaries"), TRAINERS.values(), ids=TRAINERS)
def test_boundaries_beyond_the_last_schedule_are_ignored(wanted, boundaries):
    for o in stepax, optax:
        parts = [o.linear_schedule(0.0, 1.0, 10), o.cosine_decay_schedule(1.0, 90)]
        joined = o.join_schedules(parts, boundaries)
        with jax.numpy_dtype_promotion("strict" if o is stepax else "standard"):
            found = [joined(t) for t in (0, 5, 10, 55, 99, 100)]
        np.testing.assert_allclose(found, wanted, atol=5e-6)
    one = stepax.join_schedules([stepax.constant_schedule(2.0)], [3])
    assert one(0) == one(5) == 2


SGDR = "init_value", "peak_value", "warmup_steps", "decay_steps"
# What Optax takes, too: lengths, bounds and powers that are none.
TAKEN = [
    ("linear_schedule", (1.0, 0.1, 0.3)),
    ("linear_schedule", (1.0, 0.1, False, -2)),
    ("linear_schedule", (1.0, 0.1, 4, 0.5)),
    ("polynomial_schedule", (1.0, 0.1, 0, 4)),
    ("exponential_decay", (1.0, 2, -0.5, 1, True)),
    ("exponential_decay", (1.0, 2, -0.5, 1, True, 0.2)),
    ("cosine_decay_schedule", (1.0, 0.5)),
    ("cosine_decay_schedule", (1.0, 5, 0.1, 0)),
    ("warmup_cosine_decay_schedule", (0.0, 1.0, -2, 8)),
    ("warmup_cosine_decay_schedule", (0.0, 1.0, 0.5, 8)),
    ("warmup_exponential_decay_schedule", (0.0, 1.0, -2, 3, 0.5)),
    ("piecewise_interpolate_schedule", ("linear", 1.0, [])),
    ("sgdr_schedule", ([dict(zip(SGDR, (0.0, 1.0, -1, 5), strict=True))],)),
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("name", "args"), TAKEN)
def test_what_optax_takes_has_its_numbers(name, args):
    ours, theirs = getattr(stepax, name)(*args), getattr(optax, name)(*args)
    with jax.numpy_dtype_promotion("standard"):
        wanted = [theirs(t) for t in range(10)]
    np.testing.assert_allclose([ours(t) for t in range(10)], wanted, rtol=1e-6)
