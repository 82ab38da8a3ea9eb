"""`stepax.step`: a step in one equals `update` and `apply_updates`, and needs less."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import DTYPES, TREES, gradients, is_wide, make, mixed, rows, types
from compare import array
from inside import is_array, is_none
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from keywords import keywords
from test_matrix_stages import stages

import stepax


SIDE = 256  # of a matrix that is large enough for an order of its own


def two_calls(tx, g, state, params, **extra):
    u, state = tx.update(g, state, params, **extra)
    return stepax.apply_updates(params, u), state


def assert_close(one, two, g, params, roundings=1):
    """Equal but for what one rounding less changes.

    In one program the product with the learning rate and the sum are a fused
    multiply-add, which does not round the update, while `update` rounds it to the dtype
    of its gradient.

    roundings: those of an update that differ.
    """
    assert jax.tree.structure(one) == jax.tree.structure(two)
    arrays = [[x for x in jax.tree.leaves(z) if is_array(x)] for z in (one, two)]
    assert types(arrays[0]) == types(arrays[1])
    trees = [jax.tree.leaves(x, is_leaf=is_none) for x in (one[0], two[0], g, params)]
    for x, y, d, p in zip(*trees, strict=True):
        if d is None or not jnp.issubdtype(x.dtype, jnp.inexact):
            assert x is p if d is None else (array(x) == array(y)).all()
            continue
        eps, of_u = (max(float(jnp.finfo(z.dtype).eps), 1e-7) for z in (x, d))
        x, y, p = map(array, (x, y, p))
        u = np.abs(y - p)
        most = 2 * eps * (np.abs(p) + u) + roundings * of_u * u
        assert (np.abs(x - y) <= most).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("row", rows())
def test_equals_two_calls(row, dtypes):
    if "complex" in dtypes and not row.holomorphic:
        pytest.skip("declared real in the registry")
    with jax.enable_x64(True) if is_wide(dtypes) else contextlib.nullcontext():
        p, g = mixed(*DTYPES[dtypes])
        tx, more = make(row), keywords(g)
        state = tx.init(p)
        one = jax.jit(lambda g, s, p: stepax.step(tx, g, s, p, **more))(g, state, p)
        # Matrix products, of which Newton-Schulz has fifteen, may be summed in another
        # order in another program.
        roundings = 15 if stages(tx) else 1
        assert_close(one, two_calls(tx, g, state, p, **more), g, p, roundings)


@pytest.mark.few(2)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("row", rows())
def test_takes_any_tree(row, tree):
    p = TREES[tree]()
    tx, g = make(row), gradients(p)
    first, more = tx.init(p), keywords(g)
    u, state = g, first
    one = stepax.step(tx, g, state, p, **more)
    assert_close(one, two_calls(tx, g, first, p, **more), g, p)
    for i in range(2):
        g = gradients(p, i)
        u, state = tx.update(g, state, p, **keywords(g))
        assert jax.tree.structure(u) == jax.tree.structure(g)
        assert [jnp.shape(x) for x in jax.tree.leaves(u)] == [
            jnp.shape(x) for x in jax.tree.leaves(g)
        ]
        assert types(state) == types(first)
    assert jax.tree.structure(state) == jax.tree.structure(first)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(u))


@pytest.mark.few(3)
@pytest.mark.parametrize("row", rows())
def test_needs_no_more_than_two_calls(row):
    p = {"w": jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)}
    tx = make(row)
    one, two = (costs(f, tx, p) for f in (stepax.step, two_calls))
    assert one <= two


def costs(f, tx, params):
    """Temporaries and traffic in whole arrays, rounded."""
    step = lambda p, s, g: f(tx, g, s, p, **keywords(g))
    state = jax.eval_shape(tx.init, params)
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(params, state, params)
    program: Any = lowered.compile()
    size = 4 * SIDE * SIDE
    temporaries = program.memory_analysis().temp_size_in_bytes / size
    # A program that reads and writes nothing has no entry.
    traffic = program.cost_analysis().get("bytes accessed", 0) / size
    return round(temporaries, 1), round(traffic)


# In arrays of the size of the parameters.
@pytest.mark.skipif(
    jax.__version_info__ < (0, 10),
    reason="the compiler of JAX 0.8 and 0.9 keeps up to two arrays more",
)
@pytest.mark.parametrize(
    "tx, temporaries, traffic",
    [
        (stepax.lion(1e-3), 0, 7),  # 4 for p, 3 for mu
        (stepax.contrib.schedule_free_adamw(1e-3), 0, 12),
        (stepax.adamw(1e-3), 0, 10),
        # One for each mean of squares, for both norms and for p, and two to write p.
        (stepax.adafactor(1e-3), 0, 7),
        # Its norms are known once all of its update is: that is the temporary.
        (stepax.lamb(1e-3), 1, 14),
        # Both sides of the branch are counted: waiting is 3 of these.
        (stepax.MultiSteps(stepax.adamw(1e-3), 4), 0, 15),
    ],
    ids=["lion", "schedule_free_adamw", "adamw", "adafactor", "lamb", "MultiSteps"],
)
def test_needs_no_temporaries(tx, temporaries, traffic):
    p = {"w": jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)}
    found = costs(stepax.step, tx, p)
    # JAX 0.12 counts the one element of p that the mean of Lion waits for as all of it.
    assert found in ((temporaries, traffic), (temporaries, traffic + (traffic == 7)))


@pytest.mark.few(1)
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", ["lion", "amsgrad", "rprop", "adamw"])
def test_order_changes_no_number(name, large):
    p = {"w": jax.random.normal(jax.random.key(0), (SIDE if large else 4, SIDE))}
    tx = getattr(stepax, name)(1e-2)
    state, g = tx.init(p), gradients(p)
    one = jax.jit(lambda p, s, g: stepax.step(tx, g, s, p))
    two = jax.jit(lambda p, s, g: two_calls(tx, g, s, p))
    first = second = p, state
    for _ in range(3):
        first, second = one(*first, g), two(*second, g)
    np.testing.assert_allclose(first[0]["w"], second[0]["w"], rtol=1e-6, atol=1e-6)
    assert types(first) == types(second)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{}, {"factored": False}, {"eps": 1e-3}])
def test_large_arrays_of_adafactor_differ_by_roundings_alone(arguments):
    p = {"w": jax.random.normal(jax.random.key(0), (SIDE, SIDE))}
    found = []
    for library in (stepax, optax):
        tx = library.adafactor(1e-1, **arguments)
        carry = p, tx.init(p)
        for i in range(3):
            u, state = tx.update(gradients(p, i), carry[1], carry[0])
            carry = library.apply_updates(carry[0], u), state
        found.append(carry)
    # Means of squares are those of 256 products that are rounded once less.
    for x, y in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-6, atol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("weights", [None, [1.0, 3.0, 0.0, 2.0]])
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("k", [1, 2, lambda t: 2])
def test_accumulation(k, jit, weights):
    p = TREES["dict"]()
    tx = stepax.MultiSteps(stepax.adamw(1e-2), k, weighted=weights is not None)
    one = lambda g, s, p, **more: stepax.step(tx, g, s, p, **more)
    one = jax.jit(one) if jit else one
    both, other = (p, tx.init(p)), (p, tx.init(p))
    for i in range(4):
        more = {} if weights is None else {"weight": jnp.float32(weights[i])}
        g = gradients(p, i)
        both = one(g, both[1], both[0], **more)
        other = two_calls(tx, g, other[1], other[0], **more)
        assert types(both) == types(other)
    for x, y in zip(*map(jax.tree.leaves, (both, other)), strict=True):
        np.testing.assert_allclose(array(x), array(y), rtol=2e-6, atol=1e-7)


def test_a_waiting_call_and_a_skipped_one_leave_parameters_alone():
    p = {"w": jnp.ones(3), "n": None, "python": 1.0}
    skip = stepax.MultiSteps(
        stepax.sgd(1.0), 1, should_skip_update_fn=stepax.skip_not_finite
    )
    for tx, g in (
        (stepax.MultiSteps(stepax.sgd(1.0), 2), jnp.ones(3)),
        (skip, jnp.full(3, jnp.nan)),
    ):
        new, _ = stepax.step(tx, {"w": g, "n": None, "python": 1.0}, tx.init(p), p)
        np.testing.assert_array_equal(new["w"], p["w"])
        assert new["n"] is None and new["python"] == 1.0


@pytest.mark.few(1)
@pytest.mark.parametrize("remainder", [None, 16, 8])
def test_masters(remainder):
    p = {"w": jax.random.normal(jax.random.key(0), (8, 8)).astype(jnp.bfloat16)}
    tx = stepax.master_weights(stepax.adamw(1e-3), remainder=remainder)
    both, other = (p, tx.init(p)), (p, tx.init(p))
    for i in range(5):
        g = gradients(p, i)
        both = stepax.step(tx, g, both[1], both[0])
        other = two_calls(tx, g, other[1], other[0])
    assert types(both) == types(other)
    masters = [stepax.master_params(*x)["w"] for x in (both, other)]
    # The remainder keeps 8 bits of 16, so that its last bit is 2^-16 of a parameter.
    ulp = 2**-15 if remainder == 8 else 1e-6
    np.testing.assert_allclose(*masters, rtol=ulp, atol=1e-6)


def test_stochastic_rounding_draws_the_same_noise():
    p = {"w": jnp.ones((64, 64), jnp.bfloat16)}
    tx = stepax.stochastic_rounding(stepax.sgd(1e-3), jax.random.key(0))
    state, g = tx.init(p), {"w": jnp.ones((64, 64), jnp.bfloat16)}
    new, _ = stepax.step(tx, g, state, p)
    was, _ = two_calls(tx, g, state, p)
    np.testing.assert_array_equal(array(new["w"]), array(was["w"]))
    assert 0 < (array(new["w"]) < 1).mean() < 1


# Of any two libraries, which type checkers do not know to fit.
chain: Any = stepax.chain


class Halving:
    """A user's transformation, with an attribute that only looks like ours."""

    take_step = "left"

    def init(self, params):
        return ()

    def update(self, updates, state, params=None):
        return jax.tree.map(lambda g: -g / 2, updates), state


