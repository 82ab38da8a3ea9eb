"""What holds for every optimizer, transform and wrapper, over trees and dtypes."""

import contextlib
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    DTYPES,
    TREES,
    gradients,
    is_wide,
    make,
    mixed,
    rows,
    types,
)
from compare import assert_same_tree
from inside import Closure
from keywords import keywords
from loops import each
from runs import no_leaks, traced

import stepax


def one_step(tx):
    return jax.jit(lambda g, s, p: tx.update(g, s, p, **keywords(g)))


@pytest.mark.few(1)
@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("row", rows())
def test_state_is_a_scan_carry_and_traces_once(row, dtypes):
    if "complex" in dtypes and not row.holomorphic:
        pytest.skip("declared real in the registry")
    with jax.enable_x64(True) if is_wide(dtypes) else contextlib.nullcontext():
        p, g = mixed(*DTYPES[dtypes])
        tx = make(row)
        us, state = traced(tx, [g] * 3, p, **keywords(g))
        assert types(state) == types(tx.init(p))
        assert [x.dtype for x in jax.tree.leaves(us)] == [
            x.dtype for x in jax.tree.leaves(g)
        ]
        for x in jax.tree.leaves(us):
            assert jnp.isfinite(x).all()
        moved = stepax.apply_updates(p, jax.tree.map(lambda u: u[-1], us))
        assert types(moved) == types(p)


@pytest.mark.thinned
@pytest.mark.parametrize("row", rows())
def test_init_is_pure_and_looks_at_shapes_alone(row):
    p = TREES["dict"]()
    shapes = jax.eval_shape(lambda: p)
    tx = make(row)
    state = tx.init(p)
    assert_same_tree(jax.jit(tx.init)(p), state)
    assert types(jax.eval_shape(tx.init, shapes)) == types(state)
    if not isinstance(tx.node, Closure):  # a closure may measure the parameters
        assert types(tx.init(shapes)) == types(state)
    with no_leaks():
        jax.eval_shape(tx.init, p)
    assert types(tx.init(jax.tree.map(jnp.zeros_like, p))) == types(state)


@pytest.mark.few(1)
@pytest.mark.parametrize("row", rows())
def test_jitted_equals_not_jitted(row):
    p = TREES["dict"]()
    tx = make(row)
    eager = state = tx.init(p)
    jitted = one_step(tx)
    for i in range(3):
        g = gradients(p, i)
        u, eager = tx.update(g, state, p, **keywords(g))
        v, state = jitted(g, state, p)
        # What runs once a step is contracted to fused multiply-adds under jit only.
        # Optimizers of matrices mix entries, so that errors are those of the largest.
        for a, b in zip(jax.tree.leaves(u), jax.tree.leaves(v), strict=True):
            atol = max(1e-9, 1e-6 * float(jnp.max(jnp.abs(b))))
            np.testing.assert_allclose(a, b, rtol=3e-6, atol=atol)
    assert types(eager) == types(state)


@pytest.mark.few(1)
@pytest.mark.parametrize("row", rows())
def test_vmap_runs_each_on_its_own(row):
    p = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), TREES["dict"]())
    g = gradients(p)
    tx = make(row)

    def two(p, g):
        u, s = g, tx.init(p)
        for _ in range(2):
            u, s = tx.update(g, s, p, **keywords(g))
        return u

    both = jax.jit(jax.vmap(two))(p, g)
    for i in range(2):
        take = lambda x, i=i: x[i]
        alone = jax.jit(two)(jax.tree.map(take, p), jax.tree.map(take, g))
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=3e-6, atol=1e-9)
        jax.tree.map(close, jax.tree.map(take, both), alone)


@pytest.mark.few(1)
@pytest.mark.parametrize("row", rows())
def test_can_be_differentiated(row):
    p = TREES["dict"]()
    tx = make(row)
    state = tx.init(p)

    def moved(g, p):
        u, _ = tx.update(g, state, p, **keywords(g))
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(stepax.apply_updates(p, u)))

    for x in jax.tree.leaves(jax.jit(jax.grad(moved, (0, 1)))(gradients(p), p)):
        assert jnp.isfinite(x).all()


