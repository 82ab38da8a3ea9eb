"""Every optimizer does to the last bit what Optax's of the same name does.

The rows are those of the registry that Optax has too; `SETS` adds argument sets.
"""

import functools as ft
import importlib
import pkgutil
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from inside import ROWS

import stepax._optimizers


for module in pkgutil.iter_modules(stepax._optimizers.__path__):
    importlib.import_module(f"stepax._optimizers.{module.name}")


STEPS = 200
SHAPES = {"b": (3,), "w": {"k": (2, 5)}}


def rate(count):
    """A schedule that rounds once, so that compiled and not it is the same."""
    return 1 / (10.0 + count)


def is_matrix(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


def to_call(*args, **kwargs):
    return args, kwargs


decayed = ft.partial(to_call, weight_decay=rate, mask=is_matrix)

SETS = {
    "adadelta": [to_call(0.5, weight_decay=0.1, weight_decay_mask=is_matrix)],
    "adafactor": [
        to_call(0.1, min_dim_size_to_factor=2),
        to_call(rate, 2, momentum=0.9, weight_decay_rate=0.1),
        to_call(0.1, factored=False, multiply_by_parameter_scale=False),
    ],
    "adan": [decayed(rate), to_call(0.1, 0.9, 0.8, 0.7, 1e-3, 1e-2)],
    "adabelief": [to_call(rate, eps_root=1e-3)],
    "adagrad": [to_call(rate, 0.0)],
    "adam": [to_call(rate, 0.8, 0.9, 1e-3, 1e-4, nesterov=True)],
    "adamax": [to_call(rate, eps=0.1)],
    "adamaxw": [decayed(0.1)],
    "adamw": [decayed(rate, nesterov=True), to_call(0.1, mask={"b": False, "w": True})],
    "amsgrad": [to_call(rate, eps_root=1e-4)],
    "fromage": [to_call(lambda count: 4 * rate(count), 0.1)],
    "lamb": [decayed(rate, eps_root=1e-3)],
    "lars": [
        to_call(rate, 0.1, is_matrix, 0.1, 0.1, is_matrix, 0.5, nesterov=True),
    ],
    "lion": [decayed(rate)],
    "nadam": [to_call(rate, nesterov=False)],
    "nadamw": [decayed(rate)],
    "noisy_sgd": [to_call(0.1, key=3)],
    "optimistic_adam": [to_call(0.1, 0.3, nesterov=False)],
    "optimistic_adam_v2": [to_call(rate, alpha=0.5, beta=0.3)],
    "optimistic_gradient_descent": [to_call(rate, 0.7, 0.3)],
    "polyak_sgd": [to_call(0.1, rate, f_min=0.5, eps=0.1, variant="sps+")],
    "radam": [to_call(rate, b2=0.9, threshold=4.5, eps_root=1e-4)],
    "rmsprop": [
        to_call(rate, momentum=0.9),
        to_call(0.1, centered=True, momentum=0.9, nesterov=True),
        to_call(0.1, eps_in_sqrt=False, bias_correction=True),
    ],
    "rprop": [to_call(0.5, min_step_size=0.05, max_step_size=0.3)],
    "scale_by_adam": [to_call(nesterov=True)],
    "scale_by_amsgrad": [
        to_call(bias_correction_mu=False),
        to_call(bias_correction_nu=False),
    ],
    "scale_by_belief": [to_call(nesterov=True)],
    "scale_by_factored_rms": [
        to_call(
            min_dim_size_to_factor=2, decay_rate_fn=lambda i, power: jnp.float32(0.9)
        ),
    ],
    "scale_by_lion": [to_call(mode="smooth", smooth_beta=3.0), to_call(mode="refined")],
    "scale_by_radam": [to_call(nesterov=True)],
    "scale_by_novograd": [to_call(eps_root=1e-2, weight_decay=-0.1)],
    "scale_by_rms": [to_call(initial_scale=1.0), to_call(bias_correction=True)],
    "scale_by_rprop": [to_call(0.01)],
    "scale_by_rss": [to_call(0.0)],
    "scale_by_sm3": [to_call(0.5, 0.8, 1e-3)],
    "scale_by_stddev": [
        to_call(eps_in_sqrt=False),
        # Without a start the first variance is all rounding; see `test_papers`.
        to_call(initial_scale=1.0, bias_correction=True),
    ],
    "scale_by_yogi": [to_call(0.9, 0.9, eps_root=1e-2, initial_accumulator_value=0.1)],
    "sgd": [to_call(rate, 0.9), to_call(0.1, momentum=0.9, nesterov=True)],
    "signum": [to_call(rate, 0.5)],
    "trace": [to_call(0.9), to_call(0.9, nesterov=True)],
    "yogi": [to_call(rate, eps=1e-2)],
}

NARROW = {
    "adafactor": [to_call(0.1, momentum=0.9, dtype_momentum=jnp.bfloat16)],
    "adam": [to_call(0.1, mu_dtype=jnp.bfloat16)],
    "adamw": [to_call(0.1, mu_dtype=jnp.bfloat16)],
    "amsgrad": [to_call(0.1, mu_dtype=jnp.bfloat16)],
    "scale_by_lion": [to_call(mu_dtype=jnp.bfloat16, mode="smooth")],
    "sgd": [to_call(0.1, 0.9, accumulator_dtype=jnp.bfloat16)],
    "trace": [to_call(0.9, True, jnp.bfloat16)],
}

# Not tested with default arguments: some have none, `lamb` has its own test, and the
# gradients here have no curvature, without which L-BFGS diverges; see `test_lbfgs.py`.
NEEDS_ARGUMENTS = {"lamb", "noisy_sgd", "scale_by_rprop", "trace"}
NEEDS_ARGUMENTS |= {"lbfgs", "scale_by_lbfgs"}


def default(row):
    return to_call(0.1) if row.kind == "optimizer" else to_call()


def is_ours(row):
    module = row.factory.__module__
    is_here = module.startswith("stepax._optimizers.") and row.name in vars(optax)
    return is_here and row.kind != "wrapper"  # these have tests of their own


def calls(row):
    plain = [] if row.name in NEEDS_ARGUMENTS else [default(row)]
    return enumerate(plain + SETS.get(row.name, []))


TABLE = [
    pytest.param(row.name, call, id=f"{row.name}-{i}")
    for row in filter(is_ours, ROWS.values())
    for i, call in calls(row)
]

NARROW_TABLE = [
    pytest.param(name, call, id=name)
    for name, calls in NARROW.items()
    for call in calls
]


def arrays(random, dtype, lead=()):
    def one(shape):
        return jnp.asarray(random.normal(size=(*lead, *shape)), dtype)

    return jax.tree.map(one, SHAPES, is_leaf=lambda x: isinstance(x, tuple))


def problem(dtype):
    """Parameters, and gradients whose size varies over three orders of magnitude."""
    random = np.random.default_rng(0)
    params, grads = arrays(random, dtype), arrays(random, dtype, (STEPS,))
    size = np.exp(1.5 * random.normal(size=STEPS))
    return params, jax.tree.map(lambda g: g * per_step(size, g), grads)


def per_step(size, x):
    return jnp.asarray(size.reshape(-1, *[1] * (x.ndim - 1)), x.dtype)


def loss(params):
    """For those that read it; it has not much to do with the gradients."""
    return 1.0 + sum(jnp.sum(p**2) for p in jax.tree.leaves(params))


def drive(tx, params, grads):
    """Gradients, parameters, updates and states of all steps, in one program.

    The gradients follow the parameters a little, so that errors would grow.
    """

    def step(carry, g):
        params, state = carry
        g = jax.tree.map(lambda g, p: g + p * jnp.asarray(0.125, p.dtype), g, params)
        updates, state = tx.update(g, state, params, value=loss(params))
        new = jax.tree.map(jnp.add, params, updates)
        return (new, state), (g, params, updates, state)

    return jax.lax.scan(step, (params, tx.init(params)), grads)[1]


def theirs(name, call):
    args, kwargs = call
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of `optimistic_adam`
        tx = getattr(optax, name)(*args, **kwargs)
    return optax.with_extra_args_support(tx)


def ours(name, call):
    args, kwargs = call
    return ROWS[name].factory(*args, **kwargs)


def drive_optax(name, call, params, grads):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return drive(theirs(name, call), params, grads)


def layout(state):
    """Names of types and fields, keys, shapes and dtypes."""
    if isinstance(state, tuple | list):
        kind = type(state).__name__, getattr(state, "_fields", None)
        return kind, [layout(x) for x in state]
    if isinstance(state, dict):
        return {k: layout(x) for k, x in state.items()}
    return state.shape, state.dtype


def numbers(tree):
    """The leaves, random keys as their bits."""
    leaves = jax.tree.leaves(tree)
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [jax.random.key_data(x) if is_key(x) else x for x in leaves]


# From JAX 0.11 on XLA makes one operation of a product and a sum in Optax's program
# and not in ours, in which a maximum that shows NaN stands between: two roundings.
ROUNDED = {"sm3", "scale_by_sm3"} if jax.__version_info__ >= (0, 11) else set()


def assert_equal(ours, theirs, name=""):
    for x, y in zip(numbers(ours), numbers(theirs), strict=True):
        assert np.isfinite(y).all()
        if name in ROUNDED and jnp.issubdtype(y.dtype, jnp.inexact):
            rtol = 4 * float(jnp.finfo(y.dtype).eps)
            np.testing.assert_allclose(x, y, rtol=rtol, strict=True)
        else:
            np.testing.assert_array_equal(x, y, strict=True)


def test_every_argument_set_belongs_to_a_row():
    assert set(SETS) | set(NARROW) <= {row.name for row in ROWS.values()}


@pytest.mark.few(3)
@pytest.mark.parametrize(("name", "call"), TABLE)
def test_float32_is_equal_to_the_last_bit(name, call):
    params, grads = problem(jnp.float32)
    found, expected = (
        drive(ours(name, call), params, grads),
        drive_optax(name, call, params, grads),
    )
    assert_equal(found, expected, name)
    assert layout(found[-1]) == layout(expected[-1])
    with jax.numpy_dtype_promotion("standard"):
        assert layout(ours(name, call).init(params)) == layout(
            theirs(name, call).init(params)
        )
    assert_un_jitted_is_close(name, call, expected)


def assert_un_jitted_is_close(name, call, expected, steps=12):
    """What the first steps give when each array is compiled by itself.

    Not to the last bit: XLA divides an array by a number that nothing else uses by
    taking the reciprocal, here that of a bias correction, for one more rounding of
    1.5 eps.  Four such divisions, a Nesterov sum of two and a momentum that adds up
    steps stay below 32 eps of the largest entry.
    """
    tx = ours(name, call)
    grads, params, updates, states = expected
    at = lambda tree, i: jax.tree.map(lambda x: x[i], tree)
    state = tx.init(at(params, 0))
    for i in range(steps):
        p = at(params, i)
        u, state = tx.update(at(grads, i), state, p, value=loss(p))
        expected = numbers((at(updates, i), at(states, i)))
        for x, y in zip(numbers((u, state)), expected, strict=True):
            is_inexact = jnp.issubdtype(y.dtype, jnp.inexact)
            eps = np.finfo(y.dtype).eps if is_inexact else 0
            bound = 32 * eps * float(np.max(np.abs(y)))
            np.testing.assert_allclose(x, y, rtol=0, atol=bound)


# Adafactor's momentum is kept in float32; see the test of narrow means.
WIDE_TABLE = [x for x in TABLE if x.id != "adafactor-2"]


@pytest.mark.few(1)
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(("name", "call"), WIDE_TABLE)
def test_float64_is_equal_to_the_last_bit(name, call, x64):
    params, grads = problem(jnp.float64)
    found = drive(ours(name, call), params, grads)
    expected = drive_optax(name, call, params, grads)
    assert_equal(found, expected, name)
    assert layout(found[-1]) == layout(expected[-1])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "call"), NARROW_TABLE)