FOREIGN: dict[str, Any] = {
    "optax": lambda: optax.sgd(1e-2, momentum=0.9),
    "class": Halving,
    "pair": lambda: stepax.GradientTransformation(*stepax.adamw(1e-2)),
    "last in a chain": lambda: chain(stepax.clip(1.0), optax.sgd(1e-2)),
    "first in a chain": lambda: chain(optax.clip(1.0), stepax.lion(1e-2)),
    "accumulation in a chain": lambda: chain(
        stepax.clip(1.0),
        stepax.MultiSteps(stepax.adam(1e-2), 2).gradient_transformation(),
    ),
    "injected": lambda: stepax.inject_hyperparams(stepax.adamw)(1e-2),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_the_engine_does_not_own(name):
    p, tx = TREES["dict"](), FOREIGN[name]()
    both, other = (p, tx.init(p)), (p, tx.init(p))
    for i in range(2):
        g = gradients(p, i)
        both = stepax.step(tx, g, both[1], both[0])
        other = two_calls(tx, g, other[1], other[0])
        assert_close(both, other, g, p)


def test_keywords_reach_the_transformation():
    p = {"w": jnp.ones(3)}
    tx = stepax.contrib.momo(1e-2)
    new, _ = stepax.step(tx, p, tx.init(p), p, value=jnp.float32(1.0))
    assert (new["w"] < 1).all()
    with pytest.raises(TypeError, match="`value`"):
        stepax.step(tx, p, tx.init(p), p)


@pytest.mark.parametrize("same", [True, False])
def test_packed(same):
    p = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
    packed = stepax.tree.pack(p)
    g = gradients(p)
    given = stepax.tree.pack(g, like=packed) if same else stepax.tree.pack(g)
    tx = stepax.adamw(1e-2)
    new, _ = stepax.step(tx, given, tx.init(packed), packed)
    assert new.layout == packed.layout
    wanted, _ = two_calls(tx, g, tx.init(p), p)
    unpacked = new.unpack()
    for k in p:
        np.testing.assert_allclose(unpacked[k], wanted[k], rtol=3e-7)


def test_keeps_sharding_and_donated_buffers():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    where = NamedSharding(mesh, PartitionSpec("data"))
    p = jax.device_put({"w": jnp.ones((SIDE, SIDE))}, where)
    tx = stepax.lion(1e-2)
    state = tx.init(p)
    step = jax.jit(lambda p, s, g: stepax.step(tx, g, s, p), donate_argnums=(0, 1))
    program: Any = step.lower(p, state, p).compile()
    assert "all-" not in program.as_text()
    new, _ = step(p, state, jax.device_put({"w": jnp.ones((SIDE, SIDE))}, where))
    assert new["w"].sharding.is_equivalent_to(where, 2) and p["w"].is_deleted()


def test_runs_under_scan_and_vmap():
    p = {"w": jnp.ones((3, 4))}
    tx = stepax.lion(1e-2)

    def train(p):
        def one(carry, _):
            p, s = carry
            return stepax.step(tx, p, s, p), None

        return jax.lax.scan(one, (p, tx.init(p)), None, length=3)[0][0]

    each = jnp.stack([train({"w": x})["w"] for x in p["w"]])
    np.testing.assert_allclose(jax.vmap(train)(p)["w"], each, rtol=1e-6)


def bad_calls():
    p = {"layer": {"w": jnp.ones((2, 3))}, "b": jnp.ones(3)}
    tx = stepax.adamw(1e-2)
    wrong = {"layer": {"w": jnp.ones((3, 2))}, "b": jnp.ones(3)}
    less = {"layer": {"w": jnp.ones((2, 3))}}
    return {
        "shape": (tx, wrong, tx.init(p), p, ValueError, r"\['layer'\]\['w'\]"),
        "structure": (tx, less, tx.init(p), p, ValueError, "'b'"),
        "no params": (tx, p, tx.init(p), None, ValueError, "`params` is `None`"),
        "factory": (stepax.adam, p, (), p, TypeError, r"did you mean `adam\(...\)`"),
        "state": (tx, p, (), p, ValueError, "state"),
    }


@pytest.mark.parametrize("name", bad_calls())
def test_bad_input_is_named(name):
    tx, g, state, params, error, words = bad_calls()[name]
    with pytest.raises(error, match=words):
        stepax.step(tx, g, state, params)
