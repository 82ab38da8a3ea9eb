"""`minimize` where numbers are very large or small, and where there is no minimum."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stepax
from stepax.solve import Status


START = jnp.array([0.2, 1.7, 0.9])
# Powers of ten from 1e-30 to the largest with a value that float32 holds.
SCALES = [*range(-30, 38, 4), 38]
METHODS = {
    "lbfgs": {},
    "with bounds": {"bounds": (-5.0, 5.0)},
    "lbfgs as a transformation": {"method": stepax.lbfgs()},
    "Optax's": {"method": optax.lbfgs()},
}


def valley(p, height, width):
    """A curved valley of no great depth, with a minimum of 0 where all are `width`."""
    q = p / width
    bend, rest = q[1:] - q[:-1] ** 2, 1 - q[:-1]
    return jnp.sum(0.1 * height * (bend**2 + rest**2))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@jax.numpy_dtype_promotion("standard")  # Optax is not written for the strict one
def test_the_scale_of_the_value_does_not_matter(name):
    # Optax's own update divides by a square that overflows from 1e18 on.
    scales = [s for s in SCALES if name != "Optax's" or abs(s) < 18]
    wanted = stepax.minimize(valley, START, args=(1.0, 1.0), **METHODS[name])
    for power in scales:
        args = jnp.float32(f"1e{power}"), 1.0
        found = stepax.minimize(valley, START, args=args, **METHODS[name])
        assert found.success, (power, found.status)
        # Ten thousand roundings; small ones are left unseen by their gradient.
        np.testing.assert_allclose(found.params, 1, atol=1e-3, err_msg=str(power))
        assert found.evaluations <= 2 * wanted.evaluations + 30, power


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lbfgs", "lbfgs as a transformation"])
def test_the_scale_of_the_parameters_does_not_matter(name):
    # The first step of the transformation has a length of 1, or less.
    for power in (-18, -9, 0, 9, 18) if name == "lbfgs" else (-3, 0, 3):
        width = jnp.float32(f"1e{power}")
        start = START * width
        found = stepax.minimize(valley, start, args=(1.0, width), **METHODS[name])
        assert found.success, (power, found.status)
        np.testing.assert_allclose(found.params / width, 1, atol=1e-3)


def by_hand(power, steps=60):
    tx = stepax.lbfgs()
    value_and_grad = stepax.value_and_grad_from_state(valley)

    @jax.jit
    def run(height):
        one = jnp.ones([])
        fun = lambda p: valley(p, height, one)

        def step(carry, _):
            p, s = carry
            value, grad = value_and_grad(p, height, one, state=s)
            u, s = tx.update(grad, s, p, value=value, grad=grad, value_fn=fun)
            return (stepax.apply_updates(p, u), s), None

        first = START, tx.init(START)
        return jax.lax.scan(step, first, None, steps)[0][0]

    return [run(jnp.float32(f"1e{p}")) for p in power]


@pytest.mark.slow
def test_lbfgs_by_hand_goes_down_at_any_scale():
    # Its first step is no longer than the gradient, and would be lost beside parameters
    # of 1 where that is small; the state holds 1 / s·y, which vanishes above 1e37.
    powers = 0, 10, 19, 25, 30, 36
    for power, p in zip(powers, by_hand(powers), strict=True):
        np.testing.assert_allclose(p, 1, atol=1e-3, err_msg=str(power))


# --- no minimum ----------------------------------------------------------------------

# Functions that fall without limit, and bounds that leave them room.
BOTTOMLESS = {
    "linear": (lambda p: jnp.sum(p), (None, 5.0)),
    "negative square": (lambda p: -jnp.sum(p**2), (-1.0, None)),
    "negative fourth power": (lambda p: 7 - jnp.sum(p**4), (-1.0, None)),
    "cube": (lambda p: jnp.sum((p - 3) ** 3), (None, 5.0)),
    "negative logarithm": (lambda p: -jnp.sum(jnp.log(p)), (1e-3, None)),
    "negative exponential": (lambda p: -jnp.sum(jnp.exp(p)), (-1.0, None)),
    "negative root": (lambda p: -jnp.sum(jnp.sqrt(p)), (1e-3, None)),
    "half of them": (lambda p: p[0] + jnp.sum(p[1:] ** 2), (None, 5.0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("is_double", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("name", BOTTOMLESS)
def test_a_function_without_a_minimum_is_said_to_have_none(name, is_double):
    fun, bounds = BOTTOMLESS[name]
    with jax.enable_x64(is_double):
        x0 = jnp.array([0.2, 1.7, 0.9])
        found = stepax.minimize(fun, x0)
        assert found.status is Status.UNBOUNDED and not found.success
        assert found.evaluations < 100 and np.isfinite(found.params).all()
        assert found.value < fun(x0) or found.steps == 1
        if is_double:  # the rule reads values alone, whatever the method
            found = stepax.minimize(fun, x0, bounds=bounds)
            assert found.status is Status.UNBOUNDED
            assert found.evaluations < 150
    assert "no minimum" in Status.UNBOUNDED.message


@pytest.mark.slow
def test_other_methods_find_no_minimum_either():
    fun = BOTTOMLESS["negative square"][0]
    search = stepax.scale_by_zoom_linesearch(20, increase_factor=5.0)
    for tx in (stepax.lbfgs(linesearch=search), stepax.sgd(0.3)):
        found = stepax.minimize(fun, START, method=tx)
        assert found.status is Status.UNBOUNDED and found.evaluations < 100
    # Steps of the default search are Optax's: they double 20 times at most, and the
    # next search begins with the reciprocal.
    found = stepax.minimize(fun, START, method=stepax.lbfgs())
    assert found.status is Status.UNBOUNDED


@pytest.mark.slow
def test_an_infimum_at_infinity_is_no_lack_of_one():
    for fun in (lambda p: jnp.sum(jnp.exp(-p)), lambda p: jnp.sum(1 / p)):
        found = stepax.minimize(fun, START)
        assert found.success and found.value < 0.01 and found.evaluations < 60
