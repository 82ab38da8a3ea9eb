"""States in 8 and 4 bits: what is stored, how exact it is, what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import make, rows, types
from inside import Coded, is_coded, slots_like_params
from keywords import keywords

import stepax


low_bit_states = stepax.low_bit_states
DTYPES = ["float32", "bfloat16", "float16"]


def params(dtype="float32", shape=(8, 512)):
    keys = jax.random.split(jax.random.key(0), 2)
    p = {"w": jax.random.normal(keys[0], shape), "b": jnp.ones(shape[-1])}
    return {k: x.astype(dtype) for k, x in p.items()}


def gradients(n, p, seed=1):
    """Gradients of which some elements are always 0, and rows differ in size."""
    out = []
    for key in jax.random.split(jax.random.key(seed), n):
        w = jax.random.normal(key, p["w"].shape) * 10.0 ** -jnp.arange(8.0)[:, None]
        w = jnp.where(jnp.arange(p["w"].shape[1]) % 5 > 0, w, 0)
        g = {"w": w, "b": jax.random.normal(key, p["b"].shape)}
        out.append({k: x.astype(p[k].dtype) for k, x in g.items()})
    return out


def run(tx, gs, p, state=None):
    """All updates, and the last state."""
    state, step, us = tx.init(p) if state is None else state, jax.jit(tx.update), []
    for g in gs:
        u, state = step(g, state, p)
        us.append(u)
    return us, state


def coded_in(state):
    return list(filter(is_coded, jax.tree.leaves(state, is_leaf=is_coded)))


def equal(x, y):
    assert jax.tree.structure(x) == jax.tree.structure(y)
    x, y = stepax.tree.unwrap_random_key_data((x, y))
    for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
        np.testing.assert_array_equal(a, b)


def per_element(state, p):
    number = sum(x.size for x in jax.tree.leaves(p))
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state)) / number


OPTIMIZERS = {
    "adamw": (stepax.adamw(1e-3), 2),
    "lion": (stepax.lion(1e-3), 1),
    "sgd": (stepax.sgd(1e-3, momentum=0.9), 1),
    "rmsprop": (stepax.rmsprop(1e-3), 1),
    "optax.adamw": (optax.adamw(1e-3), 2),
}
everyone = pytest.mark.parametrize("name", OPTIMIZERS)


@pytest.mark.few(14)
@everyone
@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_for_each_parameter(name, dtype):
    tx, slots = OPTIMIZERS[name]
    p = {"w": jnp.zeros((64, 1024), dtype)}
    size = lambda bits: per_element(jax.eval_shape(low_bit_states(tx, bits).init, p), p)
    # Of the target for two moments, 2.05 and 1.10, half for each.
    assert size(8) <= slots * 1.025
    assert size(4) <= slots * 0.55


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_slots_of_any_optimizer_are_stored_by_what_they_are(row, bits):
    inner, p = make(row), params()
    found = slots_like_params(inner)[0]
    slots = [part.slot for part in found if part is not None and part.slot]
    able = [x for x in slots if x.alike and x.encode is None]
    tx = low_bit_states(inner, bits, min_size=0)
    if not any(x.kind == "average" for x in able):
        with pytest.raises(ValueError, match="nothing in this state is a moving"):
            tx.init(p)
        return
    state = tx.init(p)
    codes = coded_in(state)
    assert codes and all(x.form.bits == bits for x in codes)
    equal(stepax.tree.dequantize(state), inner.init(p))
    g = gradients(1, p)[0]
    u, new = tx.update(g, state, p, **keywords(g))
    assert types(new) == types(state)
    # The first moments are stored, but computed from zeros: nothing is rounded yet.
    wanted, _ = inner.update(g, inner.init(p), p, **keywords(g))
    for x, y in zip(jax.tree.leaves(u), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    u, _ = tx.update(g, new, p, **keywords(g))
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(u))


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [8, 4])
def test_the_next_state_is_the_stored_one_of_the_inner_transformation(bits, dtype):
    p, inner = params(dtype), stepax.adamw(1e-3)
    tx = low_bit_states(inner, bits)
    _, state = run(tx, gradients(3, p), p)
    full = stepax.tree.dequantize(state)
    assert jax.tree.structure(full) == jax.tree.structure(inner.init(p))
    assert full[0].mu["w"].dtype == jnp.float32
    equal(stepax.tree.quantize(full, state), state)
    equal(stepax.tree.quantize(full, jax.eval_shape(tx.init, p)), state)
    g = gradients(1, p, seed=2)[0]
    u, new = jax.jit(tx.update)(g, state, p)
    wanted, after = jax.jit(inner.update)(g, full, p)
    after = jax.tree.map(lambda x, y: x.astype(y.dtype), after, full)
    np.testing.assert_allclose(
        np.float32(u["w"]), np.float32(wanted["w"]), rtol=1e-2, atol=1e-6
    )
    assert types(new) == types(stepax.tree.quantize(after, state))


def test_steps_outside_of_jit_are_those_within():
    p, tx = params(), low_bit_states(stepax.adamw(1e-3))
    state, within = tx.init(p), jax.jit(tx.init)(p)
    equal(state, within)
    for g in gradients(3, p):
        u, state = tx.update(g, state, p)
        v, within = jax.jit(tx.update)(g, within, p)
        for x, y in zip(jax.tree.leaves(u), jax.tree.leaves(v), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-8)


def test_a_program_of_full_precision_is_not_that_of_codes():
    p, inner = params(), stepax.adamw(1e-3)
    gs = gradients(2, p)
    kinds = [inner, low_bit_states(inner), low_bit_states(inner, 4), inner]
    found = [types(run_eager(tx, gs, p)) for tx in kinds]
    assert found == [types(tx.init(p)) for tx in kinds]


def run_eager(tx, gs, p):
    state = tx.init(p)
    for g in gs:
        _, state = tx.update(g, state, p)
    return state


# Asked of AdamW: the error of an update, and of the way.
@pytest.mark.slow
@pytest.mark.parametrize("bits, step, way", [(8, 0.05, 0.03), (4, 0.7, 0.4)])
def test_the_error_of_updates_and_of_the_way(bits, step, way):
    p, inner = params(), stepax.adamw(1e-3)
    gs = gradients(100, p)
    us, _ = run(low_bit_states(inner, bits), gs, p)
    vs, _ = run(inner, gs, p)
    norm, sub = stepax.tree.norm, stepax.tree.sub
    errors = [float(norm(sub(u, v)) / norm(v)) for u, v in zip(us, vs, strict=True)]
    assert np.sqrt(np.mean(np.square(errors))) <= step
    total = lambda us: jax.tree.map(lambda *xs: sum(xs), *us)
    assert norm(sub(total(us), total(vs))) / norm(total(vs)) <= way


# By how many decades sizes within a block differ.  Where they differ by more, a small
# mean that is rounded up to the first code makes an update of up to 4 times its size in
# 8 bits and 8 times in 4, which follows from the codes.
@pytest.mark.few(1)
@pytest.mark.parametrize("bits, decades, most", [(8, 2, 1.5), (4, 1, 3), (8, 6, 4)])
def test_an_update_without_gradient_is_about_as_large(bits, decades, most):
    p, inner = {"w": jnp.zeros((8, 512))}, stepax.adam(1e-3)
    sizes = 10.0 ** jax.random.uniform(jax.random.key(0), (8, 512), minval=-decades)
    keys = jax.random.split(jax.random.key(1), 50)
    gs = [{"w": sizes * jax.random.normal(key, sizes.shape)} for key in keys]
    gs.append({"w": jnp.zeros_like(sizes)})
    largest = lambda tx: float(jnp.abs(run(tx, gs, p)[0][-1]["w"]).max())
    assert largest(low_bit_states(inner, bits)) <= most * largest(inner)


@pytest.mark.slow
@pytest.mark.parametrize("bits, least, most", [(8, 0.98, 1.02), (4, 0.7, 1.45)])
@pytest.mark.parametrize("size", [4.0, 0.1, 1.0, 0.0])
def test_mean_squares_follow_gradients_that_grow_and_shrink(bits, least, most, size):
    p, steps = jnp.zeros((4, 1024)), 8000
    tx = stepax.scale_by_rms(decay=0.999)

    def nu(tx):
        def step(state, i):
            g = jax.random.normal(jax.random.fold_in(jax.random.key(0), i), p.shape)
            return tx.update(jnp.where(i < 500, 1, size) * g, state)[1], None

        return jax.lax.scan(step, tx.init(p), jnp.arange(steps))[0].nu

    wanted, found = jax.jit(lambda: nu(tx))(), nu(low_bit_states(tx, bits))
    ratio = np.median(stepax.tree.dequantize(found) / wanted)
    assert least <= ratio <= most


def test_what_is_kept():
    p = {
        "large": jnp.ones((8, 512)),
        "small": jnp.ones(4095),
        "c": jnp.ones(8192, "complex64"),
    }
    p |= {"prime": jnp.ones((8, 521)), "n": jnp.arange(8192), "none": None}
    p |= {"f": jnp.tanh, "scalar": jnp.ones([])}
    mu = low_bit_states(stepax.adam(1e-3)).init(p)[0].mu
    assert {k for k, x in mu.items() if is_coded(x)} == {"large"}
    with jax.enable_x64():
        wide = {"w": jnp.ones((8, 512), "float64")}
        state = low_bit_states(stepax.adam(1e-3)).init(wide)
        assert state[0].mu["w"].dtype == jnp.float64


@pytest.mark.parametrize(
    "mask",
    [
        {"w": True, "b": False},
        {"w": True, "**": False},
        lambda p: {k: x.ndim > 1 for k, x in p.items()},
    ],
    ids=["tree", "patterns", "function"],
)
def test_a_mask_keeps_the_slots_of_what_it_leaves_out(mask):
    tx = low_bit_states(stepax.adam(1e-3), min_size=0, mask=mask)
    mu = tx.init(params())[0].mu
    assert {k for k, x in mu.items() if is_coded(x)} == {"w"}


def test_bits_are_given_by_name():
    p = params()
    tx = low_bit_states(stepax.adam(1e-3), {"mu": 8, "nu": 4})
    state = tx.init(p)
    assert state[0].mu["w"].form == (8, True, 256, 1)
    assert state[0].nu["w"].form == (4, False, 128, 1)
    state = low_bit_states(stepax.adam(1e-3), {"mu": 8}, block=64).init(p)
    assert state[0].mu["w"].form == (8, True, 64, 1)
    assert not coded_in(state[0].nu)
    state = low_bit_states(stepax.adagrad(1e-3), {"sum_of_squares": 8}).init(p)
    assert coded_in(state)[0].form == (8, False, 256, 1)
    wanted = stepax.adagrad(1e-3).init(p)
    equal(stepax.tree.quantize(wanted, state), state)


@pytest.mark.slow
def test_what_is_not_finite_is_seen():
    p, tx = {"w": jnp.ones((8, 512))}, low_bit_states(stepax.adam(1e-3))
    for bad in jnp.nan, jnp.inf:
        _, state = run(tx, [{"w": jnp.ones((8, 512)).at[3, 300].set(bad)}], p)
        found = stepax.tree.dequantize(state)[0]
        for x in found.mu["w"], found.nu["w"]:
            assert not jnp.isfinite(x[3, 300])
            assert jnp.isfinite(x[3, :256]).all() and jnp.isfinite(x[:3]).all()


def test_init_makes_no_state_of_full_precision_on_the_way():
    p = {"w": jax.ShapeDtypeStruct((1024, 1024), jnp.float32)}
    compiled = jax.jit(low_bit_states(stepax.adamw(1e-3)).init).lower(p).compile()
    found: Any = compiled.memory_analysis()
    assert found.temp_size_in_bytes <= 0.5 * 1024 * 1024


def test_states_of_optax_are_stored_and_opened():
    p = params()
    gs = gradients(3, p)
    ours: Any = stepax.adamw(1e-3)
    theirs: Any = optax.adamw(1e-3)
    tx = low_bit_states(ours)
    with jax.numpy_dtype_promotion("standard"):
        _, full = run(theirs, gs, p)
    state = stepax.tree.quantize(full, jax.eval_shape(tx.init, p))
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(p))
    us, _ = run(tx, gs, p, state)
    with jax.numpy_dtype_promotion("standard"):
        other = low_bit_states(theirs)
        vs, _ = run(other, gs, p, stepax.tree.quantize(full, other.init(p)))
    for x, y in zip(jax.tree.leaves(us), jax.tree.leaves(vs), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-7)


WITHIN = {
    "masked": lambda tx: stepax.masked(tx, {"w": True, "b": False}),
    "partition": lambda tx: stepax.partition(
        {"a": tx, "b": stepax.sgd(0.1)}, {"w": "a", "b": "b"}
    ),
    "MultiSteps": lambda tx: stepax.MultiSteps(tx, 2).gradient_transformation(),
    "dynamic_loss_scale": lambda tx: stepax.dynamic_loss_scale(tx),
    "apply_if_finite": lambda tx: stepax.apply_if_finite(tx, 2),
    "averages": lambda tx: stepax.averages(tx),
    "master_weights": lambda tx: stepax.master_weights(tx),
    "stochastic_rounding": lambda tx: stepax.stochastic_rounding(tx, 0),
    "optax.chain": lambda tx: optax.chain(optax.clip(1.0), tx),
    "inject": lambda tx: stepax.inject_hyperparams(
        lambda rate: stepax.chain(tx, stepax.scale(rate))
    )(1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", WITHIN)
def test_it_goes_around_wrappers_and_into_them(name, dtype):
    p, wrap = params(dtype), WITHIN[name]
    ulps = dtype == "bfloat16" and name in ("master_weights", "stochastic_rounding")
    gs = gradients(4, p)
    for tx in (
        wrap(low_bit_states(stepax.adamw(1e-3))),
        low_bit_states(wrap(stepax.adamw(1e-3))),
    ):
        state = tx.init(p)
        assert len(coded_in(state)) == 2
        us, new = run(tx, gs, p)
        assert types(new) == types(state)
        assert jax.tree.structure(new) == jax.tree.structure(state)
        wanted, _ = run(wrap(stepax.adamw(1e-3)), gs, p)
        for x, y in zip(jax.tree.leaves(us), jax.tree.leaves(wanted), strict=True):
            error = np.linalg.norm(np.float32(x) - np.float32(y))
            # Updates of parameters in bfloat16 that follow masters differ by an ulp.
            assert error <= (0.25 if ulps else 0.1) * np.linalg.norm(np.float32(y))


@pytest.mark.slow
def test_a_step_that_may_be_refused_is_no_other_one():
    p, tx = params(), low_bit_states(stepax.adam(1e-3))
    checked = stepax.apply_if_finite(tx, 5)
    good, bad = gradients(1, p)[0], {"w": jnp.full((8, 512), jnp.nan), "b": p["b"]}
    _, state = run(checked, [good, bad], p)
    equal(state.inner_state, run(tx, [good], p)[1])
    assert not any(run(checked, [good, bad], p)[0][1]["w"].ravel())


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 4])
def test_lookahead_resets_codes_as_it_does_numbers(bits):
    p = params()
    pair = stepax.LookaheadParams.init_synced(p)
    g = gradients(1, p)[0]
    inner = stepax.adam(1e-3)
    lookahead = lambda tx: stepax.lookahead(tx, 2, 0.5, reset_state=True)
    for tx in (
        lookahead(low_bit_states(inner, bits)),
        low_bit_states(lookahead(inner), bits),
    ):
        state = first = tx.init(pair)
        assert len(coded_in(first)) == 2
        for _ in range(2):
            _, state = jax.jit(tx.update)(g, state, pair)
            assert types(state) == types(first)
        for x, y in zip(coded_in(state), coded_in(first), strict=True):
            equal(x, y)


@pytest.mark.slow
def test_scan_vmap_and_donation():
    p, tx = params(), low_bit_states(stepax.adamw(1e-3), 4)
    gs = gradients(3, p)
    us, wanted = run(tx, gs, p)
    stack = jax.tree.map(lambda *xs: jnp.stack(xs), *gs)
    step = lambda s, g: tx.update(g, s, p)[::-1]
    state, found = jax.jit(lambda s: jax.lax.scan(step, s, stack))(tx.init(p))
    equal(state, wanted)
    many = jax.tree.map(lambda x: jnp.stack([x, x]), p)
    states = jax.vmap(tx.init)(many)
    both = jax.tree.map(lambda x: jnp.stack([x, x]), gs[0])
    u, states = jax.jit(jax.vmap(tx.update))(both, states, many)
    np.testing.assert_allclose(u["w"][1], us[0]["w"], rtol=1e-4, atol=1e-8)
    assert coded_in(states)[0].shape == (2, 8, 512)
    given = tx.init(p)
    _, new = jax.jit(tx.update, donate_argnums=1)(gs[0], given, p)
    assert all(x.is_deleted() for x in jax.tree.leaves(coded_in(given)))
    assert types(new) == types(wanted)


def test_names_lead_to_codes():
    state = low_bit_states(stepax.adam(1e-3)).init(params())
    assert stepax.tree.get(state, "mu/w/codes").dtype == jnp.int8
    assert stepax.tree.get(state, "nu/w/scales").shape == (8, 2)
    assert isinstance(stepax.tree.get(state, "mu/w"), Coded)


@pytest.mark.parametrize("bits", [3, 16, True, 8.0, "8", {"mu": 2}, {"mu": True}])
def test_other_bits_are_refused(bits):
    name = "`mu`" if isinstance(bits, dict) else "`bits`"
    with pytest.raises(ValueError, match=rf"bits.*{name}|{name} must be 4, 8, or 32"):
        low_bit_states(stepax.adam(1e-3), bits)


@pytest.mark.parametrize("block", [1, 0, -8, True, 2.5, "8"])
def test_other_blocks_are_refused(block):
    with pytest.raises(
        ValueError, match="`block` must be a whole number of at least 2"
    ):
        low_bit_states(stepax.adam(1e-3), block=block)


def test_errors_say_what_there_is():
    p = params()
    with pytest.raises(ValueError, match=r"given \['m'\], but .* \['mu', 'nu'\]"):
        low_bit_states(stepax.adam(1e-3), {"m": 8}).init(p)
    for tx in stepax.sgd(1e-3), stepax.adagrad(1e-3), stepax.identity():
        with pytest.raises(ValueError, match=r"nothing .* average, and .* are \["):
            low_bit_states(tx).init(p)
    with pytest.raises(TypeError, match="stepax.tree.pack"):
        low_bit_states(stepax.adam(1e-3)).init(stepax.tree.pack(p))
    not_called: Any = stepax.adam
    with pytest.raises(TypeError, match="`inner` of `low_bit_states`"):
        low_bit_states(not_called)


def test_a_state_for_other_shapes_is_refused_with_its_path():
    p, tx = params(), low_bit_states(stepax.adam(1e-3))
    other = params(shape=(16, 512))
    with pytest.raises(ValueError, match=r"\['w'\] has shape \(16, 512\), `mu`"):
        tx.update(other, tx.init(p), other)
    full = stepax.tree.dequantize(tx.init(other))
    with pytest.raises(ValueError, match=r"\(16, 512\) at .*mu\['w'\].* \(8, 512\)"):
        stepax.tree.quantize(full, tx.init(p))
    with pytest.raises(ValueError, match="differ in structure"):
        stepax.tree.quantize(full[0], tx.init(p))
