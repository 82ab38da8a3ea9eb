"""`reduce_on_plateau` reduces the scale when the loss has stopped improving."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import types

import stepax


plateau = stepax.contrib.reduce_on_plateau
LOSSES = 2 + np.sin(np.arange(200)) + 10 / np.arange(1, 201)  # falls, and stays noisy
SETS = [
    {},
    {"patience": 3},
    {"factor": 0.5, "patience": 1, "rtol": 0.2},
    {"factor": 0.3, "patience": 4, "rtol": 0.0, "atol": 0.1, "cooldown": 5},
    {"patience": 2, "rtol": 0.1, "atol": 0.01, "cooldown": 2, "min_scale": 0.01},
    {"factor": 0.7, "patience": 2, "accumulation_size": 3, "cooldown": 1},
]


def drive(tx, values, dtype=jnp.float32):
    """Updates of a gradient of ones, and states, of all calls."""
    p = jnp.ones(2, dtype)

    def step(state, value):
        u, state = tx.update(jnp.ones_like(p), state, p, value=value)
        return state, (u, state)

    return jax.lax.scan(step, tx.init(p), jnp.asarray(values, dtype))[1]


def scales(values, **kwargs):
    return drive(plateau(**kwargs), values)[1].scale.tolist()


CASES = [(kwargs, "float32") for kwargs in SETS] + [(SETS[-1], "float64")]


@pytest.mark.few(1)
@pytest.mark.parametrize(("kwargs", "dtype"), CASES)
def test_states_are_optax_s_for_positive_losses(kwargs, dtype):
    with jax.enable_x64(dtype == "float64"):
        found = drive(plateau(**kwargs), LOSSES, dtype)
        with jax.numpy_dtype_promotion("standard"):
            theirs = optax.contrib.reduce_on_plateau(**kwargs)
            wanted = drive(theirs, LOSSES, dtype)
        assert types(found) == types(wanted)
        assert (found[1].scale < 1).any()
        for x, y in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
            np.testing.assert_array_equal(x, y)


def reference(losses, factor, patience, margin, cooldown=0, least=0.0):
    """PyTorch's documented rule; `margin` is from the best value to the least gain."""
    scale, best, bad, wait, out = 1.0, np.inf, 0, 0, []
    for loss in losses:
        if best == np.inf or loss < best - margin(best):
            best, bad = loss, 0
        else:
            bad += 1
        if wait > 0:
            wait, bad = wait - 1, 0
        if bad > patience:
            scale, wait, bad = max(factor * scale, least), cooldown, 0
        out.append(scale)
    return out


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("cooldown", [0, 3])
def test_scales_are_pytorch_s_with_one_less_patience(sign, cooldown):
    """In its mode "rel" for losses of either sign, if its margin is that of |best|."""
    losses = np.sort(sign * LOSSES)[::-1] + np.cos(np.arange(200)) / 10
    wanted = reference(losses, 0.5, 2, lambda b: 0.05 * abs(b), cooldown, 0.01)
    found = scales(
        losses, factor=0.5, patience=3, rtol=0.05, cooldown=cooldown, min_scale=0.01
    )
    assert len(set(wanted)) > 3
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(("margin", "last"), [(0.9e-4, 0.5), (1.1e-4, 1.0)])
@pytest.mark.parametrize("best", [1.0, -1.0, -200.0])
def test_a_loss_improves_by_a_part_of_its_size(best, margin, last):
    fallen = best - margin * abs(best)
    assert scales([best, fallen], factor=0.5, patience=1) == [1.0, last]


@pytest.mark.parametrize("best", [1.0, -20.0])
def test_the_margins_add_up(best):
    margin = 0.01 * abs(best) + 0.1
    kwargs = {"factor": 0.5, "patience": 1, "rtol": 0.01, "atol": 0.1}
    assert scales([best, best - 0.99 * margin], **kwargs) == [1.0, 0.5]
    assert scales([best, best - 1.01 * margin], **kwargs) == [1.0, 1.0]


