"""Any tree that JAX accepts: odd shapes, nothing at all, complex numbers, shards."""

import inspect

import jax
import jax.numpy as jnp
import library
import numpy as np
import pytest
from cases import TREES, gradients
from keywords import keywords
from library import make, optax


row = pytest.mark.row
every_optimizer = pytest.mark.parametrize("row", library.rows(kind="optimizer"))


def step(tx, g, p, state=None):
    state = tx.init(p) if state is None else state
    # Operation by operation: a program for each takes long to compile.
    with jax.disable_jit():
        return tx.update(g, state, p, **keywords(g))


def check(tx, p, times=2):
    state = tx.init(p)
    for i in range(times):
        g = gradients(p, i)
        u, state = step(tx, g, p, state)
        assert jax.tree.structure(u) == jax.tree.structure(g)
        for x, y in zip(jax.tree.leaves(u), jax.tree.leaves(g), strict=True):
            assert jnp.shape(x) == jnp.shape(y) and jnp.isfinite(x).all()


@pytest.mark.slow
@row("sm3 and scalars, odd shapes", optax="fails")
@pytest.mark.parametrize("tree", ["0-d", "zero size", "FrozenDict"])
@every_optimizer
def test_arrays_of_any_shape_are_trained(row, tree):
    check(make(row), TREES[tree]())


@pytest.mark.few(1)
@row("None leaves, empty trees", optax="fails")
@pytest.mark.parametrize("tree", ["None leaf", "empty", "only None"])
@every_optimizer
def test_trees_may_have_nothing_in_them(row, tree):
    check(make(row), TREES[tree]())


def slope(tx, p, g):
    """Re Σ conj(g) u, of some steps together."""
    state, total = tx.init(p), 0.0
    for _ in range(4):
        u, state = step(tx, g, p, state)
        assert u.dtype == g.dtype and jnp.isfinite(u).all()
        total += float(jnp.sum(jnp.real(jnp.conj(g) * u)))
    return total


@pytest.mark.slow
@row("complex parameters", optax="fails")
@pytest.mark.parametrize("row", library.rows(kind="optimizer", holomorphic=True))
def test_complex_parameters_go_where_real_ones_would(row):
    p, g = jnp.array([1 + 2j, -0.5j]), jnp.array([0.3 + 0.6j, -1j])
    complex_slope = slope(make(row), p, g)
    # Up only for a wrapper of what descends already, and that in both.
    assert complex_slope * slope(make(row), jnp.abs(p), jnp.abs(g)) > 0


def shards():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d", None)
    return jax.sharding.NamedSharding(mesh, spec)


@pytest.mark.few(1)
@row("sharding, abstract init", optax="fails")
@every_optimizer
def test_a_state_is_sharded_as_its_parameters_and_made_of_shapes(row):
    p = {"w": jax.device_put(jnp.ones((16, 4)), shards())}
    # A projector of full rank would have the shape of the array.
    is_low = "rank" in inspect.signature(row.factory).parameters
    tx = make(row, **({"rank": 2} if is_low else {}))
    state = jax.jit(tx.init)(p)
    for x in jax.tree.leaves(state):
        if x.shape == (16, 4):
            assert x.sharding.is_equivalent_to(shards(), 2)
    shapes = jax.eval_shape(tx.init, jax.eval_shape(lambda: p))
    same = lambda x, y: x.shape == y.shape and x.dtype == y.dtype
    assert all(jax.tree.leaves(jax.tree.map(same, shapes, state)))


@pytest.mark.thinned
@row("buffer donation", optax="fails")
@every_optimizer
def test_no_buffer_is_in_parameters_and_state_at_once(row):
    p = TREES["dict"]()
    found = [x for x in jax.tree.leaves((p, make(row).init(p))) if jnp.size(x)]
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    buffers = [x.unsafe_buffer_pointer() for x in found if not is_key(x)]
    assert len(set(buffers)) == len(buffers)


@pytest.mark.slow
@row("Bugs found by us 8", optax="fails")
def test_parameters_and_fresh_state_are_donated_together():
    for name in ("dog", "prodigy", "cocob", "madgrad", "lbfgs"):
        home = optax if hasattr(optax, name) else optax.contrib
        factory = getattr(home, name)
        tx = factory(1e-2) if name == "madgrad" else factory()
        p = TREES["dict"]()

        def move(p, state, tx=tx):
            u, state = tx.update(gradients(p), state, p, **keywords(gradients(p)))
            return optax.apply_updates(p, u), state

        kept = jax.jit(move)(p, tx.init(p))
        given = jax.jit(move, donate_argnums=(0, 1))(p, tx.init(p))
        jax.tree.map(np.testing.assert_array_equal, given, kept)


@pytest.mark.slow
@row("flatten", optax="fails")
@pytest.mark.parametrize("tree", ["dict", "None leaf", "empty", "0-d", "zero size"])
def test_a_flat_optimizer_takes_any_tree(tree):
    check(optax.flatten(optax.adamw(1e-2)), TREES[tree]())


@pytest.mark.slow
@row("flatten", optax="fails")
def test_a_flat_optimizer_keeps_the_dtype_of_each_leaf():
    p = {"w": jnp.ones((2, 2), "bfloat16"), "b": jnp.ones(2)}
    tx = optax.flatten(optax.adam(1e-2))
    u, _ = step(tx, p, p)
    assert (u["w"].dtype, u["b"].dtype) == (jnp.bfloat16, jnp.float32)


@pytest.mark.few(5)
@row("Bugs found by us 10", optax="fails")
@every_optimizer
def test_a_state_of_other_shapes_is_refused(row):
    """Where there is a state at all: the gradient alone may have any shape."""
    p, other = {"w": jnp.ones((2, 2))}, {"w": jnp.ones((1, 2))}
    tx = make(row)
    state = tx.init(other)
    if not any(jnp.ndim(x) > 1 for x in jax.tree.leaves(state)):
        pytest.skip("no array in the state that is shaped as a parameter")
    with pytest.raises((ValueError, TypeError), match="shape"):
        step(tx, gradients(p), p, state)


@row("Bugs found by us 10", optax="fails")
def test_an_update_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="w"):
        optax.apply_updates({"w": jnp.ones((2, 2))}, {"w": jnp.ones(2)})