def test_a_narrow_mean_is_rounded_less_than_by_optax(name, call):
    """We round it once a step, when it is stored; Optax also computes with it so."""
    args, kwargs = call
    wide = args[:2], {k: v for k, v in kwargs.items() if "dtype" not in k}
    params, grads = problem(jnp.float32)
    exact = follow(ours(name, wide), params, grads)
    found = follow(ours(name, call), params, grads)
    with jax.numpy_dtype_promotion("standard"):
        expected = follow(theirs(name, call), params, grads)
    assert layout(found[1]) == layout(expected[1])
    assert error(found[0], exact[0]) < error(expected[0], exact[0])


def follow(tx, params, grads):
    """Updates and states for given gradients, at parameters that stay."""

    def step(state, g):
        updates, state = tx.update(g, state, params)
        return state, (updates, state)

    return jax.lax.scan(step, tx.init(params), grads)[1]


def error(found, exact):
    parts = jax.tree.map(lambda x, y: jnp.sum((x - y) ** 2), found, exact)
    return sum(jax.tree.leaves(parts))


def test_lamb_without_decay_is_equal_to_the_rounding_of_a_norm():
    """XLA adds up the squares of fused updates in another order.

    Seven units in the last place are those of two norms of ten entries; the order
    changes with what stands before, so that with decay there is no difference.
    """
    params, grads = problem(jnp.float32)
    found, _ = follow(ours("lamb", to_call(0.1)), params, grads)
    with jax.numpy_dtype_promotion("standard"):
        expected, _ = follow(theirs("lamb", to_call(0.1)), params, grads)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=7 * 2.0**-23)
