"""Numbers out of range are refused where a factory is called, by argument name."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest
from cases import make, rows

import stepax
from stepax._engine.ranges import ANY, RANGES, Range
from stepax._engine.registry import ROWS


X = jnp.ones(2)


def ranged():
    """Every argument of a factory that has a range, with the range."""
    for row in ROWS.values():
        for name in inspect.signature(row.factory).parameters:
            allowed = row.ranges.get(name) or RANGES.get(name, ANY)
            if allowed is not ANY:
                yield pytest.param(row, name, allowed, id=f"{row.name}-{name}")


def outside(allowed: Range):
    """Numbers that a range does not hold."""
    yield allowed.least - 1.0
    yield float("nan")
    if allowed.excludes_least:
        yield allowed.least
    if allowed.most < np.inf:
        yield allowed.most if allowed.excludes_most else allowed.most + 1


@pytest.mark.parametrize(("row", "name", "allowed"), list(ranged()))
def test_a_number_out_of_range_is_an_error_that_says_which(row, name, allowed):
    for x in outside(allowed):
        message = f"`{row.name}`: `{name}` must be "
        with pytest.raises(ValueError) as caught:
            make(row, **{name: x})
        assert message in str(caught.value)
        assert str(allowed) in str(caught.value)
        assert str(x) in str(caught.value)


@pytest.mark.parametrize("row", rows())
def test_defaults_are_within_their_ranges(row):
    make(row)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stepax.huber_loss(X, X, delta=-1.0), "`delta` must be above 0"),
        (lambda: stepax.smooth_labels(X, 1.5), r"`alpha` must be in \[0, 1\]"),
        (lambda: stepax.sigmoid_focal_loss(X, X, gamma=-1.0), "`gamma` must be >= 0"),
        (lambda: stepax.sigmoid_focal_loss(X, X, alpha=2.0), "`alpha` must be in"),
        (lambda: stepax.ntxent(X[None], X[:1], 0.0), "`temperature` must be above 0"),
    ],
)
def test_numbers_of_losses_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_numpy_s_numbers_and_pairs_are_checked():
    with pytest.raises(ValueError, match=r"`adam`: `b1` must be in \[0, 1\), but is 1"):
        stepax.adam(1e-3, np.float32(1))
    with pytest.raises(ValueError, match=r"`betas` must be in \[0, 1\)"):
        stepax.contrib.prodigy(betas=(0.9, 1.0))


def test_arrays_and_schedules_are_not_read():
    stepax.adam(jnp.float32(-1.0), jnp.float32(2.0))
    stepax.adam(lambda count: -1.0)


def test_injected_numbers_are_checked():
    with pytest.raises(ValueError, match="`learning_rate` must be >= 0, but is -1.0"):
        stepax.inject_hyperparams(stepax.adam)(learning_rate=-1.0)


def test_a_negative_rate_says_how_to_ascend():
    with pytest.raises(ValueError, match="change the sign of the gradients"):
        stepax.sgd(-0.1)