@pytest.mark.few(2)
@pytest.mark.parametrize("row", rows())
def test_parameters_and_fresh_state_can_be_donated(row):
    p = TREES["dict"]()
    tx = make(row)
    state = tx.init(p)
    arrays = [x for x in jax.tree.leaves((p, state)) if jnp.size(x)]
    numbers = [x for x in arrays if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    buffers = [x.unsafe_buffer_pointer() for x in numbers]
    assert len(set(buffers)) == len(buffers)

    def step(p, s):
        u, s = tx.update(gradients(p), s, p, **keywords(gradients(p)))
        return stepax.apply_updates(p, u), s

    # A buffer that is given twice, or has no use, is an error or a warning.
    moved, _ = jax.jit(step, donate_argnums=(0, 1))(p, state)
    assert types(moved) == types(TREES["dict"]())
    assert all(x.is_deleted() for x in jax.tree.leaves(p))


@pytest.mark.thinned
@pytest.mark.parametrize("row", rows())
def test_nothing_leaks_from_a_trace(row):
    p = TREES["dict"]()
    tx = make(row)
    step = lambda g, s, p: tx.update(g, s, p, **keywords(g))
    with no_leaks():
        state = jax.eval_shape(tx.init, p)
        u, new = jax.eval_shape(step, p, state, p)
    assert (types(u), types(new)) == (types(p), types(state))


def test_what_leaks_from_a_trace_is_seen():
    kept = []
    tx = stepax.stateless(lambda g, p: kept.append(g) or g)
    with pytest.raises(Exception, match="Leaked trace"), no_leaks():
        jax.eval_shape(lambda g: tx.update(g, stepax.EmptyState()), jnp.ones(3))


# The last is near the largest float16.
EXTREMES = {"zero": 0.0, "tiny": 1e-7, "huge": 6e4}


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_extreme_gradients_give_finite_updates(row, dtype):
    p = jax.tree.map(lambda x: x.astype(dtype), TREES["dict"]())
    tx = make(row)
    step = one_step(tx)
    for size, number in EXTREMES.items():
        g = jax.tree.map(lambda x, number=number: jnp.full_like(x, number), p)
        u, state = step(g, tx.init(p), p)
        u, state = step(g, state, p)
        for x in jax.tree.leaves(u):
            assert jnp.isfinite(x).all(), size


@pytest.mark.thinned
@pytest.mark.parametrize("row", rows())
def test_gradients_of_integers_pass(row):
    p = {"w": jnp.ones(3), "n": jnp.arange(2), "flag": jnp.array(True)}
    p["key"] = jax.random.key(0)
    nothing = lambda x: np.zeros(x.shape, jax.dtypes.float0)
    g = {k: x if k == "w" else nothing(x) for k, x in p.items()}
    tx = make(row)
    u, state = tx.update(g, tx.init(p), p, **keywords(g))
    u, state = tx.update(g, state, p, **keywords(g))
    assert u["n"].dtype == jax.dtypes.float0
    moved = stepax.apply_updates(p, u)
    assert_same_tree(
        {k: moved[k] for k in ("n", "flag", "key")},
        {k: p[k] for k in ("n", "flag", "key")},
    )


@pytest.mark.thinned
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_gradients_of_integers_are_refused_by_their_path(row):
    tx, p = make(row), {"w": jnp.ones((2, 2)), "i": jnp.ones((2, 2), int)}
    with pytest.raises(
        TypeError, match=r"trains floating-point .* \['i'\] is of dtype"
    ):
        tx.update(p, tx.init(p), p, **keywords(p))


def test_gradients_of_integers_are_refused_without_parameters():
    tx, g = stepax.adam(0.1), {"i": jnp.ones(2, int)}
    with pytest.raises(
        TypeError, match=r"trains floating-point .* \['i'\] is of dtype"
    ):
        tx.update(g, tx.init(g), None)


@each(rows())
def test_equal_calls_make_equal_transformations(row):
    tx = make(row)
    assert tx == tx and hash(tx) == hash(tx)
    assert isinstance(tx, stepax.GradientTransformation)
    assert len(tx) == 2 and tx._fields == ("init", "update")
    assert repr(tx).startswith(f"{row.name}(")
    assert (tx == 3) is False and (tx != 3) is True
    assert type(jax.tree.map(lambda x: x, tx)) is type(tx)
    if "<function" not in repr(tx):  # functions differ, and closures are not pickled
        again = make(row)
        assert tx == again and hash(tx) == hash(again)
        assert pickle.loads(pickle.dumps(tx)) == tx


@pytest.mark.few(1)
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_a_mask_keeps_other_leaves_out(row):
    p = TREES["dict"]()
    tx = stepax.masked(make(row), {"w": True, "b": False})
    g = gradients(p)
    u, state = one_step(tx)(g, tx.init(p), p)
    alone = make(row)
    v, inner = one_step(alone)({"w": g["w"]}, alone.init({"w": p["w"]}), {"w": p["w"]})
    assert_same_tree(u, {"w": v["w"], "b": g["b"]})
    assert_same_tree(jax.tree.leaves(state), jax.tree.leaves(inner))


@pytest.mark.few(30)
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_params_like_parts_of_the_state_can_be_mapped(row):
    p = TREES["dict"]()
    tx = make(row)
    state = tx.init(p)
    marked = stepax.tree.map_params(
        tx, lambda _: "param", state, transform_non_params=lambda _: "other"
    )
    found = set(jax.tree.leaves(marked))
    assert found <= {"param", "other"}
    assert ("param" in found) == any(jnp.ndim(x) > 0 for x in jax.tree.leaves(state))
