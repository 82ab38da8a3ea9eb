"""Masters of bfloat16 parameters in 16 or 8 bits more."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import types

import stepax
from stepax._wrappers.remainders import join, remainder_of, rounded


WIDTHS = [16, 8]
widths = pytest.mark.parametrize("width", WIDTHS)
jits = pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])
EDGES = [0.0, -0.0, 1e-45, -1e-45, 1e-39, 3.4028235e38, -3.4028235e38, 1.1754944e-38]


def every_kind():
    """Finite floats of all sizes, ties among them."""
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    ties = (bits[:2000] & 0xFFFF0000) | 0x8000
    x = np.concatenate([bits, ties, ties - 1, ties + 1]).view(np.float32)
    return np.concatenate([x[np.isfinite(x)], np.asarray(EDGES, np.float32)])


def halves(x, width, how):
    p = how(lambda x: rounded(x, width))(x)
    return p, how(lambda x, p: remainder_of(x, p, width))(x, p)


@pytest.mark.few(1)
@jits
def test_halves_of_any_finite_number_are_that_number(how):
    x = every_kind()
    p, rest = halves(x, 16, how)
    found = np.asarray(how(join)(p, rest))
    np.testing.assert_array_equal(found.view(np.uint32), x.view(np.uint32))
    assert (p.dtype, rest.dtype) == (jnp.bfloat16, jnp.int16)


@pytest.mark.slow
@jits
def test_the_upper_half_is_the_nearest_ties_away_from_zero(how):
    x = every_kind()
    x = x[(np.abs(x) > 1e-36) & (np.abs(x) < 3e38)]
    found = np.float32(halves(x, 16, how)[0])
    step = np.ldexp(np.float64(1.0), np.frexp(np.float64(x))[1] - 8)
    scaled = np.abs(np.float64(x)) / step
    wanted = np.sign(x) * np.floor(scaled + 0.5) * step
    np.testing.assert_array_equal(found, np.float32(wanted))


def test_eight_bits_more_are_24_of_32():
    x = every_kind()
    x = x[(np.abs(x) > 1e-36) & (np.abs(x) < 3e38)]
    p, rest = halves(x, 8, jax.jit)
    assert rest.dtype == jnp.int8
    error = np.abs(np.float64(join(p, rest)) - x) / np.abs(np.float64(x))
    assert error.max() <= 2.0**-15
    assert np.median(error) <= 2.0**-17


@pytest.mark.few(1)
@widths
def test_what_is_not_finite_stays_so(width):
    x = jnp.array([jnp.nan, -jnp.nan, jnp.inf, -jnp.inf])
    found = join(*halves(x, width, jax.jit))
    np.testing.assert_array_equal(jnp.isnan(found), jnp.isnan(x))
    np.testing.assert_array_equal(found[2:], x[2:])


def start():
    rng = np.random.default_rng(1)
    p = {"w": rng.normal(size=(8, 512)), "b": 1e-4 * rng.normal(size=512)}
    return {k: jnp.asarray(x, jnp.float32) for k, x in p.items()}


def gradients(n, dtype):
    rng = np.random.default_rng(2)
    draw = lambda x: jnp.asarray(rng.normal(size=x.shape), dtype)
    return [jax.tree.map(draw, start()) for _ in range(n)]


def narrow(p):
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), p)


def followed(tx, masters, gs, apply=stepax.apply_updates):
    """Parameters and state after steps from these masters."""
    p = narrow(masters)
    p, state = stepax.set_master_params(p, tx.init(p), masters)
    for g in gs:
        u, new = tx.update(g, state, p)
        assert types(new) == types(state)
        p, state = apply(p, u), new
    return p, state


def plain(tx, p, gs):
    state = tx.init(p)
    for g in gs:
        u, state = tx.update(jax.tree.map(jnp.float32, g), state, p)
        p = stepax.apply_updates(p, u)
    return p


def equal(x, y):
    jax.tree.map(np.testing.assert_array_equal, x, y)


INNER = {
    "adamw": lambda: stepax.adamw(1e-2),
    "sgd": lambda: stepax.sgd(1e-3, momentum=0.9),
    "low bits": lambda: stepax.low_bit_states(stepax.adamw(1e-2)),
    "MultiSteps": lambda: stepax.MultiSteps(
        stepax.adamw(1e-2), 2
    ).gradient_transformation(),
    "optax": lambda: optax.adamw(1e-2),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("apply", [stepax, optax], ids=["stepax", "optax"])
@pytest.mark.parametrize("name", INNER)
def test_masters_are_those_of_single_precision_bit_for_bit(name, apply, dtype):
    inner, gs = INNER[name](), gradients(12, dtype)
    tx = stepax.master_weights(inner, remainder=16)
    with jax.numpy_dtype_promotion("standard"):  # as Optax needs it
        p, state = followed(tx, start(), gs, apply.apply_updates)
        wanted = plain(inner, start(), gs)
    equal(stepax.master_params(p, state), wanted)
    assert {str(x.dtype) for x in p.values()} == {"bfloat16"}
    equal(p, jax.tree.map(lambda x: rounded(x, 16), wanted))


@pytest.mark.slow
def test_masters_with_8_bits_follow_single_precision():
    gs = gradients(30, "bfloat16")
    tx = stepax.master_weights(stepax.adamw(1e-3), remainder=8)
    p, state = followed(tx, start(), gs)
    wanted = plain(stepax.adamw(1e-3), start(), gs)
    found = stepax.master_params(p, state)
    moved = stepax.tree.norm(stepax.tree.sub(wanted, start()))
    assert stepax.tree.norm(stepax.tree.sub(found, wanted)) <= 1e-2 * moved


@widths
def test_bytes_for_each_parameter(width):
    p = {"w": jnp.zeros((64, 1024), jnp.bfloat16)}
    inner = stepax.low_bit_states(stepax.adamw(1e-3))
    state = jax.eval_shape(stepax.master_weights(inner, remainder=width).init, p)
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((p, state)))
    assert size / p["w"].size <= {16: 6.06, 8: 5.06}[width]


@pytest.mark.few(1)
@widths
def test_multisteps_around_it_leaves_masters_finite_and_near(width):
    gs = gradients(12, "bfloat16")
    tx = stepax.MultiSteps(stepax.master_weights(stepax.sgd(0.3), remainder=width), 2)
    p, state = followed(tx.gradient_transformation(), start(), gs)
    found = stepax.master_params(p, state)
    multi = stepax.MultiSteps(stepax.sgd(0.3), 2).gradient_transformation()
    wanted = plain(multi, start(), gs)
    for k, x in found.items():
        np.testing.assert_allclose(x, wanted[k], rtol=0, atol=0.05)


def test_a_parameter_at_zero_with_a_remainder_below_is_no_nan():
    p, rest = jnp.zeros(2, jnp.bfloat16), jnp.array([-5, 7], jnp.int16)
    found = np.asarray(join(p, rest))  # whose numbers are not flushed
    assert found[0] == 0
    assert 0 <= found[1] < 1e-38


def test_what_needs_no_master_has_none():
    p = {"narrow": jnp.ones(3, "bfloat16"), "wide": jnp.ones(3), "n": jnp.arange(3)}
    p |= {"c": jnp.ones(2, "complex64"), "none": None, "f": jnp.tanh}
    tx = stepax.master_weights(stepax.adam(0.1), remainder=16)
    state = tx.init(p)
    assert types(state.masters) == types({"narrow": jnp.zeros(3, "int16")})
    g = {k: x if k in ("narrow", "wide", "c") else None for k, x in p.items()}
    u, new = tx.update(g, state, p)
    assert types(new) == types(state)
    assert u["narrow"].dtype == u["wide"].dtype == jnp.float32
    assert stepax.master_params(p, new)["wide"] is p["wide"]
    u, new = tx.update(g | {"narrow": None}, state, p)
    equal(new.masters["narrow"], state.masters["narrow"])


KINDS = {"float32": {}, "16": {"remainder": 16}, "8": {"remainder": 8}}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_masters_are_read_and_set_within_any_state(kind):
    master = lambda: stepax.master_weights(stepax.adamw(1e-2), **KINDS[kind])
    tx = stepax.partition({"a": master(), "b": stepax.sgd(0.1)}, {"w": "a", "b": "b"})
    tx = stepax.chain(stepax.clip(1.0), tx)
    p, masters = narrow(start()), start()
    p, state = stepax.set_master_params(p, tx.init(p), masters)
    found = stepax.master_params(p, state)
    exact = kind != "8"
    np.testing.assert_allclose(found["w"], masters["w"], rtol=0 if exact else 2.0**-15)
    assert found["b"].dtype == jnp.bfloat16
    assert types(state) == types(tx.init(p))
    equal(p["b"], masters["b"].astype(jnp.bfloat16))
    u, _ = tx.update(gradients(1, "bfloat16")[0], state, p)
    assert jnp.isfinite(u["w"].astype(jnp.float32)).all()


@pytest.mark.slow
def test_it_runs_jitted_scanned_mapped_and_donated():
    gs, tx = (
        gradients(4, "bfloat16"),
        stepax.master_weights(stepax.low_bit_states(stepax.adamw(1e-2)), remainder=16),
    )
    p = narrow(start())
    stack = jax.tree.map(lambda *xs: jnp.stack(xs), *gs)

    def step(carry, g):
        u, state = tx.update(g, carry[1], carry[0])
        return (stepax.apply_updates(carry[0], u), state), None

    run = lambda p, stack: jax.lax.scan(step, (p, tx.init(p)), stack)[0]
    p_end, state = jax.jit(run)(p, stack)
    both = lambda tree: jax.tree.map(lambda x: jnp.stack([x, x]), tree)
    mapped, _ = jax.jit(jax.vmap(run))(both(p), both(stack))
    np.testing.assert_allclose(
        np.float32(mapped["w"][1]), np.float32(p_end["w"]), atol=2.0**-6
    )
    given = tx.init(p)
    jax.jit(tx.update, donate_argnums=1)(gs[0], given, p)
    assert given.masters["w"].is_deleted()
    assert jnp.isfinite(stepax.master_params(p_end, state)["w"]).all()


@pytest.mark.parametrize("remainder", [4, 32, True, 16.0, "16"])
def test_other_remainders_are_refused(remainder):
    with pytest.raises(ValueError, match="`remainder` must be 16, 8 or `None`"):
        stepax.master_weights(stepax.sgd(0.1), remainder=remainder)


# A remainder is of a float32, or of what is float32 with it; complex has none.
WRAPS = {
    "master_weights": (lambda **k: stepax.master_weights(stepax.sgd(0.1), **k), ()),
    "averages": (
        lambda **k: stepax.averages(stepax.sgd(0.1), 0.9, **k),
        ("bfloat16",),
    ),
}


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("name", WRAPS)
def test_remainders_of_what_is_no_float32_are_refused(name, is_wide):
    wrap, more = WRAPS[name]
    kinds = "float64 float32 bfloat16 float16 float8_e4m3fn complex64 int32".split()
    wrong = []
    with jax.enable_x64(is_wide):
        for remainder in (16, 8):
            for dtype in (*kinds, np.float64, jnp.float64, jnp.float32):
                is_right = jnp.dtype(dtype).name in ("float32", *more)
                try:
                    wrap(dtype=dtype, remainder=remainder)
                    is_taken, said = True, ""
                except (TypeError, ValueError) as error:
                    is_taken, said = False, str(error)
                named = jnp.dtype(dtype).name in said and name in said
                if is_taken != is_right or not (is_taken or named):
                    wrong.append((dtype, remainder, said))
    assert not wrong


def test_errors_name_the_path_and_what_to_do():
    sgd: Any = stepax.sgd(0.1)
    with pytest.raises(
        ValueError, match="master weights are float32, but `dtype` is bfloat"
    ):
        stepax.master_weights(sgd, jnp.bfloat16, remainder=16)
    tx = stepax.master_weights(sgd, remainder=16)
    with pytest.raises(TypeError, match=r"\['h'\] is float16, .* store it in bfloat16"):
        tx.init({"h": jnp.ones(2, jnp.float16)})
    p = narrow(start())
    state = tx.init(p)
    with pytest.raises(ValueError, match="`params` is missing"):
        tx.update(p, state)
    with pytest.raises(ValueError, match="int16 at .* another `remainder`"):
        stepax.master_weights(sgd, remainder=8).update(p, state, p)
    other = p | {"b": jnp.ones(3, jnp.bfloat16)}
    for bad in other, {"w": p["w"]}:
        with pytest.raises(ValueError, match=r"\['b'\]"):
            stepax.master_params(bad, state)
        with pytest.raises(ValueError, match=r"\['b'\]"):
            stepax.set_master_params(p, state, bad)
    with pytest.raises(ValueError, match=r"\['b'\]"):
        tx.update(other, state, other)
    with pytest.raises(ValueError, match="`master_params` needs a state `Master"):
        stepax.master_params(p, sgd.init(p))
    with pytest.raises(ValueError, match="`set_master_params` needs a state `Master"):
        stepax.set_master_params(p, sgd.init(p), p)
