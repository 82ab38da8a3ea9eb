"""Bounds of L-BFGS-B: updates that land within them, starts, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import types

import stepax
from stepax._optimizers import bounds


DTYPES = ["float16", "bfloat16", "float32"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("narrow", DTYPES)
def test_updates_of_any_dtype_land_within_the_bounds(dtype, narrow):
    random = np.random.RandomState(0)
    size = 10.0 ** random.uniform(-9, 4, (4, 4096))
    a, b, c, u = (size * random.randn(4, 4096)).astype(np.float32)
    lower, p, upper = jnp.sort(jnp.stack([a, b, c]), 0).astype(dtype)
    u = jnp.asarray(u).astype(narrow)
    p = jnp.where(jnp.arange(4096) % 5 == 0, lower, p)
    upper = jnp.where(jnp.arange(4096) % 7 == 0, lower, upper)
    p = jnp.minimum(p, upper)

    @jax.jit
    def move(p, u, step):  # a product that could be fused with the sum
        u = u * step.astype(u.dtype)
        u = bounds.land([p], [p], [u], bounds.Box([lower], [upper]))
        return stepax.apply_updates(p, u[0]), u[0]

    moved, done = move(p, u, jnp.float32(0.7))
    assert done.dtype == narrow and moved.dtype == dtype
    np.testing.assert_array_equal(jnp.clip(moved, lower, upper), moved)
    np.testing.assert_array_equal(stepax.apply_updates(p, done), moved)
    np.testing.assert_array_equal(jnp.where(lower == upper, done, 0), 0)
    # What was within them goes where it would have gone.
    aim = stepax.apply_updates(p, u * jnp.asarray(0.7, narrow))
    is_inside = (aim > lower) & (aim < upper)
    inner = lambda x: np.where(is_inside, x, 0).astype(np.float64)
    np.testing.assert_allclose(
        inner(moved), inner(aim), rtol=float(jnp.finfo(dtype).eps)
    )


# --- starts, keywords, errors --------------------------------------------------------


@pytest.mark.slow
def test_a_start_outside_is_projected_and_evaluated_there():
    seen = []

    def f(p):
        jax.debug.callback(lambda x: seen.append(np.array(x)), p["w"])
        return jnp.sum((p["w"] - 1) ** 2)

    p = {"w": jnp.array([3.0, -4.0, 0.5])}
    tx = stepax.lbfgsb(-2.0, 2.0, 3, project=True)
    value, grad = jax.value_and_grad(f)(p)
    jax.effects_barrier()
    seen.clear()
    more = {"value": value, "grad": grad, "value_fn": f}
    u, state = tx.update(grad, tx.init(p), p, **more)
    jax.effects_barrier()
    np.testing.assert_array_equal(seen[0], [2.0, -2.0, 0.5])
    assert len(seen) == 1 + state.linesearch.info.num_linesearch_steps
    np.testing.assert_array_equal(state.params["w"], seen[0])
    np.testing.assert_array_equal(state.updates["w"], 2 * (seen[0] - 1))
    p = stepax.apply_updates(p, u)
    assert jnp.abs(p["w"]).max() <= 2
    assert state.linesearch.value == f(p) < 10.25  # that of the projected start


@pytest.mark.slow
def test_keywords_of_the_loss_are_handed_on():
    def f(p, target):
        return jnp.sum((p - target) ** 2)

    tx, p, target = stepax.lbfgsb(0.0, 1.0, 3), jnp.full(2, 0.5), jnp.array([0.75, 3.0])
    value, grad = jax.value_and_grad(f)(p, target)
    more = {"value": value, "grad": grad, "value_fn": f, "target": target}
    u, _ = tx.update(grad, tx.init(p), p, **more)
    assert f(p + u, target) < value
    with pytest.raises(TypeError, match="does not accept `other`"):
        tx.update(grad, tx.init(p), p, **more, other=1)


@pytest.mark.slow
def test_missing_keywords_are_named():
    tx, p = stepax.lbfgsb(0.0, 1.0), jnp.full(2, 0.5)
    for project in False, True:
        tx = stepax.lbfgsb(0.0, 1.0, project=project)
        with pytest.raises(TypeError, match="`grad`, `value_fn` are missing"):
            tx.update(p, tx.init(p), p, value=1.0)
    with pytest.raises(ValueError, match="`params` is missing"):
        tx.update(p, tx.init(p))


W = {"a": jnp.array([0.5, 1.5]), "b": {"c": jnp.float32(0.0)}}
BAD = {
    "cross": (2.0, 1.0, r"the bounds at the root cross: `lower` is 2.0, .* 1.0"),
    "cross at a path": (
        {"a": np.array([0.0, 3.0]), "b": None},
        {"a": 2.0, "b": {"c": None}},
        r"the bounds at \['a'\] cross: `lower` is 3.0, `upper` is 2.0",
    ),
    "NaN": (None, {"a": 9.0, "b": np.nan}, r"`upper` is NaN for \['b'\]\['c'\]"),
    "another tree": (
        {"a": 0.0, "d": 0.0},
        None,
        r"the pattern `d` in `lower` matches no leaf of a, b/c",
    ),
    "too few": ((0.0,), None, r"`lower` and the parameters differ .* \['b'\]\['c'\]"),
    "a shape": (
        {"a": np.zeros(3), "b": 0.0},
        None,
        r"`lower` has shape \(3,\) for \['a'\]",
    ),
    "a kind": ({"a": "0", "b": 0.0}, None, r"`lower` holds a `str` for \['a'\]"),
    "outside": (
        {"a": 1.0, "b": None},
        None,
        r"\['a'\] starts outside of its bounds: 0.5 is not in \[1.0, inf\].*`project",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bounds_that_do_not_fit_are_refused(name):
    lower, upper, message = BAD[name]
    kind = TypeError if name == "a kind" else ValueError
    with pytest.raises(kind, match=message):
        stepax.lbfgsb(lower, upper).init(W)


def test_other_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`memory_size` must be >= 1"):
        stepax.lbfgsb(memory_size=0)
    with pytest.raises(TypeError, match="`linesearch` must be a gradient transform"):
        factory: Any = stepax.scale_by_zoom_linesearch
        stepax.lbfgsb(linesearch=factory)
    with pytest.raises(TypeError, match=r"parameter at \['z'\] is complex"):
        stepax.lbfgsb().init({"z": jnp.ones(2, jnp.complex64)})
    tx, p = stepax.lbfgsb(0.0, 2.0, linesearch=None), {"w": jnp.ones(2)}
    with pytest.raises(ValueError, match=r"\['w'\] has shape \(2,\)"):
        tx.update(p, tx.init({"w": jnp.ones(3)}), p)
    with pytest.raises(ValueError, match=r"at \['w'\], but no array in `params`"):
        tx.update(p, tx.init({"w": None}), p)


def test_init_looks_at_no_value_of_a_trace():
    tx = stepax.lbfgsb({"a": 1.0, "b": None})  # outside of which W starts
    shapes = jax.eval_shape(tx.init, W)
    assert types(shapes) == types(stepax.lbfgsb().init(W))
    assert types(tx.init(jax.eval_shape(lambda: W))) == types(shapes)