def test_a_constant_negative_loss_is_a_plateau():
    assert scales([-1.0] * 5, factor=0.5, patience=2) == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_a_loss_at_the_margin_is_no_improvement():
    found = scales([1.0, 0.5, 0.5, 0.5], factor=0.5, patience=2, rtol=0.5, atol=0.0)
    assert found == [1.0, 1.0, 0.5, 0.5]


def test_from_0_any_fall_is_an_improvement():
    assert scales([0.0, -1e-30, 0.0], factor=0.5, patience=1) == [1.0, 1.0, 0.5]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_no_number_is_no_improvement(bad):
    found = scales([bad, 1.0, bad, 1.0, 0.5], factor=0.5, patience=2)
    assert found == [1.0, 1.0, 1.0, 0.5, 0.5]


def test_a_nan_is_gone_with_its_mean():
    kwargs = {"factor": 0.5, "patience": 1, "accumulation_size": 2}
    states = drive(plateau(**kwargs), [1.0, np.nan, 3.0, 1.0, 1.0, 1.0])[1]
    assert states.scale.tolist() == [1.0, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert states.best_value.tolist() == [np.inf, np.inf, np.inf, 2.0, 2.0, 1.0]


def test_a_patience_of_0_acts_as_1():
    losses = [1.0, 1.0, 0.5, 0.5]
    assert scales(losses, patience=0) == scales(losses, patience=1)


def test_with_an_rtol_of_1_the_first_loss_improves():
    assert drive(plateau(rtol=1.0), [1.0, 0.5])[1].best_value.tolist() == [1.0, 1.0]


def test_the_state_of_narrow_and_complex_parameters_is_real_float32():
    for dtype in ("bfloat16", "complex64"):
        p = {"w": jnp.ones(2, dtype)}
        state = plateau().init(p)
        assert {x.dtype.name for x in state} == {"float32", "int32"}
        u, state = plateau().update(p, state, p, value=jnp.ones([], "bfloat16"))
        assert u["w"].dtype == dtype
        assert {x.dtype.name for x in state} == {"float32", "int32"}


def test_the_value_comes_through_wrappers_and_injection():
    tx = stepax.inject_hyperparams(plateau)(factor=0.5, patience=1)
    tx = stepax.chain(stepax.sgd(1.0), stepax.masked(tx, {"w": True, "b": False}))
    p = {"w": jnp.ones(2), "b": jnp.ones(2)}
    state = tx.init(p)
    for value in (1.0, 2.0):
        u, state = jax.jit(tx.update)(p, state, p, value=value)
    assert u["w"].tolist() == [-0.5, -0.5]
    assert u["b"].tolist() == [-1.0, -1.0]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"factor": 1.0}, r"`factor` must be in \(0, 1\), but is 1.0"),
        ({"factor": 0.0}, r"`factor` must be in \(0, 1\), but is 0.0"),
        ({"patience": -1}, "`patience` must be >= 0, but is -1"),
        ({"rtol": -0.1}, r"`rtol` must be in \[0, 1\], but is -0.1"),
        ({"rtol": 1.1}, r"`rtol` must be in \[0, 1\], but is 1.1"),
        ({"atol": -1.0}, "`atol` must be >= 0, but is -1.0"),
        ({"rtol": 0.0}, "`rtol` and `atol` are both 0, expected one above 0"),
        ({"cooldown": -1}, "`cooldown` must be >= 0, but is -1"),
        ({"accumulation_size": 0}, "`accumulation_size` must be >= 1, but is 0"),
        ({"min_scale": 2.0}, r"`min_scale` must be in \[0, 1\], but is 2.0"),
    ],
)
def test_senseless_numbers_are_errors(kwargs, message):
    with pytest.raises(ValueError, match=f"`reduce_on_plateau`: {message}"):
        plateau(**kwargs)


def test_a_missing_value_and_one_for_each_example_are_errors():
    tx, p = plateau(), jnp.ones(2)
    with pytest.raises(TypeError, match=r"`value`: call `update\(.*, value=...\)`"):
        tx.update(p, tx.init(p), p)
    with pytest.raises(ValueError, match=r"has shape \(3,\).* a scalar"):
        tx.update(p, tx.init(p), p, value=jnp.ones(3))
